//! Serving, announcing, leaving over HTTP/1.1.

use axum::Router;
use axum::routing::get;
use lameduck::core::limits::{FINAL_GOAWAY_MAX, HTTP1_HEAD_BYTES_MAX};

use super::start::{head, life, rest, say, start, within};

const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

#[tokio::test]
async fn the_life_is_told_once_a_connection() {
    let server = start(hello());
    let mut socket = server.connect().await;
    say(&mut socket, GET).await;
    let first = head(&mut socket).await;
    let mark = format!("lameduck-life: {}; s=greeter\r\n", life());
    assert!(first.contains(&mark), "{first}");
    let mut body = [0; 5];
    within(tokio::io::AsyncReadExt::read_exact(&mut socket, &mut body))
        .await
        .expect("hello");
    say(&mut socket, GET).await;
    let second = head(&mut socket).await;
    assert!(!second.contains("lameduck-"), "{second}");
    server.idle().await;
    assert_eq!(server.gate.admitted(), 2);
}

#[tokio::test]
async fn announced_answers_are_marked_and_close() {
    let server = start(hello());
    let mut socket = server.connect().await;
    server.control.announce();
    say(&mut socket, GET).await;
    let answer = head(&mut socket).await;
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    let mark = format!("lameduck-closing: {}\r\n", life());
    assert!(answer.contains(&mark), "{answer}");
    assert_eq!(rest(&mut socket).await.expect("FIN"), b"hello");
    // The listener is still open.
    let mut socket = server.connect().await;
    server.control.resume(life().resumed());
    say(&mut socket, GET).await;
    let answer = head(&mut socket).await;
    assert!(!answer.contains("lameduck-closing"), "{answer}");
    let mark = format!("lameduck-life: {};", life().resumed());
    assert!(answer.contains(&mark), "{answer}");
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_linger_and_the_server_ends() {
    let server = start(hello());
    let mut socket = server.connect().await;
    say(&mut socket, GET).await;
    head(&mut socket).await;
    server.control.announce();
    within(server.control.close_listener()).await;
    assert!(
        tokio::net::TcpStream::connect(server.address)
            .await
            .is_err(),
        "nobody listens any more"
    );
    within(server.control.final_goaways(FINAL_GOAWAY_MAX)).await;
    server.control.close_gate();
    assert_eq!(rest(&mut socket).await.expect("FIN"), b"hello");
    drop(socket);
    server.end().await;
}

#[tokio::test]
async fn a_head_is_bounded() {
    let server = start(hello());
    let mut socket = server.connect().await;
    let long = "x".repeat(HTTP1_HEAD_BYTES_MAX);
    say(
        &mut socket,
        &format!("GET / HTTP/1.1\r\nhost: {long}\r\n\r\n"),
    )
    .await;
    let answer = head(&mut socket).await;
    assert!(answer.starts_with("http/1.1 431 "), "{answer}");
    assert_eq!(server.gate.admitted(), 0);
}

/// What a load balancer's TCP check does, and a scanner.
#[tokio::test]
async fn whatever_comes_nothing_is_left_behind() {
    let server = start(hello());
    for noise in [
        &b""[..],
        b"\x16\x03\x01\x02\x00\x01",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"GET\r\n\r\n",
        b"\r\n\r\n\r\n",
    ] {
        let mut socket = server.connect().await;
        let written = tokio::io::AsyncWriteExt::write_all(&mut socket, noise).await;
        written.expect("a buffer");
        let closed = tokio::io::AsyncWriteExt::shutdown(&mut socket).await;
        closed.expect("a socket");
        // An error is an end too.
        let _ = rest(&mut socket).await;
    }
    within(async {
        while server.control.connections().open > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(server.gate.admitted(), 0);
}
