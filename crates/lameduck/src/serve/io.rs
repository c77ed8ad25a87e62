//! The socket as hyper sees it.
//!
//! It gives back the bytes that deciding the protocol took, mends authorities that h2 would refuse, sees
//! the two GOAWAYs leave, can answer the shutdown PING in the peer's place, and does not close on a peer
//! that is still sending: a socket closed with unread bytes sends RST, which can destroy an answer on its
//! way. Nor does it close while the peer has not got all bytes.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use lameduck_core::conn::Protocol;
use lameduck_core::conn::linger::Linger as Stay;
use lameduck_core::limits::{LINGER_BYTES, LINGER_CLEAN_MAX, LINGER_MAX};
use lameduck_core::time::Timestamp;
use lameduck_registry::driver::Clock;
use lameduck_socket::unacknowledged;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, Sleep, sleep};

use super::authority::Filter;
use super::fit;
use super::peer::Peer;
use crate::cell::wire::Flag;
use crate::frames::{Parser, Seen};

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// No HTTP/1 method begins with these.
const PREFACE_DECIDES: usize = 3;
/// The last stream id of a GOAWAY that still admits every stream.
const NO_LAST_STREAM: u32 = (1 << 31) - 1;
/// The answer to the PING that hyper and h2 send with the first GOAWAY. Its payload is a constant of
/// h2 that no document names; a conformance test watches over it.
const SHUTDOWN_PONG: [u8; 17] = [
    0, 0, 8, 6, 1, 0, 0, 0, 0, 0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54,
];

/// GOAWAY with ENHANCE_YOUR_CALM, its last stream still to be filled in, and why in words.
const ENOUGH: &[u8; 32] = b"\0\0\x17\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0btoo_many_resets";

/// The socket, shared by the IO wrapper inside hyper and the connection's task, which looks at it
/// and cuts it. Closed when both are gone; never shut down by its drop, since a FIN would make a cut
/// look like an end.
pub(super) struct Socket(Option<OwnedWriteHalf>);

impl Socket {
    pub(super) fn split(stream: TcpStream) -> (OwnedReadHalf, Arc<Self>) {
        let (read, write) = stream.into_split();
        (read, Arc::new(Self(Some(write))))
    }

    pub(super) fn stream(&self) -> &TcpStream {
        let half = self.0.as_ref().expect("taken by drop alone");
        half.as_ref()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(half) = self.0.take() {
            half.forget();
        }
    }
}

/// One connection's socket as hyper reads and writes it.
pub(super) struct Io {
    read: OwnedReadHalf,
    socket: Arc<Socket>,
    peer: Arc<Peer>,
    /// What was read and did not go to the reader yet: of it, the first `passed` bytes may.
    held: BytesMut,
    passed: usize,
    framing: Option<Box<Framing>>,
    /// HTTP/1: the last bytes that were read.
    tail: [u8; 3],
    linger: Linger,
    clock: Clock,
}

struct Framing {
    filter: Filter,
    inbound: Parser,
    outbound: Parser,
    /// The peer's newest stream.
    newest: u32,
}

/// How far the closing has come.
enum Linger {
    Open,
    Reading {
        timer: Pin<Box<Sleep>>,
        left: usize,
        stay: Stay,
    },
    Done,
}

impl Io {
    pub(super) fn new(read: OwnedReadHalf, socket: Arc<Socket>, peer: Arc<Peer>) -> Self {
        Self {
            read,
            socket,
            peer,
            held: BytesMut::new(),
            passed: 0,
            framing: None,
            tail: [0; 3],
            linger: Linger::Open,
            clock: Clock::start(),
        }
    }

