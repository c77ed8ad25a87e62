//! A request's body, taken whole where it is there already.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body as _, Frame};

/// A request body as the connection sends it.
#[derive(Debug)]
pub enum Outgoing {
    /// Known from end to end: sent in one frame, and again on another connection where need be.
    Whole {
        /// All its data.
        data: Bytes,
        /// Trailers, where there are any (gRPC requests have none).
        trailers: Option<Box<HeaderMap>>,
    },
    /// Still being made: sent once.
    Streaming(Streaming),
}

/// A body of which some frames were taken.
pub struct Streaming {
    pub(super) prefix: VecDeque<Frame<Bytes>>,
    pub(super) rest: tonic::body::Body,
}

impl fmt::Debug for Streaming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken = self.prefix.len();
        f.debug_struct("Streaming")
            .field("taken", &taken)
            .finish_non_exhaustive()
    }
}

impl Outgoing {
    /// Takes what `body` has ready. A unary body is always ready; its size hint does not say so,
    /// hence the polling. A body that has to wait, fails, or has more than `whole_max` bytes is
    /// streamed from where the taking stopped.
    #[must_use]
    pub fn take(mut body: tonic::body::Body, whole_max: usize) -> Self {
        // Nothing can be missed: whoever polls the rest registers a waker of its own.
        let mut cx = Context::from_waker(Waker::noop());
        let mut prefix = Prefix::default();
        let mut bytes = 0;
        while bytes <= whole_max {
            match Pin::new(&mut body).poll_frame(&mut cx) {
                Poll::Ready(None) => return prefix.whole(),
                Poll::Ready(Some(Ok(frame))) => {
                    // At least one, so that the taking ends with empty frames too.
                    bytes += frame.data_ref().map_or(1, |data| data.len().max(1));
                    prefix.push(frame);
                }
                Poll::Ready(Some(Err(status))) => {
                    // Its own error must reach the peer as a reset, after what came before it.
                    body = failed_body(status);
                    break;
                }
                Poll::Pending => break,
            }
        }
        Self::Streaming(Streaming {
            prefix: prefix.into_frames(),
            rest: body,
        })
    }

    /// A copy for another attempt; `None` where the body can be sent only once. Data is shared,
    /// not copied.
    #[must_use]
    pub fn replay(&self) -> Option<Self> {
        match self {
            Self::Whole { data, trailers } => Some(Self::Whole {
                data: data.clone(),
                trailers: trailers.clone(),
            }),
            Self::Streaming(_) => None,
        }
    }

    /// Whether it can be sent more than once.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Whole { .. })
    }

    /// Whether the request ends with its head.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Whole { data, trailers } => data.is_empty() && trailers.is_none(),
            Self::Streaming(_) => false,
        }
    }
}

/// The frames that were taken. A unary body has one, for which nothing is allocated.
#[derive(Default)]
struct Prefix {
    first: Option<Frame<Bytes>>,
    more: VecDeque<Frame<Bytes>>,
}

impl Prefix {
    fn push(&mut self, frame: Frame<Bytes>) {
        if self.first.is_none() {
            self.first = Some(frame);
        } else {
            self.more.push_back(frame);
        }
    }

    fn into_frames(self) -> VecDeque<Frame<Bytes>> {
        let mut frames = self.more;
        if let Some(first) = self.first {
            frames.push_front(first);
        }
        frames
    }

    /// The body, of which these are all frames.
    fn whole(self) -> Outgoing {
        if let Self {
            first: Some(first),
            more,
        } = self
        {
            return match first.into_data() {
                Ok(data) if more.is_empty() => Outgoing::Whole {
                    data,
                    trailers: None,
                },
                Ok(data) => joined(std::iter::once(Frame::data(data)).chain(more)),
                Err(frame) => joined(std::iter::once(frame).chain(more)),
            };
        }
        Outgoing::Whole {
            data: Bytes::new(),
            trailers: None,
        }
    }
}

fn joined(frames: impl Iterator<Item = Frame<Bytes>>) -> Outgoing {
    let mut parts = Vec::new();
    let mut trailers = None;
    for frame in frames {
        match frame.into_data() {
            Ok(data) => parts.push(data),
            Err(frame) => trailers = frame.into_trailers().ok().map(Box::new),
        }
    }
    Outgoing::Whole {
        data: join(parts),
        trailers,
    }
}

fn failed_body(status: tonic::Status) -> tonic::body::Body {
    let failed = http_body_util::StreamBody::new(futures_util::stream::iter([Err::<
        Frame<Bytes>,
        _,
    >(status)]));
    tonic::body::Body::new(failed)
}

fn join(mut parts: Vec<Bytes>) -> Bytes {
    if parts.len() < 2 {
        return parts.pop().unwrap_or_default();
    }
    let mut joined = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    for part in parts {
        joined.extend_from_slice(&part);
    }
    joined.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_frames_without_end_are_streamed() {
        let frame = || Ok::<_, tonic::Status>(Frame::data(Bytes::new()));
        let frames = futures_util::stream::repeat_with(frame);
        let body = tonic::body::Body::new(http_body_util::StreamBody::new(frames));
        assert!(matches!(Outgoing::take(body, 16), Outgoing::Streaming(_)));
    }
}
