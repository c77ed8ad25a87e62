//! A directory as one would write it without thinking of machines: it keeps everything that was
//! ever said and works out from that, each time anew, who is in tier 1. Slow and simple, so that
//! it can be seen to be right; compared with the production directory after every input.

use std::collections::{BTreeMap, BTreeSet};

use lameduck_core::directory::{EndpointId, Input, Member};
use lameduck_core::event::{ClosingSource, Tier};
use lameduck_core::instance::{Incarnation, Instance, State};
use lameduck_core::registry::{EntryId, Update};

use super::caller::{Caller, address};
use super::oracle::Oracle;

impl Caller {
    /// Compares the directory with the naive one: each view of it, and after every input.
    pub(super) fn compare(&mut self, oracle: &mut Oracle) {
        let mut found: Vec<String> = Vec::new();
        for member in &self.snapshot.members {
            let wrong = self.naive.disagrees(member);
            found.extend(wrong.or_else(|| self.naive.revived(member)));
        }
        let violations = found.into_iter().map(|why| {
            let index = self.index;
            format!("caller {index}: the directory and the naive one differ: {why}")
        });
        oracle.violations.extend(violations);
    }
}

/// Everything that was said.
#[derive(Default)]
pub(super) struct Naive {
    listed: BTreeMap<EntryId, Instance>,
    /// Lives that said themselves that they are closing.
    closed: BTreeSet<Incarnation>,
    up: BTreeSet<EndpointId>,
    /// Who was up at some time.
    were_up: BTreeSet<EndpointId>,
    sick: BTreeSet<EndpointId>,
    /// Whether anything was said that only makes sense with the machine's own memory (a guess
    /// from health): such members are not compared.
    guessed: BTreeSet<EndpointId>,
    /// Members that were seen.
    known: BTreeSet<EndpointId>,
    /// What was closed before the last thing that was said.
    closed_before: BTreeSet<Incarnation>,
}

impl Naive {
    pub(super) fn hear(&mut self, input: &Input) {
        self.closed_before = self.closed.clone();
        match input {
            Input::Update(Update::Reset { entries, .. }) => {
                self.listed = entries
                    .iter()
                    .map(|entry| (entry.id, entry.instance.clone()))
                    .collect();
                self.statements();
            }
            Input::Update(Update::Delta {
                changed, removed, ..
            }) => {
                let changed = changed
                    .iter()
                    .map(|entry| (entry.id, entry.instance.clone()));
                self.listed.extend(changed);
                self.listed.retain(|id, _| !removed.contains(id));
                self.statements();
            }
            Input::Update(Update::Stale(_) | Update::Live | Update::Skipped { .. })
            | Input::Identified { .. } => {}
            Input::Closing {
                incarnation,
                source,
            } => {
                if *source != ClosingSource::Health {
                    self.closed.insert(*incarnation);
                }
            }
            Input::Link { endpoint, up } => {
                set(&mut self.up, *endpoint, *up);
                self.were_up.extend(up.then_some(*endpoint));
            }
            Input::Health { endpoint, serving } => set(&mut self.sick, *endpoint, !*serving),
            Input::PeerEnded { endpoint } => {
                if self.sick.contains(endpoint) {
                    self.guessed.insert(*endpoint);
                }
            }
        }
    }

    fn statements(&mut self) {
        let closing = self
            .listed
            .values()
            .filter(|instance| instance.state == State::Closing);
        self.closed
            .extend(closing.map(|instance| instance.incarnation));
    }

    /// Whether this life has said that it is closing.
    pub(super) fn is_closed(&self, life: Incarnation) -> bool {
        self.closed.iter().any(|said| covers(*said, life))
    }

    /// Whether an endpoint that was up has left by its own word, and all that is registered for its
    /// address says so too: nobody is to be found there any more.
    pub(super) fn has_left(&self, endpoint: EndpointId, slot: usize, life: Incarnation) -> bool {
        let address = address(slot);
        let mut here = self.listed.values().filter(|one| one.address == address);
        let mut all = here.clone();
        let registered = here.any(|one| one.incarnation == life);
        let says_so = registered && all.all(|one| one.state == State::Closing);
        says_so && self.is_closed(life) && self.were_up.contains(&endpoint)
    }

    /// What is listed now, by the registry's own key.
    pub(super) fn listed(&self) -> BTreeMap<i64, (Incarnation, State)> {
        let listed = self.listed.iter();
        listed
            .map(|(id, instance)| (id.0, (instance.incarnation, instance.state)))
            .collect()
    }

    /// A member that has come for a life that had left before: nothing but late data lists it.
    fn revived(&mut self, member: &Member) -> Option<String> {
        let is_new = self.known.insert(member.endpoint);
        let life = member.incarnation;
        let closed = self.closed_before.iter().any(|said| covers(*said, life));
        let mut listed = self.listed.values();
        let says_so = listed.any(|one| one.incarnation == life && one.state == State::Closing);
        (is_new && closed && !says_so).then(|| format!("late data brought {member:?} back"))
    }

    /// What is wrong with a member's place; `None` where nothing is.
    fn disagrees(&self, member: &Member) -> Option<String> {
        if self.guessed.contains(&member.endpoint) {
            return None;
        }
        let closed = self.is_closed(member.incarnation);
        let up = self.up.contains(&member.endpoint);
        let sick = self.sick.contains(&member.endpoint);
        let wrong = match member.tier {
            Tier::Ready => !up || closed || sick,
            Tier::LastResort => !up || (!sick && !closed && self.is_wanted(member)),
            Tier::Out => up && !sick && !closed && self.is_wanted(member),
        };
        wrong.then(|| format!("{member:?}: up {up}, closed {closed}, sick {sick}"))
    }

    /// Whether this life is registered as serving, and has not said otherwise.
    pub(super) fn serves(&self, life: Incarnation) -> bool {
        let mut listed = self.listed.values();
        let says_so = listed.any(|one| one.incarnation == life && one.state == State::Serving);
        says_so && !self.is_closed(life)
    }

    fn is_wanted(&self, member: &Member) -> bool {
        self.listed.values().any(|instance| {
            instance.address == member.address
                && instance.incarnation == member.incarnation
                && instance.ready
        })
    }
}

fn set(endpoints: &mut BTreeSet<EndpointId>, endpoint: EndpointId, present: bool) {
    if present {
        endpoints.insert(endpoint);
    } else {
        endpoints.remove(&endpoint);
    }
}

/// A statement holds for its own life and for earlier epochs of the same boot.
fn covers(statement: Incarnation, life: Incarnation) -> bool {
    match (statement, life) {
        (Incarnation::Life(said), Incarnation::Life(life)) => {
            said.boot == life.boot && life.epoch <= said.epoch
        }
        (said, life) => said == life,
    }
}
