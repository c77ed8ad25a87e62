//! The body of an answer, which holds its stream slot to its end.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http_body::Frame;

use super::Slot;
use super::failure::CallError;
use super::pump::Pump;

/// The body of an answer.
///
/// It counts as an open stream until its trailers or its end or its error were read from it, or it
/// is dropped, whichever comes first; dropped early, it cancels the call. Its errors carry a
/// [`CallError`] as their source.
#[derive(Debug)]
pub struct Body {
    open: Option<Open>,
}

/// What an unfinished answer holds; dropped in this order, so that h2 knows that the stream is
/// gone before its slot is free.
#[derive(Debug)]
pub(super) struct Open {
    recv: RecvStream,
    data_ended: bool,
    _pump: Option<Pump>,
    _slot: Slot,
}

impl Open {
    pub(super) fn new(recv: RecvStream, pump: Option<Pump>, slot: Slot) -> Self {
        Self {
            recv,
            data_ended: false,
            _pump: pump,
            _slot: slot,
        }
    }

    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.data_ended {
            match ready!(self.recv.poll_data(cx)) {
                Some(Ok(data)) => {
                    // Taken is read: the caller's backpressure is that it does not poll.
                    // Refused for more than was received alone.
                    let _ = self.recv.flow_control().release_capacity(data.len());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.data_ended = true,
            }
        }
        let trailers = ready!(self.recv.poll_trailers(cx));
        Poll::Ready(trailers.transpose().map(|read| read.map(Frame::trailers)))
    }
}

impl Body {
    pub(super) fn new(open: Open) -> Self {
        // An answer of trailers alone is over with its head.
        let over = open.recv.is_end_stream();
        Self {
            open: (!over).then_some(open),
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let this = self.get_mut();
        let Some(open) = &mut this.open else {
            return Poll::Ready(None);
        };
        let frame = ready!(open.poll_frame(cx));
        let goes_on = matches!(&frame, Some(Ok(frame)) if frame.is_data());
        if !goes_on {
            this.open = None;
        }
        Poll::Ready(frame.map(|read| read.map_err(|error| CallError::in_body(error).into_status())))
    }

    fn is_end_stream(&self) -> bool {
        self.open
            .as_ref()
            .is_none_or(|open| open.recv.is_end_stream())
    }
}
