//! Time, delay and order: everything that is due in a simulated world, and when.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::Display;
use std::time::Duration;

use lameduck_core::limits::REGISTRY_CALL_MAX;
use lameduck_core::machine::Ticket;
use lameduck_core::rng::Rng;
use lameduck_core::time::Timestamp;

use super::wire::{Ask, ConnId, Due, Frame, Node, Tell};

/// Until then nothing is lost: everybody finds everybody.
const LOSS_BEGINS: Timestamp = Timestamp::from_millis(1_000);
/// Lines of a timeline that are kept: more than any shrunk world needs.
const TIMELINE_MAX: usize = 20_000;

struct Entry {
    at: Timestamp,
    order: u64,
    due: Due,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// The network and the clock.
pub(super) struct Net {
    pub(super) now: Timestamp,
    pub(super) rng: Rng,
    pub(super) timeline: Vec<String>,
    pub(super) tell_timeline: bool,
    order: u64,
    queue: BinaryHeap<Reverse<Entry>>,
    /// When the last frame of each direction of a connection arrives: they stay in order.
    last: BTreeMap<(ConnId, bool), Timestamp>,
    delay_max: Duration,
    loss_permille: u32,
}

impl Net {
    pub(super) fn new(seed: u64, delay_max: Duration, loss_permille: u32) -> Self {
        Self {
            now: Timestamp::ZERO,
            rng: Rng::from_seed(seed),
            timeline: Vec::new(),
            tell_timeline: false,
            order: 0,
            queue: BinaryHeap::new(),
            last: BTreeMap::new(),
            delay_max,
            loss_permille,
        }
    }

    /// The next thing that is due; time moves on to it.
    pub(super) fn next(&mut self) -> Option<Due> {
        let Reverse(entry) = self.queue.pop()?;
        self.now = self.now.max(entry.at);
        Some(entry.due)
    }

    pub(super) fn at(&mut self, at: Timestamp, due: Due) {
        self.order += 1;
        self.queue.push(Reverse(Entry {
            at,
            order: self.order,
            due,
        }));
    }

    pub(super) fn after(&mut self, pause: Duration, due: Due) {
        self.at(self.now + pause, due);
    }

    pub(super) fn delay(&mut self) -> Duration {
        self.rng.between(Duration::from_micros(20), self.delay_max)
    }

    /// Something arrives after one delay.
    pub(super) fn send(&mut self, due: Due) {
        let delay = self.delay();
        self.after(delay, due);
    }

    /// One request to the registry. It completes, with an error at the latest after the longest
    /// time that a call may take; a watch that stands has no such end.
    pub(super) fn ask(&mut self, from: Node, ticket: Ticket, ask: Ask) {
        let lost = self.is_lost();
        if lost || !matches!(ask, Ask::Watch { .. }) {
            self.times_out(from, ticket);
        }
        if !lost {
            self.send(Due::Ask { from, ticket, ask });
        }
    }

    pub(super) fn times_out(&mut self, to: Node, ticket: Ticket) {
        let tell = Tell::Failed;
        self.after(REGISTRY_CALL_MAX, Due::Tell { to, ticket, tell });
    }

    /// Later than anybody waits for the registry.
    pub(super) fn late(&mut self) -> Duration {
        let most = REGISTRY_CALL_MAX + REGISTRY_CALL_MAX;
        self.rng.between(REGISTRY_CALL_MAX, most)
    }

    /// Nothing is lost any more: what is wanted must come true now.
    pub(super) fn calm_down(&mut self) {
        self.loss_permille = 0;
    }

    pub(super) fn is_lost(&mut self) -> bool {
        let lossy = self.now >= LOSS_BEGINS;
        lossy && self.rng.below(1000) < self.loss_permille as usize
    }

    /// One frame; it never overtakes an earlier one on the same connection.
    pub(super) fn frame(&mut self, conn: ConnId, to_server: bool, frame: Frame) {
        let due = if to_server {
            Due::ToServer { conn, frame }
        } else {
            Due::ToCaller { conn, frame }
        };
        self.ordered(conn, to_server, due);
    }

    /// The end of a connection, seen by the other side after all frames.
    pub(super) fn gone(&mut self, conn: ConnId, at_server: bool) {
        let due = if at_server {
            Due::GoneAtServer { conn }
        } else {
            Due::GoneAtCaller { conn }
        };
        self.ordered(conn, at_server, due);
    }

    /// Something on a stream of its own: it never overtakes what was sent on it before.
    pub(super) fn in_order(&mut self, stream: ConnId, due: Due) {
        self.ordered(stream, false, due);
    }

    fn ordered(&mut self, conn: ConnId, to_server: bool, due: Due) {
        let arrival = self.now + self.delay();
        let last = self.last.entry((conn, to_server)).or_insert(arrival);
        *last = arrival.max(*last);
        let at = *last;
        self.at(at, due);
    }

    pub(super) fn note(&mut self, line: impl Display) {
        if self.tell_timeline && self.timeline.len() < TIMELINE_MAX {
            self.timeline
                .push(format!("{:>16} {line}", self.now.to_string()));
        }
    }
}
