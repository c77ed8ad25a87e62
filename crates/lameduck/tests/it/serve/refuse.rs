//! Refusals: what comes after the gate is closed, and what it must not harm.

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use bytes::Bytes;
use http::Request;
use lameduck::core::limits::{LINGER_MAX, REFUSE_READ_BYTES, REFUSE_READ_MAX};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::client::{Client, code};
use super::start::{Running, head, life, rest, say, start, within};
use crate::raw::{DATA, END_STREAM, RST_STREAM};
use crate::standing::{Standing, TICK};

const REFUSED_STREAM: u32 = 7;

fn server() -> Running {
    start(
        Router::new()
            .route("/", get(|| async { "hello" }))
            .route("/early", post(|| async { "did not read" }))
            .route("/read", post(|body: String| async move { body })),
    )
}

#[tokio::test]
async fn on_http2_by_reset_after_the_body_and_other_streams_go_on() {
    let server = server();
    let mut client = Client::connect(server.address).await;
    let admitted = client.open("/read").await;
    client.data(admitted, b"he", 0).await;
    within(async {
        while server.gate.admitted() == 0 {
            yield_now().await;
        }
    })
    .await;
    server.control.close_gate();
    let standing = Standing::begin();
    let bare = client.get("/").await;
    let reset = client.frame_of(RST_STREAM).await;
    assert_eq!((reset.stream, code(&reset)), (bare, REFUSED_STREAM));
    // With a body to come: not before it has come.
    let with_body = client.open("/read").await;
    client.data(with_body, b"more", 0).await;
    // What is refused after it says that it is being read.
    let bare = client.get("/").await;
    assert_eq!(client.frame_of(RST_STREAM).await.stream, bare);
    standing.advance(REFUSE_READ_MAX - 2 * TICK).await;
    client.data(admitted, b"llo", END_STREAM).await;
    let data = client.frame_of(DATA).await;
    assert_eq!((data.stream, &data.payload[..]), (admitted, &b"hello"[..]));
    client.data(with_body, b"", END_STREAM).await;
    let reset = client.frame_of(RST_STREAM).await;
    assert_eq!((reset.stream, code(&reset)), (with_body, REFUSED_STREAM));
    assert_eq!(server.gate.admitted(), 1);
}

#[tokio::test]
async fn on_http2_a_body_without_end_is_bounded() {
    let server = server();
    server.control.close_gate();
    let mut client = Client::connect(server.address).await;
    let standing = Standing::begin();
    let begun = Instant::now();
    let stream = client.open("/read").await;
    let piece = vec![0; 16 << 10];
    for _ in 0..REFUSE_READ_BYTES / piece.len() {
        client.data(stream, &piece, 0).await;
    }
    let reset = client.frame_of(RST_STREAM).await;
    assert_eq!((reset.stream, code(&reset)), (stream, REFUSED_STREAM));
    assert_eq!(begun.elapsed(), Duration::ZERO);
    // By time, where it does not come by bytes.
    let stream = client.open("/read").await;
    let bare = client.get("/").await;
    assert_eq!(client.frame_of(RST_STREAM).await.stream, bare);
    standing.advance(REFUSE_READ_MAX).await;
    let reset = client.frame_of(RST_STREAM).await;
    assert_eq!((reset.stream, code(&reset)), (stream, REFUSED_STREAM));
    assert_eq!(begun.elapsed(), REFUSE_READ_MAX + TICK);
}