    /// Reads until it is clear what the peer speaks. `None` where it left before that.
    pub(super) fn poll_protocol(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Protocol>>> {
        loop {
            if let Some(protocol) = decide(&self.held) {
                self.framing = (protocol == Protocol::Http2).then(|| {
                    Box::new(Framing {
                        filter: Filter::after(PREFACE.len()),
                        inbound: Parser::after(PREFACE.len()),
                        outbound: Parser::default(),
                        newest: 0,
                    })
                });
                let mut held = std::mem::take(&mut self.held);
                self.passed = self.look(&mut held);
                self.held = held;
                return Poll::Ready(Ok(Some(protocol)));
            }
            let mut bytes = [0; PREFACE.len()];
            let mut buffer = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut self.read).poll_read(context, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(None));
            }
            self.peer.wire.set(Flag::Begun);
            self.held.extend_from_slice(buffer.filled());
        }
    }

    /// How much of `bytes`, which begin where the last look passed nothing more, may go to the reader.
    fn look(&mut self, bytes: &mut [u8]) -> usize {
        let Some(framing) = &mut self.framing else {
            return bytes.len();
        };
        let passed = framing.filter.look(bytes);
        if let Some(authority) = passed.refused {
            self.peer.tell_refused(&authority);
        }
        passed.bytes
    }

    /// The reader gets at most this much before the PONG is put in; 0: put it in now.
    fn until_pong(&self) -> usize {
        match &self.framing {
            Some(framing) if self.peer.wire.has(Flag::InjectPong) => framing.inbound.to_boundary(),
            _ => usize::MAX,
        }
    }

    fn note_read(&mut self, bytes: &[u8]) {
        if self.framing.is_none() {
            self.note_heads(bytes);
        }
        if let Some(framing) = &mut self.framing {
            let wire = &self.peer.wire;
            let newest = &mut framing.newest;
            framing.inbound.feed(bytes, |seen| {
                if !wire.has(Flag::Spoken) {
                    wire.set(Flag::Spoken);
                }
                match seen {
                    Seen::Headers { stream } => *newest = stream.max(*newest),
                    Seen::Reset => wire.reset(),
                    Seen::Settings(settings) => fit::note(wire, settings),
                    Seen::GoAway { .. } => {}
                }
            });
        }
    }

    /// HTTP/1: whether what was read ends within a head, by its last bytes: a head ends by an empty line.
    fn note_heads(&mut self, bytes: &[u8]) {
        let wire = &self.peer.wire;
        if bytes.is_empty() || wire.has(Flag::Uploading) {
            return;
        }
        let last = bytes.len().min(self.tail.len());
        self.tail.rotate_left(last);
        let place = self.tail.len() - last;
        self.tail[place..].copy_from_slice(&bytes[bytes.len() - last..]);
        let whole = self.tail.ends_with(b"\n\r\n") || self.tail.ends_with(b"\n\n");
        wire.put(Flag::HeadBegun, !whole);
    }

    fn note_written(&mut self, bytes: &[u8]) {
        if let Some(framing) = &mut self.framing {
            let wire = &self.peer.wire;
            framing.outbound.feed(bytes, |seen| {
                if let Seen::GoAway { last_stream, .. } = seen {
                    wire.set(if last_stream == NO_LAST_STREAM {
                        Flag::GoAwayOut
                    } else {
                        Flag::FinalOut
                    });
                }
            });
        }
    }

    /// Ends an HTTP/2 connection for its peer's resets. hyper and h2 have no word for it, so the frame is
    /// put between two of theirs; in the middle of one, and where the socket is full, the end says it
    /// alone.
    fn say_enough(&self) {
        let framing = self.framing.as_ref();
        let Some(framing) = framing.filter(|framing| framing.outbound.to_boundary() == 0) else {
            return;
        };
        let mut frame = ENOUGH.to_vec();
        frame[9..13].copy_from_slice(&framing.newest.to_be_bytes());
        // A peer that does not read it is told by the end.
        let _ = self.socket.stream().try_write(&frame);
    }

    fn begin_linger(&mut self) -> io::Result<()> {
        match SockRef::from(self.socket.stream()).shutdown(Shutdown::Write) {
            Err(error) if error.kind() != io::ErrorKind::NotConnected => return Err(error),
            _ => {}
        }
        let unread = self.peer.wire.has(Flag::UploadUnread);
        let most = if unread { LINGER_MAX } else { LINGER_CLEAN_MAX };
        self.linger = Linger::Reading {
            timer: Box::pin(sleep(most)),
            left: LINGER_BYTES,
            stay: Stay::new(self.clock.now()),
        };
        Ok(())
    }

    /// Reads and throws away until the peer has ended, or it has all bytes and a bound is reached.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Linger::Reading { timer, left, stay } = &mut self.linger else {
            return Poll::Ready(());
        };
        let mut waste = [0_u8; 16 << 10];
        loop {
            // Where it is heard no more it is asked at once: a timer that is reset to now is due only after its
            // driver's next turn, which a loop here would keep from coming.
            let asks = *left == 0 && !stay.is_behind();
            if asks || timer.as_mut().poll(context).is_ready() {
                let pause = look(stay, self.socket.stream(), self.clock.now());
                self.peer.wire.put(Flag::Behind, stay.is_behind());
                let Some(pause) = pause.filter(|_| *left > 0 || stay.is_behind()) else {
                    return Poll::Ready(());
                };
                timer.as_mut().reset(Instant::now() + pause);
                continue;
            }
            if *left == 0 {
                // It gets what it was answered.
                return Poll::Pending;
            }
            let mut buffer = ReadBuf::new(&mut waste);
            let read = ready!(Pin::new(&mut self.read).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(());
            }
            *left = left.saturating_sub(buffer.filled().len());
        }
    }

    fn poll_read_some(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        most: usize,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.passed > 0 {
                let take = self.passed.min(buffer.remaining()).min(most);
                buffer.put_slice(&self.held[..take]);
                self.held.advance(take);
                self.passed -= take;
                return Poll::Ready(Ok(()));
            }
            let start = buffer.filled().len();
            if self.held.is_empty() && most >= buffer.remaining() {
                ready!(Pin::new(&mut self.read).poll_read(context, buffer))?;
                let new = &mut buffer.filled_mut()[start..];
                let passed = self.look(new);
                if passed == new.len() {
                    return Poll::Ready(Ok(()));
                }
                self.held.extend_from_slice(&new[passed..]);
                buffer.set_filled(start + passed);
                if passed > 0 {
                    return Poll::Ready(Ok(()));
                }
            } else if !ready!(self.poll_hold(context, most))? {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Reads more of what is held, or a piece of which only a part may go to the reader. False at the end.
    fn poll_hold(&mut self, context: &mut Context<'_>, most: usize) -> Poll<io::Result<bool>> {
        let mut piece = [0_u8; 4 << 10];
        let most = most.min(piece.len());
        let mut part = ReadBuf::new(&mut piece[..most]);
        ready!(Pin::new(&mut self.read).poll_read(context, &mut part))?;
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(part.filled());
        self.passed = self.look(&mut held);
        self.held = held;
        Poll::Ready(Ok(!part.filled().is_empty()))
    }

    fn poll_write_with(
        &self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let socket = self.socket.stream();
        loop {
            let ready = socket.poll_write_ready(context);
            self.peer.wire.put(Flag::Unwritten, ready.is_pending());
            ready!(ready)?;
            match write(socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

/// Asks the kernel what the peer has not acknowledged; when to look again. A socket that cannot say it has no
/// queue to wait for.
fn look(stay: &mut Stay, socket: &TcpStream, now: Timestamp) -> Option<Duration> {
    // The last byte is the FIN: nothing of an answer hangs on it, and peers take their time to acknowledge it.
    let bytes = unacknowledged(socket).unwrap_or_default();
    stay.look(now, bytes.saturating_sub(1))
}

fn decide(prefix: &[u8]) -> Option<Protocol> {
    let common = prefix
        .iter()
        .zip(PREFACE)
        .take_while(|(got, want)| got == want)
        .count();
    if common >= PREFACE_DECIDES {
        Some(Protocol::Http2)
    } else if common < prefix.len() {
        Some(Protocol::Http1)
    } else {
        None
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.peer.wire.has(Flag::Cut) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if self.peer.wire.has(Flag::TooManyResets) {
            self.say_enough();
            // As if the peer had ended: hyper drops what is in flight and closes.
            return Poll::Ready(Ok(()));
        }
        let mut most = self.until_pong();
        if most == 0 {
            if buffer.remaining() >= SHUTDOWN_PONG.len() {
                self.peer.wire.take(Flag::InjectPong);
                buffer.put_slice(&SHUTDOWN_PONG);
                return Poll::Ready(Ok(()));
            }
            most = usize::MAX;
        }
        let start = buffer.filled().len();
        ready!(self.poll_read_some(context, buffer, most))?;
        self.note_read(&buffer.filled()[start..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.poll_write_with(context, |socket| socket.try_write(bytes)))?;
        self.note_written(&bytes[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = |socket: &TcpStream| socket.try_write_vectored(slices);
        let written = ready!(self.poll_write_with(context, write))?;
        let mut left = written;
        for slice in slices {
            let taken = left.min(slice.len());
            self.note_written(&slice[..taken]);
            left -= taken;
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.peer.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(self.linger, Linger::Open) {
            self.begin_linger()?;
        }
        ready!(self.poll_linger(context));
        self.linger = Linger::Done;
        Poll::Ready(Ok(()))
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        self.peer.io_dropped();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_bytes_decide() {
        for (prefix, expected) in [
            (&b""[..], None),
            (b"P", None),
            (b"PR", None),
            (b"PRI", Some(Protocol::Http2)),
            (b"PO", Some(Protocol::Http1)),
            (b"PROPFIND", Some(Protocol::Http1)),
            (b"GET / HTTP/1.1\r\n", Some(Protocol::Http1)),
            (b"\0", Some(Protocol::Http1)),
        ] {
            assert_eq!(decide(prefix), expected, "{prefix:?}");
        }
    }
}
