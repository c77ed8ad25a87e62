//! A forced end never looks like a normal one.

use std::convert::Infallible;
use std::io::ErrorKind;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::{any, get};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Request;
use lameduck::core::limits::CUT_FLUSH;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::client::{Client, code};
use super::start::{HANG, Running, head, life, rest, say, start, within};
use crate::raw::{DATA, END_STREAM, HEADERS, RST_STREAM};
use crate::standing::{Standing, TICK};

const CANCEL: u32 = 8;
const INTERNAL_ERROR: u32 = 2;

fn unending() -> Response {
    let first = stream::once(async { Ok::<_, Infallible>(Bytes::from_static(b"first")) });
    Response::new(Body::from_stream(first.chain(stream::pending())))
}

fn broken(reason: h2::Reason) -> Response {
    let frames = [
        Ok(Bytes::from_static(b"half")),
        Err(h2::Error::from(reason)),
    ];
    Response::new(Body::from_stream(stream::iter(frames)))
}

fn panicking() -> Response {
    let first = stream::once(async { Ok::<_, Infallible>(Bytes::from_static(b"first")) });
    let then = stream::once(async { panic!("a body's") });
    Response::new(Body::from_stream(first.chain(then)))
}

fn server() -> Running {
    start(
        Router::new()
            .route("/unending", any(|| async { unending() }))
            .route("/panicking", any(|| async { panicking() }))
            .route("/slow", any(std::future::pending::<()>))
            .route("/no-error", get(|| async { broken(h2::Reason::NO_ERROR) }))
            .route(
                "/refused",
                get(|| async { broken(h2::Reason::REFUSED_STREAM) }),
            )
            .route("/cancel", get(|| async { broken(h2::Reason::CANCEL) })),
    )
}

impl Running {
    /// Cuts, and waits for the end, for which the connections have [`CUT_FLUSH`] in two halves.
    pub async fn cut(self) {
        within(self.control.close_listener()).await;
        let standing = Standing::begin();
        let begun = Instant::now();
        self.control.cut();
        for _ in 0..2 {
            // They hear it, and what is due.
            yield_now().await;
            standing.advance(CUT_FLUSH / 2).await;
        }
        within(self.gate.idle()).await;
        within(self.ended).await.expect("the server does not panic");
        assert_eq!(begun.elapsed(), CUT_FLUSH + 2 * TICK);
        standing.end();
    }
}

#[tokio::test]
async fn open_streams_are_reset() {
    let server = server();
    let mut client = Client::connect(server.address).await;
    let streaming = client.get("/unending").await;
    client.frame_of(DATA).await;
    let working = client.get("/slow").await;
    within(async {
        while server.gate.in_flight().total < 2 {
            yield_now().await;
        }
    })
    .await;
    server.cut().await;
    let frames = client.rest().await;
    let first = |stream| frames.iter().find(|frame| frame.stream == stream);
    let reset = first(streaming).expect("a word on it");
    assert_eq!((reset.kind, code(reset)), (RST_STREAM, CANCEL));
    // What had not begun can still be answered.
    assert_eq!(first(working).expect("a head").kind, HEADERS);
    let mut ended = frames.iter().filter(|frame| frame.ends_stream());
    assert!(ended.all(|frame| frame.stream == working), "{frames:?}");
}

#[tokio::test]
async fn a_grpc_stream_ends_with_a_status() {
    let server = server();
    server.control.announce();
    let socket = TcpStream::connect(server.address)
        .await
        .expect("it listens");
    let (sender, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
    tokio::spawn(connection);
    let request = Request::post("http://test/unending")
        .header("content-type", "application/grpc")
        .body(())
        .expect("a request");
    let mut sender = within(sender.ready()).await.expect("open");
    let (answer, _) = sender.send_request(request, true).expect("open");
    let mut body = within(answer).await.expect("an answer").into_body();
    let data = within(body.data()).await.expect("data").expect("data");
    assert_eq!(data, "first");
    server.cut().await;
    assert!(within(body.data()).await.is_none());
    let trailers = within(body.trailers())
        .await
        .expect("an end")
        .expect("trailers");
    assert_eq!(trailers["grpc-status"], "14");
    assert_eq!(trailers["lameduck-closing"], life().to_string());
}

#[tokio::test]
async fn http1_is_broken_off() {
    let server = server();
    let mut chunked = server.connect().await;
    say(&mut chunked, "GET /unending HTTP/1.1\r\nhost: a\r\n\r\n").await;
    head(&mut chunked).await;
    let mut first = [0; 10];
    within(chunked.read_exact(&mut first))
        .await
        .expect("a chunk");
    assert_eq!(&first, b"5\r\nfirst\r\n");
    // Its end is the connection's end: a FIN would look complete.
    let mut delimited = server.connect().await;
    say(&mut delimited, "GET /unending HTTP/1.0\r\n\r\n").await;
    head(&mut delimited).await;
    let mut first = [0; 5];
    within(delimited.read_exact(&mut first))
        .await
        .expect("data");
    server.cut().await;
    let end = rest(&mut chunked).await.unwrap_or_default();
    assert_eq!(end, b"", "no last chunk");
    let end = rest(&mut delimited).await.expect_err("no FIN");
    assert_eq!(end.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_body_that_panics_does_not_look_complete() {
    let server = server();
    let mut delimited = server.connect().await;
    say(&mut delimited, "GET /panicking HTTP/1.0\r\n\r\n").await;
    let end = rest(&mut delimited).await.expect_err("no FIN");
    assert_eq!(end.kind(), ErrorKind::ConnectionReset);
    let mut chunked = server.connect().await;
    say(&mut chunked, "GET /panicking HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let end = rest(&mut chunked).await.expect("the first chunk and a FIN");
    assert!(!end.ends_with(b"0\r\n\r\n"), "no last chunk");
    within(server.gate.idle()).await;
}

#[tokio::test]
async fn a_broken_body_is_never_taken_for_success_or_for_unprocessed() {
    let server = server();
    let mut client = Client::connect(server.address).await;
    for (path, expected) in [
        ("/no-error", INTERNAL_ERROR),
        ("/refused", INTERNAL_ERROR),
        ("/cancel", CANCEL),
    ] {
        let stream = client.get(path).await;
        let reset = client.frame_of(RST_STREAM).await;
        assert_eq!((reset.stream, code(&reset)), (stream, expected), "{path}");
    }
    let mut delimited = server.connect().await;
    say(&mut delimited, "GET /cancel HTTP/1.0\r\n\r\n").await;
    let end = rest(&mut delimited).await.expect_err("no FIN");
    assert_eq!(end.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_dropped() {
    let server = start(Router::new().route("/", get(|| async { "x".repeat(64 << 20) })));
    let mut socket = server.connect().await;
    say(&mut socket, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let mut client = Client::connect(server.address).await;
    let stream = client.get("/").await;
    let window = (1_u32 << 30).to_be_bytes();
    client.send(8, 0, 0, &window).await;
    client.send(8, 0, stream, &window).await;
    head(&mut socket).await;
    client.frame_of(DATA).await;
    within(server.control.close_listener()).await;
    server.control.cut();
    tokio::time::timeout(HANG, server.ended)
        .await
        .expect("bounded")
        .expect("the server does not panic");
    let end = rest(&mut socket).await;
    assert!(end.is_err() || end.is_ok_and(|body| body.len() < 64 << 20));
    let frames = client.rest().await;
    assert!(
        frames
            .iter()
            .all(|frame| frame.flags & END_STREAM == 0 || frame.kind != DATA)
    );
}
