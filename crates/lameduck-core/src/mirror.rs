//! A copy of one range of a registry, kept by a list and a watch that begins where the list ended.
//!
//! A watch that breaks is resumed after the last revision that was seen. Where that revision is
//! compacted, or the registry turns out to have another history (its revision went back, another
//! cluster answers), the range is listed anew. Events are applied once, whatever is sent twice, and
//! a slow periodic list finds what a watch has lost. An error never changes the copy, only its age.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::backoff::Backoff;
use crate::limits;
use crate::machine::{Machine, Ticket, earliest};
use crate::mutant;
use crate::registry::RegistryError;
use crate::rng::Rng;
use crate::time::Timestamp;

#[cfg(test)]
mod tests;

/// One key as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<K, V> {
    /// The key.
    pub key: K,
    /// The revision of its latest change.
    pub modified: u64,
    /// What it holds.
    pub value: V,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<K, V> {
    /// The key.
    pub key: K,
    /// The revision of this change.
    pub modified: u64,
    /// What it holds from now on; `None` where it was deleted.
    pub value: Option<V>,
}

/// Where an answer comes from: its revision, and which history counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The registry's revision when it answered.
    pub revision: u64,
    /// Which cluster it is; revisions of different clusters do not compare.
    pub cluster: u64,
}

/// What can happen to a mirror. A list completes within a bounded time; a watch stays until it
/// fails or another one takes its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<K, V> {
    /// [`Output::List`] succeeded.
    Listed {
        /// Whose completion.
        ticket: Ticket,
        /// At which revision.
        origin: Origin,
        /// Everything in the range at that revision.
        items: Vec<Item<K, V>>,
    },
    /// The watch stands; events follow.
    Opened {
        /// Which watch.
        ticket: Ticket,
        /// The registry's revision then.
        origin: Origin,
    },
    /// What changed, oldest first; all changes of one revision together. Empty: progress alone.
    Changed {
        /// Which watch.
        ticket: Ticket,
        /// Everything up to this revision has been told.
        revision: u64,
        /// The changes.
        changes: Vec<Change<K, V>>,
    },
    /// The watch cannot begin where it was asked to: that history has been thrown away.
    Compacted {
        /// Which watch.
        ticket: Ticket,
    },
    /// The list or the watch failed.
    Failed {
        /// Which one.
        ticket: Ticket,
        /// How.
        error: RegistryError,
    },
}

/// What a mirror wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output<K, V> {
    /// List the range.
    List {
        /// For the completion.
        ticket: Ticket,
    },
    /// Watch the range; ends an earlier watch.
    Watch {
        /// For everything that the watch tells.
        ticket: Ticket,
        /// The first revision that is wanted.
        from: u64,
    },
    /// The copy has changed, or its standing.
    Emit(News<K, V>),
}

/// How the copy has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News<K, V> {
    /// This is the copy now.
    Reset {
        /// All of it.
        items: Vec<Item<K, V>>,
        /// At which revision.
        revision: u64,
    },
    /// These keys have changed; possibly none, where only the revision moved on.
    Delta {
        /// In order.
        changes: Vec<Change<K, V>>,
        /// At which revision.
        revision: u64,
    },
    /// The registry cannot be read now.
    Stale(RegistryError),
    /// It can be read again, and nothing else has changed.
    Live,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Lists anew: nothing is known, or what is known cannot be continued.
    Listing { ticket: Ticket },
    /// Waits before it tries again.
    Pausing { until: Timestamp },
    /// Has asked for a watch.
    Opening { ticket: Ticket },
    /// Is told of changes.
    Watching { ticket: Ticket, since: Timestamp },
}

/// A list beside a running watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    At(Timestamp),
    Listing { ticket: Ticket, known: u64 },
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Mirror<K, V> {
    state: State,
    check: Check,
    items: BTreeMap<K, (u64, V)>,
    /// Up to which revision the copy is right; `None` before the first list.
    origin: Option<Origin>,
    /// Whether the next attempt must list.
    relist: bool,
    stale: bool,
    left_out: u64,
    backoff: Backoff,
    rng: Rng,
    /// Draws the times of checks alone.
    checks: Rng,
    last_ticket: Ticket,
    out: VecDeque<Output<K, V>>,
}

