//! Bodies of requests that nothing reads, over HTTP/1.1.

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use http::StatusCode;
use tokio::io::AsyncWriteExt;

use super::start::{Running, head, rest, say, start, within};

fn server() -> Running {
    start(
        Router::new()
            .route("/unread", post(|| async { StatusCode::UNAUTHORIZED }))
            .route(
                "/read",
                post(|body: Bytes| async move { body.len().to_string() }),
            ),
    )
}

#[tokio::test]
async fn d31_an_answer_says_that_an_unread_body_ends_its_connection() {
    let server = server();
    let large = "x".repeat(3_000_000);
    let chunked = format!("5\r\nfirst\r\n{:x}\r\n{large}", large.len());
    let medium = "x".repeat(100_000);
    for (headers, body) in [
        ("expect: 100-continue\r\ncontent-length: 100", ""),
        ("Expect: 100-Continue\r\ntransfer-encoding: chunked", ""),
        ("expect: 100-continue\r\ncontent-length: 3000000", ""),
        ("content-length: 3000000", &large),
        ("content-length: 3000000", ""),
        ("content-length: 1000000000", &medium),
        ("transfer-encoding: chunked", &chunked),
        ("transfer-encoding: chunked", ""),
    ] {
        let mut socket = server.connect().await;
        let request = format!("POST /unread HTTP/1.1\r\nhost: a\r\n{headers}\r\n\r\n");
        say(&mut socket, &request).await;
        let (mut reading, mut writing) = socket.into_split();
        let writes = async {
            // A server that has answered may have closed by now.
            let _ = writing.write_all(body.as_bytes()).await;
            writing
        };
        let reads = async {
            let mut answer = Vec::new();
            let read = tokio::io::AsyncReadExt::read_to_end(&mut reading, &mut answer);
            within(read).await.expect("an end");
            String::from_utf8(answer).expect("ASCII")
        };
        let (_writing, answer) = tokio::join!(writes, reads);
        assert!(answer.starts_with("HTTP/1.1 401 "), "{headers}: {answer}");
        assert!(answer.contains("connection: close\r\n"), "{headers}");
        assert!(!answer.contains("100 Continue"), "{headers}");
    }
}

#[tokio::test]
async fn d31_a_connection_that_is_kept_is_not_said_to_end() {
    let server = server();
    let mut socket = server.connect().await;
    for (path, headers, body, status) in [
        ("/unread", "content-length: 0", "", 401),
        ("/unread", "content-length: 100", &"x".repeat(100)[..], 401),
        ("/read", "content-length: 20000", &"x".repeat(20_000), 200),
        (
            "/read",
            "transfer-encoding: chunked",
            "3\r\nabc\r\n0\r\n\r\n",
            200,
        ),
    ] {
        let request = format!("POST {path} HTTP/1.1\r\nhost: a\r\n{headers}\r\n\r\n{body}");
        say(&mut socket, &request).await;
        let head = head(&mut socket).await;
        assert!(head.starts_with(&format!("http/1.1 {status} ")), "{head}");
        assert!(!head.contains("connection: close"), "{path}: {head}");
        let length = head.split("content-length: ").nth(1).expect("a length");
        let length = length.lines().next().expect("a line");
        let mut answer = vec![0; length.parse().expect("a number")];
        let read = tokio::io::AsyncReadExt::read_exact(&mut socket, &mut answer);
        within(read).await.expect("a body");
    }
    // Told to go on, and read.
    say(
        &mut socket,
        "POST /read HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n",
    )
    .await;
    assert!(head(&mut socket).await.starts_with("http/1.1 100 "));
    say(
        &mut socket,
        "abcPOST /read HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
    )
    .await;
    let answers = rest(&mut socket).await.expect("an end");
    let answers = String::from_utf8(answers).expect("ASCII");
    assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 2, "{answers}");
    assert_eq!(answers.matches("connection: close").count(), 1, "{answers}");
}
