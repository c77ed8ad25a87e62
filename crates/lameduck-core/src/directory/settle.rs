//! What follows from what is known: dials, removals, tiers, the published view.

use alloc::vec::Vec;
use core::mem;

use super::endpoint::Endpoint;
use super::merge::Support;
use super::{Directory, EndpointId, Member, Output, Snapshot, is_health_made, same_boot};
use crate::event::{Event, Tier};
use crate::instance::Incarnation;
use crate::limits::PUBLISH_PACE;
use crate::mutant;
use crate::time::Timestamp;

/// What has changed in the view since it was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    /// Nothing.
    Nothing,
    /// There is more to choose from than was published. That may wait a little: who does not know of
    /// it calls the others.
    More,
    /// Anything else: published at once.
    Any,
}

impl Directory {
    /// Brings dials, removals, tiers and the published view in line with what is known. Looks only
    /// at what was touched: one connection of 20,000 that comes up must not cost a look at all.
    pub(super) fn settle(&mut self, now: Timestamp) {
        let mut touched = mem::take(&mut self.touched);
        for id in &touched {
            let support = self.support(*id);
            self.settle_tier(*id, support);
        }
        let any_ready = self.ready > 0;
        if mem::replace(&mut self.had_ready, any_ready) != any_ready {
            // What is closing is dialled while nothing is ready, and then no more.
            let all = self.endpoints.keys().copied();
            let closing = all.filter(|id| self.support(*id).closing);
            touched.extend(closing.collect::<Vec<EndpointId>>());
        }
        for id in &touched {
            self.settle_dialling(*id, self.support(*id), any_ready);
            self.settle_claim(now, *id);
        }
        self.tell_claims(now);
        if any_ready {
            touched.append(&mut self.kept);
        }
        for id in touched {
            self.settle_removal(id, any_ready);
        }
        self.publish(now);
    }

    fn settle_removal(&mut self, id: EndpointId, any_ready: bool) {
        let Some(endpoint) = self.endpoints.get(&id) else {
            return;
        };
        // While nothing is ready, one that still answers is better than none.
        let spare = any_ready || !endpoint.up || mutant!("directory/keeps-the-last");
        let unlisted = endpoint.listings.is_empty();
        if (unlisted && spare) || (!endpoint.dialling && !endpoint.up) {
            self.remove(id);
        } else if unlisted {
            self.kept.insert(id);
        } else {
            self.kept.remove(&id);
        }
    }

    fn settle_dialling(&mut self, id: EndpointId, support: Support, any_ready: bool) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        endpoint.was_up |= endpoint.up;
        let stone = self.tombstones.get(endpoint.incarnation);
        let closed = stone.is_some_and(|stone| !is_health_made(stone));
        // Who starts while an instance is closing may use it as a last resort: dialled once. A
        // registry that still says "serving" may be dead or late: the next life at that address
        // is then found by dialling, or a restart of everybody would leave nobody.
        let announced = support.closing && !endpoint.was_up;
        // Where nothing is ready, an instance that is closing and still serves is better than none: its
        // connections end by GOAWAY long before it does.
        let others_serve = any_ready || mutant!("directory/dials-the-last-resort");
        let over = closed
            && support.closing
            && !announced
            && others_serve
            && !mutant!("directory/closing-ends-dials");
        let allowed = support.listed && (support.open || !over);
        if endpoint.dialling != allowed {
            self.out.push_back(Output::Dialling {
                endpoint: id,
                allowed,
            });
        }
        endpoint.dialling = allowed;
    }

    fn settle_tier(&mut self, id: EndpointId, support: Support) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        let closing = self.tombstones.hides(endpoint.incarnation);
        let tier = endpoint.tier(closing, support.listed, support.ready);
        if tier == endpoint.tier {
            return;
        }
        let before = mem::replace(&mut endpoint.tier, tier);
        let others_ready = self.ready > usize::from(before == Tier::Ready);
        self.ready += usize::from(tier == Tier::Ready);
        self.ready -= usize::from(before == Tier::Ready);
        let endpoint = &self.endpoints[&id];
        let (address, incarnation) = (endpoint.address.clone(), endpoint.incarnation);
        self.out.push_back(Output::Event(Event::TierChanged {
            address,
            incarnation,
            tier,
        }));
        self.changed(if tier == Tier::Ready && others_ready {
            Change::More
        } else {
            Change::Any
        });
    }

    pub(super) fn remove(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.remove(&id) else {
            return;
        };
        for entry in &endpoint.listings {
            if let Some(listed) = self.entries.get_mut(entry) {
                listed.endpoint = None;
            }
        }
        if let Some(here) = self.addresses.get_mut(&endpoint.address) {
            here.remove(&id);
            if here.is_empty() {
                self.addresses.remove(&endpoint.address);
                self.claims.forget(&endpoint.address);
            }
        }
        self.kept.remove(&id);
        self.ready -= usize::from(endpoint.tier == Tier::Ready);
        self.changed(Change::Any);
        if endpoint.tier != Tier::Out {
            let Endpoint {
                address,
                incarnation,
                ..
            } = endpoint;
            let tier = Tier::Out;
            self.out.push_back(Output::Event(Event::TierChanged {
                address,
                incarnation,
                tier,
            }));
        }
        self.out.push_back(Output::Remove { endpoint: id });
    }

    /// When a view that may wait is published.
    pub(super) fn publish_due(&self) -> Option<Timestamp> {
        let thousands = self.endpoints.len() / 1_000;
        let pace = PUBLISH_PACE * u32::try_from(thousands).unwrap_or(u32::MAX);
        (self.change == Change::More).then(|| self.published_at + pace)
    }

    fn publish(&mut self, now: Timestamp) {
        let waits = self.publish_due().is_some_and(|due| now < due);
        if waits || self.change == Change::Nothing {
            return;
        }
        self.change = Change::Nothing;
        let members = self.endpoints.iter().map(|(id, endpoint)| Member {
            endpoint: *id,
            address: endpoint.address.clone(),
            incarnation: endpoint.incarnation,
            tier: endpoint.tier,
        });
        let members: Vec<Member> = members.collect();
        let known_empty = self.synced && self.stale.is_none() && members.is_empty();
        let snapshot = Snapshot {
            members,
            stale: self.stale.as_ref().map(|(_, why)| why.clone()),
            known_empty,
        };
        if self.published.as_ref() != Some(&snapshot) {
            self.published_at = now;
            self.published = Some(snapshot.clone());
            self.out.push_back(Output::Publish(snapshot));
        }
    }

    pub(super) fn changed(&mut self, change: Change) {
        let waits = mutant!("directory/less-never-waits");
        let change = if waits { Change::More } else { change };
        self.change = self.change.max(change);
    }

    // --- what is to be looked at ---

    /// Drops tombstones that have expired.
    pub(super) fn expire(&mut self, now: Timestamp) {
        if self.tombstones.expire(now) {
            self.unhidden();
        }
    }

    /// Tombstones are gone, whichever: what they hid counts again.
    pub(super) fn unhidden(&mut self) {
        self.list_unhidden();
        self.touch_all();
    }

    pub(super) fn touch_all(&mut self) {
        self.touched.extend(self.endpoints.keys());
    }

    /// A tombstone of this life came or went: it stands for all lives of its boot.
    pub(super) fn touch_life(&mut self, incarnation: Incarnation) {
        let concerned = self.endpoints.iter().filter(|(_, endpoint)| {
            endpoint.incarnation == incarnation || same_boot(endpoint.incarnation, incarnation)
        });
        self.touched.extend(concerned.map(|(id, _)| *id));
    }
}
