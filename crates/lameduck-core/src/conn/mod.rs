//! The server's side of one connection: how it is told to go, and how it ends.
//!
//! HTTP/2 leaves in two steps (RFC 9113 §6.8): a first GOAWAY that still admits every stream, a PING
//! whose answer proves that the peer has seen it, and a final GOAWAY with the last stream that was
//! taken. HTTP/1.1 has no such word: an answer says `Connection: close`, and a connection that is
//! idle is closed only after a linger, since the next request may be on its way.
//!
//! Everything that the HTTP library waits for without a bound is bounded here: the first byte, the first
//! head, the answer to the PING, half a request head. A connection may be given an age and HTTP/2 an
//! idle time, after which it takes leave in the same two steps, so that nothing is lost by them.

use alloc::collections::VecDeque;
use core::time::Duration;

use crate::limits::{
    CUT_FLUSH, FINAL_GOAWAY_MAX, FIRST_BYTE_MAX, FIRST_HEAD_MAX, HANDSHAKE_DRAINING_MAX,
    HTTP1_LINGER,
};
use crate::machine::Machine;
use crate::mutant;
use crate::time::Timestamp;

pub mod given_up;
pub mod linger;
#[cfg(test)]
mod tests;

/// What is spoken on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.0 or HTTP/1.1.
    Http1,
    /// HTTP/2, by prior knowledge or ALPN.
    Http2,
}

/// What the edge finds when it looks at a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Look {
    /// A request is in flight, or the peer has not got all of an answer; HTTP/2: or a request has been in
    /// flight since the last look.
    Busy,
    /// No request, but bytes lie in the socket.
    Waiting,
    /// HTTP/1: no request, but a part of a head was read.
    HalfHead,
    /// No request, no bytes.
    Quiet,
}

/// The times of a connection that its owner chooses; `None` means no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// From the accept to the first byte.
    pub first_byte: Option<Duration>,
    /// From the first byte to the first whole frame or request head.
    pub first_head: Option<Duration>,
    /// HTTP/2: a connection without a request takes leave after this long, at twice as long at the
    /// latest.
    pub http2_idle: Option<Duration>,
    /// From the accept to when a connection in use takes leave.
    pub age: Option<Duration>,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            first_byte: Some(FIRST_BYTE_MAX),
            first_head: Some(FIRST_HEAD_MAX),
            http2_idle: None,
            age: None,
        }
    }
}

/// What can happen to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// The peer's first byte is here.
    Begun,
    /// The peer said something whole: its first HTTP/2 frame, or its first HTTP/1 request.
    Spoken(Protocol),
    /// Closing: take leave after this pause, without hurry. HTTP/1 says it in its answers instead.
    Hint(Duration),
    /// Draining: take leave now, and take no new request later than this from now.
    Leave(Duration),
    /// The first GOAWAY has left.
    GoAwayOut,
    /// The final GOAWAY has left.
    FinalOut,
    /// The answer to [`Output::Look`].
    Seen(Look),
    /// The connection now speaks another protocol; its end is its owner's business.
    Upgraded,
    /// The stop's time is up: end what is left, visibly.
    Force,
}

/// What the edge has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// HTTP/2: send the first GOAWAY and the PING that asks whether it was seen.
    GoAway,
    /// HTTP/2: act as if the PING had been answered.
    InjectPong,
    /// Look at it, and answer with [`Input::Seen`].
    Look,
    /// HTTP/1: say `Connection: close` in the next answer. Nothing is closed before that: the peer
    /// may be sending a request at this moment, and would not know what became of it.
    LastAnswer,
    /// HTTP/1: close after the answer in flight, at once if there is none.
    Close,
    /// As far as can be known no new request will come here. Given out once.
    Settled,
    /// End the answers in flight in a way that their readers can tell from a good end.
    EndStreams,
    /// Reset what is still open.
    ResetStreams,
    /// Drop the connection.
    Drop(Reason),
}

