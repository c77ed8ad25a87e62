//! Which endpoint a registration stands for.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::mem;

use super::endpoint::Endpoint;
use super::settle::Change;
use super::{Directory, EndpointId, Output, is_health_made, same_boot};
use crate::event::ClosingSource;
use crate::instance::{Incarnation, Instance, State};
use crate::mutant;
use crate::name::Address;
use crate::registry::{Entry, EntryId};
use crate::time::Timestamp;

/// One registration, and the endpoint that it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) instance: Instance,
    /// `None` where its life is hidden, or its endpoint was given up.
    pub(super) endpoint: Option<EndpointId>,
}

/// What the registrations of one endpoint say together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Support {
    /// There is one.
    pub(super) listed: bool,
    /// One of them wants calls.
    pub(super) ready: bool,
    /// One of them says that its life is closing.
    pub(super) closing: bool,
    /// One of them is a bare address: whoever is there. The next life is found by dialling.
    pub(super) open: bool,
}

impl Directory {
    /// What is said of an endpoint.
    pub(super) fn support(&self, id: EndpointId) -> Support {
        let mut support = Support::default();
        let listings = self.endpoints.get(&id).map(|endpoint| &endpoint.listings);
        let listed = listings.into_iter().flatten();
        for Listed { instance, .. } in listed.filter_map(|entry| self.entries.get(entry)) {
            support.listed = true;
            support.ready |= instance.ready;
            support.closing |= instance.state == State::Closing;
            support.open |= instance.incarnation == Incarnation::Unknown;
        }
        support
    }

    /// Takes a whole list: what is not in it is not registered any more.
    pub(super) fn reset(&mut self, now: Timestamp, entries: Vec<Entry>) {
        let present: BTreeSet<EntryId> = entries.iter().map(|entry| entry.id).collect();
        let listed = self.entries.keys();
        let gone: Vec<EntryId> = listed.filter(|id| !present.contains(id)).copied().collect();
        for id in gone {
            self.unlist(id);
        }
        for entry in entries {
            self.upsert(now, entry);
        }
    }

    /// Takes one registration as it is now.
    pub(super) fn upsert(&mut self, now: Timestamp, Entry { id, instance }: Entry) {
        let known = self.entries.get(&id);
        if known.is_some_and(|listed| listed.instance == instance) {
            return;
        }
        let same_identity = known.filter(|listed| {
            listed.instance.address == instance.address
                && listed.instance.incarnation == instance.incarnation
        });
        let (incarnation, closing) = (instance.incarnation, instance.state == State::Closing);
        let endpoint = match same_identity {
            Some(listed) => listed.endpoint,
            None => self.endpoint_for(&instance),
        };
        self.unlist(id);
        self.entries.insert(id, Listed { instance, endpoint });
        self.list(id, endpoint);
        if closing {
            self.close(now, incarnation, ClosingSource::Registry);
        }
    }

    /// A registration is gone.
    pub(super) fn unlist(&mut self, id: EntryId) {
        let listed = self.entries.remove(&id);
        let Some(endpoint) = listed.and_then(|listed| listed.endpoint) else {
            return;
        };
        if let Some(stood_for) = self.endpoints.get_mut(&endpoint) {
            stood_for.listings.remove(&id);
            self.touched.insert(endpoint);
        }
    }

    /// Gives registrations that a tombstone hid their endpoints, where none hides them now.
    pub(super) fn list_unhidden(&mut self) {
        let unhidden = self
            .entries
            .iter()
            .filter(|(_, Listed { instance, endpoint })| {
                endpoint.is_none()
                    && instance.state == State::Serving
                    && !self.tombstones.hides(instance.incarnation)
            });
        let unhidden: Vec<(EntryId, Instance)> = unhidden
            .map(|(id, listed)| (*id, listed.instance.clone()))
            .collect();
        for (id, instance) in unhidden {
            let endpoint = self.endpoint_for(&instance);
            self.entries.insert(id, Listed { instance, endpoint });
            self.list(id, endpoint);
        }
    }

