//! The numbers of a server: what their defaults let through, and what changing them does.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::routing::{get, post};
use lameduck::core::limits::{
    FIRST_BYTE_MAX, FIRST_HEAD_MAX, HTTP1_IDLE_MAX, SERVER_CONNECTION_WINDOW_BYTES, WINDOW_BYTES,
};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::client::{Client, PING, SHUTDOWN_PING};
use super::start::{Running, head, rest, say, start, start_with, within};
use crate::raw::{DATA, END_STREAM, GOAWAY, HEADERS, LAST_STREAM_MAX};
use crate::standing::Standing;

const SECOND: Duration = Duration::from_secs(1);
const HELLO: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

/// A length, an echo, and a handler that never reads its upload.
fn routes() -> Router {
    let sizes = async |request: Request| {
        let sizes = request.headers().values().map(|value| value.len());
        sizes.sum::<usize>().to_string()
    };
    Router::new()
        .route("/", get(sizes))
        .route("/echo", post(|body: Bytes| async move { body }))
        .route("/unread", post(unread))
}

async fn unread(request: Request) -> &'static str {
    let _held = request;
    std::future::pending().await
}

/// Sends a request and reads its answer, whose body has `expected`.
async fn ask(socket: &mut TcpStream, request: &str, expected: &str) {
    say(socket, request).await;
    let answer = head(socket).await;
    assert!(answer.starts_with("http/1.1 200 "), "{answer}");
    let mut body = vec![0; expected.len()];
    within(socket.read_exact(&mut body)).await.expect("a body");
    assert_eq!(String::from_utf8_lossy(&body), expected);
}

