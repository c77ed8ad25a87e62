//! One endpoint, seen from a caller: when to dial it, which of its connections take calls, and how
//! it is left.
//!
//! A connection is named by the [`Ticket`] of the dial that made it. It takes calls once its health
//! Watch has given a first answer (gRPC A17 stays "connecting" until then) and until the peer says
//! GOAWAY or the endpoint is removed; from then on what is open on it finishes, and it closes as
//! soon as nothing is. More than one connection is dialled only where the streams of all others are
//! in use: below that limit a second one gains nothing.
//!
//! A connection that has answered a call is no failed dial, however soon it ends: proxies and servers
//! end connections by number of requests or by age, and the next one is dialled at once. A pause
//! follows only a connection that ended without having answered anything.
//!
//! An endpoint that is a host name may move. A connection to an address that the name has no more
//! takes calls until another one does: a name that points nowhere yet loses nobody.
//!
//! Several servers may stand behind one address. What a peer says holds for its connection; the endpoint is
//! what all of them say together. Where the address alone was given, so that nothing tells how many
//! servers it has, another connection is tried while none leads to a server that serves.

mod servers;
#[cfg(test)]
mod tests;
mod voices;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::backoff::Backoff;
use crate::instance::Life;
use crate::limits::{
    CONNECTION_SETTLED, CONNECTIONS_LEAVING_MAX, CONNECTIONS_PER_ENDPOINT_MAX, DIAL_BACKOFF,
    DIAL_WANTED_AFTER, FIRST_ANSWER_MAX, LINGER_REMOVED,
};
use crate::machine::{Machine, Ticket, earliest};
use crate::mutant;
use crate::rng::Rng;
use crate::time::Timestamp;
use voices::Voices;

/// What happens to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Whether it may be dialled. What is connected stays either way.
    Dialling {
        /// `false`: not until it is said again.
        allowed: bool,
    },
    /// A dial gave a connection whose peer sent its SETTINGS.
    Dialled(Ticket),
    /// A dial failed.
    Failed(Ticket),
    /// The peer of this connection serves, or does not. Said before [`Input::Answered`], and again at every
    /// change.
    Serving {
        /// Which connection.
        ticket: Ticket,
        /// Whether it serves.
        serving: bool,
    },
    /// The peer of this connection says who it is. The directory has heard it.
    Named {
        /// Which connection.
        ticket: Ticket,
        /// Which life.
        life: Life,
        /// Whether it serves the service that is wanted.
        right_service: bool,
    },
    /// The peer of this connection says that it is closing.
    Closing(Ticket),
    /// The connection's health Watch gave its first answer, or the peer has no health service.
    Answered(Ticket),
    /// The peer has answered a call on this connection. May come after the connection's end.
    Served(Ticket),
    /// The peer said GOAWAY.
    GoAway(Ticket),
    /// The connection is gone: lost, or retired and nothing is open on it any more.
    Ended(Ticket),
    /// The endpoint's name was looked up again.
    Found {
        /// This connection …
        ticket: Ticket,
        /// … leads to an address that the name still has.
        listed: bool,
    },
    /// A call found the streams of all connections in use.
    Full,
    /// A call found no instance that takes it.
    Wanted,
    /// The endpoint has left the directory. Final.
    Remove,
}

/// What an endpoint wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Connect; answer with [`Input::Dialled`] or [`Input::Failed`].
    Dial(Ticket),
    /// Open the health Watch, the first stream on this connection.
    Watch(Ticket),
    /// The connection takes calls from now on.
    Use(Ticket),
    /// No new stream on this connection; it closes, and [`Input::Ended`] comes, once nothing is open
    /// on it.
    Retire(Ticket),
    /// Close a connection that was never used. It is not mentioned again.
    Close(Ticket),
    /// Close a connection with whatever is open on it. It is not mentioned again.
    Cut(Ticket),
    /// Whether any connection takes calls has changed.
    Link {
        /// At least one does.
        up: bool,
    },
    /// Whether the endpoint serves: its connections' peers together. Given out for every
    /// [`Input::Serving`], and where the end of a connection changes it.
    Health {
        /// Whether any of them serves.
        serving: bool,
        /// Whether one of them has just said that it does not.
        refused: bool,
    },
    /// The endpoint is another life than was heard last: that one's connection is gone, or another one is
    /// fitter for calls.
    Named {
        /// Which life.
        life: Life,
        /// Whether it serves the service that is wanted.
        right_service: bool,
    },
    /// The peer itself ended a connection, by GOAWAY.
    PeerEnded,
    /// Removed, and nothing is left of it: no more outputs.
    Done,
}

