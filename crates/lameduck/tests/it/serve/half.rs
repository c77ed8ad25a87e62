//! Requests of which a part has come when the server leaves.

use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use lameduck::core::limits::{
    CUT_FLUSH, FINAL_GOAWAY_MAX, HANDSHAKE_DRAINING_MAX, HTTP1_LINGER, LINGER_CLEAN_MAX,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::yield_now;

use super::client::Client;
use super::start::{Running, head, rest, say, start, within};
use crate::raw::{END_STREAM, Frame, GOAWAY, HEADERS, literal};
use crate::standing::{Standing, TICK};

const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

const CHECK: &str = "/grpc.health.v1.Health/Check";

fn server() -> Running {
    let echo = async |body: String| body;
    let router = Router::new()
        .route("/", get(|| async { "hello" }).post(echo))
        .route(CHECK, post(echo));
    start(router)
}

/// A connection that `first` was said on, and answered by five bytes.
async fn used(server: &Running, first: &str) -> TcpStream {
    let mut socket = server.connect().await;
    say(&mut socket, first).await;
    head(&mut socket).await;
    let mut body = [0; 5];
    within(socket.read_exact(&mut body)).await.expect("a body");
    server.idle().await;
    socket
}

/// Tells every connection to go; they have heard it once this has had its turn.
async fn leave(server: &Running, within: Duration) {
    server.control.go_away_all(within);
    yield_now().await;
}

#[tokio::test]
async fn s18_a_head_in_two_pieces_around_the_end_of_the_linger_is_served() {
    let upload = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";
    for (first, at) in [(GET, 1), (GET, 20), (upload, 20), (GET, GET.len() - 1)] {
        let server = server();
        let mut socket = used(&server, first).await;
        let standing = Standing::begin();
        leave(&server, FINAL_GOAWAY_MAX).await;
        standing.advance(HTTP1_LINGER / 2).await;
        say(&mut socket, &GET[..at]).await;
        standing.advance(HTTP1_LINGER).await;
        say(&mut socket, &GET[at..]).await;
        let answer = head(&mut socket).await;
        assert!(answer.starts_with("http/1.1 200"), "{at}: {answer}");
        standing.end();
        assert_eq!(rest(&mut socket).await.expect("FIN"), b"hello");
    }
}

#[tokio::test]
async fn s18_the_beginning_of_a_pipelined_head_counts() {
    let server = server();
    let mut socket = used(&server, &format!("{GET}{}", &GET[..20])).await;
    let standing = Standing::begin();
    leave(&server, FINAL_GOAWAY_MAX).await;
    standing.advance(HTTP1_LINGER + TICK).await;
    say(&mut socket, &GET[20..]).await;
    let answer = head(&mut socket).await;
    assert!(answer.starts_with("http/1.1 200"), "{answer}");
    standing.end();
}

#[tokio::test]
async fn s18_a_head_that_is_late_is_answered_and_the_last_one() {
    for closed in [false, true] {
        let server = server();
        let mut socket = used(&server, GET).await;
        let standing = Standing::begin();
        // New requests are over when the linger is.
        leave(&server, HTTP1_LINGER).await;
        standing.advance(HTTP1_LINGER / 2).await;
        say(&mut socket, &GET[..20]).await;
        standing.advance(HTTP1_LINGER).await;
        if closed {
            server.control.close_gate();
        }
        standing.advance(HANDSHAKE_DRAINING_MAX / 2).await;
        say(&mut socket, &GET[20..]).await;
        let answer = head(&mut socket).await;
        let status = if closed { "503" } else { "200" };
        assert!(
            answer.starts_with(&format!("http/1.1 {status}")),
            "{answer}"
        );
        assert!(answer.contains("connection: close\r\n"), "{answer}");
        standing.end();
        rest(&mut socket).await.expect("FIN");
    }
}

#[tokio::test]
async fn s18_half_a_head_and_silence_hold_a_stop_for_little() {
    let server = server();
    let mut socket = used(&server, GET).await;
    within(server.control.close_listener()).await;
    let standing = Standing::begin();
    leave(&server, HTTP1_LINGER).await;
    say(&mut socket, &GET[..20]).await;
    for pause in [HTTP1_LINGER, HANDSHAKE_DRAINING_MAX] {
        standing.advance(pause).await;
        yield_now().await;
    }
    within(server.ended).await.expect("no panic");
    standing.end();
}

#[tokio::test]
async fn s19_half_a_frame_and_silence_hold_a_stop_for_little() {
    // A head of a frame, a part of a frame, and a header block that goes on in a frame that does not come.
    let block = Frame::bytes(HEADERS, END_STREAM, 1, &[0x82, 0x86]);
    let unknown = Frame::bytes(0xbe, 0, 0, b"unknown");
    for bytes in [&unknown[..5], &unknown[..12], &block[..]] {
        let server = server();
        let mut client = Client::connect(server.address).await;
        client.socket.write_all(bytes).await.expect("it reads");
        within(server.control.close_listener()).await;
        let standing = Standing::begin();
        leave(&server, FINAL_GOAWAY_MAX).await;
        client.frame_of(GOAWAY).await;
        for pause in [FINAL_GOAWAY_MAX, CUT_FLUSH, HANDSHAKE_DRAINING_MAX] {
            standing.advance(pause).await;
            // Its task has its turn.
            yield_now().await;
        }
        standing.advance(LINGER_CLEAN_MAX).await;
        within(server.ended).await.expect("no panic");
        standing.end();
    }
}

#[tokio::test]
async fn s19_a_health_check_whose_body_never_ends_does_not_hold_a_stop() {
    let server = server();
    let mut client = Client::connect(server.address).await;
    // `:method: POST`, `:scheme: http`, the path, `content-type: application/grpc`; no end of the stream.
    let mut block = vec![0x83, 0x86];
    block.extend(literal(":path", CHECK));
    block.extend(literal(":authority", "test"));
    block.extend(literal("content-type", "application/grpc"));
    client.open_block(&block, 0).await;
    within(async {
        while server.control.connections().idle > 0 {
            yield_now().await;
        }
    })
    .await;
    within(server.control.close_listener()).await;
    server.control.go_away_all(FINAL_GOAWAY_MAX);
    client.frame_of(GOAWAY).await;
    client.pong().await;
    client.frame_of(GOAWAY).await;
    server.control.close_gate();
    server.control.end_health();
    server.end().await;
}
