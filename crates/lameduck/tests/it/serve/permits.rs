//! A permit comes back on every exit, and not before the body's end.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{any, get, post};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt;
use http_body_util::StreamBody;
use lameduck::cell::gate::InFlight;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::client::Client;
use super::start::{Running, head, rest, say, start, within};
use crate::raw::{DATA, HEADERS, RST_STREAM};

const CANCEL: [u8; 4] = [0, 0, 0, 8];

fn unending() -> Response {
    let first = stream::once(async { Ok::<_, Infallible>(Bytes::from_static(b"first")) });
    Response::new(Body::from_stream(futures_util::StreamExt::chain(
        first,
        stream::pending(),
    )))
}

fn panics_in_body() -> Response {
    let frames = stream::poll_fn(|_| -> std::task::Poll<Option<Result<_, Infallible>>> {
        panic!("a body's panic")
    });
    Response::new(Body::new(StreamBody::new(futures_util::StreamExt::map(
        frames,
        |bytes: Result<Bytes, Infallible>| bytes.map(http_body::Frame::data),
    ))))
}

async fn slow() -> &'static str {
    std::future::pending::<()>().await;
    "never"
}

fn fails_in_body() -> Response {
    Response::new(Body::from_stream(stream::iter([
        Ok(Bytes::from_static(b"half")),
        Err(std::io::Error::other("broke")),
    ])))
}

/// A layer between the gate and the handler that gives up early.
async fn at_most_10_ms(request: axum::extract::Request, next: axum::middleware::Next) -> Response {
    match tokio::time::timeout(Duration::from_millis(10), next.run(request)).await {
        Ok(response) => response,
        Err(_) => axum::response::IntoResponse::into_response(StatusCode::GATEWAY_TIMEOUT),
    }
}

async fn rejects(_: axum::extract::Request, _: axum::middleware::Next) -> Response {
    axum::response::IntoResponse::into_response(StatusCode::TOO_MANY_REQUESTS)
}