/// How a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    /// Connected; its health is not known yet.
    Fresh { since: Timestamp },
    /// Takes calls.
    Usable { since: Timestamp },
    /// Takes calls until one does whose address the endpoint's name still has.
    Moved { since: Timestamp },
    /// Takes no new ones.
    Leaving,
}

/// Whether the endpoint is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It is; `allowed` says whether it may be dialled.
    Wanted { allowed: bool },
    /// It is not: what is open finishes, at most until then.
    Removed { cut_at: Timestamp },
    /// Nothing is left of it.
    Done,
}

/// Why and for how long nothing is dialled.
#[derive(Clone, Copy, Debug)]
struct Pause {
    since: Timestamp,
    until: Timestamp,
    after: After,
}

/// What a pause follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// A dial that failed.
    Failure,
    /// This connection, which ended without an answer.
    Connection(Ticket),
    /// A connection that led to no better server than those that are there. A peer was reached, and it
    /// wants no calls: calls that wait do not shorten this one, or each caller dialled it ten times a second.
    Spare,
}

/// The machine of one endpoint.
#[derive(Clone, Debug)]
pub struct Endpoint {
    standing: Standing,
    connections: BTreeMap<Ticket, Connection>,
    dialling: Option<Ticket>,
    pause: Option<Pause>,
    /// Connections that have answered a call.
    served: BTreeSet<Ticket>,
    voices: Voices,
    /// Whether more than one server may stand behind the address.
    shared: bool,
    /// How many connections there may be.
    connections_max: usize,
    /// Streams have run out: one more connection is wanted.
    more: bool,
    up: bool,
    last: Ticket,
    backoff: Backoff,
    rng: Rng,
    out: VecDeque<Output>,
}

