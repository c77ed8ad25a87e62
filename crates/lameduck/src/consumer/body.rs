//! An answer's body on its way to the application.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use super::Directory;
use super::connection::Body;
use super::error::{self, CallFailed};
use super::link::Link;
use super::pick::InFlight;

/// The body of an answer: freed of marks, counted to its end, ended by its call's deadline.
#[derive(Debug)]
pub(super) struct AnswerBody {
    // Dropped in this order: the stream's slot is free before the count says so.
    inner: Option<Body>,
    in_flight: Option<InFlight>,
    link: Arc<Link>,
    deadline: Option<Pin<Box<Sleep>>>,
    /// Keeps the endpoint in use while the application reads, whatever becomes of its channel.
    directory: Option<Arc<Directory>>,
    is_the_applications: bool,
}

impl AnswerBody {
    pub(super) fn new(inner: Body, link: Arc<Link>) -> Self {
        Self {
            inner: Some(inner),
            in_flight: None,
            link,
            deadline: None,
            directory: None,
            is_the_applications: false,
        }
    }

    /// The same, counted as a call and ended at `deadline`.
    pub(super) fn of_call(
        mut self,
        directory: Arc<Directory>,
        in_flight: InFlight,
        deadline: Option<Instant>,
    ) -> Self {
        self.directory = Some(directory);
        self.in_flight = Some(in_flight);
        self.deadline = deadline.map(|at| Box::pin(sleep_until(at)));
        self
    }

    /// The same, whose errors say from where they come: the call is the application's from here on.
    pub(super) fn for_application(mut self) -> Self {
        self.is_the_applications = true;
        self
    }

    fn end(&mut self) {
        self.inner = None;
        self.in_flight = None;
        self.deadline = None;
        self.directory = None;
    }

    fn explained(&self, status: tonic::Status) -> tonic::Status {
        if !self.is_the_applications {
            return status;
        }
        let endpoint = &self.link.endpoint;
        CallFailed::in_answer((endpoint.address.clone(), endpoint.incarnation()), status)
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<tonic::Status> {
        match &mut self.deadline {
            Some(sleep) => {
                ready!(sleep.as_mut().poll(cx));
                Poll::Ready(error::deadline_in_answer(&self.link.endpoint.address))
            }
            None => Poll::Pending,
        }
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let this = self.get_mut();
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(None);
        };
        let Poll::Ready(frame) = Pin::new(inner).poll_frame(cx) else {
            let status = ready!(this.poll_deadline(cx));
            this.end();
            return Poll::Ready(Some(Err(status)));
        };
        let mut frame = frame.map(|read| read.map_err(|status| this.explained(status)));
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            // A refusal comes in a head alone: what has trailers after data was processed.
            this.link.read(trailers);
        }
        if !matches!(&frame, Some(Ok(frame)) if frame.is_data()) {
            this.end();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
