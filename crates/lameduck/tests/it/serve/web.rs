//! gRPC-web, whose answers end by a frame of their body.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{any, post};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Request;
use tokio::io::AsyncReadExt;
use tonic_web::GrpcWebLayer;
use tower_http::cors::CorsLayer;

use super::start::{Running, head, rest, say, start, within};

const MESSAGE: &[u8] = b"\0\0\0\0\x07message";
const WEB: &str = "application/grpc-web+proto";
const TEXT: &str = "application/grpc-web-text+proto";

/// Sends so much of a message, and no more.
fn unending(bytes: usize) -> Response {
    let part = Bytes::from_static(&MESSAGE[..bytes]);
    let first = stream::once(async { Ok::<_, Infallible>(part) });
    let body = Body::from_stream(first.chain(stream::pending()));
    let mut response = Response::new(body);
    let grpc = http::HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", grpc);
    response
}

fn coded() -> Response {
    let mut response = unending(MESSAGE.len());
    let headers = response.headers_mut();
    let gzip = http::HeaderValue::from_static("gzip");
    headers.insert("content-encoding", gzip);
    response
}

fn server() -> Running {
    let watch = |Path(bytes): Path<usize>| async move { unending(bytes) };
    let service = Router::new()
        .route("/g.G/Watch/{bytes}", post(watch))
        .route("/g.G/Coded", post(|| async { coded() }))
        .route("/g.G/Never", post(std::future::pending::<()>));
    start(
        service
            .layer(GrpcWebLayer::new())
            .layer(CorsLayer::permissive())
            .route("/html", any(|| async { "a page" })),
    )
}

struct Call {
    path: String,
    content: &'static str,
    timeout: Option<&'static str>,
}

impl Call {
    fn watch(bytes: usize, content: &'static str) -> Self {
        Self {
            path: format!("/g.G/Watch/{bytes}"),
            content,
            timeout: None,
        }
    }
}

async fn call(server: &Running, call: &Call) -> h2::client::ResponseFuture {
    let socket = server.connect().await;
    let made = within(h2::client::handshake(socket)).await;
    let (mut sender, connection) = made.expect("HTTP/2");
    tokio::spawn(connection);
    let mut request = Request::post(format!("http://test{}", call.path))
        .header("content-type", call.content)
        .header("accept", call.content)
        .header("origin", "http://shop.example");
    if let Some(timeout) = call.timeout {
        request = request.header("grpc-timeout", timeout);
    }
    let request = request.body(()).expect("well formed");
    sender.send_request(request, true).expect("it is open").0
}

/// The body's rest, or why it was broken off.
async fn read(body: &mut h2::RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut read = Vec::new();
    while let Some(data) = within(body.data()).await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        read.extend(data);
    }
    let trailers = within(body.trailers()).await?;
    assert!(trailers.is_none(), "no browser sees them");
    Ok(read)
}

/// Base64 of a body, if it is a text, as other programs read it.
fn decoded(content: &str, body: &[u8]) -> Vec<u8> {
    use base64::Engine;
    if content != TEXT {
        return body.to_vec();
    }
    let engine = base64::engine::general_purpose::STANDARD;
    engine.decode(body).expect("base64")
}

fn assert_ends(frame: &[u8], status: &str) {
    assert_eq!(frame[0], 0x80, "a frame of trailers");
    let length = u32::from_be_bytes(frame[1..5].try_into().expect("four bytes"));
    assert_eq!(frame.len(), 5 + length as usize, "nothing follows");
    let trailers = std::str::from_utf8(&frame[5..]).expect("a text");
    let line = format!("grpc-status:{status}\r\n");
    assert!(trailers.contains(&line), "{trailers}");
    assert!(trailers.contains("grpc-message:the%20") || trailers.contains("grpc-message:the "));
}