impl<K: Ord + Clone, V: Clone + PartialEq> Mirror<K, V> {
    /// A mirror that begins by listing.
    #[must_use]
    pub fn new(rng: Rng) -> Self {
        let (first, last) = limits::REGISTRY_BACKOFF;
        let ticket = Ticket::default().next();
        Self {
            state: State::Listing { ticket },
            check: Check::At(Timestamp::MAX),
            items: BTreeMap::new(),
            origin: None,
            relist: true,
            stale: false,
            left_out: 0,
            backoff: Backoff::new(first, last),
            checks: Rng::from_seed(rng.clone().next_u64()),
            rng,
            last_ticket: ticket,
            out: VecDeque::from([Output::List { ticket }]),
        }
    }

    /// How many keys were left out because there were more than [`limits::INSTANCES_MAX`].
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    fn ticket(&mut self) -> Ticket {
        self.last_ticket = self.last_ticket.next();
        self.last_ticket
    }

    fn emit(&mut self, news: News<K, V>) {
        self.out.push_back(Output::Emit(news));
    }

    /// Spread: mirrors that began together must not list together for ever.
    fn next_check(&mut self, now: Timestamp) -> Check {
        let most = limits::MIRROR_CHECK;
        if mutant!("mirror/checks-are-spread") {
            return Check::At(now + most);
        }
        Check::At(now + self.checks.between(most / 4 * 3, most))
    }

    // --- lists ---------------------------------------------------------------------------------

    fn listed(&mut self, now: Timestamp, ticket: Ticket, origin: Origin, items: Vec<Item<K, V>>) {
        if self.state == (State::Listing { ticket }) {
            self.replace(now, origin, items);
        } else if let Check::Listing { ticket: own, known } = self.check
            && own == ticket
        {
            self.check = self.next_check(now);
            self.compare(now, known, origin, items);
        }
    }

    fn replace(&mut self, now: Timestamp, origin: Origin, items: Vec<Item<K, V>>) {
        self.items.clear();
        for item in items {
            self.insert(item.key, item.modified, item.value);
        }
        self.origin = Some(origin);
        self.relist = false;
        self.stale = false;
        self.check = self.next_check(now);
        let items = self.items.iter().map(|(key, (modified, value))| Item {
            key: key.clone(),
            modified: *modified,
            value: value.clone(),
        });
        let items = items.collect();
        let revision = origin.revision;
        self.emit(News::Reset { items, revision });
        self.watch();
    }

    /// Compares a list with what the watch has told. `known` is the revision of the copy when the
    /// list was asked for: an answer from before it belongs to another history.
    fn compare(&mut self, now: Timestamp, known: u64, origin: Origin, items: Vec<Item<K, V>>) {
        let Some(own) = self.origin else { return };
        if self.is_another_history(known, origin) {
            return self.replace(now, origin, items);
        }
        if origin.revision < own.revision {
            // The watch has overtaken the list; the next one will do.
            return;
        }
        let mut changes = Vec::new();
        let mut gone = self.items.clone();
        for Item {
            key,
            modified,
            value,
        } in items
        {
            let old = gone.remove(&key);
            if old.is_none_or(|(at, old)| at < modified || old != value) {
                let value = Some(value);
                changes.push(Change {
                    key,
                    modified,
                    value,
                });
            }
        }
        changes.extend(gone.into_keys().map(|key| Change {
            key,
            modified: origin.revision,
            value: None,
        }));
        self.apply(origin.revision, changes);
    }

    fn is_another_history(&self, known: u64, origin: Origin) -> bool {
        if mutant!("mirror/notices-another-history") {
            return false;
        }
        origin.revision < known || self.origin.is_some_and(|own| own.cluster != origin.cluster)
    }

    fn insert(&mut self, key: K, modified: u64, value: V) -> bool {
        if self.items.len() >= limits::INSTANCES_MAX && !self.items.contains_key(&key) {
            self.left_out += 1;
            return false;
        }
        self.items.insert(key, (modified, value));
        true
    }

    // --- watches -------------------------------------------------------------------------------

    fn watch(&mut self) {
        let ticket = self.ticket();
        let from = self.origin.map_or(0, |own| own.revision) + 1;
        self.state = State::Opening { ticket };
        self.out.push_back(Output::Watch { ticket, from });
    }

    fn list(&mut self) {
        let ticket = self.ticket();
        self.state = State::Listing { ticket };
        self.out.push_back(Output::List { ticket });
    }

    fn opened(&mut self, now: Timestamp, ticket: Ticket, origin: Origin) {
        if self.state != (State::Opening { ticket }) {
            return;
        }
        let known = self.origin.map_or(0, |own| own.revision);
        if self.is_another_history(known, origin) {
            return self.list_anew(now, now);
        }
        self.state = State::Watching { ticket, since: now };
        if self.stale {
            self.stale = false;
            self.emit(News::Live);
            // What broke the watch may have cost events: look soon, but not all at once.
            let (_, spread) = limits::REGISTRY_BACKOFF;
            let soon = now + self.rng.between(spread / 10, spread);
            if let Check::At(at) = &mut self.check {
                *at = soon.min(*at);
            }
        }
    }

