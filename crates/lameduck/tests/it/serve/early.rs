//! Requests that are cut before their answers begin.

use axum::Router;
use axum::routing::any;
use bytes::Bytes;
use http::{Request, Response};

use super::start::{Running, head, rest, say, start, within};

fn server() -> Running {
    start(Router::new().route("/never", any(std::future::pending::<()>)))
}

async fn in_flight(server: &Running, count: usize) {
    within(async {
        while (server.gate.in_flight().total as usize) < count {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// The answer by HTTP/2 to a request of this content type that is cut.
async fn by_http2(content: &str, announced: bool) -> Response<Bytes> {
    let server = server();
    if announced {
        server.control.announce();
    }
    let socket = server.connect().await;
    let made = within(h2::client::handshake(socket)).await;
    let (mut sender, connection) = made.expect("HTTP/2");
    tokio::spawn(connection);
    let request = Request::post("http://test/never").header("content-type", content);
    let request = request.body(()).expect("well formed");
    let (answer, mut body) = sender.send_request(request, false).expect("it is open");
    body.send_data(Bytes::from_static(b"half"), false)
        .expect("it is open");
    in_flight(&server, 1).await;
    server.cut().await;
    let (head, mut body) = within(answer).await.expect("an answer").into_parts();
    let mut read = Vec::new();
    while let Some(data) = within(body.data()).await {
        read.extend(data.expect("data"));
    }
    Response::from_parts(head, read.into())
}

#[tokio::test]
async fn s12_a_grpc_call_is_unavailable_and_not_refused() {
    for content in ["application/grpc", "application/grpc+proto"] {
        let answer = by_http2(content, true).await;
        assert_eq!(answer.status(), 200);
        let headers = answer.headers();
        assert_eq!(headers["content-type"], "application/grpc");
        assert_eq!(headers["grpc-status"], "14");
        assert!(headers.contains_key("lameduck-closing"));
        assert!(!headers.contains_key("lameduck-refused"), "it had begun");
    }
}

#[tokio::test]
async fn s12_a_plain_request_by_http2_is_503_and_not_refused() {
    let answer = by_http2("application/json", false).await;
    assert_eq!(answer.status(), 503);
    assert!(!answer.headers().contains_key("lameduck-refused"));
    assert_eq!(answer.body(), "the server ended before it answered\n");
}

#[tokio::test]
async fn s12_a_request_by_http1_is_503_and_not_refused() {
    for version in ["1.1", "1.0"] {
        let server = server();
        let mut socket = server.connect().await;
        say(
            &mut socket,
            &format!("GET /never HTTP/{version}\r\nhost: a\r\n\r\n"),
        )
        .await;
        in_flight(&server, 1).await;
        server.cut().await;
        let head = head(&mut socket).await;
        assert!(head.contains(" 503 "), "{head}");
        assert!(head.contains("connection: close\r\n"), "{head}");
        assert!(!head.contains("lameduck-refused"), "{head}");
        let body = rest(&mut socket).await.expect("an end");
        assert_eq!(body, b"the server ended before it answered\n");
    }
}
