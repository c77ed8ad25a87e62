//! Answers by which a server says that it cannot serve now.

use http::{HeaderMap, Response, StatusCode};
use tonic::Code;

/// By this a server says when to come back, or that nobody should (gRFC A6).
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Whether the head of an answer says UNAVAILABLE: by its gRPC status or, where it has none, by an HTTP
/// status that stands for it (gRPC's `http-grpc-status-mapping.md`). Proxies answer so.
pub(super) fn in_head<B>(response: &Response<B>) -> bool {
    code(response.headers()).map_or_else(
        || {
            matches!(
                response.status(),
                StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::BAD_GATEWAY
                    | StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::GATEWAY_TIMEOUT
            )
        },
        |code| code == Code::Unavailable,
    )
}

/// Whether trailers say so.
pub(super) fn in_trailers(trailers: &HeaderMap) -> bool {
    code(trailers) == Some(Code::Unavailable)
}

/// Whether the server leaves it to the caller when the call is placed again.
pub(super) fn may_be_repeated(headers: &HeaderMap) -> bool {
    headers.get(PUSHBACK).is_none_or(|pushback| pushback == "0")
}

fn code(headers: &HeaderMap) -> Option<Code> {
    let code = headers.get("grpc-status")?;
    Some(Code::from_bytes(code.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, headers: &[(&'static str, &str)]) -> Response<()> {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        response.body(()).expect("well formed")
    }

    #[test]
    fn r27_unavailable_is_said_by_grpc_or_by_http() {
        let said = [
            head(200, &[("grpc-status", "14")]),
            head(503, &[("grpc-status", "14")]),
            head(502, &[("content-type", "text/html")]),
            head(503, &[]),
            head(504, &[]),
            head(429, &[]),
        ];
        for response in said {
            assert!(in_head(&response), "{response:?}");
        }
        let not_said = [
            head(200, &[]),
            head(200, &[("grpc-status", "0")]),
            head(200, &[("grpc-status", "13")]),
            head(503, &[("grpc-status", "7")]),
            head(404, &[]),
            head(500, &[]),
        ];
        for response in not_said {
            assert!(!in_head(&response), "{response:?}");
        }
    }

    #[test]
    fn r27_a_server_that_says_when_is_not_asked_at_once() {
        for (pushback, repeated) in [("0", true), ("-1", false), ("50", false), ("x", false)] {
            let response = head(200, &[("grpc-status", "14"), (PUSHBACK, pushback)]);
            assert_eq!(may_be_repeated(response.headers()), repeated, "{pushback}");
        }
        assert!(may_be_repeated(head(503, &[]).headers()));
    }
}