#[tokio::test]
async fn d39_a_stream_that_is_cut_ends_by_a_frame_with_a_status() {
    for content in [WEB, TEXT] {
        let server = server();
        let answer = call(&server, &Call::watch(MESSAGE.len(), content)).await;
        let mut body = within(answer).await.expect("an answer").into_body();
        let first = within(body.data()).await.expect("data").expect("data");
        assert_eq!(decoded(content, &first), MESSAGE);
        let mut by_http1 = server.connect().await;
        say(
            &mut by_http1,
            &format!(
                "POST /g.G/Watch/12 HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\
                 content-type: {content}\r\naccept: {content}\r\n\r\n"
            ),
        )
        .await;
        head(&mut by_http1).await;
        let size = if content == TEXT { "10" } else { "C" };
        let chunk = [size.as_bytes(), b"\r\n", &first, b"\r\n"].concat();
        let mut read_chunk = vec![0; chunk.len()];
        let read_first = within(by_http1.read_exact(&mut read_chunk)).await;
        read_first.expect("the first chunk");
        assert_eq!(read_chunk, chunk);
        server.cut().await;
        let end = read(&mut body).await.expect("an end");
        assert_ends(&decoded(content, &end), "14");
        let end = rest(&mut by_http1).await.expect("an end");
        let end = end.strip_suffix(b"\r\n0\r\n\r\n").expect("the last chunk");
        let frame = end.splitn(2, |byte| *byte == b'\n').nth(1);
        assert_ends(&decoded(content, frame.expect("a chunk")), "14");
    }
}

#[tokio::test]
async fn d39_a_stream_that_is_cut_where_no_frame_can_be_put_is_reset() {
    let coded = Call {
        path: "/g.G/Coded".to_owned(),
        content: WEB,
        timeout: None,
    };
    for (what, reason) in [
        (Call::watch(3, WEB), h2::Reason::INTERNAL_ERROR),
        (Call::watch(9, WEB), h2::Reason::INTERNAL_ERROR),
        (Call::watch(9, TEXT), h2::Reason::INTERNAL_ERROR),
        (coded, h2::Reason::CANCEL),
    ] {
        let server = server();
        let answer = call(&server, &what).await;
        let mut body = within(answer).await.expect("an answer").into_body();
        within(body.data()).await.expect("data").expect("data");
        let mut by_http1 = server.connect().await;
        say(
            &mut by_http1,
            &format!(
                "POST {} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\
                 content-type: {}\r\naccept: {}\r\n\r\n",
                what.path, what.content, what.content
            ),
        )
        .await;
        head(&mut by_http1).await;
        within(by_http1.read_u8()).await.expect("the first chunk");
        server.cut().await;
        let error = read(&mut body).await.expect_err("it is cut");
        assert_eq!(error.reason(), Some(reason), "{}", what.path);
        let end = rest(&mut by_http1).await.unwrap_or_default();
        assert!(!end.ends_with(b"0\r\n\r\n"), "no last chunk");
    }
}

#[tokio::test]
async fn s16_a_deadline_is_told_to_a_page_of_another_site() {
    let server = server();
    for content in [WEB, TEXT] {
        let late = Call {
            path: "/g.G/Never".to_owned(),
            content,
            timeout: Some("10m"),
        };
        let answer = within(call(&server, &late).await).await.expect("an answer");
        let (head, mut body) = answer.into_parts();
        assert_eq!(head.status, 200);
        assert_eq!(head.headers["content-type"], content);
        assert_eq!(head.headers["access-control-allow-origin"], "*");
        let end = read(&mut body).await.expect("an end");
        assert_ends(&decoded(content, &end), "4");
    }
    assert_eq!(server.gate.admitted(), 2, "layers are asked by no request");
}

#[tokio::test]
async fn s12_a_call_without_an_answer_ends_by_a_frame_with_a_status() {
    for content in [WEB, TEXT] {
        let server = server();
        let never = Call {
            path: "/g.G/Never".to_owned(),
            content,
            timeout: None,
        };
        let answer = call(&server, &never).await;
        within(async {
            while server.gate.in_flight().total < 1 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        server.cut().await;
        let (head, mut body) = within(answer).await.expect("an answer").into_parts();
        assert_eq!(head.headers["content-type"], content);
        assert_eq!(head.headers["access-control-allow-origin"], "*");
        assert!(!head.headers.contains_key("lameduck-refused"));
        let end = read(&mut body).await.expect("an end");
        assert_ends(&decoded(content, &end), "14");
    }
}

#[tokio::test]
async fn d39_what_is_refused_while_draining_says_so_by_http1() {
    let server = server();
    let mut socket = server.connect().await;
    let request = format!(
        "POST /g.G/Never HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\ncontent-type: {WEB}\r\n\r\n"
    );
    server.control.close_gate();
    say(&mut socket, &request).await;
    let head = head(&mut socket).await;
    // A client of gRPC-web takes 503 for UNAVAILABLE.
    assert!(head.starts_with("http/1.1 503 "), "{head}");
    assert!(head.contains("lameduck-refused: "), "{head}");
    assert!(head.contains("connection: close\r\n"), "{head}");
}