fn server() -> Running {
    start(
        Router::new()
            .route("/limited", any(slow))
            .layer(axum::middleware::from_fn(at_most_10_ms))
            .merge(
                Router::new()
                    .route("/rejected", any(slow))
                    .layer(axum::middleware::from_fn(rejects)),
            )
            .route("/", get(|| async { "hello" }))
            .route("/slow", any(slow))
            .route("/unending", get(|| async { unending() }))
            .route(
                "/panics",
                any(async || -> &'static str { panic!("a handler's panic") }),
            )
            .route("/panics-in-body", get(|| async { panics_in_body() }))
            .route("/fails-in-body", get(|| async { fails_in_body() }))
            .route("/read", post(|body: Bytes| async move { body })),
    )
}

impl Running {
    pub async fn admitted(&self, count: u64) {
        within(async {
            while self.gate.admitted() < count {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

pub async fn request(server: &Running, method: &str, path: &str) -> TcpStream {
    let mut socket = server.connect().await;
    let head = format!("{method} {path} HTTP/1.1\r\nhost: a\r\n\r\n");
    say(&mut socket, &head).await;
    socket
}

#[tokio::test]
async fn c01_permits_come_back_on_http2() {
    let server = server();
    let mut admitted = 0;
    let mut client = Client::connect(server.address).await;
    for path in [
        "/",
        "/panics",
        "/panics-in-body",
        "/fails-in-body",
        "/limited",
        "/rejected",
        "/no-such-path",
    ] {
        client.get(path).await;
        admitted += 1;
        server.idle_after(admitted).await;
    }
    // RST_STREAM while the handler works, and while its answer streams.
    for (path, waits_for) in [("/slow", None), ("/unending", Some(DATA))] {
        let stream = client.get(path).await;
        admitted += 1;
        server.admitted(admitted).await;
        if let Some(kind) = waits_for {
            while client.frame_of(kind).await.stream != stream {}
        }
        assert_eq!(server.gate.in_flight().total, 1, "{path}");
        client.send(RST_STREAM, 0, stream, &CANCEL).await;
        server.idle_after(admitted).await;
    }
    // The connection goes while the handler works, while its answer streams, during the upload.
    for path in ["/slow", "/unending", "/read"] {
        let mut client = Client::connect(server.address).await;
        let stream = client.open(path).await;
        client.data(stream, b"some", 0).await;
        admitted += 1;
        server.admitted(admitted).await;
        drop(client);
        server.idle_after(admitted).await;
    }
}

#[tokio::test]
async fn c01_permits_come_back_on_http1() {
    let server = server();
    let mut admitted = 0;
    for path in [
        "/",
        "/panics",
        "/panics-in-body",
        "/fails-in-body",
        "/limited",
        "/rejected",
        "/no-such-path",
    ] {
        let _socket = request(&server, "GET", path).await;
        admitted += 1;
        server.idle_after(admitted).await;
    }
    // A body that is never polled.
    let _socket = request(&server, "HEAD", "/unending").await;
    admitted += 1;
    server.idle_after(admitted).await;
    // The peer goes (reset) while the handler works, and while its answer streams.
    for path in ["/slow", "/unending"] {
        let socket = request(&server, "GET", path).await;
        admitted += 1;
        server.admitted(admitted).await;
        let reset = socket2::SockRef::from(&socket);
        reset.set_linger(Some(Duration::ZERO)).expect("a socket");
        drop(socket);
        server.idle_after(admitted).await;
    }
    // It ends in the middle of its upload.
    let mut socket = server.connect().await;
    say(
        &mut socket,
        "POST /read HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhalf",
    )
    .await;
    admitted += 1;
    server.admitted(admitted).await;
    socket.shutdown().await.expect("a socket");
    server.idle_after(admitted).await;
}

#[tokio::test]
async fn a_permit_outlives_the_head() {
    let server = server();
    let mut client = Client::connect(server.address).await;
    client.get("/unending").await;
    client.frame_of(HEADERS).await;
    client.frame_of(DATA).await;
    within(async {
        while server.gate.in_flight().streams == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let expected = InFlight {
        streams: 1,
        total: 1,
        ..InFlight::default()
    };
    assert_eq!(server.gate.in_flight(), expected);
    assert_eq!(server.control.connections().idle, 0);
}

pub async fn echo(mut request: axum::extract::Request) -> Response {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let upgraded = upgrade.await.expect("an upgrade");
        let mut io = hyper_util::rt::TokioIo::new(upgraded);
        let mut bytes = [0; 4];
        while tokio::io::AsyncReadExt::read_exact(&mut io, &mut bytes)
            .await
            .is_ok()
        {
            io.write_all(&bytes).await.expect("the peer reads");
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in [("connection", "upgrade"), ("upgrade", "echo")] {
        let value = http::HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

async fn upgraded(server: &Running) -> TcpStream {
    let mut socket = server.connect().await;
    let ask = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    say(&mut socket, ask).await;
    let answer = head(&mut socket).await;
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    say(&mut socket, "ping").await;
    let mut bytes = [0; 4];
    within(tokio::io::AsyncReadExt::read_exact(&mut socket, &mut bytes))
        .await
        .expect("an echo");
    socket
}

#[tokio::test]
async fn an_upgraded_connection_holds_its_permit_until_it_closes_or_is_cut() {
    let server = start(Router::new().route("/", any(echo)));
    let first = upgraded(&server).await;
    let mut second = upgraded(&server).await;
    assert_eq!(server.gate.in_flight().upgraded, 2);
    assert_eq!(server.control.connections().open, 2);
    drop(first);
    within(async {
        while server.gate.in_flight().upgraded > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Leaving does not end it; the cut does.
    within(server.control.close_listener()).await;
    within(server.control.final_goaways(Duration::from_millis(50))).await;
    say(&mut second, "ping").await;
    let mut bytes = [0; 4];
    within(tokio::io::AsyncReadExt::read_exact(&mut second, &mut bytes))
        .await
        .expect("an echo");
    server.control.cut();
    let _ = rest(&mut second).await;
    server.idle().await;
    server.end().await;
}

#[tokio::test]
async fn what_is_known_of_an_answer_is_passed_on() {
    let server = server();
    let (mut sender, connection) = {
        let socket = server.connect().await;
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(socket))
            .await
            .expect("HTTP/1.1")
    };
    tokio::spawn(connection);
    let get = http::Request::get("/")
        .header("host", "a")
        .body(Body::empty());
    let answer = within(sender.send_request(get.expect("a request")))
        .await
        .expect("an answer");
    assert_eq!(answer.headers()["content-length"], "5");
    let body = within(answer.into_body().collect()).await.expect("a body");
    assert_eq!(body.to_bytes(), "hello");
}
