//! One connection, as its IO wrapper, its service, its bodies and its task know it in common.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lameduck_core::conn::Protocol;
use lameduck_core::conn::given_up::GivenUp;
use lameduck_registry::driver::Clock;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::shared::Shared;
use crate::cell::gate::{Gate, Holder, Kind, Permit};
use crate::cell::tally::Gauge;
use crate::cell::wire::{Flag, Wire};

/// Which connection a request came in on: a request extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Counts the connections of this server, from 0.
    pub number: u64,
    /// The address that the peer connected to.
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
    /// What is spoken on it.
    pub protocol: Protocol,
}

pub(super) struct Peer {
    pub(super) shared: Arc<Shared>,
    pub(super) wire: Wire,
    pub(super) number: u64,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// Cancelled when what is left is cut.
    pub(super) cut: CancellationToken,
    /// Woken when the IO wrapper is dropped.
    pub(super) dropped: Notify,
    // The permit of an upgraded connection: it lives as long as the socket does.
    upgraded: Mutex<Option<Held>>,
    // HTTP/1: the permit of an answer that has ended, until its last byte is written.
    unflushed: Mutex<Option<Held>>,
    // Locked only where a call is given up.
    given_up: Mutex<GivenUp>,
    clock: Clock,
}

impl Peer {
    pub(super) fn new(shared: Arc<Shared>, local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            number: shared.numbers.take(),
            given_up: Mutex::new(GivenUp::new(shared.limits.rapid_resets)),
            clock: Clock::start(),
            shared,
            wire: Wire::default(),
            local,
            remote,
            cut: CancellationToken::new(),
            dropped: Notify::new(),
            upgraded: Mutex::default(),
            unflushed: Mutex::default(),
        }
    }

    /// Lets a request in, or not.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Held> {
        let permit = Permit::ask(Arc::clone(self))?;
        if self
            .shared
            .farewell
            .came_back(self.number, self.remote.ip())
        {
            self.shared.gate.note_returning();
        }
        self.begin();
        Some(Held::Counted(permit))
    }

    /// Lets in what is nobody's work, by no permit: health, which is asked until the very end, and
    /// whose streams and probes neither hold a stop nor disturb its quiet.
    pub(super) fn enter_uncounted(self: &Arc<Self>) -> Held {
        self.begin();
        Held::Uncounted(Arc::clone(self))
    }

    fn begin(&self) {
        if self.wire.begin() {
            self.shared.tally.up(Gauge::Busy);
        }
    }

    /// Keeps the permit of the request that turned this connection into something else.
    pub(super) fn keep_upgraded(&self, mut held: Held) {
        held.is_upgraded();
        self.wire.set(Flag::Upgraded);
        let mut slot = self.upgraded.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = Some(held);
    }

    /// HTTP/1: an answer has ended, and hyper may still hold bytes of it. Its permit is given back once they
    /// are written; HTTP/2's connections stay until all is written.
    pub(super) fn keep_unflushed(&self, held: Held) {
        let mut slot = self
            .unflushed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = slot.replace(held);
        self.wire.set(Flag::Unflushed);
        drop(slot);
        drop(before);
        if self.wire.has(Flag::Dropped) {
            self.flushed();
        }
    }

    /// hyper holds no bytes any more.
    pub(super) fn flushed(&self) {
        if self.wire.take(Flag::Unflushed) {
            let mut slot = self
                .unflushed
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let held = slot.take();
            drop(slot);
            drop(held);
        }
    }

    /// A call was given up before its answer began, after it had `lived` for so long.
    fn given_up(&self, lived: Duration) {
        let (now, answered) = (self.clock.now(), self.wire.answered());
        let mut account = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        let too_many = account.count(now, lived, answered);
        drop(account);
        // Its IO wrapper ends it at the next read: who sends nothing more needs no end.
        if too_many && !self.wire.has(Flag::TooManyResets) {
            self.wire.set(Flag::TooManyResets);
            self.shared.tell_resetting(self.remote);
        }
    }

    /// A request of this peer is refused by h2 for its authority.
    pub(super) fn tell_refused(&self, authority: &[u8]) {
        self.shared.tell_refused(self.remote, authority);
    }

    /// The peer has been told to go: by GOAWAY, or by the answer that it gets.
    pub(super) fn is_told(&self) {
        self.shared.farewell.tell(self.remote.ip());
    }

    /// The IO wrapper is gone, and with it whatever the connection was upgraded to.
    pub(super) fn io_dropped(&self) {
        let mut slot = self.upgraded.lock().unwrap_or_else(PoisonError::into_inner);
        let held = slot.take();
        drop(slot);
        drop(held);
        self.wire.set(Flag::Dropped);
        self.flushed();
        self.dropped.notify_one();
    }
}

impl Holder for Peer {
    fn gate(&self) -> &Gate {
        &self.shared.gate
    }
}

/// A request, counted at its connection until this is dropped.
pub(super) enum Held {
    /// By a permit too.
    Counted(Permit<Arc<Peer>>),
    /// By no permit.
    Uncounted(Arc<Peer>),
}

impl Held {
    /// The connection that it came in on.
    pub(super) fn peer(&self) -> &Arc<Peer> {
        match self {
            Self::Counted(permit) => permit.holder(),
            Self::Uncounted(peer) => peer,
        }
    }

    /// Its answer has ended.
    pub(super) fn ended(self, protocol: Protocol) {
        let peer = Arc::clone(self.peer());
        if protocol == Protocol::Http1 {
            peer.keep_unflushed(self);
        }
    }

    /// What ends this request's answer before its own end: health streams have one of their own,
    /// which comes while other requests may still finish.
    pub(super) fn end(&self) -> CancellationToken {
        match self {
            Self::Counted(permit) => permit.holder().cut.clone(),
            Self::Uncounted(peer) => peer.shared.health_ends.clone(),
        }
    }

    /// Its answer is a tunnel.
    pub(super) fn is_upgraded(&mut self) {
        if let Self::Counted(permit) = self {
            permit.set_kind(Kind::Upgraded);
        }
    }

    /// Its answer has made its reader wait.
    pub(super) fn is_stream(&mut self) {
        if let Self::Counted(permit) = self
            && permit.kind() == Kind::Unary
        {
            permit.set_kind(Kind::Stream);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let peer = self.peer();
        if peer.wire.end() {
            peer.shared.tally.down(Gauge::Busy);
        }
    }
}

/// An HTTP/2 call whose answer has not begun. Dropped before that, it counts as given up.
pub(super) struct Unanswered<'a> {
    peer: &'a Peer,
    since: Instant,
    answered: bool,
}

impl<'a> Unanswered<'a> {
    pub(super) fn new(peer: &'a Peer) -> Self {
        Self {
            peer,
            since: Instant::now(),
            answered: false,
        }
    }

    pub(super) fn answered(mut self) {
        self.answered = true;
        self.peer.wire.answer();
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.peer.given_up(self.since.elapsed());
        }
    }
}
