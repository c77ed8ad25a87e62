//! Request bodies that are given up before their end.
//!
//! On HTTP/1 the peer may still be sending: the closing socket must read on for a while, or the RST
//! that answers unread bytes destroys the answer. On HTTP/2 unread small DATA frames use up a budget
//! of h2, and at its end the whole connection dies (ENHANCE_YOUR_CALM): they are read to the end, or
//! to a bound, behind the back of whoever lost interest.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::header::EXPECT;
use ::http::{Request, Version};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use lameduck_core::limits::{REFUSE_READ_BYTES, REFUSE_READ_MAX};

use super::peer::Peer;
use crate::cell::wire::Flag;

/// Bytes of an unread body that hyper reads, if they are there, to keep an HTTP/1 connection: its first buffer.
const UNREAD_BYTES_DRAINED: u64 = 8 << 10;

/// A request body that minds its end.
pub(super) struct Upload {
    body: Option<Incoming>,
    version: Version,
    /// The peer waits to be told that it may send it, and was not told yet.
    held_back: bool,
    peer: Arc<Peer>,
}

impl Upload {
    pub(super) fn of(request: Request<Incoming>, peer: &Arc<Peer>) -> Request<Self> {
        let version = request.version();
        let held_back = request.headers().contains_key(EXPECT);
        request.map(|body| Self {
            body: Some(body),
            version,
            held_back,
            peer: Arc::clone(peer),
        })
    }

    /// HTTP/1: whether hyper closes the connection for this unread body. It reads one buffer more, and goes on
    /// where that ends the body.
    fn ends_connection(&self, body: &Incoming) -> bool {
        let left = body.size_hint().exact();
        self.held_back || left.is_none_or(|left| left > UNREAD_BYTES_DRAINED)
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.held_back = false;
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(body).poll_frame(context);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        if self.is_end_stream() {
            self.peer.wire.take(Flag::Uploading);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.peer.wire.take(Flag::Uploading);
        let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) else {
            return;
        };
        if self.version != Version::HTTP_2 {
            self.peer.wire.set(Flag::UploadUnread);
            if self.ends_connection(&body) {
                // Said by this answer, if its head is still to come.
                self.peer.wire.set(Flag::LastAnswer);
            }
        } else if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(read_off(body));
        }
    }
}

/// Reads a body to its end, within bounds of bytes and time.
pub(super) async fn read_off(mut body: Incoming) {
    let read = async {
        let mut left = REFUSE_READ_BYTES;
        while left > 0 {
            match body.frame().await {
                Some(Ok(frame)) => {
                    let size = frame.data_ref().map_or(1, Bytes::len);
                    left = left.saturating_sub(size.max(1));
                }
                None | Some(Err(_)) => return,
            }
        }
    };
    // Past the bound the rest stays unread: those are few.
    let _ = tokio::time::timeout(REFUSE_READ_MAX, read).await;
}