#[tokio::test]
async fn on_http1_by_503_that_an_uploading_client_reads_whole() {
    let server = server();
    server.control.announce();
    server.control.close_gate();
    let standing = Standing::begin();
    for size in [0, 64 << 10, 4 << 20] {
        let mut socket = server.connect().await;
        let request = format!("POST /read HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n");
        say(&mut socket, &request).await;
        let upload = vec![b'x'; size];
        let (first, second) = upload.split_at(size / 2);
        socket.write_all(first).await.expect("the server reads on");
        within(socket.readable()).await.expect("it answers at once");
        // Just before it reads no longer.
        standing.advance(LINGER_MAX - 2 * TICK).await;
        yield_now().await;
        socket.write_all(second).await.expect("the server reads on");
        let answer = head(&mut socket).await;
        assert!(answer.starts_with("http/1.1 503 "), "{answer}");
        for mark in ["lameduck-refused", "lameduck-closing"] {
            let mark = format!("{mark}: {}\r\n", life());
            assert!(answer.contains(&mark), "{answer}");
        }
        assert!(answer.contains("connection: close\r\n"), "{answer}");
        let body = rest(&mut socket).await.expect("FIN, no reset");
        assert!(!body.is_empty());
    }
    assert_eq!(server.gate.admitted(), 0);
}

type Sender = h2::client::SendRequest<Bytes>;

async fn dial(server: &Running) -> Sender {
    let socket = TcpStream::connect(server.address).await.expect("listens");
    socket.set_nodelay(true).expect("a socket");
    let (sender, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

/// One POST of 64 bytes, the end of the stream in a frame of its own, as gRPC clients send.
async fn call(sender: &Sender, path: &'static str) -> Result<http::StatusCode, h2::Error> {
    let request = Request::post(format!("http://test{path}"))
        .body(())
        .expect("a request");
    let (answer, mut body) = sender.clone().ready().await?.send_request(request, false)?;
    // A server that has answered by now takes no more: the answer counts.
    let _ = body.send_data(Bytes::from_static(&[0; 64]), false);
    yield_now().await;
    let _ = body.send_data(Bytes::new(), true);
    answer.await.map(|head| head.status())
}

async fn calls(
    sender: Sender,
    path: &'static str,
    wanted: fn(&Result<http::StatusCode, h2::Error>) -> bool,
) {
    const LANES: usize = 64;
    const EACH: usize = 100;
    let mut lanes = tokio::task::JoinSet::new();
    for _ in 0..LANES {
        let sender = sender.clone();
        lanes.spawn(async move {
            for _ in 0..EACH {
                let result = within(call(&sender, path)).await;
                assert!(wanted(&result), "{result:?}");
            }
        });
    }
    lanes.join_all().await;
}

#[tokio::test]
async fn thousands_of_refusals_do_not_end_the_connection() {
    let server = server();
    let sender = dial(&server).await;
    server.control.close_gate();
    // An unread body kills the connection after about 2,900 of these.
    calls(sender, "/read", |result| {
        let reason = result.as_ref().err().and_then(h2::Error::reason);
        reason == Some(h2::Reason::REFUSED_STREAM)
    })
    .await;
    assert_eq!(server.gate.admitted(), 0);
}

#[tokio::test]
async fn thousands_of_answers_without_reading_do_not_end_the_connection() {
    let server = server();
    let sender = dial(&server).await;
    calls(sender, "/early", |result| {
        result.as_ref().is_ok_and(|status| status.is_success())
    })
    .await;
    server.idle().await;
}

#[tokio::test]
async fn a_tonic_client_sees_the_proof() {
    let server = server();
    server.control.close_gate();
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", server.address))
        .expect("an address");
    let mut grpc = tonic::client::Grpc::new(endpoint.connect().await.expect("it listens"));
    grpc.ready().await.expect("connected");
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let path = http::uri::PathAndQuery::from_static("/greeter/Hello");
    let status = grpc
        .unary(tonic::Request::new(()), path, codec)
        .await
        .expect_err("it is refused");
    let mut next: Option<&(dyn Error + 'static)> = Some(&status);
    let reason = std::iter::from_fn(|| {
        let now = next?;
        next = now.source();
        Some(now)
    })
    .find_map(|cause| cause.downcast_ref::<h2::Error>());
    let reason = reason.expect("an HTTP/2 reason");
    assert!(reason.is_remote() && reason.is_reset());
    assert_eq!(reason.reason(), Some(h2::Reason::REFUSED_STREAM));
}