/// Why a connection is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It never said anything whole.
    Silent,
    /// It was cut.
    Cut,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Accepted; nothing was said yet.
    Silent,
    /// Something was said, nothing whole yet.
    Handshaking,
    /// In use, not told.
    Serving(Protocol),
    /// HTTP/2: to be told when its turn comes.
    Pacing,
    /// HTTP/2: the first GOAWAY is on its way out.
    Telling,
    /// HTTP/2: the first GOAWAY is out, the PING not answered.
    Told,
    /// HTTP/2: the PING was answered for the peer.
    Forced,
    /// HTTP/2: it could not be, since the peer has not sent all of a frame.
    Stuck,
    /// HTTP/2: the final GOAWAY is out; streams finish.
    Final,
    /// HTTP/1: idle; a request may be on its way.
    Lingering,
    /// HTTP/1: closes after the answer in flight.
    Ending,
    /// In the hands of another protocol.
    Upgraded,
    /// Answers were ended; resets follow.
    Cutting,
    /// Resets were sent; the drop follows.
    Flushing,
    /// Over.
    Gone,
}

/// The server's side of one connection.
#[derive(Clone, Debug)]
pub struct Conn {
    state: State,
    deadline: Option<(Timestamp, &'static str)>,
    // What it was told before it could act on it.
    hint: Option<Duration>,
    // Draining: until when new requests may come.
    leave_by: Option<Timestamp>,
    bounds: Bounds,
    // When a connection in use takes leave by itself.
    age_at: Option<Timestamp>,
    // HTTP/2: when it is looked at for requests.
    idle_at: Option<Timestamp>,
    settled: bool,
    out: VecDeque<Output>,
}

impl Conn {
    /// A connection accepted at `now`.
    #[must_use]
    pub fn new(now: Timestamp, bounds: Bounds) -> Self {
        let first_byte = bounds
            .first_byte
            .filter(|_| !mutant!("conn/bounds-the-handshake"));
        Self {
            state: State::Silent,
            deadline: first_byte.map(|within| (now + within, "first byte")),
            hint: None,
            leave_by: None,
            bounds,
            age_at: bounds
                .age
                .filter(|_| !mutant!("conn/ages"))
                .map(|age| now + age),
            idle_at: None,
            settled: false,
            out: VecDeque::new(),
        }
    }

    /// Whether it was told to go.
    #[must_use]
    pub const fn is_told(&self) -> bool {
        self.hint.is_some() || self.leave_by.is_some()
    }

