//! What a failed call proves.
//!
//! A status code cannot tell "not processed" from "perhaps processed"; h2's errors, the stream ids
//! that GOAWAY names and the bytes that went to the kernel can.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use h2::Reason;
use lameduck_core::failover::Proof;

use super::{GoAway, Outgoing};
use crate::cell::link::Link;

/// Why a call failed on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The connection took no more streams: it was closed, or has ended.
    Closed,
    /// The peer's GOAWAY, which names a stream below this call's or came before the call.
    GoneAway(GoAway),
    /// RST_STREAM(REFUSED_STREAM).
    Refused,
    /// RST_STREAM with another HTTP/2 error code, by the peer.
    Reset(u32),
    /// The connection was lost with the call open: killed peer, broken network, our own abort.
    Lost(io::ErrorKind),
    /// Either side found the other in breach of HTTP/2, with this error code.
    Protocol(u32),
    /// The request's own body failed; its error is the source.
    RequestBody,
    /// The request cannot be sent as it is; no other endpoint would take it either.
    Request,
    /// The request's header list has `size` bytes (RFC 9113, 6.5.2), and the peer has said that it takes
    /// `most`. Sent all the same, it could end the connection with all calls on it.
    HeadersTooLarge {
        /// Bytes of the request's header list.
        size: usize,
        /// Bytes that the peer takes.
        most: u32,
    },
}

/// A call that failed on its connection: what was proven, why, and h2's own error as the source.
#[derive(Debug)]
pub struct CallError {
    /// What is proven.
    pub proof: Proof,
    /// Why.
    pub cause: Cause,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// A call without an answer.
#[derive(Debug)]
pub struct Failure {
    /// What happened.
    pub error: CallError,
    /// The body, untouched, where nothing of the call left this process: even a stream can be
    /// sent elsewhere then.
    pub unsent: Option<Box<Outgoing>>,
}

impl CallError {
    /// A call for which the connection opened no stream.
    pub(super) fn not_opened(error: h2::Error, link: &Link) -> Self {
        // What is neither a GOAWAY nor an end of the connection is the request's own fault.
        let cause = match (link.goaway(), link.state().closed || link.state().ended) {
            (Some(said), _) => Cause::GoneAway(said),
            (None, true) => Cause::Closed,
            (None, false) if ends_connection(&error) => Cause::Closed,
            (None, false) => Cause::Request,
        };
        close_if_broken(&error, link);
        Self::new(Proof::NeverLeft, cause, Some(Box::new(error)))
    }

    /// A call whose header list the peer does not take.
    pub(super) fn headers_too_large(size: usize, most: u32) -> Self {
        let cause = Cause::HeadersTooLarge { size, most };
        Self::new(Proof::NeverLeft, cause, None)
    }

    /// A call on a handle that was closed.
    pub(in crate::consumer) fn closed() -> Self {
        Self::new(Proof::NeverLeft, Cause::Closed, None)
    }

    /// The request's body failed.
    pub(super) fn request_body(status: tonic::Status) -> Self {
        Self::new(Proof::Unknown, Cause::RequestBody, Some(Box::new(status)))
    }

    /// A call whose stream `id` was opened and failed before its answer's head.
    pub(super) fn open(error: h2::Error, id: u32, link: &Link) -> Self {
        close_if_broken(&error, link);
        let cause = cause_of(&error);
        let goaway = link.goaway();
        // Our id above the last one is proof whatever the error: the socket may have failed
        // between the frame and h2's reading it.
        let above = goaway.is_some_and(|said| id > said.last_stream);
        // h2 gives this error to streams above the last id alone.
        let told = error.is_go_away() && error.is_remote();
        let (proof, cause) = match goaway {
            _ if cause == Cause::Refused => (Proof::NotProcessed, cause),
            Some(said) if above || told => (Proof::NotProcessed, Cause::GoneAway(said)),
            _ if told => (Proof::NotProcessed, cause),
            _ if id > link.sent() => (Proof::NeverLeft, cause),
            _ => (Proof::Unknown, cause),
        };
        Self::new(proof, cause, Some(Box::new(error)))
    }

    /// A call whose answer had begun: never a proof of anything.
    pub(super) fn in_body(error: h2::Error) -> Self {
        let cause = cause_of(&error);
        Self::new(Proof::Unknown, cause, Some(Box::new(error)))
    }

    fn new(proof: Proof, cause: Cause, source: Option<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            proof,
            cause,
            source,
        }
    }

    /// Whether the request itself is the reason, so that no other endpoint would do better.
    #[must_use]
    pub fn is_own_fault(&self) -> bool {
        matches!(
            self.cause,
            Cause::Request | Cause::RequestBody | Cause::HeadersTooLarge { .. }
        )
    }

    /// Whether the connection's end left the call out, provably unprocessed.
    #[must_use]
    pub fn is_left_out(&self) -> bool {
        self.proof != Proof::Unknown && matches!(self.cause, Cause::GoneAway(_))
    }

