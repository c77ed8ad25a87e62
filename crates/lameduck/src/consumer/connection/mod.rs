//! One HTTP/2 connection to one endpoint.
//!
//! It stands on h2 directly, because a caller must *prove* what became of a call: whether it left
//! the process, whether the peer said that it did not process it, or neither ([`CallError`]).
//! Between the socket and h2 a wrapper reads frame heads, so that a GOAWAY stops new streams as
//! soon as its bytes are there, and a connection counts as made only once the peer's SETTINGS are.
//!
//! ```text
//! dial ── SETTINGS ──▶ reserve() ─▶ call(slot) ─▶ head ─▶ body … trailers   (slot given back)
//!                        │ None: full, GOAWAY, MAX_CONCURRENT_STREAMS 0, closed, ended
//! ```

mod body;
mod call;
mod dial;
mod failure;
mod io;
mod outgoing;
mod pump;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use h2::client::SendRequest;
use http::uri::Authority;
use tokio::task::AbortHandle;

use crate::cell::link::Link;

pub(in crate::consumer) use call::say_who;

pub use body::Body;
pub use dial::{DialConfig, DialError, DialFailure};
pub use failure::{CallError, Cause, Failure};
pub use outgoing::Outgoing;

/// What a GOAWAY said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoAway {
    /// Streams above this id were not processed and will not be.
    pub last_stream: u32,
    /// The HTTP/2 error code; 0 is an orderly end, 11 (ENHANCE_YOUR_CALM) asks to back off.
    pub code: u32,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// The peer said GOAWAY, and what it still served is done.
    GoneAway(GoAway),
    /// The peer closed without a word.
    PeerClosed,
    /// [`Connection::close`], or the last handle was dropped; what was open is done.
    Closed,
    /// [`Connection::abort`].
    Aborted,
    /// The socket failed.
    Lost(std::io::ErrorKind),
    /// The peer broke the protocol, with this HTTP/2 error code.
    Protocol(u32),
}

/// A connection at one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct State {
    /// The peer's last GOAWAY.
    pub going_away: Option<GoAway>,
    /// This side opens no more streams: it was told to close, or its stream ids run out.
    pub closed: bool,
    /// The peer will say no more, or the connection's task has ended.
    pub ended: bool,
    /// Streams allowed: the smaller of the peer's limit and ours. A peer that says 0 is draining.
    pub limit: u32,
    /// Streams open, of every kind.
    pub streams: u32,
    /// SETTINGS frames read.
    pub settings: u32,
    /// RST_STREAM frames read.
    pub resets: u32,
    /// Bytes read.
    pub bytes: u64,
    /// The peer has answered a call here, whatever it said. Health streams do not count.
    pub served: bool,
    /// This side opens no more until calls that are open are answered: the peer's last connection took
    /// only so many.
    pub held: bool,
}

impl fmt::Display for GoAway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = h2::Reason::from(self.code);
        write!(f, "{reason:?}, last stream {}", self.last_stream)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GoneAway(said) => write!(f, "the peer said GOAWAY: {said}"),
            Self::PeerClosed => f.write_str("the peer closed it without GOAWAY"),
            Self::Closed => f.write_str("this side closed it"),
            Self::Aborted => f.write_str("this side broke it off"),
            Self::Lost(kind) => write!(f, "lost: {kind}"),
            Self::Protocol(code) => {
                write!(f, "the peer broke HTTP/2: {:?}", h2::Reason::from(*code))
            }
        }
    }
}

impl State {
    /// Whether new streams may be opened here, now or once others are done.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.going_away.is_none() && !self.closed && !self.ended && self.limit > 0
    }

    /// Whether a new stream may be opened now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.is_usable() && self.streams < self.limit && !self.held
    }
}

/// A connection. Clones are the same connection; when the last one is gone, it closes as if by
/// [`Connection::close`].
#[derive(Clone, Debug)]
pub struct Connection {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    link: Arc<Link>,
    send: ArcSwapOption<SendRequest<Bytes>>,
    task: AbortHandle,
    authority: Authority,
    address: SocketAddr,
    local: SocketAddr,
}

/// The right to one stream of one connection. Given back when dropped.
#[derive(Debug)]
pub struct Slot {
    link: Arc<Link>,
    is_health: bool,
    settled: bool,
}

