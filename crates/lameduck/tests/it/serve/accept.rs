//! The accept queue.

use axum::Router;
use axum::routing::get;
use lameduck::cell::gate::Gate;
use lameduck::core::limits::FINAL_GOAWAY_MAX;
use lameduck::serve::{Server, bind};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::start::{life, rest, start, within};
use crate::raw::nowhere;

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
const CLOSE: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

/// A client that has sent its request as soon as the kernel let it connect.
async fn waiting(address: std::net::SocketAddr) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.expect("a backlog");
    socket.write_all(GET).await.expect("a buffer");
    socket
}

#[tokio::test]
async fn c14_what_waits_in_the_accept_queue_is_served() {
    const WAITING: usize = 200;
    let (_port, address) = nowhere();
    let server = Server::builder()
        .gate(Gate::new())
        .life(life())
        .listener(bind(address).expect("a free port"))
        .router(hello())
        .build()
        .expect("all is given");
    let control = server.control();
    let mut sockets = Vec::new();
    for _ in 0..WAITING {
        sockets.push(waiting(address).await);
    }
    // Told to close before it has accepted a single one; then the whole order of leaving, at once.
    let leaving = tokio::spawn(async move {
        control.announce();
        control.close_listener().await;
        control.final_goaways(FINAL_GOAWAY_MAX).await;
        control.close_gate();
    });
    tokio::task::yield_now().await;
    let running = tokio::spawn(server.run());
    within(leaving).await.expect("no panic");
    for mut socket in sockets {
        let answer = rest(&mut socket).await.expect("an answer, no reset");
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.ends_with("hello"), "{answer}");
    }
    assert!(TcpStream::connect(address).await.is_err());
    within(running).await.expect("no panic");
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let error = Server::builder()
        .life(life())
        .build()
        .err()
        .expect("no listener");
    assert!(error.to_string().contains(".listener(..)"), "{error}");
    let (_port, address) = nowhere();
    let listener = bind(address).expect("a free port");
    let error = Server::builder()
        .listener(listener)
        .build()
        .err()
        .expect("no life");
    assert!(error.to_string().contains(".life(..)"), "{error}");
    let again = bind(address);
    assert!(
        again.is_ok(),
        "the failed build gave the port back: {again:?}"
    );
}

#[tokio::test]
async fn a_server_that_is_dropped_lets_nobody_wait() {
    let server = start(hello());
    let mut socket = server.connect().await;
    socket.write_all(CLOSE).await.expect("a buffer");
    server.idle_after(1).await;
    let control = server.control.clone();
    server.ended.abort();
    within(control.close_listener()).await;
    within(control.final_goaways(std::time::Duration::ZERO)).await;
    assert_eq!(control.connections().open, 0);
}