    /// The code that callers see, by gRPC's table of HTTP/2 error codes ("gRPC over HTTP/2",
    /// Errors). A lost connection is UNAVAILABLE; the proof is not in the code.
    #[must_use]
    pub fn code(&self) -> tonic::Code {
        match self.cause {
            Cause::Closed | Cause::Refused | Cause::Lost(_) => tonic::Code::Unavailable,
            Cause::GoneAway(GoAway { code, .. }) => match Reason::from(code) {
                Reason::ENHANCE_YOUR_CALM => tonic::Code::ResourceExhausted,
                _ => tonic::Code::Unavailable,
            },
            Cause::Reset(code) => match Reason::from(code) {
                Reason::CANCEL => tonic::Code::Cancelled,
                Reason::REFUSED_STREAM => tonic::Code::Unavailable,
                Reason::ENHANCE_YOUR_CALM => tonic::Code::ResourceExhausted,
                Reason::INADEQUATE_SECURITY => tonic::Code::PermissionDenied,
                _ => tonic::Code::Internal,
            },
            Cause::Protocol(_) | Cause::Request => tonic::Code::Internal,
            Cause::HeadersTooLarge { .. } => tonic::Code::ResourceExhausted,
            Cause::RequestBody => self
                .source
                .as_deref()
                .and_then(|source| source.downcast_ref::<tonic::Status>())
                .map_or(tonic::Code::Unknown, tonic::Status::code),
        }
    }

    /// The status that the application sees; this error is its source.
    #[must_use]
    pub fn into_status(self) -> tonic::Status {
        let mut status = tonic::Status::new(self.code(), self.to_string());
        status.set_source(Arc::new(self));
        status
    }
}

fn ends_connection(error: &h2::Error) -> bool {
    error.is_io() || (error.reason().is_some() && !error.is_reset())
}

/// h2 fails all calls of a connection as soon as it is broken, but the connection's task ends only
/// when h2 has written its last words, which takes as long as the peer does not read: no call is
/// to be placed there meanwhile.
fn close_if_broken(error: &h2::Error, link: &Link) {
    if ends_connection(error) && link.goaway().is_none() {
        link.close();
    }
}

fn cause_of(error: &h2::Error) -> Cause {
    if let Some(io) = error.get_io() {
        return Cause::Lost(io.kind());
    }
    let code = error.reason().map(u32::from);
    match (error.is_reset(), error.is_remote(), code) {
        (true, true, Some(code)) if code == u32::from(Reason::REFUSED_STREAM) => Cause::Refused,
        (true, true, Some(code)) => Cause::Reset(code),
        (_, _, Some(code)) => Cause::Protocol(code),
        // A user error: the connection's task went away with the call open.
        (_, _, None) => Cause::Lost(io::ErrorKind::BrokenPipe),
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cause {
            Cause::Closed => f.write_str("the connection takes no more calls")?,
            Cause::GoneAway(said) => write!(f, "the server ended the connection ({said})")?,
            Cause::Refused => f.write_str("the server refused the stream")?,
            Cause::Reset(code) => {
                write!(f, "the server reset the stream ({:?})", Reason::from(code))?
            }
            Cause::Lost(kind) => write!(f, "the connection was lost: {kind}")?,
            Cause::Protocol(code) => write!(f, "HTTP/2 was broken ({:?})", Reason::from(code))?,
            Cause::RequestBody => f.write_str("the request's body failed")?,
            Cause::Request => f.write_str("the request cannot be sent over HTTP/2")?,
            Cause::HeadersTooLarge { size, most } => write!(
                f,
                "the request's header list has {size} bytes, and the server takes {most}"
            )?,
        }
        f.write_str(match self.proof {
            Proof::NeverLeft => "; the call never left this process",
            Proof::NotProcessed => "; the call was not processed",
            Proof::Unknown => "; the call may have been processed",
        })
    }
}

impl Error for CallError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let source = self.source.as_deref()?;
        Some(source)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Failure {
    pub(super) fn of(error: CallError) -> Self {
        Self {
            error,
            unsent: None,
        }
    }

    pub(super) fn handed_back(error: CallError, body: Outgoing) -> Self {
        Self {
            error,
            unsent: Some(Box::new(body)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn a_broken_connection_takes_no_more_calls() {
        let (near, mut far) = tokio::io::duplex(1 << 10);
        // SETTINGS, then DATA of no stream (RFC 9113, 6.1).
        let breach = b"\0\0\0\x04\0\0\0\0\0\0\0\x01\0\0\0\0\0\0x";
        let (send, connection) = h2::client::handshake(near).await.expect("the preface");
        let mut send = send.ready().await.expect("it is open");
        let request = || http::Request::post("http://orders/").body(()).expect("one");
        let (answer, _stream) = send.send_request(request(), true).expect("a stream");
        far.write_all(breach).await.expect("there is room");
        let driven = tokio::spawn(connection);
        let error = answer.await.expect_err("the connection is broken");
        let link = Link::new(100);
        let error = CallError::open(error, 1, &link);
        assert_eq!(error.cause, Cause::Protocol(1), "{error}");
        assert!(!link.take(), "{:?}", link.state());

        let error = send
            .send_request(request(), true)
            .expect_err("it is broken");
        let link = Link::new(100);
        let error = CallError::not_opened(error, &link);
        assert_eq!(error.cause, Cause::Closed, "{error}");
        assert!(!link.take(), "{:?}", link.state());
        let _ = driven.await;
    }
}