    fn go(&mut self, state: State, deadline: Option<(Timestamp, &'static str)>) {
        self.state = state;
        self.deadline = deadline;
    }

    fn settle(&mut self) {
        if !core::mem::replace(&mut self.settled, true) {
            self.out.push_back(Output::Settled);
        }
    }

    fn drop_it(&mut self, reason: Reason) {
        self.settle();
        self.out.push_back(Output::Drop(reason));
        self.go(State::Gone, None);
    }

    fn begun(&mut self, now: Timestamp) {
        if self.state != State::Silent {
            return;
        }
        let first_head = self.bounds.first_head;
        let head = first_head
            .filter(|_| !mutant!("conn/bounds-the-first-head"))
            .map(|within| (now + within, "first head"));
        // What is left of a draining server's time is not prolonged by a byte.
        let left = self.deadline.filter(|_| self.leave_by.is_some());
        self.go(
            State::Handshaking,
            match (head, left) {
                (Some(head), Some(left)) => Some(head.min(left)),
                (head, left) => left.or(head),
            },
        );
    }

    fn spoken(&mut self, now: Timestamp, protocol: Protocol) {
        if !matches!(self.state, State::Silent | State::Handshaking) {
            return;
        }
        if protocol == Protocol::Http2 {
            self.idle_at = self.bounds.http2_idle.map(|idle| now + idle);
        }
        self.serve_on(protocol);
        if let Some(by) = self.leave_by {
            self.take_leave(now, by);
        } else if let Some(pause) = self.hint {
            self.take_hint(now, pause);
        }
    }

    // In use, until it is too old or, on HTTP/2, idle.
    fn serve_on(&mut self, protocol: Protocol) {
        let age = self.age_at.map(|at| (at, "age"));
        let idle = self.idle_at.map(|at| (at, "idle"));
        let first = age.into_iter().chain(idle).min_by_key(|(at, _)| *at);
        self.go(State::Serving(protocol), first);
    }

    fn too_old_or_idle(&mut self, now: Timestamp, protocol: Protocol) {
        let old = self.age_at.is_some_and(|at| at <= now);
        match protocol {
            Protocol::Http1 => {
                self.age_at = None;
                self.out.push_back(Output::LastAnswer);
            }
            Protocol::Http2 if old => self.tell(),
            Protocol::Http2 => self.out.push_back(Output::Look),
        }
    }

    fn hint(&mut self, now: Timestamp, pause: Duration) {
        if self.hint.is_none() {
            self.hint = Some(pause);
            self.take_hint(now, pause);
        }
    }

    fn take_hint(&mut self, now: Timestamp, pause: Duration) {
        if self.state != State::Serving(Protocol::Http2) {
            return;
        }
        if pause.is_zero() {
            self.tell();
        } else {
            self.go(State::Pacing, Some((now + pause, "pace")));
        }
    }

    fn tell(&mut self) {
        self.out.push_back(Output::GoAway);
        self.go(State::Telling, self.final_deadline());
    }

    fn final_deadline(&self) -> Option<(Timestamp, &'static str)> {
        let unbounded = mutant!("conn/bounds-the-ping");
        self.leave_by.filter(|_| !unbounded).map(|by| (by, "final"))
    }

    fn leave(&mut self, now: Timestamp, within: Duration) {
        if self.leave_by.is_none() {
            let by = now + within.min(FINAL_GOAWAY_MAX);
            self.leave_by = Some(by);
            self.take_leave(now, by);
        }
    }

    fn take_leave(&mut self, now: Timestamp, by: Timestamp) {
        match self.state {
            State::Silent | State::Handshaking => self.shorten_handshake(now),
            State::Serving(Protocol::Http2) | State::Pacing => self.tell(),
            State::Telling | State::Told => self.deadline = self.final_deadline(),
            State::Serving(Protocol::Http1) => {
                let linger = if mutant!("conn/lingers") {
                    Duration::ZERO
                } else {
                    HTTP1_LINGER
                };
                self.go(State::Lingering, Some(((now + linger).min(by), "linger")));
                self.out.push_back(Output::Look);
            }
            State::Upgraded => self.settle(),
            State::Final
            | State::Forced
            | State::Stuck
            | State::Lingering
            | State::Ending
            | State::Cutting
            | State::Flushing
            | State::Gone => {}
        }
    }

    fn shorten_handshake(&mut self, now: Timestamp) {
        let by = (now + HANDSHAKE_DRAINING_MAX, "handshake");
        self.deadline = Some(self.deadline.map_or(by, |left| left.min(by)));
    }

    fn goaway_out(&mut self, now: Timestamp) {
        if self.state == State::Telling {
            self.go(State::Told, self.final_deadline());
            // The PONG can only be given once the first GOAWAY is out, which took too long here.
            if self.deadline.is_some_and(|(at, _)| at <= now) {
                self.force_final(now);
            }
        }
    }

    fn force_final(&mut self, now: Timestamp) {
        self.out.push_back(Output::InjectPong);
        self.go(State::Forced, Some((now + CUT_FLUSH, "forced")));
    }

    fn final_out(&mut self) {
        if matches!(
            self.state,
            State::Telling | State::Told | State::Forced | State::Stuck
        ) {
            self.settle();
            self.go(State::Final, None);
        }
    }

    fn seen(&mut self, now: Timestamp, look: Look) {
        match (self.state, look) {
            // The answer in flight is the last one: the edge says `Connection: close` in it.
            (State::Lingering, Look::Busy) => self.end(None),
            (State::Lingering, Look::Waiting) => self.linger_on(now),
            (State::Lingering, Look::HalfHead) if self.deadline.is_none() => self.last_head(now),
            // With a deadline this is the first look, before the linger.
            (State::Lingering, Look::Quiet) if self.deadline.is_none() => {
                self.end(Some((now + HANDSHAKE_DRAINING_MAX, "half a head")));
            }
            (State::Serving(Protocol::Http2), Look::Busy) => {
                self.idle_at = self.bounds.http2_idle.map(|idle| now + idle);
                self.serve_on(Protocol::Http2);
            }
            (State::Serving(Protocol::Http2), _) => self.tell(),
            (State::Ending, Look::Busy) => self.deadline = None,
            (State::Stuck, Look::Busy) => self.await_frame(now),
            (State::Stuck, _) => self.drop_it(Reason::Silent),
            (State::Ending, _) if self.deadline.is_none() => {
                self.drop_it(Reason::Silent);
            }
            _ => {}
        }
    }

    // Bytes have just come in: the request that they belong to gets its time, within bounds.
    fn linger_on(&mut self, now: Timestamp) {
        if self.deadline.is_some() {
            return;
        }
        match self.leave_by {
            Some(by) if now < by => {
                self.deadline = Some(((now + HTTP1_LINGER).min(by), "linger"));
            }
            _ => self.last_head(now),
        }
    }

    // The rest of a head gets its time, and the request its answer. The library would close on what it has
    // read of the head.
    fn last_head(&mut self, now: Timestamp) {
        let by = (now + HANDSHAKE_DRAINING_MAX, "half a head");
        if mutant!("conn/half-a-head") {
            return self.end(Some(by));
        }
        self.out.push_back(Output::LastAnswer);
        self.settle();
        self.go(State::Ending, Some(by));
    }

    // The rest of its frame may be on its way, as may the rest of a head on HTTP/1.
    fn await_frame(&mut self, now: Timestamp) {
        let by = (now + HANDSHAKE_DRAINING_MAX, "half a frame");
        self.go(
            State::Stuck,
            Some(by).filter(|_| !mutant!("conn/half-a-frame")),
        );
    }

    fn end(&mut self, deadline: Option<(Timestamp, &'static str)>) {
        self.out.push_back(Output::Close);
        self.settle();
        self.go(State::Ending, deadline);
    }

    fn force(&mut self, now: Timestamp) {
        match self.state {
            State::Serving(Protocol::Http1) | State::Lingering | State::Ending
                if mutant!("conn/a-cut-lets-http1-answer") =>
            {
                self.drop_it(Reason::Cut);
            }
            State::Serving(_)
            | State::Lingering
            | State::Ending
            | State::Pacing
            | State::Telling
            | State::Told
            | State::Forced
            | State::Stuck
            | State::Final => {
                self.out.push_back(Output::EndStreams);
                self.settle();
                self.go(State::Cutting, Some((now + CUT_FLUSH / 2, "end streams")));
            }
            State::Silent | State::Handshaking | State::Upgraded => self.drop_it(Reason::Cut),
            State::Cutting | State::Flushing | State::Gone => {}
        }
    }

    fn upgraded(&mut self) {
        if matches!(
            self.state,
            State::Serving(Protocol::Http1) | State::Lingering | State::Ending
        ) {
            if self.leave_by.is_some() {
                self.settle();
            }
            self.go(State::Upgraded, None);
        }
    }

    fn due(&mut self, now: Timestamp) {
        match self.state {
            State::Silent | State::Handshaking => self.drop_it(Reason::Silent),
            State::Serving(protocol) => self.too_old_or_idle(now, protocol),
            State::Pacing => self.tell(),
            // Not even the first GOAWAY could be written: the peer does not read.
            State::Telling => self.settle(),
            State::Forced => {
                self.settle();
                self.await_frame(now);
            }
            State::Told => self.force_final(now),
            State::Stuck | State::Lingering | State::Ending => self.out.push_back(Output::Look),
            State::Cutting => {
                self.out.push_back(Output::ResetStreams);
                self.go(State::Flushing, Some((now + CUT_FLUSH / 2, "flush")));
            }
            State::Flushing => self.drop_it(Reason::Cut),
            State::Final | State::Upgraded | State::Gone => {}
        }
    }
}

impl Machine for Conn {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Timestamp, input: Input) {
        if self.state == State::Gone {
            return;
        }
        match input {
            Input::Begun => self.begun(now),
            Input::Spoken(protocol) => self.spoken(now, protocol),
            Input::Hint(pause) => self.hint(now, pause),
            Input::Leave(within) => self.leave(now, within),
            Input::GoAwayOut => self.goaway_out(now),
            Input::FinalOut => self.final_out(),
            Input::Seen(look) => self.seen(now, look),
            Input::Upgraded => self.upgraded(),
            Input::Force => self.force(now),
        }
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if self.deadline.is_some_and(|(at, _)| at <= now) {
            self.deadline = None;
            self.due(now);
        }
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<(Timestamp, &'static str)> {
        self.deadline
    }
}
