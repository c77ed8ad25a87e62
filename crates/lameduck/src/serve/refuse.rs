//! Refusals: answers that prove that nothing was processed.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use ::http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use ::http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;

use super::answer::Answer;
use super::peer::Peer;
use super::upload::{Upload, read_off};
use super::{BoxError, service};
use crate::mark;

/// Why a request was refused on HTTP/2. Becomes RST_STREAM(REFUSED_STREAM) (RFC 9113 §8.7): hyper takes
/// the reason from the first `h2::Error` among an error's sources.
#[derive(Debug)]
pub struct Refused {
    reason: h2::Error,
}

impl Refused {
    fn new() -> Self {
        Self {
            reason: h2::Reason::REFUSED_STREAM.into(),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "this instance is leaving; the request was not processed: send it to another one",
        )
    }
}

impl Error for Refused {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.reason)
    }
}

/// Refuses one request, after reading its body within bounds.
pub(super) async fn refuse(
    peer: Arc<Peer>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, BoxError> {
    let version = request.version();
    if version == Version::HTTP_2 {
        read_off(request.into_body()).await;
        return Err(Refused::new().into());
    }
    // The socket reads on while it closes.
    drop(Upload::of(request, &peer));
    let refused = Refused::new();
    let mut response = Response::new(Answer::text(format!("{refused}\n")));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    service::mark_head(&peer, version, response.headers_mut());
    let announcement = peer.shared.announcement.load();
    let headers = response.headers_mut();
    headers.insert(mark::REFUSED, announcement.life.clone());
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}
