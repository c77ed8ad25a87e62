//! The answer of an idempotent call, kept back until its first message is whole.
//!
//! A server that is killed between the head of an answer and its message has answered nothing. The
//! call may be placed once more as long as the application has not seen the head either.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use http::{HeaderMap, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use lameduck_core::limits::REPLAY_BYTES_MAX;

use super::body::AnswerBody;
use super::unavailable;

/// gRPC's message prefix: one byte of flags, four of length.
const PREFIX: usize = 5;

/// An answer of which some frames were taken.
#[derive(Debug)]
pub(super) struct Gathered {
    frames: VecDeque<Frame<Bytes>>,
    rest: AnswerBody,
}

/// Takes frames until one message is whole, the body ends, or more than is kept has come.
///
/// # Errors
/// The body's own error, if it comes before that.
pub(super) async fn gather(
    response: Response<AnswerBody>,
) -> Result<Response<Gathered>, tonic::Status> {
    let (head, mut rest) = response.into_parts();
    let mut frames = VecDeque::new();
    let mut message = Message::default();
    while !message.is_enough() && !rest.is_end_stream() {
        match rest.frame().await {
            None => break,
            Some(frame) => message.note(&mut frames, frame?),
        }
    }
    // Trailers that are here already belong to it: after this look they cannot get lost.
    let mut cx = Context::from_waker(Waker::noop());
    if let Poll::Ready(Some(frame)) = Pin::new(&mut rest).poll_frame(&mut cx) {
        frames.push_back(frame?);
    }
    let rest = rest.for_application();
    Ok(Response::from_parts(head, Gathered { frames, rest }))
}

impl Gathered {
    /// The trailers of an answer without a message.
    fn trailers_alone(&self) -> Option<&HeaderMap> {
        self.frames.front()?.trailers_ref()
    }

    /// Whether it says, without a message, that the server cannot serve.
    pub(super) fn is_unavailable(&self) -> bool {
        self.trailers_alone().is_some_and(unavailable::in_trailers)
    }

    /// Whether the server leaves it to the caller when the call is placed again.
    pub(super) fn may_be_repeated(&self) -> bool {
        self.trailers_alone()
            .is_none_or(unavailable::may_be_repeated)
    }
}

/// How much of the first message has come.
#[derive(Default)]
struct Message {
    prefix: Vec<u8>,
    bytes: usize,
}

impl Message {
    fn note(&mut self, frames: &mut VecDeque<Frame<Bytes>>, frame: Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            if data.is_empty() {
                // A peer may send them without end; kept, they would add up.
                return;
            }
            let missing = PREFIX - self.prefix.len();
            self.prefix.extend(data.iter().take(missing));
            self.bytes += data.len();
        }
        frames.push_back(frame);
    }

    fn is_enough(&self) -> bool {
        let whole = self.prefix.get(1..PREFIX).is_some_and(|mut length| {
            let length = usize::try_from(length.get_u32()).unwrap_or(usize::MAX);
            self.bytes >= length.saturating_add(PREFIX)
        });
        whole || self.bytes > REPLAY_BYTES_MAX
    }
}

impl Body for Gathered {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let this = self.get_mut();
        match this.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => Pin::new(&mut this.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.rest.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enough(parts: &[&'static [u8]]) -> bool {
        let mut message = Message::default();
        let mut frames = VecDeque::new();
        for part in parts {
            message.note(&mut frames, Frame::data(Bytes::from_static(part)));
        }
        assert_eq!(frames.len(), parts.len());
        message.is_enough()
    }

    #[test]
    fn one_whole_message_is_enough() {
        assert!(!enough(&[]));
        assert!(!enough(&[b"\0\0\0"]));
        assert!(!enough(&[b"\0\0\0", b"\0\x02", b"a"]));
        assert!(enough(&[b"\0\0\0", b"\0\x02", b"ab"]));
        assert!(enough(&[b"\0\0\0\0\0"]));
    }

    #[test]
    fn empty_frames_are_not_kept() {
        let (mut message, mut frames) = (Message::default(), VecDeque::new());
        for _ in 0..100 {
            message.note(&mut frames, Frame::data(Bytes::new()));
        }
        assert!(frames.is_empty() && !message.is_enough());
    }
}
