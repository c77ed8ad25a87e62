//! One connection's protocol, once it is known.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use lameduck_core::conn::Protocol;
use lameduck_core::limits::HTTP1_HEADERS_MAX;

use super::io::Io;
use super::limits::Limits;
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
                http1_builder(&parts.peer.shared.limits)
                    .serve_connection(io, service)
                    .with_upgrades(),
            )),
            Protocol::Http2 => {
                let streams = Streams::default();
                let builder = http2_builder(streams.clone(), &parts.peer.shared.limits);
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

/// hyper's own bound of its buffers; a smaller one would slow down bodies.
const HTTP1_BUFFER_BYTES: usize = 408 << 10;

fn http1_builder(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // Covers idle keep-alive too.
        .header_read_timeout(limits.http1_idle)
        .max_header_size(limits.http1_head_bytes)
        .max_buf_size(limits.http1_head_bytes.max(HTTP1_BUFFER_BYTES))
        .half_close(limits.http1_half_close);
    if limits.http1_headers != HTTP1_HEADERS_MAX {
        // hyper keeps their table on the stack unless a number is given.
        builder.max_headers(limits.http1_headers);
    }
    builder
}

fn http2_builder(streams: Streams, limits: &Limits) -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(streams);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .initial_stream_window_size(limits.stream_window)
        .initial_connection_window_size(limits.connection_window)
        .max_frame_size(limits.frame_bytes)
        .max_header_list_size(limits.http2_head_bytes)
        .max_local_error_reset_streams(limits.resets)
        .max_pending_accept_reset_streams(limits.given_up)
        .max_send_buf_size(limits.send_bytes)
        .keep_alive_interval(limits.ping_interval)
        .keep_alive_timeout(limits.ping_timeout)
        // WebSockets over HTTP/2 (RFC 8441), as `axum::serve` has them.
        .enable_connect_protocol();
    builder
}