impl Connection {
    /// A connection that looks usable and leads nowhere: a call on it fails unsent.
    pub(super) fn to_nowhere(address: SocketAddr, authority: Authority, streams_max: u32) -> Self {
        Self {
            inner: Arc::new(Inner {
                link: Arc::new(Link::new(streams_max)),
                send: ArcSwapOption::empty(),
                task: tokio::spawn(std::future::pending::<()>()).abort_handle(),
                authority,
                address,
                local: address,
            }),
        }
    }

    /// Takes the right to open one stream. `None` where the connection is full, is going away, has
    /// been told to close or has ended: [`Connection::state`] tells which.
    #[must_use]
    pub fn reserve(&self) -> Option<Slot> {
        let link = &self.inner.link;
        link.take().then(|| Slot {
            link: Arc::clone(link),
            is_health: false,
            settled: false,
        })
    }

    /// The connection at one look.
    #[must_use]
    pub fn state(&self) -> State {
        self.inner.link.state()
    }

    /// Time since the last byte was read. No evidence of anything unless an answer is due.
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.inner.link.silence()
    }

    /// How many streams are open: the load to compare connections by.
    #[must_use]
    pub fn streams(&self) -> u32 {
        self.inner.link.streams()
    }

    /// Whom it was dialled to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.inner.address
    }

    /// This side's address.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.inner.local
    }

    /// Whether both are handles of one connection.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Resolves with the first state that is not usable: time to dial a successor. Streams that
    /// are open go on.
    pub async fn unusable(&self) -> State {
        let link = Arc::clone(&self.inner.link);
        link.until(|state| (!state.is_usable()).then_some(*state))
            .await
    }

    /// Resolves with true once the peer has answered a call, with false where it has ended and never
    /// will. Holds no handle, like [`Connection::ended`].
    pub(super) fn served(&self) -> impl Future<Output = bool> + Send + use<> {
        let link = Arc::clone(&self.inner.link);
        async move {
            link.until(|state| (state.served || state.ended).then_some(state.served))
                .await
        }
    }

    /// How many calls its peer took before its GOAWAY, where that left out others; the allowance that
    /// it was made with, where that was not used up. `None`: as many as there were.
    pub(super) fn calls_until_goaway(&self) -> Option<u32> {
        self.inner.link.calls_until_goaway()
    }

    /// As [`Connection::ended`], and what [`Connection::calls_until_goaway`] is then.
    pub(super) fn ended_after(&self) -> impl Future<Output = (End, Option<u32>)> + Send + use<> {
        let link = Arc::clone(&self.inner.link);
        async move { (link.ended().await, link.calls_until_goaway()) }
    }

    /// Resolves when a slot is free, or none will ever be: true where it is worth to try
    /// [`Connection::reserve`] (another caller may be faster).
    pub async fn room(&self) -> bool {
        let link = Arc::clone(&self.inner.link);
        link.until(|state| (state.has_room() || !state.is_usable()).then_some(state.is_usable()))
            .await
    }

    /// Resolves when the connection has ended, with the reason. Holds no handle: the connection
    /// may close meanwhile because its last handle is gone.
    pub fn ended(&self) -> impl Future<Output = End> + Send + use<> {
        let link = Arc::clone(&self.inner.link);
        async move { link.ended().await }
    }

    /// Opens no more streams; the connection ends, with a GOAWAY, when the last open one is done.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Ends the connection now. Open calls fail, without proof of what became of them.
    pub fn abort(&self) {
        self.inner.close();
        self.inner.task.abort();
    }
}

impl Slot {
    /// For a stream that asks for the peer's health, and is no call.
    pub(super) fn for_health(mut self) -> Self {
        self.is_health = true;
        self.settled = true;
        self.link.not_admitted();
        self
    }

    /// The call is answered, or over.
    fn settle(&mut self) {
        if !std::mem::replace(&mut self.settled, true) {
            self.link.settle();
        }
    }
}

impl Inner {
    fn close(&self) {
        // h2 ends a connection that has neither streams nor handles, once its task looks again.
        self.send.store(None);
        self.link.close();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.settle();
        self.link.give_back();
    }
}
