//! Which endpoint a registration stands for.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::endpoint::Endpoint;
use super::{Directory, EndpointId, Output, same_boot};
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
    /// What is said of each endpoint, in one pass over all registrations.
    pub(super) fn supports(&self) -> BTreeMap<EndpointId, Support> {
        let mut supports: BTreeMap<EndpointId, Support> = BTreeMap::new();
        for Listed { instance, endpoint } in self.entries.values() {
            let Some(id) = endpoint else { continue };
            let support = supports.entry(*id).or_default();
            support.listed = true;
            support.ready |= instance.ready;
            support.closing |= instance.state == State::Closing;
            support.open |= instance.incarnation == Incarnation::Unknown;
        }
        supports
    }

    /// Takes a whole list: what is not in it is not registered any more.
    pub(super) fn reset(&mut self, now: Timestamp, entries: Vec<Entry>) {
        let present: BTreeSet<EntryId> = entries.iter().map(|entry| entry.id).collect();
        self.entries.retain(|id, _| present.contains(id));
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
        self.entries.insert(id, Listed { instance, endpoint });
        if closing {
            self.close(now, incarnation, ClosingSource::Registry);
        }
    }

    /// The endpoint that `instance` names: the same life at the same address, a new one otherwise.
    /// `None` for a life that is hidden: late data does not bring it back.
    fn endpoint_for(&mut self, instance: &Instance) -> Option<EndpointId> {
        let incarnation = instance.incarnation;
        let here = || self.endpoints_at(&instance.address);
        let same = here()
            .find(|(_, e)| e.incarnation == incarnation || same_boot(e.incarnation, incarnation));
        let same = same.or_else(|| {
            // A bare address means whoever is there: the one that came last.
            here().rfind(|_| incarnation == Incarnation::Unknown)
        });
        if let Some((id, endpoint)) = same {
            if is_resumed(endpoint.incarnation, incarnation) {
                self.become_life(id, incarnation);
            }
            return Some(id);
        }
        let late = instance.state == State::Serving && self.tombstones.hides(incarnation);
        if late && !mutant!("directory/late-data-revives-nobody") {
            return None;
        }
        Some(self.add(instance))
    }

    /// The endpoints of one address, by id. By an index: a list may have thousands of addresses, and
    /// this is asked for each.
    pub(super) fn endpoints_at(
        &self,
        address: &Address,
    ) -> impl DoubleEndedIterator<Item = (EndpointId, &Endpoint)> {
        let ids = self.addresses.get(address).into_iter().flatten();
        ids.filter_map(|id| self.endpoints.get(id).map(|endpoint| (*id, endpoint)))
    }

    fn add(&mut self, instance: &Instance) -> EndpointId {
        let id = EndpointId(self.next_id);
        self.next_id += 1;
        let (address, incarnation) = (instance.address.clone(), instance.incarnation);
        self.endpoints
            .insert(id, Endpoint::new(address.clone(), incarnation));
        self.addresses
            .entry(address.clone())
            .or_default()
            .insert(id);
        self.out.push_back(Output::Add {
            endpoint: id,
            address,
            incarnation,
        });
        id
    }

    /// Lets registrations of one endpoint stand for another.
    pub(super) fn redirect(&mut self, from: EndpointId, to: EndpointId) {
        for listed in self.entries.values_mut() {
            if listed.endpoint == Some(from) {
                listed.endpoint = Some(to);
            }
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
