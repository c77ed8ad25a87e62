//! The socket of a connection, watched.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::GoAway;
use crate::cell::link::Link;
use crate::frames::{Parser, Seen};

/// `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n`
const PREFACE_BYTES: usize = 24;

/// Content type `alert`, major version 3.
const TLS_ALERT: &[u8] = &[21, 3];

/// Passes bytes through and tells the [`Link`] what their frames say.
#[derive(Debug)]
pub(super) struct Watched<T> {
    inner: T,
    link: Arc<Link>,
    incoming: Parser,
    outgoing: Parser,
}

impl<T> Watched<T> {
    pub(super) fn new(inner: T, link: Arc<Link>) -> Self {
        Self {
            inner,
            link,
            incoming: Parser::default(),
            outgoing: Parser::after(PREFACE_BYTES),
        }
    }

    fn saw(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return self.link.note_read_end();
        }
        // The head of a TLS alert (RFC 8446, 5.1): its server takes our preface for a broken hello. As
        // HTTP/2 it would be a frame of 1.3 MB, and no server begins with one.
        if self.link.state().bytes == 0 && bytes.starts_with(TLS_ALERT) {
            self.link.note_tls();
        }
        self.link.note_read(bytes.len());
        let link = &self.link;
        self.incoming.feed(bytes, |seen| match seen {
            Seen::Headers { stream } => link.note_head(stream),
            Seen::Reset => link.note_reset(),
            Seen::Settings(settings) => {
                if let Some(most) = settings.headers_max {
                    link.note_headers_max(most);
                }
                link.note_settings(settings.max_streams);
            }
            Seen::GoAway { last_stream, code } => link.note_goaway(GoAway { last_stream, code }),
        });
    }

    fn sent(&mut self, bytes: &[u8]) {
        let link = &self.link;
        self.outgoing.feed(bytes, |seen| {
            if let Seen::Headers { stream } = seen {
                link.note_sent(stream);
            }
        });
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let asked = buf.remaining() > 0;
        let result = ready!(Pin::new(&mut this.inner).poll_read(cx, buf));
        match &result {
            // Nothing read into room for something is the peer's end.
            Ok(()) if asked => this.saw(&buf.filled()[before..]),
            Ok(()) => {}
            Err(_) => this.link.note_read_end(),
        }
        Poll::Ready(result)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let count = ready!(Pin::new(&mut this.inner).poll_write(cx, buf))?;
        this.sent(&buf[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let count = ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, bufs))?;
        let mut left = count;
        for buf in bufs {
            let part = left.min(buf.len());
            this.sent(&buf[..part]);
            left -= part;
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