impl Endpoint {
    /// A wanted endpoint, to be dialled at once. `seed` fixes the jitter of its pauses.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut endpoint = Self {
            standing: Standing::Wanted { allowed: true },
            connections: BTreeMap::new(),
            dialling: None,
            pause: None,
            served: BTreeSet::new(),
            voices: Voices::default(),
            shared: false,
            connections_max: CONNECTIONS_PER_ENDPOINT_MAX,
            more: false,
            up: false,
            last: Ticket::default(),
            backoff: Backoff::new(DIAL_BACKOFF.0, DIAL_BACKOFF.1),
            rng: Rng::from_seed(seed),
            out: VecDeque::new(),
        };
        endpoint.settle();
        endpoint
    }

    /// The same with at most `max` connections, at least one.
    /// [`CONNECTIONS_PER_ENDPOINT_MAX`] unless said.
    #[must_use]
    pub fn with_connections_max(mut self, max: usize) -> Self {
        self.connections_max = max.max(1);
        self
    }

    /// The same for a bare address, behind which any number of servers may stand.
    #[must_use]
    pub const fn with_shared_address(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Whether at least one connection takes calls.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.up
    }

    fn dialling_allowed(&mut self, allowed: bool) {
        if !matches!(self.standing, Standing::Wanted { .. }) {
            return;
        }
        self.standing = Standing::Wanted { allowed };
        self.backoff.reset();
        self.pause = None;
        if !allowed {
            self.dialling = None;
            self.more = false;
        }
    }

    fn dialled(&mut self, now: Timestamp, ticket: Ticket) {
        let is_current = self.dialling == Some(ticket) || mutant!("endpoint/stale-dial-closes");
        if !is_current {
            self.out.push_back(Output::Close(ticket));
            return;
        }
        self.dialling = None;
        let fresh = Connection::Fresh { since: now };
        self.connections.insert(ticket, fresh);
        self.voices.join(ticket);
        self.out.push_back(Output::Watch(ticket));
    }

    fn failed(&mut self, now: Timestamp, ticket: Ticket) {
        if self.dialling == Some(ticket) {
            self.dialling = None;
            self.back_off(now, After::Failure);
        }
    }

    /// The peer answers calls there. Its answer may be read only after the GOAWAY that came with it.
    fn has_served(&mut self, ticket: Ticket) {
        if self.connections.contains_key(&ticket) {
            self.served.insert(ticket);
        }
        let after = After::Connection(ticket);
        let blamed = self.pause.is_some_and(|pause| pause.after == after);
        if blamed && !mutant!("endpoint/late-answer-ends-the-pause") {
            self.pause = None;
            self.backoff.reset();
        }
    }

    /// A call waits for this endpoint: it is dialled sooner, but not in a loop.
    fn wanted(&mut self, now: Timestamp) {
        let Some(pause) = &mut self.pause else {
            return;
        };
        if pause.after == After::Spare && !mutant!("endpoint/spares-wait-their-turn") {
            return;
        }
        let floor = pause.since + DIAL_WANTED_AFTER;
        if floor < pause.until && !mutant!("endpoint/wanted-dials-sooner") {
            pause.until = floor;
        }
        if pause.until <= now || mutant!("endpoint/wanted-not-in-a-loop") {
            self.pause = None;
        }
    }

    fn answered(&mut self, now: Timestamp, ticket: Ticket) {
        let spare = self.is_spare(ticket);
        let Some(connection) = self.connections.get_mut(&ticket) else {
            return;
        };
        let Connection::Fresh { since } = *connection else {
            return;
        };
        if spare {
            *connection = Connection::Leaving;
            self.out.push_back(Output::Retire(ticket));
            self.bound_leaving();
            return self.back_off(now, After::Spare);
        }
        *connection = Connection::Usable { since };
        self.out.push_back(Output::Use(ticket));
        self.replace_moved();
    }

    /// The endpoint's name still has this connection's address, or has it no more.
    fn found(&mut self, ticket: Ticket, listed: bool) {
        let Some(connection) = self.connections.get_mut(&ticket) else {
            return;
        };
        match *connection {
            Connection::Usable { since } if !listed => *connection = Connection::Moved { since },
            Connection::Moved { since } if listed => *connection = Connection::Usable { since },
            Connection::Fresh { .. }
            | Connection::Usable { .. }
            | Connection::Moved { .. }
            | Connection::Leaving => return,
        }
        if self.has_settled_one() || mutant!("endpoint/moved-serves-until-replaced") {
            self.replace_moved();
        }
    }

    /// Whether a connection takes calls and will go on to.
    fn has_settled_one(&self) -> bool {
        let usable = |one: &Connection| matches!(one, Connection::Usable { .. });
        self.connections.values().any(usable)
    }

    /// Connections to addresses of the past are not needed any more.
    fn replace_moved(&mut self) {
        for (ticket, connection) in &mut self.connections {
            if matches!(connection, Connection::Moved { .. }) {
                *connection = Connection::Leaving;
                self.out.push_back(Output::Retire(*ticket));
            }
        }
    }

    fn go_away(&mut self, now: Timestamp, ticket: Ticket) {
        let Some(connection) = self.connections.get_mut(&ticket) else {
            return;
        };
        let before = core::mem::replace(connection, Connection::Leaving);
        if before == Connection::Leaving {
            return;
        }
        self.out.push_back(Output::Retire(ticket));
        self.out.push_back(Output::PeerEnded);
        self.bound_leaving();
        self.lost(now, ticket, before);
    }

    /// What was told to go long ago and is still there gives way to what was told now.
    fn bound_leaving(&mut self) {
        let leaving = |(_, one): &(&Ticket, &Connection)| **one == Connection::Leaving;
        let mut tickets = self.connections.iter().filter(leaving);
        if tickets.clone().count() <= CONNECTIONS_LEAVING_MAX {
            return;
        }
        if let Some(oldest) = tickets.next().map(|(ticket, _)| *ticket) {
            self.connections.remove(&oldest);
            self.served.remove(&oldest);
            self.out.push_back(Output::Cut(oldest));
        }
    }

    fn ended(&mut self, now: Timestamp, ticket: Ticket) {
        if let Some(connection) = self.connections.remove(&ticket) {
            self.lost(now, ticket, connection);
            self.served.remove(&ticket);
            self.voices.leave(ticket);
        }
    }

    /// A connection takes no calls any more. One that had lasted, or had answered a call, is replaced
    /// at once; one that had not counts as a failed dial, or a peer that says GOAWAY at once were
    /// dialled in a loop.
    fn lost(&mut self, now: Timestamp, ticket: Ticket, connection: Connection) {
        let since = match connection {
            Connection::Fresh { .. } => None,
            Connection::Usable { since } | Connection::Moved { since } => Some(since),
            Connection::Leaving => return,
        };
        let lasted = since.is_some_and(|since| now.saturating_since(since) >= CONNECTION_SETTLED);
        let served = self.served.contains(&ticket) && !mutant!("endpoint/served-is-no-failed-dial");
        if lasted || served || mutant!("endpoint/settles-before-redial") {
            self.backoff.reset();
        } else {
            self.back_off(now, After::Connection(ticket));
        }
    }

    fn back_off(&mut self, now: Timestamp, after: After) {
        if matches!(self.standing, Standing::Wanted { allowed: true }) {
            self.pause = Some(Pause {
                since: now,
                until: now + self.backoff.next(&mut self.rng),
                after,
            });
        }
    }

    fn remove(&mut self, now: Timestamp) {
        if !matches!(self.standing, Standing::Wanted { .. }) {
            return;
        }
        self.standing = Standing::Removed {
            cut_at: now + LINGER_REMOVED,
        };
        self.dialling = None;
        self.pause = None;
        for (ticket, connection) in &mut self.connections {
            if *connection != Connection::Leaving {
                *connection = Connection::Leaving;
                self.out.push_back(Output::Retire(*ticket));
            }
        }
    }

    fn cut_all(&mut self) {
        self.served.clear();
        self.voices = Voices::default();
        for ticket in core::mem::take(&mut self.connections).into_keys() {
            self.out.push_back(Output::Cut(ticket));
        }
    }

    /// Cuts connections that should have said how they are by now.
    fn expire(&mut self, now: Timestamp) {
        let late = |connection: &Connection| match connection {
            Connection::Fresh { since } => *since + FIRST_ANSWER_MAX <= now,
            Connection::Usable { .. } | Connection::Moved { .. } | Connection::Leaving => false,
        };
        let silent = self.connections.iter().find(|(_, one)| late(one));
        if let Some(ticket) = silent.map(|(ticket, _)| *ticket) {
            self.connections.remove(&ticket);
            self.voices.leave(ticket);
            self.served.remove(&ticket);
            self.out.push_back(Output::Cut(ticket));
            self.back_off(now, After::Failure);
        }
    }

    /// After each input: says what has changed, and dials if that is wanted.
    fn settle(&mut self) {
        self.settle_voices();
        let usable =
            |one: &Connection| matches!(one, Connection::Usable { .. } | Connection::Moved { .. });
        let up = self.connections.values().any(usable);
        match self.standing {
            Standing::Wanted { allowed } => {
                if up != self.up {
                    self.out.push_back(Output::Link { up });
                }
                if allowed {
                    self.dial();
                }
            }
            Standing::Removed { .. } if self.connections.is_empty() => {
                self.standing = Standing::Done;
                self.out.push_back(Output::Done);
            }
            Standing::Removed { .. } if mutant!("endpoint/removed-never-dials") => self.dial(),
            Standing::Removed { .. } | Standing::Done => {}
        }
        self.up = up;
    }

    fn dial(&mut self) {
        if self.dialling.is_some() || self.pause.is_some() {
            return;
        }
        let staying = self.connections.values().filter(|one| match one {
            Connection::Fresh { .. } | Connection::Usable { .. } => true,
            Connection::Moved { .. } | Connection::Leaving => false,
        });
        let staying = staying.count();
        let more = core::mem::take(&mut self.more) && staying < self.connections_max;
        if staying == 0 || more || self.seeks(staying) {
            self.last = self.last.next();
            self.dialling = Some(self.last);
            self.out.push_back(Output::Dial(self.last));
        }
    }

    fn full(&mut self) {
        let fresh = |one: &Connection| matches!(one, Connection::Fresh { .. });
        let coming = self.dialling.is_some() || self.connections.values().any(fresh);
        self.more = !coming || mutant!("endpoint/one-more-at-a-time");
    }
}

