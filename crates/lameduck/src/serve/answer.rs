//! Response bodies: they hold the permit to their end, mark their trailers, and end visibly.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use ::http::{HeaderMap, HeaderValue};
use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use lameduck_core::conn::Protocol;
use pin_project_lite::pin_project;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::fit::{Room, TooLarge, fit};
use super::flavour::{Flavour, Framing};
use super::peer::{Held, Peer};
use super::service::mark_trailers;

pin_project! {
    /// The body of an answer.
    pub(super) struct Answer {
        #[pin]
        body: Body,
        // Given back at the end, at an error, or when dropped; on HTTP/1 once the end is written.
        held: Option<Held>,
        protocol: Protocol,
        flavour: Flavour,
        // gRPC-web alone.
        framing: Option<Box<Framing>>,
        // Made only for gRPC answers that have made their reader wait.
        cut: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    }

    impl PinnedDrop for Answer {
        // hyper drops a body that says that it is at its end, and one whose reader has gone.
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let Some(held) = this.held.take() {
                held.ended(*this.protocol);
            }
        }
    }
}

impl Answer {
    /// The body of an admitted request's answer.
    pub(super) fn new(body: Body, held: Held, protocol: Protocol, flavour: Flavour) -> Self {
        // Where its length is known, a head of ours says it.
        let is_open = http_body::Body::size_hint(&body).exact().is_none();
        let framing = (flavour.is_web() && is_open).then(|| Box::new(Framing::new(flavour)));
        Self {
            body,
            held: Some(held),
            protocol,
            flavour,
            framing,
            cut: None,
        }
    }

    /// A body that holds nothing: of an upgrade, whose permit the connection holds.
    pub(super) fn bare(body: Body) -> Self {
        Self {
            body,
            held: None,
            protocol: Protocol::Http1,
            flavour: Flavour::Plain,
            framing: None,
            cut: None,
        }
    }

    /// A text of our own.
    pub(super) fn text(text: String) -> Self {
        Self::bare(Body::from(text))
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = BrokenBody;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenBody>>> {
        let mut this = self.project();
        match this.body.as_mut().poll_frame(context) {
            Poll::Ready(Some(Ok(mut frame))) => {
                if let (Some(framing), Some(data)) = (this.framing.as_mut(), frame.data_ref()) {
                    framing.feed(data);
                }
                if let Some(trailers) = frame.trailers_mut()
                    && let Some(held) = this.held.take()
                {
                    mark_trailers(held.peer(), trailers);
                    let fitted = fit_trailers(held.peer(), *this.protocol, *this.flavour, trailers);
                    held.ended(*this.protocol);
                    if let Err(too_large) = fitted {
                        return Poll::Ready(Some(Err(axum::Error::new(too_large).into())));
                    }
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                *this.held = None;
                Poll::Ready(Some(Err(BrokenBody::from(error))))
            }
            Poll::Ready(None) => {
                if let Some(held) = this.held.take() {
                    held.ended(*this.protocol);
                }
                Poll::Ready(None)
            }
            Poll::Pending => {
                let Some(held) = this.held else {
                    return Poll::Pending;
                };
                held.is_stream();
                if !this.flavour.is_grpc() {
                    return Poll::Pending;
                }
                let cut = this
                    .cut
                    .get_or_insert_with(|| Box::pin(held.end().cancelled_owned()));
                if cut.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                let frame = last_frame(*this.flavour, this.framing.as_deref(), held.peer());
                if let Some(held) = this.held.take() {
                    held.ended(*this.protocol);
                }
                this.body.set(Body::empty());
                Poll::Ready(Some(frame))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Makes trailers fit. Those of a gRPC call that would have succeeded, and whose metadata its caller does
/// not take, say so instead.
fn fit_trailers(
    peer: &Peer,
    protocol: Protocol,
    flavour: Flavour,
    trailers: &mut HeaderMap,
) -> Result<(), TooLarge> {
    let room = Room::of(&peer.wire, protocol);
    match fit(trailers, room) {
        Err(too_large) if flavour.is_grpc() => {
            *trailers = status_trailers(&too_large.status());
            mark_trailers(peer, trailers);
            Ok(())
        }
        fitted => fitted,
    }
}

/// The end of a gRPC answer that is cut: a status that no reader takes for success, or where there is no place
/// for one an error.
fn last_frame(
    flavour: Flavour,
    framing: Option<&Framing>,
    peer: &Peer,
) -> Result<Frame<Bytes>, BrokenBody> {
    let text = "the server ended before this answer did";
    let mut trailers = status_trailers(&tonic::Status::unavailable(text));
    if !flavour.is_web() {
        mark_trailers(peer, &mut trailers);
        return Ok(Frame::trailers(trailers));
    }
    if framing.is_some_and(Framing::is_between_frames) {
        return Ok(Frame::data(flavour.trailers_frame(&trailers)));
    }
    Err(axum::Error::new(text).into())
}

/// A status as trailers.
pub(super) fn status_trailers(status: &tonic::Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    // The text is ASCII, so it can be a header value; without one the status would be missing.
    if status.add_header(&mut trailers).is_err() {
        trailers.insert("grpc-status", HeaderValue::from(i32::from(status.code())));
    }
    trailers
}

/// An answer's body broke off.
///
/// Its reader is told INTERNAL_ERROR, or what the error itself asks for; but never NO_ERROR, which
/// readers take for a good end, and never REFUSED_STREAM, which would say that nothing was processed.
#[derive(Debug)]
pub(super) struct BrokenBody {
    error: axum::Error,
    misleading: bool,
}

impl From<axum::Error> for BrokenBody {
    fn from(error: axum::Error) -> Self {
        let mut next: Option<&(dyn Error + 'static)> = Some(&error);
        let mut misleading = false;
        while let Some(cause) = next {
            if let Some(reason) = cause
                .downcast_ref::<h2::Error>()
                .and_then(h2::Error::reason)
            {
                misleading = [h2::Reason::NO_ERROR, h2::Reason::REFUSED_STREAM].contains(&reason);
                break;
            }
            next = cause.source();
        }
        Self { error, misleading }
    }
}

impl fmt::Display for BrokenBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the answer's body broke off: {}", self.error)
    }
}

impl Error for BrokenBody {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        (!self.misleading).then_some(&self.error)
    }
}
