//! Answers whose heads or trailers are larger than the peer takes.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{any, post};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Request};
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::io::AsyncReadExt;
use tokio::sync::Semaphore;
use tonic::{Code, Status};

use super::client::{Client, code};
use super::start::{Running, head, say, start, within};
use crate::raw::RST_STREAM;

const INTERNAL_ERROR: u32 = 2;
/// Text sizes that were seen to break connections, and their neighbours.
const SIZES: [usize; 7] = [1_000, 15_000, 20_000, 60_000, 100_000, 500_000, 3_000_000];

fn status(size: usize) -> Status {
    Status::aborted("x".repeat(size))
}

/// One message, then the status.
fn stream_of(trailers: HeaderMap) -> Response {
    let frames = [
        Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"message"))),
        Ok(Frame::trailers(trailers)),
    ];
    Response::new(Body::new(StreamBody::new(stream::iter(frames))))
}

fn failing(size: usize) -> Response {
    let mut trailers = HeaderMap::new();
    status(size).add_header(&mut trailers).expect("ASCII");
    stream_of(trailers)
}

fn heavy(name: &'static str, size: usize) -> HeaderMap {
    let value = HeaderValue::try_from("m".repeat(size)).expect("ASCII");
    HeaderMap::from_iter([(http::HeaderName::from_static(name), value)])
}

fn heavy_head(size: usize) -> Response {
    let mut response = Response::new(Body::from("whole"));
    *response.headers_mut() = heavy("mine", size);
    response
}

fn heavy_trailers(size: usize) -> Response {
    let mut trailers = heavy("mine", size);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    stream_of(trailers)
}

static GO_ON: Semaphore = Semaphore::const_new(0);

async fn waiting() -> &'static str {
    GO_ON.acquire().await.expect("never closed").forget();
    "innocent"
}

fn server() -> Running {
    let head = |Path(size): Path<usize>| async move { status(size).into_http::<Body>() };
    let trailers = |Path(size): Path<usize>| async move { failing(size) };
    start(
        Router::new()
            .route("/head/{size}", post(head))
            .route("/trailers/{size}", post(trailers))
            .route(
                "/heavy/head/{size}",
                any(|Path(size): Path<usize>| async move { heavy_head(size) }),
            )
            .route(
                "/heavy/trailers/{size}",
                any(|Path(size): Path<usize>| async move { heavy_trailers(size) }),
            )
            .route("/innocent", any(waiting)),
    )
}

/// A client that announces `headers_max` and fails where more comes.
struct Caller(h2::client::SendRequest<Bytes>);

impl Caller {
    async fn dial(server: &Running, headers_max: Option<u32>) -> Self {
        let socket = server.connect().await;
        let mut builder = h2::client::Builder::new();
        if let Some(most) = headers_max {
            builder.max_header_list_size(most);
        }
        let made = within(builder.handshake(socket)).await;
        let (sender, connection) = made.expect("HTTP/2");
        tokio::spawn(connection);
        Self(sender)
    }

    fn begin(&mut self, path: &str, content: &str) -> h2::client::ResponseFuture {
        let request = Request::post(format!("http://test{path}")).header("content-type", content);
        let request = request.body(()).expect("well formed");
        self.0.send_request(request, true).expect("it is open").0
    }

    /// Head and trailers of an answer.
    async fn call(&mut self, path: &str) -> Result<(HeaderMap, HeaderMap), h2::Error> {
        read(self.begin(path, "application/grpc")).await
    }
}

async fn read(answer: h2::client::ResponseFuture) -> Result<(HeaderMap, HeaderMap), h2::Error> {
    let (head, mut body) = within(answer).await?.into_parts();
    while let Some(data) = within(body.data()).await {
        let size = data?.len();
        body.flow_control().release_capacity(size)?;
    }
    let trailers = within(body.trailers()).await?;
    Ok((head.headers, trailers.unwrap_or_default()))
}

#[tokio::test]
async fn d03_a_long_status_text_keeps_its_code_and_hurts_no_other_call() {
    let server = server();
    for headers_max in [Some(8 << 10), Some(16 << 10), Some(1 << 20), None] {
        let mut caller = Caller::dial(&server, headers_max).await;
        for size in SIZES {
            let beside = caller.begin("/innocent", "application/grpc");
            let (head, _) = caller
                .call(&format!("/head/{size}"))
                .await
                .expect("an answer");
            let (_, trailers) = caller
                .call(&format!("/trailers/{size}"))
                .await
                .expect("an answer");
            for headers in [head, trailers] {
                let read = Status::from_header_map(&headers).expect("a status");
                assert_eq!(read.code(), Code::Aborted, "{size} of {headers_max:?}");
                let text = read.message();
                assert!(text.starts_with("xxxx"), "{size} of {headers_max:?}");
                let is_whole = text.len() == size;
                assert_ne!(is_whole, text.ends_with("x... (cut)"));
                let most = headers_max.map_or(48 << 10, |most| most as usize);
                assert_eq!(is_whole, size + 500 < most, "{size} of {headers_max:?}");
            }
            GO_ON.add_permits(1);
            read(beside).await.expect("it has done nothing");
        }
    }
}

