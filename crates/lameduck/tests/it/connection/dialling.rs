//! Dials that come to nothing, each with its own name.

use std::net::SocketAddr;
use std::time::Duration;

use lameduck::consumer::connection::{Connection, DialError, DialFailure, End};
use lameduck::core::limits::DIAL_MAX;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::config;
use crate::raw::{LAST_STREAM_MAX, Peer, listen, nowhere};
use crate::serve::start::{HANG, within};
use crate::standing::{Standing, TICK};

async fn failure(address: SocketAddr) -> DialError {
    failure_by(HANG, address).await
}

async fn failure_by(deadline: Duration, address: SocketAddr) -> DialError {
    let mut config = config();
    config.deadline = deadline;
    let dialled = Connection::dial(address, &config).await;
    let error = dialled.expect_err("nobody serves there");
    assert_eq!(error.address, address);
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    error
}

#[tokio::test]
async fn nobody_listens() {
    let (_port, address) = nowhere();
    assert_eq!(failure(address).await.failure, DialFailure::Refused);
}

#[tokio::test]
async fn accepted_by_the_kernel_and_silent() {
    let (_listener, address) = listen().await;
    let error = failure_by(Duration::from_millis(200), address).await;
    assert_eq!(error.failure, DialFailure::Silent);
}

#[tokio::test]
async fn a_silent_peers_socket_is_not_kept() {
    let (listener, address) = listen().await;
    let standing = Standing::begin();
    let begun = Instant::now();
    let dialled = tokio::spawn(failure_by(DIAL_MAX, address));
    let mut peer = Peer::accept(&listener).await;
    standing.advance(DIAL_MAX).await;
    let error = within(dialled).await.expect("no panic");
    assert_eq!(error.failure, DialFailure::Silent);
    // Its end is what this waits for.
    peer.rest().await;
    assert_eq!(begun.elapsed(), DIAL_MAX + TICK);
}

#[tokio::test]
async fn closed_or_reset_before_settings() {
    let (listener, address) = listen().await;
    let close = async { drop(Peer::accept(&listener).await) };
    let (error, ()) = tokio::join!(failure(address), close);
    assert!(
        matches!(
            error.failure,
            DialFailure::Ended(End::PeerClosed | End::Lost(_))
        ),
        "{error:?}"
    );
    let kill = async { Peer::accept(&listener).await.kill() };
    let (error, ()) = tokio::join!(failure(address), kill);
    assert!(
        matches!(error.failure, DialFailure::Ended(End::Lost(_))),
        "{error:?}"
    );
}

#[tokio::test]
async fn another_protocol() {
    let (listener, address) = listen().await;
    let http1 = async {
        let (mut socket, _) = listener.accept().await.expect("a client");
        let mut preface = [0; 24];
        socket.read_exact(&mut preface).await.expect("a preface");
        let answer = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
        socket.write_all(answer).await.expect("the client reads");
        let mut rest = Vec::new();
        // Its end is what this waits for, however it comes.
        let _ = socket.read_to_end(&mut rest).await;
    };
    let (error, ()) = tokio::join!(failure(address), http1);
    assert!(
        matches!(error.failure, DialFailure::Ended(End::Protocol(_))),
        "{error:?}"
    );
}

/// `openssl s_server` and Go answer a preface in clear text by an alert, some others close in silence.
#[tokio::test]
async fn d05_b_a_tls_server() {
    for alert in [
        &b"\x15\x03\x01\x00\x02\x02\x46"[..],
        b"\x15\x03\x03\x00\x02\x02\x0a",
        b"",
    ] {
        let (listener, address) = listen().await;
        let tls = async {
            let (mut socket, _) = listener.accept().await.expect("a client");
            let mut preface = [0; 24];
            socket.read_exact(&mut preface).await.expect("a preface");
            socket.write_all(alert).await.expect("the client reads");
            socket.shutdown().await.expect("the client reads");
            let mut rest = Vec::new();
            // Its end is what this waits for, however it comes.
            let _ = socket.read_to_end(&mut rest).await;
        };
        let (error, ()) = tokio::join!(failure(address), tls);
        let expected = if alert.is_empty() {
            DialFailure::Ended(End::PeerClosed)
        } else {
            DialFailure::Tls
        };
        assert_eq!(error.failure, expected, "{error}");
        assert!(error.to_string().contains("TLS"), "{error}");
    }
}

#[tokio::test]
async fn r8_the_last_descriptors_are_left_to_others() {
    let (listener, address) = listen().await;
    let mut config = config();
    config.descriptors_kept = u64::MAX;
    let dialled = Connection::dial(address, &config).await;
    let error = dialled.expect_err("all are left to others");
    assert_eq!(error.failure, DialFailure::NoDescriptor, "{error}");
    config.descriptors_kept = 0;
    let (dialled, _peer) = tokio::join!(
        Connection::dial(address, &config),
        Peer::ready(&listener, &[])
    );
    dialled.expect("it may take any");
}

#[tokio::test]
async fn a_peer_that_says_goaway_at_once_is_made_and_not_usable() {
    let (listener, address) = listen().await;
    let leaving = async {
        let mut peer = Peer::ready(&listener, &[]).await;
        peer.goaway(LAST_STREAM_MAX, 0).await;
        peer
    };
    let (connection, peer) = tokio::join!(super::dial(address), leaving);
    assert!(connection.unusable().await.going_away.is_some());
    assert!(connection.reserve().is_none());
    drop(peer);
}
