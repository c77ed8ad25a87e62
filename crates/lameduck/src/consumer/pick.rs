//! Which endpoint takes a call.

use std::sync::Arc;

use lameduck_core::balance;
use lameduck_core::directory::EndpointId;
use lameduck_core::event::Tier;
use lameduck_core::rng::mix;

use super::Policy;
use super::connection::Slot;
use super::directory::{Shared, View};
use super::endpoint::Endpoint;
use super::link::Link;

/// One call that counts on its endpoint until this is dropped.
#[derive(Debug)]
pub(super) struct InFlight {
    endpoint: Arc<Endpoint>,
}

impl InFlight {
    fn begin(endpoint: Arc<Endpoint>) -> Self {
        endpoint.cell.enter();
        Self { endpoint }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.endpoint.cell.leave();
        self.endpoint.directory.waiters.wake_one();
    }
}

/// A place for one call: nothing lies between this and the send.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) link: Arc<Link>,
    pub(super) slot: Slot,
    pub(super) in_flight: InFlight,
    pub(super) tier: Tier,
}

/// What a look at the view gives.
#[derive(Debug)]
pub(super) enum Pick {
    /// A place.
    Place(Place),
    /// All that could take it have no stream free; this one may be given another connection.
    Full(Arc<Endpoint>),
    /// Nothing can take it now.
    Nothing,
}

impl Shared {
    /// Chooses from the view as it is when the choice is made: one that was made from an older view
    /// is not used, so that nobody goes where the directory has just said not to go.
    pub(super) fn pick(&self, policy: Policy, tried: &[EndpointId]) -> Pick {
        loop {
            let view = self.view.load();
            let picked = pick(&view, policy, self.waiters.turn(), tried);
            if Arc::ptr_eq(&view, &self.view.load()) {
                return picked;
            }
        }
    }
}

/// The choice that nearly every call makes: among the ready, by their cells alone.
pub(super) fn likely(view: &View, policy: Policy, turn: u64) -> Option<&Arc<Endpoint>> {
    let cells = &view.cells;
    let usable = |index: usize| !cells[index].is_withheld();
    let index = match policy {
        Policy::P2c => balance::p2c(mix(turn), cells.len(), |index| {
            usable(index).then(|| cells[index].load())
        }),
        Policy::RoundRobin => balance::round_robin(turn, cells.len(), usable),
    };
    index.map(|index| &view.ready[index])
}

/// Chooses among the ready; among those that are closing or unlisted only where none is ready.
/// Endpoints that have failed this very call come after all others of their tier.
fn pick(view: &View, policy: Policy, turn: u64, tried: &[EndpointId]) -> Pick {
    let ready = Group {
        members: &view.ready,
        wanted: |endpoint| !endpoint.cell.is_withheld(),
        tier: Tier::Ready,
    };
    // Nearly every choice has room. It is seen by taking it: to look at the connections of both
    // that were drawn costs more than all the rest, and the more the more instances there are.
    let likely = likely(view, policy, turn).filter(|_| tried.is_empty());
    if let Some(place) = likely.and_then(|endpoint| ready.take(endpoint)) {
        return Pick::Place(place);
    }
    let spare = Group {
        members: &view.spare,
        wanted: |_| true,
        tier: Tier::LastResort,
    };
    for group in [ready, spare] {
        match group.pick(policy, turn, tried) {
            Pick::Nothing => {}
            found => return found,
        }
    }
    Pick::Nothing
}

struct Group<'a> {
    members: &'a [Arc<Endpoint>],
    wanted: fn(&Endpoint) -> bool,
    tier: Tier,
}

impl Group<'_> {
    fn pick(&self, policy: Policy, turn: u64, tried: &[EndpointId]) -> Pick {
        let wanted = |endpoint: &Endpoint| (self.wanted)(endpoint);
        let untried = |endpoint: &Endpoint| !tried.contains(&endpoint.id);
        // Each round that finds a member whose room is gone by now, or which has just said that it
        // is closing, has lost a race; so many are lost only where there is none.
        for _ in 0..=self.members.len() {
            let roomy = |endpoint: &Endpoint| wanted(endpoint) && endpoint.has_room();
            let chosen = self
                .choose(policy, turn, |one| roomy(one) && untried(one))
                .or_else(|| self.choose(policy, turn, roomy));
            let Some(endpoint) = chosen else {
                break;
            };
            if let Some(place) = self.take(endpoint) {
                return Pick::Place(place);
            }
        }
        let usable = |endpoint: &Endpoint| wanted(endpoint) && endpoint.is_usable();
        match self.choose(policy, turn, usable) {
            Some(endpoint) => Pick::Full(Arc::clone(endpoint)),
            None => Pick::Nothing,
        }
    }

    fn take(&self, endpoint: &Arc<Endpoint>) -> Option<Place> {
        let (link, slot) = endpoint.reserve()?;
        (self.wanted)(endpoint).then(|| Place {
            link,
            slot,
            in_flight: InFlight::begin(Arc::clone(endpoint)),
            tier: self.tier,
        })
    }

    fn choose(
        &self,
        policy: Policy,
        turn: u64,
        usable: impl Fn(&Endpoint) -> bool,
    ) -> Option<&Arc<Endpoint>> {
        let count = self.members.len();
        let usable = |index: usize| usable(&self.members[index]);
        let index = match policy {
            Policy::P2c => balance::p2c(mix(turn), count, |index| {
                usable(index).then(|| self.members[index].cell.load())
            }),
            Policy::RoundRobin => balance::round_robin(turn, count, usable),
        };
        index.map(|index| &self.members[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::Hub;
    use std::collections::BTreeSet;

    fn shared(hub: &Hub) -> Arc<Shared> {
        Shared::new(hub.handle(), "registry".to_owned(), None, true).0
    }

    /// Where the first calls of callers that start together go, of eight instances.
    fn first_choices(callers: impl Iterator<Item = Arc<Shared>>) -> [BTreeSet<usize>; 2] {
        let mut firsts = [BTreeSet::new(), BTreeSet::new()];
        for caller in callers {
            let turn = caller.waiters.turn();
            firsts[0].extend(balance::p2c(mix(turn), 8, |_| Some(0)));
            firsts[1].extend(balance::round_robin(turn, 8, |_| true));
        }
        firsts
    }

    #[test]
    fn r26_callers_that_start_together_do_not_choose_alike() {
        // By chance 40 callers would choose among two instances less than once in 10^22 runs.
        for firsts in first_choices((0..40).map(|_| shared(&Hub::new()))) {
            assert!(firsts.len() > 2, "{firsts:?}");
        }
    }

    #[test]
    fn r26_neither_do_the_directories_of_one_hub() {
        let hub = Hub::new();
        for firsts in first_choices((0..40).map(|_| shared(&hub))) {
            assert!(firsts.len() > 2, "{firsts:?}");
        }
    }
}
