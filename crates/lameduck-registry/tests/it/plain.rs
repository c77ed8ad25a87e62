//! The development server to those that do not speak gRPC: health checks, curl, browsers, TLS.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use lameduck_registry::etcd::process::{Process, usable_in};

use crate::server::Dev;
use crate::wire::Wire;

/// Longer than a loaded machine takes to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// All that comes back for `bytes`.
fn ask(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.write_all(bytes).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("a clean end");
    String::from_utf8(answer).expect("text")
}

/// An answer's status and its text.
fn answered(address: SocketAddr, request: &str) -> (String, String) {
    let answer = ask(address, request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).expect("a status");
    (status.to_owned(), body.to_owned())
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
}

#[test]
fn d46_health_checks_are_answered_as_by_etcd() {
    let dev = Dev::start();
    let health = ("200".to_owned(), r#"{"health":"true"}"#.to_owned());
    let version = answered(dev.address(), &get("/version"));
    for path in ["/health", "/health?serializable=true"] {
        assert_eq!(answered(dev.address(), &get(path)), health, "{path}");
    }
    // Old and small clients.
    let old = "GET /health HTTP/1.0\r\n\r\n";
    assert_eq!(answered(dev.address(), old), health);
    let head = "HEAD /health HTTP/1.1\r\nhost: a\r\n\r\n";
    assert_eq!(
        answered(dev.address(), head),
        ("200".to_owned(), String::new())
    );
    assert!(
        version.1.starts_with(r#"{"etcdserver":"3.4.0+lameduck"#),
        "{version:?}"
    );
    if !usable_in("d46_health_checks_are_answered_as_by_etcd") {
        return;
    }
    let etcd = Process::start().expect("etcd starts");
    assert_eq!(answered(etcd.address(), &get("/health")), health);
    let (status, text) = answered(etcd.address(), &get("/version"));
    assert_eq!(status, version.0);
    let cluster = |text: &str| text.split_once(',').expect("two members").1.to_owned();
    assert_eq!(cluster(&text), cluster(&version.1));
}

#[test]
fn d46_whatever_else_comes_over_http_gets_a_sentence() {
    let dev = Dev::start();
    let body = "x".repeat(200_000);
    let post = |path: &str, body: &str| {
        let length = body.len();
        format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}")
    };
    let requests = [
        get("/"),
        get("/metrics"),
        get("/v2/keys"),
        get(&format!("/{}", "a".repeat(2_000))),
        post("/health", "{}"),
        post("/v3/kv/range", r#"{"key":"YQ=="}"#),
        // The client still writes when the head has come.
        post("/v3/kv/put", &body),
        "OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n".to_owned(),
    ];
    for request in requests {
        let (status, text) = answered(dev.address(), &request);
        let line = request.lines().next();
        assert_eq!(status, "404", "{line:?}");
        assert!(text.contains("development registry"), "{line:?}: {text}");
    }
    // The first bytes of TLS, and of nothing.
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"\r\n\r\n\0\0\0\0",
    ] {
        let answer = ask(dev.address(), bytes);
        assert!(answer.starts_with("HTTP/1.1 400"), "{bytes:?}: {answer}");
    }
}

#[tokio::test]
async fn d46_health_checks_may_come_over_http2() {
    let dev = Dev::start();
    let wire = Wire::connect(dev.address()).await;
    for (path, status) in [("/health", 200), ("/version", 200), ("/metrics", 404)] {
        let request = http::Request::get(format!("http://lameduck.test{path}"))
            .body(tonic::body::Body::empty())
            .expect("a request");
        let answer = wire.raw().send_request(request).await.expect("an answer");
        assert_eq!(answer.status(), status, "{path}");
    }
}
