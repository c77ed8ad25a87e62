//! One connection's protocol, once it is known.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use lameduck_core::conn::Protocol;
use lameduck_core::limits::{
    HEADER_BYTES_MAX, HTTP1_IDLE_MAX, SEND_BYTES_MAX, SERVER_GIVEN_UP_MAX, SERVER_PING_INTERVAL,
    SERVER_PING_MAX, SERVER_RESETS_MAX, SERVER_STREAMS_MAX, WINDOW_BYTES,
};

use super::io::Io;
use super::peer::Peer;
use super::service::Service;
use crate::cell::streams::Streams;

type Http1 = http1::UpgradeableConnection<TokioIo<Io>, Service>;
type Http2 = http2::Connection<TokioIo<Io>, Service, Streams>;

/// What drives the socket.
pub(super) enum Http {
    /// The first bytes are awaited.
    Undecided(Io),
    One(Pin<Box<Http1>>),
    Two(Pin<Box<Http2>>, Streams),
    /// Nothing any more: an upgrade took the socket, or it is over.
    Ended,
}

/// What came of it.
pub(super) enum Progress {
    /// The protocol is known; goes on.
    Decided,
    /// Ended well: everything was flushed, or the peer left.
    Ended,
    /// Ended by an error: an answer may have been broken off.
    Broken,
}

impl Http {
    pub(super) fn poll(&mut self, context: &mut Context<'_>, parts: &Parts) -> Poll<Progress> {
        let ended = match self {
            Self::Undecided(io) => match std::task::ready!(io.poll_protocol(context)) {
                Ok(Some(protocol)) => {
                    self.decide(protocol, parts);
                    return Poll::Ready(Progress::Decided);
                }
                Ok(None) | Err(_) => return Poll::Ready(Progress::Ended),
            },
            Self::One(connection) => connection.as_mut().poll(context),
            Self::Two(connection, _) => connection.as_mut().poll(context),
            Self::Ended => return Poll::Pending,
        };
        ended.map(|result| match result {
            Ok(()) => Progress::Ended,
            Err(_) => Progress::Broken,
        })
    }

    fn decide(&mut self, protocol: Protocol, parts: &Parts) {
        let Self::Undecided(io) = std::mem::replace(self, Self::Ended) else {
            return;
        };
        let io = TokioIo::new(io);
        let service = Service::new(Arc::clone(&parts.peer), parts.router.clone());
        *self = match protocol {
            Protocol::Http1 => Self::One(Box::pin(
                http1_builder()
                    .serve_connection(io, service)
                    .with_upgrades(),
            )),
            Protocol::Http2 => {
                let streams = Streams::default();
                let builder = http2_builder(streams.clone());
                Self::Two(Box::pin(builder.serve_connection(io, service)), streams)
            }
        };
    }

    /// HTTP/2: GOAWAY and PING. HTTP/1: close after the answer in flight. Once.
    pub(super) fn graceful(&mut self) {
        match self {
            Self::One(connection) => connection.as_mut().graceful_shutdown(),
            Self::Two(connection, _) => connection.as_mut().graceful_shutdown(),
            Self::Undecided(_) | Self::Ended => {}
        }
    }

    /// Resets the open streams.
    pub(super) fn reset(&self) {
        if let Self::Two(_, streams) = self {
            streams.abort_all();
        }
    }
}

/// What a connection is served with.
pub(super) struct Parts {
    pub(super) peer: Arc<Peer>,
    pub(super) router: Router,
}

fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // Covers idle keep-alive too.
        .header_read_timeout(HTTP1_IDLE_MAX)
        .max_header_size(HEADER_BYTES_MAX as usize)
        // A client that has said all of its request may shut down its side, and gets its answer.
        .half_close(true);
    builder
}

fn http2_builder(streams: Streams) -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(streams);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(SERVER_STREAMS_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_local_error_reset_streams(SERVER_RESETS_MAX)
        .max_pending_accept_reset_streams(SERVER_GIVEN_UP_MAX)
        .max_send_buf_size(SEND_BYTES_MAX)
        .keep_alive_interval(SERVER_PING_INTERVAL)
        .keep_alive_timeout(SERVER_PING_MAX);
    builder
}
