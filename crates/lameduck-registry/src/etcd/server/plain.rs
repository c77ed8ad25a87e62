//! What is no RPC of this server: health checks over plain HTTP, and sentences for everything that is
//! missing.

use std::pin::pin;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use lameduck_core::limits;
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;

use super::others::VERSION;

/// Of a request's body, so much is read before the answer: a client that is still writing would lose
/// the answer when its connection is closed.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Of a method's name, so much is repeated.
const NAME_CHARS_MAX: usize = 64;

/// Whether a request is a gRPC call.
pub(super) fn is_call(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Answers a request that is no gRPC call.
pub(super) async fn answer(request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let mut rest = pin!(Limited::new(body, BODY_BYTES_MAX));
    let read = async { while let Some(Ok(_)) = rest.frame().await {} };
    // One that does not end its request is answered all the same.
    let _ = timeout(limits::HANDSHAKE_MAX, read).await;
    page(&head.method, head.uri.path())
}

fn page(method: &Method, path: &str) -> Response<Body> {
    // etcd's API that answers there, cut to its first two numbers as etcd cuts it.
    let api = VERSION.split('+').next().unwrap_or(VERSION);
    let is_read = *method == Method::GET || *method == Method::HEAD;
    let (status, kind, text) = match path {
        "/health" if is_read => (StatusCode::OK, JSON, r#"{"health":"true"}"#.to_owned()),
        "/version" if is_read => {
            let text = format!(r#"{{"etcdserver":"{VERSION}","etcdcluster":"{api}"}}"#);
            (StatusCode::OK, JSON, text)
        }
        _ => (StatusCode::NOT_FOUND, TEXT, NOT_FOUND.to_owned()),
    };
    let mut response = Response::new(Body::new(http_body_util::Full::new(Bytes::from(text))));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const NOT_FOUND: &str = "This is lameduck's development registry. It speaks etcd's gRPC API; over plain \
     HTTP it has GET /health and GET /version only. Use etcdctl or a client for gRPC, or an etcd where \
     the JSON API (/v3/...) or /metrics is needed.\n";

/// Puts a sentence into the refusal of a method that is missing; leaves other answers as they are.
pub(super) fn explain(path: &str, response: Response<Body>) -> Response<Body> {
    let headers = response.headers();
    let is_missing = headers
        .get(Status::GRPC_STATUS)
        .is_some_and(|code| code == "12")
        && !headers.contains_key(Status::GRPC_MESSAGE);
    if !is_missing {
        return response;
    }
    Status::unimplemented(missing(path)).into_http()
}

fn missing(path: &str) -> String {
    let path = path.trim_start_matches('/');
    let (service, method) = path.split_once('/').unwrap_or(("", path));
    let name: String = method.chars().take(NAME_CHARS_MAX).collect();
    let why = match service {
        "etcdserverpb.Auth" => {
            "which asks nobody for a password and has no users and roles: use an etcd to try logins"
        }
        "etcdserverpb.Maintenance" => {
            "which keeps everything in memory and has no file to save, hash or defragment: use an etcd \
             where data must stay"
        }
        "etcdserverpb.Cluster" => "which always is one member: use an etcd for a cluster",
        "v3lockpb.Lock" | "v3electionpb.Election" => {
            "which has leases and transactions for it: `etcdctl lock`, `etcdctl elect` and the recipes of \
             clients work; use an etcd for locks and elections by the server"
        }
        _ => {
            "which has KV, Lease, Watch, the member list and the status: use an etcd for anything else"
        }
    };
    format!("etcdserver: {name} is not part of lameduck's development registry, {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, words: &[&str]) {
        let text = missing(path);
        for word in words {
            assert!(text.contains(word), "{path}: {text}");
        }
        assert!(
            text.contains("development registry") && text.contains("use an etcd"),
            "{text}"
        );
    }

    #[test]
    fn d46_each_missing_service_has_its_sentence() {
        check("/etcdserverpb.Auth/UserList", &["UserList", "password"]);
        check(
            "/etcdserverpb.Maintenance/Snapshot",
            &["Snapshot", "memory"],
        );
        check(
            "/etcdserverpb.Cluster/MemberAdd",
            &["MemberAdd", "one member"],
        );
        check("/v3lockpb.Lock/Lock", &["etcdctl lock"]);
        check(
            "/grpc.health.v1.Health/Check",
            &["Check", "KV, Lease, Watch"],
        );
        check("/", &[]);
        let long = missing(&format!("/a/{}", "b".repeat(10_000)));
        assert!(long.len() < 400, "{long}");
    }

    #[test]
    fn d46_only_a_bare_refusal_is_explained() {
        let path = "/etcdserverpb.Auth/UserList";
        let bare = Status::unimplemented("").into_http();
        let explained = explain(path, bare);
        let status = Status::from_header_map(explained.headers()).expect("a status");
        assert_eq!(status.code(), tonic::Code::Unimplemented);
        assert!(status.message().contains("UserList"), "{status}");
        for other in [Status::unimplemented("told"), Status::not_found("")] {
            let message = other.message().to_owned();
            let same = explain(path, other.into_http());
            let status = Status::from_header_map(same.headers()).expect("a status");
            assert_eq!(status.message(), message);
        }
    }
}