/// Resolves when the server has nothing to do but to wait.
async fn idle(server: &Running) {
    while server.control.connections().idle < server.control.connections().open {
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn s11_idle_connections_outlive_the_balancers_before_them() {
    let server = start(routes());
    let mut silent = server.connect().await;
    let mut used = server.connect().await;
    ask(&mut used, HELLO, "1").await;
    let standing = Standing::begin();
    idle(&server).await;
    standing.advance(Duration::from_secs(600)).await;
    idle(&server).await;
    ask(&mut silent, HELLO, "1").await;
    ask(&mut used, HELLO, "1").await;
    // Nothing is kept for ever.
    let mut never = server.connect().await;
    while server.control.connections().open < 3 {
        tokio::task::yield_now().await;
    }
    idle(&server).await;
    standing.advance(HTTP1_IDLE_MAX.max(FIRST_BYTE_MAX)).await;
    for socket in [&mut silent, &mut used, &mut never] {
        assert_eq!(rest(socket).await.expect("FIN"), b"");
    }
}

#[tokio::test]
async fn s11_b_without_bounds_they_stay_open() {
    let server = start_with(routes(), |limits| {
        limits.first_byte = None;
        limits.http1_idle = None;
    });
    let mut silent = server.connect().await;
    let mut used = server.connect().await;
    ask(&mut used, HELLO, "1").await;
    let standing = Standing::begin();
    idle(&server).await;
    // A keep-alive of the kernel's goes by real time.
    standing.advance(100 * HTTP1_IDLE_MAX).await;
    idle(&server).await;
    ask(&mut silent, HELLO, "1").await;
    ask(&mut used, HELLO, "1").await;
}

#[tokio::test]
async fn s11_c_a_first_head_that_is_drip_fed_has_an_end() {
    let server = start(routes());
    let mut sockets = Vec::new();
    for begin in ["G", "PRI * HT", "GET / HTTP/1.1\r\nhost:"] {
        let mut socket = server.connect().await;
        say(&mut socket, begin).await;
        sockets.push(socket);
    }
    while server.control.connections().open < 3 {
        tokio::task::yield_now().await;
    }
    let standing = Standing::begin();
    idle(&server).await;
    standing.advance(FIRST_HEAD_MAX - SECOND).await;
    for socket in &mut sockets {
        say(socket, "a").await;
    }
    idle(&server).await;
    standing.advance(SECOND).await;
    for mut socket in sockets {
        // An answer to nonsense may come before the end.
        let _ = rest(&mut socket).await;
    }
    while server.control.connections().open > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.gate.admitted(), 0);
}

#[tokio::test]
async fn d45_large_cookies_are_served() {
    let server = start(routes());
    for size in [15_000, 20_000, 60_000] {
        let cookie = "c".repeat(size);
        let mut socket = server.connect().await;
        let request = format!("GET / HTTP/1.1\r\nhost: a\r\ncookie: {cookie}\r\n\r\n");
        ask(&mut socket, &request, &(size + 1).to_string()).await;
        let request = format!("GET /?{cookie} HTTP/1.1\r\nhost: a\r\n\r\n");
        ask(&mut socket, &request, "1").await;
        let mut sender = http2(&server).await;
        let request = http::Request::get("http://a/").header("cookie", &cookie);
        let request = request.body(Body::empty()).expect("a request");
        let answer = within(sender.send_request(request)).await;
        assert_eq!(answer.expect("an answer").status(), 200, "{size}");
    }
}

#[tokio::test]
async fn d45_b_the_limit_of_heads_can_be_moved() {
    let server = start_with(routes(), |limits| {
        limits.http1_head_bytes = 1 << 20;
        limits.http1_headers = 200;
        limits.http2_head_bytes = 1 << 14;
    });
    let mut socket = server.connect().await;
    let cookie = "c".repeat(900_000);
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\ncookie: {cookie}\r\n\r\n");
    ask(&mut socket, &request, "900001").await;
    let many = "a: b\r\n".repeat(150);
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n");
    ask(&mut socket, &request, "151").await;
    let mut sender = http2(&server).await;
    let request = http::Request::get("http://a/").header("cookie", &cookie[..20_000]);
    let request = request.body(Body::empty()).expect("a request");
    let answer = within(sender.send_request(request)).await;
    assert_eq!(answer.expect("an answer").status(), 431);
}

type Sender = hyper::client::conn::http2::SendRequest<Body>;

async fn http2(server: &Running) -> Sender {
    let io = hyper_util::rt::TokioIo::new(server.connect().await);
    let executor = hyper_util::rt::TokioExecutor::new();
    let made = hyper::client::conn::http2::handshake(executor, io).await;
    let (sender, connection) = made.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

/// Reads frames up to this stream's last one.
async fn answered(client: &mut Client, stream: u32) {
    loop {
        let frame = within(client.frame()).await.expect("the server is there");
        assert_ne!(frame.kind, GOAWAY, "{frame:?}");
        if frame.stream == stream && frame.ends_stream() {
            return;
        }
    }
}

#[tokio::test]
async fn s10_an_unread_upload_leaves_room_for_the_others() {
    let server = start(routes());
    let mut client = Client::connect(server.address).await;
    let piece = vec![7; 16 << 10];
    // All but one of the streams' windows that a connection has room for.
    for _ in 1..SERVER_CONNECTION_WINDOW_BYTES / WINDOW_BYTES {
        let stream = client.open("/unread").await;
        for _ in 0..WINDOW_BYTES >> 14 {
            client.data(stream, &piece, 0).await;
        }
    }
    let beside = client.open("/echo").await;
    client.data(beside, b"12345678", END_STREAM).await;
    let frame = within(client.frame_of(DATA)).await;
    assert_eq!(
        (frame.stream, &frame.payload[..]),
        (beside, &b"12345678"[..])
    );
}

#[tokio::test]
async fn s10_b_many_small_messages_that_wait_are_no_attack() {
    let server = start(routes());
    let mut client = Client::connect(server.address).await;
    let stream = client.open("/unread").await;
    for _ in 0..6_000 {
        client.data(stream, &[7; 27], 0).await;
    }
    let beside = client.get("/").await;
    answered(&mut client, beside).await;
}

#[tokio::test]
async fn s11_d_an_old_http1_connection_ends_with_an_answer() {
    let server = start_with(routes(), |limits| limits.age = Some(60 * SECOND));
    let mut socket = server.connect().await;
    ask(&mut socket, HELLO, "1").await;
    let standing = Standing::begin();
    idle(&server).await;
    standing.advance(70 * SECOND).await;
    idle(&server).await;
    assert_eq!(server.control.connections().open, 1, "it is not closed");
    say(&mut socket, HELLO).await;
    let answer = head(&mut socket).await;
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    assert!(!answer.contains("lameduck-closing"), "{answer}");
    assert_eq!(rest(&mut socket).await.expect("FIN"), b"1");
}

#[tokio::test]
async fn s11_e_an_old_http2_connection_takes_leave_in_two_steps() {
    for idle_alone in [false, true] {
        let server = start_with(routes(), |limits| {
            if idle_alone {
                limits.http2_idle = Some(30 * SECOND);
            } else {
                limits.age = Some(60 * SECOND);
            }
            limits.ping_interval = None;
        });
        let mut client = Client::connect(server.address).await;
        let first = client.get("/").await;
        answered(&mut client, first).await;
        let standing = Standing::begin();
        idle(&server).await;
        // Twice the idle time: there was a request before the first look.
        standing.advance(35 * SECOND).await;
        idle(&server).await;
        standing.advance(35 * SECOND).await;
        let goaway = within(client.frame_of(GOAWAY)).await;
        assert_eq!(goaway.payload[..4], LAST_STREAM_MAX.to_be_bytes());
        let ping = within(client.frame_of(PING)).await;
        assert_eq!(ping.payload, SHUTDOWN_PING);
        // A request that crosses it on the way is served.
        let crossing = client.get("/").await;
        assert_eq!(within(client.frame_of(HEADERS)).await.stream, crossing);
        client.pong().await;
        let goaway = within(client.frame_of(GOAWAY)).await;
        assert_eq!(goaway.payload[..4], crossing.to_be_bytes());
        standing.end();
    }
}

#[tokio::test]
async fn s11_f_the_number_of_connections_is_a_setting() {
    let server = start_with(routes(), |limits| limits.connections = 1);
    let mut first = server.connect().await;
    ask(&mut first, HELLO, "1").await;
    let mut second = server.connect().await;
    say(&mut second, HELLO).await;
    assert_eq!(server.control.connections().open, 1);
    drop(first);
    let answer = head(&mut second).await;
    assert!(answer.starts_with("http/1.1 200 "), "{answer}");
}
