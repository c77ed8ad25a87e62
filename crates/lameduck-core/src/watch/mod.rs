//! The health client of one connection: `grpc.health.v1` Watch, and Check where a mark is hoped for.
//!
//! The service is asked for by its name, and where the peer does not know it also by the empty
//! name, since some servers keep only that; a peer without a health service counts as serving
//! (gRPC A17). A Watch that the *peer* ends is told apart from one that was lost with its
//! connection: NOT_SERVING followed by the peer's own end is how servers of all kinds leave.
//!
//! A Watch through a proxy speaks of one of the servers behind it. Where a Watch says NOT_SERVING and a
//! Check on the same connection at that moment says SERVING, somebody is there that serves: the Watch
//! does not count then.

#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;

use crate::backoff::Backoff;
use crate::limits::{CONNECTION_SETTLED, DIAL_BACKOFF, RESUME_CHECK};
use crate::machine::{Machine, Ticket, earliest};
use crate::mutant;
use crate::rng::Rng;
use crate::time::Timestamp;

/// Which name is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// The service's own.
    Service,
    /// The empty one: the server as a whole.
    Overall,
}

/// What a health answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// SERVING.
    Serving,
    /// NOT_SERVING.
    NotServing,
    /// SERVICE_UNKNOWN, UNKNOWN, or a number that the protocol does not define.
    Unknown,
}

/// How a Watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ended {
    /// UNIMPLEMENTED: the peer has no health service.
    Unimplemented,
    /// NOT_FOUND: the peer does not know the name (and, against the specification, ends the stream).
    NotFound,
    /// Any other code but UNAVAILABLE: the peer, or what stands before it, lets nobody ask.
    Refused,
    /// In any other way, by the peer.
    ByPeer,
    /// With the connection, or for a reason of our own.
    Lost,
}

/// What happens to a health client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A message on a Watch.
    Status {
        /// On which.
        ticket: Ticket,
        /// What it says.
        status: Status,
    },
    /// A Watch ended.
    Ended {
        /// Which.
        ticket: Ticket,
        /// How.
        how: Ended,
    },
    /// A Check came back: the marks on its answer have been read by now.
    Checked {
        /// Which.
        ticket: Ticket,
        /// What it said; `None` where it failed.
        status: Option<Status>,
    },
    /// Whether the endpoint counts as closing, so that a Resume must be looked for.
    Closing(bool),
}

/// What a health client wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Open a Watch.
    Watch {
        /// Comes back with its messages and its end.
        ticket: Ticket,
        /// For which name.
        name: Name,
    },
    /// Drop a Watch.
    Cancel {
        /// Which.
        ticket: Ticket,
    },
    /// Make one unary Check and read the marks on its answer.
    Check {
        /// Comes back with [`Input::Checked`].
        ticket: Ticket,
        /// For which name.
        name: Name,
    },
    /// How the peer is, said first once it is known and then whenever it changes.
    Health {
        /// Whether it wants calls.
        serving: bool,
    },
    /// The peer itself ended a Watch.
    PeerEnded,
}

/// One Watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    /// Not asked for.
    Closed,
    /// Asked at this time; `told` is what it said last.
    Open {
        ticket: Ticket,
        since: Timestamp,
        told: Option<Status>,
    },
    /// To be asked again then.
    Pausing { until: Timestamp },
    /// The peer does not know the name, and said so for good.
    Absent,
}

/// The health client of one connection.
#[derive(Clone, Debug)]
pub struct Watch {
    service: Stream,
    overall: Stream,
    /// The peer has no health service: nothing more is asked.
    silent: bool,
    closing: bool,
    /// Whether more than one server may stand behind the address.
    shared: bool,
    /// A Check has reached a server that serves while the Watch's does not.
    contradicted: bool,
    serving: Option<bool>,
    check: Option<Ticket>,
    next_check: Option<Timestamp>,
    last: Ticket,
    backoff: Backoff,
    /// The pauses between Checks that look for another server.
    checks: Backoff,
    rng: Rng,
    out: VecDeque<Output>,
}