#[tokio::test]
async fn d03_metadata_that_the_caller_does_not_take_is_that_calls_error() {
    let server = server();
    let mut caller = Caller::dial(&server, Some(16 << 10)).await;
    for size in [17_000, 100_000, 3_000_000] {
        let beside = caller.begin("/innocent", "application/grpc");
        let (head, _) = caller
            .call(&format!("/heavy/head/{size}"))
            .await
            .expect("an answer");
        let (_, trailers) = caller
            .call(&format!("/heavy/trailers/{size}"))
            .await
            .expect("an answer");
        for headers in [head, trailers] {
            let read = Status::from_header_map(&headers).expect("a status");
            assert_eq!(read.code(), Code::ResourceExhausted);
            assert!(read.message().ends_with("the caller takes 16384"));
            assert!(!headers.contains_key("mine"));
        }
        // What is no gRPC has no status: its stream is reset.
        for path in ["head", "trailers"] {
            let answer = caller.begin(&format!("/heavy/{path}/{size}"), "text/plain");
            let error = read(answer).await.expect_err("it cannot be told");
            assert_eq!(error.reason(), Some(h2::Reason::INTERNAL_ERROR));
            assert!(error.is_reset());
        }
        GO_ON.add_permits(1);
        read(beside).await.expect("it has done nothing");
    }
    let (head, _) = caller.call("/heavy/head/15000").await.expect("it fits");
    assert_eq!(head["mine"].len(), 15_000);
    server.idle().await;
}

#[tokio::test]
async fn d03_who_announces_nothing_gets_plain_heads_as_they_are() {
    let server = server();
    let mut caller = Caller::dial(&server, None).await;
    let answer = caller.begin("/heavy/head/200000", "text/plain");
    let (head, _) = read(answer).await.expect("an answer");
    assert_eq!(head["mine"].len(), 200_000);
}

#[tokio::test]
async fn d03_a_limit_that_changes_holds_from_then_on() {
    let server = server();
    let mut client = Client::connect(server.address).await;
    let stream = client.get("/heavy/head/9000").await;
    client.answer(stream).await;
    // SETTINGS_MAX_HEADER_LIST_SIZE
    let settings = [&6_u16.to_be_bytes()[..], &8_192_u32.to_be_bytes()].concat();
    client.send(crate::raw::SETTINGS, 0, 0, &settings).await;
    let stream = client.get("/heavy/head/9000").await;
    let reset = client.frame_of(RST_STREAM).await;
    assert_eq!((reset.stream, code(&reset)), (stream, INTERNAL_ERROR));
}

#[tokio::test]
async fn d03_a_status_in_a_head_of_http1_is_cut_and_the_connection_kept() {
    let server = server();
    let mut socket = server.connect().await;
    for size in SIZES {
        let request = format!(
            "POST /head/{size} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\
             content-type: application/grpc-web\r\n\r\n"
        );
        say(&mut socket, &request).await;
        let head = head(&mut socket).await;
        assert!(head.contains("grpc-status: 10\r\n"), "{size}");
        assert!(head.len() <= 4 << 10, "{size}: {}", head.len());
        assert_ne!(size == 1_000, head.contains("x... (cut)\r\n"), "{size}");
    }
    // No limit of HTTP/1.1 is known: what is no status stays.
    say(
        &mut socket,
        "GET /heavy/head/20000 HTTP/1.1\r\nhost: a\r\n\r\n",
    )
    .await;
    assert!(head(&mut socket).await.len() > 20_000);
    let mut body = [0; 5];
    within(socket.read_exact(&mut body)).await.expect("a body");
    assert_eq!(&body, b"whole");
}

#[tokio::test]
async fn d03_a_request_with_more_metadata_than_is_taken_is_refused_alone() {
    let server = server();
    // Beyond, h2 takes a header block of more than six frames for an attack.
    for size in [66_000, 80_000, 95_000] {
        let mut caller = Caller::dial(&server, None).await;
        let beside = caller.begin("/innocent", "application/grpc");
        let value = HeaderValue::try_from("m".repeat(size)).expect("ASCII");
        let request = Request::post("http://test/head/1").header("mine", value);
        let request = request.body(()).expect("well formed");
        let (answer, _) = caller.0.send_request(request, true).expect("it is open");
        let refused = within(answer).await.expect("an answer");
        assert_eq!(refused.status(), 431, "{size}");
        GO_ON.add_permits(1);
        read(beside).await.expect("it has done nothing");
    }
}