    fn list(&mut self, id: EntryId, endpoint: Option<EndpointId>) {
        let Some(endpoint) = endpoint else { return };
        if let Some(stands_for) = self.endpoints.get_mut(&endpoint) {
            stands_for.listings.insert(id);
            self.touched.insert(endpoint);
        }
    }

    /// The endpoints at an address, in the order in which they came.
    pub(super) fn endpoints_at(
        &self,
        address: &Address,
    ) -> impl DoubleEndedIterator<Item = (EndpointId, &Endpoint)> {
        let here = self.addresses.get(address).into_iter().flatten();
        here.filter_map(|id| Some((*id, self.endpoints.get(id)?)))
    }

    /// The endpoint that `instance` names: the same life at the same address, a new one otherwise.
    /// `None` for a life that is hidden: late data does not bring it back.
    fn endpoint_for(&mut self, instance: &Instance) -> Option<EndpointId> {
        let incarnation = instance.incarnation;
        let same = self
            .endpoints_at(&instance.address)
            .find(|(_, e)| e.incarnation == incarnation || same_boot(e.incarnation, incarnation));
        let same = same.or_else(|| {
            // A bare address means whoever is there: the one that came last.
            let is_bare = incarnation == Incarnation::Unknown;
            self.endpoints_at(&instance.address).rfind(|_| is_bare)
        });
        if let Some((id, endpoint)) = same {
            if is_resumed(endpoint.incarnation, incarnation) {
                self.become_life(id, incarnation);
            }
            return Some(id);
        }
        // A guess from health hides it from calls, not from the dial that may prove it wrong.
        let stone = self.tombstones.get(incarnation);
        let closed = stone.is_some_and(|stone| !is_health_made(stone));
        let late = instance.state == State::Serving && closed;
        if late && !mutant!("directory/late-data-revives-nobody") {
            return None;
        }
        Some(self.add(instance))
    }

    fn add(&mut self, instance: &Instance) -> EndpointId {
        // Who reads that nothing is there does not wait: that it is no longer so is told at once.
        let is_first = self.endpoints.is_empty();
        self.changed(if is_first { Change::Any } else { Change::More });
        let id = EndpointId(self.next_id);
        self.next_id += 1;
        let (address, incarnation) = (instance.address.clone(), instance.incarnation);
        self.endpoints
            .insert(id, Endpoint::new(address.clone(), incarnation));
        self.addresses
            .entry(address.clone())
            .or_default()
            .insert(id);
        self.touched.insert(id);
        self.out.push_back(Output::Add {
            endpoint: id,
            address,
            incarnation,
        });
        id
    }

    /// Lets registrations of one endpoint stand for another.
    pub(super) fn redirect(&mut self, from: EndpointId, to: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(&from) else {
            return;
        };
        for id in mem::take(&mut endpoint.listings) {
            if let Some(listed) = self.entries.get_mut(&id) {
                listed.endpoint = Some(to);
            }
            self.list(id, Some(to));
        }
    }

    /// The other foreign registrations listed now at the addresses where `incarnation` is listed.
    pub(super) fn foreign_beside(&self, incarnation: Incarnation) -> BTreeSet<Incarnation> {
        let listed = self.entries.values().map(|listed| &listed.instance);
        let here = listed
            .clone()
            .filter(|instance| instance.incarnation == incarnation);
        let addresses: BTreeSet<_> = here.map(|instance| &instance.address).collect();
        let beside = listed.filter(|instance| {
            addresses.contains(&instance.address)
                && instance.incarnation != incarnation
                && matches!(
                    instance.incarnation,
                    Incarnation::Lease(_) | Incarnation::Revision(_)
                )
        });
        beside.map(|instance| instance.incarnation).collect()
    }
}

fn is_resumed(known: Incarnation, listed: Incarnation) -> bool {
    match (known, listed) {
        (Incarnation::Life(known), Incarnation::Life(listed)) => {
            known.boot == listed.boot && listed.epoch > known.epoch
        }
        _ => false,
    }
}