impl Watch {
    /// A client that asks at once. `seed` fixes the jitter of its pauses.
    #[must_use]
    pub fn new(now: Timestamp, seed: u64) -> Self {
        let mut watch = Self {
            service: Stream::Closed,
            overall: Stream::Closed,
            silent: false,
            closing: false,
            shared: false,
            contradicted: false,
            serving: None,
            check: None,
            next_check: None,
            last: Ticket::default(),
            backoff: Backoff::new(DIAL_BACKOFF.0, DIAL_BACKOFF.1),
            checks: Backoff::new(DIAL_BACKOFF.0, DIAL_BACKOFF.1),
            rng: Rng::from_seed(seed),
            out: VecDeque::new(),
        };
        watch.open(now, Name::Service);
        watch
    }

    /// The same for a bare address, behind which any number of servers may stand.
    #[must_use]
    pub const fn with_shared_address(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    fn ticket(&mut self) -> Ticket {
        self.last = self.last.next();
        self.last
    }

    fn stream(&mut self, name: Name) -> &mut Stream {
        match name {
            Name::Service => &mut self.service,
            Name::Overall => &mut self.overall,
        }
    }

    fn open(&mut self, now: Timestamp, name: Name) {
        let ticket = self.ticket();
        *self.stream(name) = Stream::Open {
            ticket,
            since: now,
            told: None,
        };
        self.out.push_back(Output::Watch { ticket, name });
    }

    fn close(&mut self, name: Name) {
        if let Stream::Open { ticket, .. } = *self.stream(name) {
            self.out.push_back(Output::Cancel { ticket });
        }
        *self.stream(name) = Stream::Closed;
    }

    fn name_of(&self, wanted: Ticket) -> Option<Name> {
        let is =
            |stream: &Stream| matches!(stream, Stream::Open { ticket, .. } if *ticket == wanted);
        if is(&self.service) {
            Some(Name::Service)
        } else {
            is(&self.overall).then_some(Name::Overall)
        }
    }

    fn status(&mut self, now: Timestamp, ticket: Ticket, status: Status) {
        let Some(name) = self.name_of(ticket) else {
            return;
        };
        if let Stream::Open { told, .. } = self.stream(name) {
            let before = told.replace(status);
            if before != Some(status) {
                self.contradicted = false;
            }
            if self.closing && before != Some(status) && !mutant!("watch/change-while-closing") {
                self.check();
            }
        }
        self.settle(now);
    }

    fn ended(&mut self, now: Timestamp, ticket: Ticket, how: Ended) {
        let Some(name) = self.name_of(ticket) else {
            return;
        };
        match how {
            Ended::Unimplemented => {
                self.silent = true;
                self.close_ended(name, Stream::Absent);
            }
            Ended::NotFound => self.close_ended(name, Stream::Absent),
            // Who never gave a status gives none: that is no health service.
            Ended::Refused if self.serving.is_none() && !mutant!("watch/refused-is-none") => {
                self.silent = true;
                self.close_ended(name, Stream::Absent);
            }
            Ended::Refused | Ended::ByPeer | Ended::Lost => {
                if how != Ended::Lost && !mutant!("watch/peers-end-is-told") {
                    self.out.push_back(Output::PeerEnded);
                }
                self.pause(now, name);
            }
        }
        self.settle(now);
    }

    fn close_ended(&mut self, name: Name, stream: Stream) {
        *self.stream(name) = stream;
    }

    /// Asks again later. A stream that lasted starts the pauses anew, one message does not: a peer
    /// that answers and hangs up at once would be asked in a loop.
    fn pause(&mut self, now: Timestamp, name: Name) {
        if let Stream::Open { since, .. } = *self.stream(name)
            && now.saturating_since(since) >= CONNECTION_SETTLED
        {
            self.backoff.reset();
        }
        let until = now + self.backoff.next(&mut self.rng);
        *self.stream(name) = Stream::Pausing { until };
    }

    /// What the streams say together; `None` while they have not said enough.
    fn judge(&self) -> Option<bool> {
        if self.silent || self.contradicted {
            return Some(true);
        }
        match known(self.service) {
            Known::Said(serving) => Some(serving),
            Known::Not => None,
            Known::Stranger => match known(self.overall) {
                Known::Said(serving) => Some(serving),
                Known::Not => None,
                Known::Stranger => Some(true),
            },
        }
    }

    fn settle(&mut self, now: Timestamp) {
        let stranger = known(self.service) == Known::Stranger;
        if stranger && !self.silent && self.overall == Stream::Closed {
            if mutant!("watch/asks-for-the-whole") {
                self.overall = Stream::Absent;
            } else {
                self.open(now, Name::Overall);
            }
        } else if matches!(known(self.service), Known::Said(_)) {
            self.close(Name::Overall);
        }
        let judged = self.judge().or(self.serving);
        if judged == self.serving {
            return;
        }
        self.serving = judged;
        if judged == Some(true) {
            self.checks.reset();
        }
        if let Some(serving) = judged {
            self.out.push_back(Output::Health { serving });
            if !serving && !mutant!("watch/not-serving-checks") {
                self.check();
            }
        }
    }

    fn check(&mut self) {
        if self.check.is_some() {
            return;
        }
        let ticket = self.ticket();
        let name = match known(self.service) {
            Known::Stranger => Name::Overall,
            Known::Said(_) | Known::Not => Name::Service,
        };
        self.check = Some(ticket);
        self.next_check = None;
        self.out.push_back(Output::Check { ticket, name });
    }

    fn checked(&mut self, now: Timestamp, ticket: Ticket, status: Option<Status>) {
        if self.check != Some(ticket) {
            return;
        }
        self.check = None;
        let serves = status == Some(Status::Serving) && self.judge() == Some(false);
        if serves && !mutant!("watch/a-check-contradicts") {
            self.contradicted = true;
            self.settle(now);
        }
        self.schedule(now);
    }

    fn closing(&mut self, now: Timestamp, closing: bool) {
        self.closing = closing;
        self.schedule(now);
    }

    fn schedule(&mut self, now: Timestamp) {
        // Another Check may reach another server, where there may be one.
        let elsewhere = self.shared && self.serving == Some(false);
        let resumes = self.closing && !mutant!("watch/looks-for-resume");
        if self.check.is_some() || !(resumes || elsewhere) {
            self.next_check = None;
        } else if self.next_check.is_none() {
            let pause = if elsewhere {
                self.checks.next(&mut self.rng)
            } else {
                RESUME_CHECK
            };
            self.next_check = Some(now + pause);
        }
    }
}

/// What one stream says about its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Nothing yet, or nothing now.
    Not,
    /// The peer knows the name.
    Said(bool),
    /// The peer does not know the name.
    Stranger,
}