impl Machine for Endpoint {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Timestamp, input: Input) {
        match input {
            Input::Dialling { allowed } => self.dialling_allowed(allowed),
            Input::Dialled(ticket) => self.dialled(now, ticket),
            Input::Failed(ticket) => self.failed(now, ticket),
            Input::Serving { ticket, serving } => self.is_serving(ticket, serving),
            Input::Named {
                ticket,
                life,
                right_service,
            } => self.voices.named(ticket, life, right_service),
            Input::Closing(ticket) => self.voices.closing(ticket),
            Input::Answered(ticket) => self.answered(now, ticket),
            Input::Served(ticket) => self.has_served(ticket),
            Input::GoAway(ticket) => self.go_away(now, ticket),
            Input::Ended(ticket) => self.ended(now, ticket),
            Input::Found { ticket, listed } => self.found(ticket, listed),
            Input::Full => self.full(),
            Input::Wanted => self.wanted(now),
            Input::Remove => self.remove(now),
        }
        self.settle();
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if self.pause.is_some_and(|pause| pause.until <= now) {
            self.pause = None;
        }
        if matches!(self.standing, Standing::Removed { cut_at } if cut_at <= now) {
            self.cut_all();
        }
        self.expire(now);
        self.settle();
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<(Timestamp, &'static str)> {
        let pause = self.pause.map(|pause| (pause.until, "redial"));
        let cut = match self.standing {
            Standing::Removed { cut_at } => Some((cut_at, "linger")),
            Standing::Wanted { .. } | Standing::Done => None,
        };
        let answer = self.connections.values().filter_map(|one| match one {
            Connection::Fresh { since } => Some((*since + FIRST_ANSWER_MAX, "first answer")),
            Connection::Usable { .. } | Connection::Moved { .. } | Connection::Leaving => None,
        });
        answer.fold(earliest(pause, cut), |least, one| {
            earliest(least, Some(one))
        })
    }
}