    fn changed(&mut self, ticket: Ticket, revision: u64, mut changes: Vec<Change<K, V>>) {
        if !matches!(self.state, State::Watching { ticket: own, .. } if own == ticket) {
            return;
        }
        // What is sent twice is taken once: a registry may repeat events when a watch is resumed.
        let known = self.origin.map_or(0, |own| own.revision);
        changes.retain(|change| change.modified > known || mutant!("mirror/applies-once"));
        self.apply(revision, changes);
    }

    /// Applies changes; tells those that make a difference, and that the revision moved on.
    fn apply(&mut self, revision: u64, mut changes: Vec<Change<K, V>>) {
        let Some(own) = &mut self.origin else { return };
        let known = own.revision;
        own.revision = known.max(revision);
        let revision = own.revision;
        changes.retain(|change| match change.value.clone() {
            Some(value) => self.insert(change.key.clone(), change.modified, value),
            None => self.items.remove(&change.key).is_some(),
        });
        if !changes.is_empty() || revision > known {
            self.emit(News::Delta { changes, revision });
        }
    }

    fn compacted(&mut self, now: Timestamp, ticket: Ticket) {
        let since = match self.state {
            State::Opening { ticket: own } if own == ticket => now,
            State::Watching { ticket: own, since } if own == ticket => since,
            _ => return,
        };
        self.list_anew(now, since);
    }

    /// At once the first time; a registry that breaks every watch is not hurried.
    fn list_anew(&mut self, now: Timestamp, since: Timestamp) {
        self.relist = !mutant!("mirror/lists-anew");
        self.settle_backoff(now, since);
        let until = now + self.backoff.next(&mut self.rng);
        if self.backoff.failures() == 1 && self.relist {
            self.list();
        } else {
            self.state = State::Pausing { until };
        }
    }

    fn failed(&mut self, now: Timestamp, ticket: Ticket, error: RegistryError) {
        if let Check::Listing { ticket: own, .. } = self.check
            && own == ticket
        {
            let (_, pause) = limits::REGISTRY_BACKOFF;
            self.check = Check::At(now + pause);
            return;
        }
        let since = match self.state {
            State::Listing { ticket: own } | State::Opening { ticket: own } if own == ticket => now,
            State::Watching { ticket: own, since } if own == ticket => since,
            _ => return,
        };
        self.settle_backoff(now, since);
        let until = now + self.backoff.next(&mut self.rng);
        self.state = State::Pausing { until };
        if !self.stale {
            self.stale = true;
            self.emit(News::Stale(error));
        }
    }

    /// A watch that has stood for a while proves that the registry is well again.
    fn settle_backoff(&mut self, now: Timestamp, since: Timestamp) {
        if now.saturating_since(since) >= limits::WATCH_SETTLED {
            self.backoff.reset();
        }
    }
}

impl<K: Ord + Clone, V: Clone + PartialEq> Machine for Mirror<K, V> {
    type Input = Input<K, V>;
    type Output = Output<K, V>;

    fn handle(&mut self, now: Timestamp, input: Input<K, V>) {
        match input {
            Input::Listed {
                ticket,
                origin,
                items,
            } => self.listed(now, ticket, origin, items),
            Input::Opened { ticket, origin } => self.opened(now, ticket, origin),
            Input::Changed {
                ticket,
                revision,
                changes,
            } => self.changed(ticket, revision, changes),
            Input::Compacted { ticket } => self.compacted(now, ticket),
            Input::Failed { ticket, error } => self.failed(now, ticket, error),
        }
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        match self.state {
            State::Pausing { until } if until <= now => {
                if self.relist {
                    self.list();
                } else {
                    self.watch();
                }
            }
            State::Watching { .. } if matches!(self.check, Check::At(at) if at <= now) => {
                let ticket = self.ticket();
                let known = self.origin.map_or(0, |own| own.revision);
                self.check = Check::Listing { ticket, known };
                self.out.push_back(Output::List { ticket });
            }
            _ => {}
        }
    }

    fn poll(&mut self) -> Option<Output<K, V>> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<(Timestamp, &'static str)> {
        let retry = match self.state {
            State::Pausing { until } => Some((until, "try again")),
            _ => None,
        };
        let check = match (self.state, self.check) {
            (State::Watching { .. }, Check::At(at)) => Some((at, "compare with a list")),
            _ => None,
        };
        earliest(retry, check)
    }
}