fn known(stream: Stream) -> Known {
    match stream {
        Stream::Absent => Known::Stranger,
        Stream::Open { told, .. } => match told {
            Some(Status::Serving) => Known::Said(true),
            Some(Status::NotServing) => Known::Said(false),
            Some(Status::Unknown) => Known::Stranger,
            None => Known::Not,
        },
        Stream::Closed | Stream::Pausing { .. } => Known::Not,
    }
}

impl Machine for Watch {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Timestamp, input: Input) {
        match input {
            Input::Status { ticket, status } => self.status(now, ticket, status),
            Input::Ended { ticket, how } => self.ended(now, ticket, how),
            Input::Checked { ticket, status } => self.checked(now, ticket, status),
            Input::Closing(closing) => self.closing(now, closing),
        }
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        for name in [Name::Service, Name::Overall] {
            if matches!(*self.stream(name), Stream::Pausing { until } if until <= now) {
                self.open(now, name);
            }
        }
        if self.next_check.is_some_and(|at| at <= now) {
            self.check();
        }
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<(Timestamp, &'static str)> {
        let pause = |stream| match stream {
            Stream::Pausing { until } => Some((until, "ask again")),
            Stream::Closed | Stream::Open { .. } | Stream::Absent => None,
        };
        let why = if self.serving == Some(false) && self.shared {
            "another server?"
        } else {
            "resumed?"
        };
        let check = self.next_check.map(|at| (at, why));
        earliest(earliest(pause(self.service), pause(self.overall)), check)
    }
}
