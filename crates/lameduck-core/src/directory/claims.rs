//! Addresses that more than one life claims at once.
//!
//! A program that was killed and started again has two registrations until the old lease ends. Where two
//! stay for longer than that, two programs advertise one address, or a registration was left behind that
//! something keeps alive. Nothing is decided by it: calls go to whoever answers there. It is said.

use alloc::collections::{BTreeMap, BTreeSet};

use super::{Directory, EndpointId, Output, same_boot};
use crate::event::Event;
use crate::instance::{Incarnation, State};
use crate::limits::CLAIM_TOLD_AFTER;
use crate::mutant;
use crate::name::Address;
use crate::time::Timestamp;

/// The addresses that are claimed by two lives or more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Claims {
    claimed: BTreeMap<Address, Claim>,
    /// Those that were not said yet, and when they are to be.
    due: BTreeSet<(Timestamp, Address)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    /// The two that came first.
    lives: [Incarnation; 2],
    told_at: Timestamp,
}

impl Claims {
    /// None.
    pub(super) const fn new() -> Self {
        Self {
            claimed: BTreeMap::new(),
            due: BTreeSet::new(),
        }
    }

    /// When the next one is to be said.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Notes who claims an address now. Other lives than before are another claim.
    fn note(&mut self, now: Timestamp, address: &Address, lives: Option<[Incarnation; 2]>) {
        let known = self.claimed.get(address).map(|claim| claim.lives);
        if known == lives {
            return;
        }
        self.forget(address);
        if let Some(lives) = lives {
            let told_at = now + CLAIM_TOLD_AFTER;
            let claim = Claim { lives, told_at };
            self.claimed.insert(address.clone(), claim);
            self.due.insert((told_at, address.clone()));
        }
    }

    /// Nobody claims it together with another.
    pub(super) fn forget(&mut self, address: &Address) {
        if let Some(Claim { told_at, .. }) = self.claimed.remove(address) {
            self.due.remove(&(told_at, address.clone()));
        }
    }

    fn next_due(&mut self, now: Timestamp) -> Option<(Address, [Incarnation; 2])> {
        let is_early = mutant!("directory/claims-have-their-time");
        let (at, address) = self.due.first()?.clone();
        if now < at && !is_early {
            return None;
        }
        self.due.remove(&(at, address.clone()));
        let claim = self.claimed.get(&address)?;
        Some((address, claim.lives))
    }
}

impl Directory {
    /// Notes who claims the address of this endpoint.
    pub(super) fn settle_claim(&mut self, now: Timestamp, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get(&id) else {
            return;
        };
        let lives = self.rivals(&endpoint.address);
        self.claims.note(now, &endpoint.address, lives);
    }

    /// Says the claims that have lasted long enough.
    pub(super) fn tell_claims(&mut self, now: Timestamp) {
        while let Some((address, lives)) = self.claims.next_due(now) {
            let service = self.service.clone();
            self.out.push_back(Output::Event(Event::AddressClaimed {
                service,
                address,
                lives,
            }));
        }
    }

    /// The first two lives that are registered as serving at an address, if there are two. A Resume is
    /// the same life in this; a bare address is whoever is there.
    fn rivals(&self, address: &Address) -> Option<[Incarnation; 2]> {
        let endpoints = self.endpoints_at(address);
        let listed = endpoints.flat_map(|(_, endpoint)| &endpoint.listings);
        let listed = listed.filter_map(|id| self.entries.get(id));
        let serving = listed.filter(|listed| listed.instance.state == State::Serving);
        let mut lives = serving
            .map(|listed| listed.instance.incarnation)
            .filter(|life| *life != Incarnation::Unknown);
        let first = lives.next()?;
        let is_other = |life: &Incarnation| {
            *life != first
                && (!same_boot(*life, first) || mutant!("directory/a-resume-is-no-claim"))
        };
        let second = lives.find(is_other)?;
        Some([first, second])
    }
}
