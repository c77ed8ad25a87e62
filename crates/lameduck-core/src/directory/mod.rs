//! A caller's live view of one service.
//!
//! What the registry lists, what instances say of themselves, and what connections show comes in;
//! a list of endpoints, each with its place in the order of choice, goes out. The machine knows
//! lives, never addresses alone: an endpoint is one life at one address, a tombstone hides one
//! life, and another life at the same address is another endpoint (or makes this one *become* it).
//!
//! What it never does: shrink because of an error, revive what said that it is closing, or hide
//! what never said so.

mod endpoint;
mod merge;
mod tombstone;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use crate::event::{ClosingSource, Event, Tier};
use crate::instance::{Incarnation, Life};
use crate::machine::Machine;
use crate::mutant;
use crate::name::{Address, ServiceName};
use crate::registry::{EntryId, Update};
use crate::time::Timestamp;

use endpoint::Endpoint;
use merge::{Listed, Support};
pub use tombstone::{Tombstone, Tombstones};

/// Names one endpoint of one directory. Never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u64);

/// What a directory is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The registry tells something.
    Update(Update),
    /// A life is closing, whichever directory of the hub has heard it.
    Closing {
        /// Which life.
        incarnation: Incarnation,
        /// What said so.
        source: ClosingSource,
    },
    /// The peer of an endpoint's newest connection says who it is.
    Identified {
        /// Which endpoint.
        endpoint: EndpointId,
        /// Which life.
        life: Life,
        /// Whether it serves the service that this directory is for.
        right_service: bool,
    },
    /// An endpoint has a usable connection, or has none any more. Comes after that connection's
    /// first [`Input::Health`].
    Link {
        /// Which endpoint.
        endpoint: EndpointId,
        /// Whether it has one.
        up: bool,
    },
    /// The peer's health changed. A peer without health service counts as serving.
    Health {
        /// Which endpoint.
        endpoint: EndpointId,
        /// Whether it serves.
        serving: bool,
    },
    /// The peer ended the health Watch or sent GOAWAY.
    PeerEnded {
        /// Which endpoint.
        endpoint: EndpointId,
    },
}

/// What a directory wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A new endpoint: dial it, keep it connected.
    Add {
        /// Which endpoint.
        endpoint: EndpointId,
        /// Where.
        address: Address,
        /// Which life is expected there.
        incarnation: Incarnation,
    },
    /// Whether an endpoint that loses its connection is dialled again. True at first.
    Dialling {
        /// Which endpoint.
        endpoint: EndpointId,
        /// `false`: never again; what is connected stays.
        allowed: bool,
    },
    /// The endpoint is another life from here on: drop the old one's marks and statistics.
    Became {
        /// Which endpoint.
        endpoint: EndpointId,
        /// Which life it is now.
        incarnation: Incarnation,
    },
    /// The endpoint is no longer wanted: calls finish, idle connections close, no more dials.
    Remove {
        /// Which endpoint.
        endpoint: EndpointId,
    },
    /// The view changed.
    Publish(Snapshot),
    /// Something that others may want to see happened.
    Event(Event),
}

/// One version of the view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// All endpoints, by id.
    pub members: Vec<Member>,
    /// Why the registry cannot be read, where it cannot: the view is as old as its last update.
    pub stale: Option<String>,
    /// The registry was read, and nothing is there: waiting is of no use.
    pub known_empty: bool,
}

/// One endpoint in a [`Snapshot`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Which endpoint.
    pub endpoint: EndpointId,
    /// Where.
    pub address: Address,
    /// Which life.
    pub incarnation: Incarnation,
    /// Its place in the order of choice.
    pub tier: Tier,
}

/// The machine. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Directory {
    service: Option<ServiceName>,
    entries: BTreeMap<EntryId, Listed>,
    endpoints: BTreeMap<EndpointId, Endpoint>,
    /// The endpoints of each address; none without any.
    addresses: BTreeMap<Address, BTreeSet<EndpointId>>,
    tombstones: Tombstones,
    next_id: u64,
    /// A whole list was seen: an empty one is knowledge, not ignorance.
    synced: bool,
    stale: Option<String>,
    published: Option<Snapshot>,
    out: VecDeque<Output>,
}

impl Directory {
    /// A directory that knows nothing but what is closing.
    #[must_use]
    pub const fn new(service: Option<ServiceName>, tombstones: Tombstones) -> Self {
        Self {
            service,
            entries: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            addresses: BTreeMap::new(),
            tombstones,
            next_id: 0,
            synced: false,
            stale: None,
            published: None,
            out: VecDeque::new(),
        }
    }

    /// The lives that it knows to be closing.
    #[must_use]
    pub const fn tombstones(&self) -> &Tombstones {
        &self.tombstones
    }

    fn update(&mut self, now: Timestamp, update: Update) {
        match update {
            Update::Reset { entries, .. } => {
                self.synced = true;
                self.stale = None;
                self.reset(now, entries);
            }
            Update::Delta {
                changed, removed, ..
            } => {
                self.stale = None;
                for entry in changed {
                    self.upsert(now, entry);
                }
                for id in removed {
                    self.entries.remove(&id);
                }
            }
            Update::Stale(error) => {
                if self.stale.is_none() {
                    self.stale = Some(error.message.clone());
                    let (service, error) = (self.service.clone(), error.message);
                    self.out
                        .push_back(Output::Event(Event::DirectoryStale { service, error }));
                }
            }
            Update::Live => self.stale = None,
        }
    }

    /// One closing statement, wherever it came from: the tombstone, and the endpoints it concerns.
    fn close(&mut self, now: Timestamp, incarnation: Incarnation, source: ClosingSource) {
        let mut concerned = Vec::from([incarnation]);
        if !matches!(incarnation, Incarnation::Life(_)) {
            // Foreign registries leak registrations: whatever is listed now for this address is
            // the same instance under another lease (zeromicro/go-zero, seen in the field).
            concerned.extend(self.foreign_beside(incarnation));
        }
        for incarnation in concerned {
            if !self.tombstones.insert(now, incarnation, source) {
                continue;
            }
            let hidden = self
                .endpoints
                .values()
                .filter(|e| e.incarnation == incarnation);
            for endpoint in hidden {
                let (address, incarnation) = (endpoint.address.clone(), endpoint.incarnation);
                let event = Event::Closing {
                    address,
                    incarnation,
                    source,
                };
                self.out.push_back(Output::Event(event));
            }
        }
    }

    fn identified(&mut self, id: EndpointId, life: Life, right_service: bool) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        endpoint.wrong = !right_service;
        if !right_service {
            return;
        }
        let incarnation = Incarnation::Life(life);
        let is_late = match endpoint.incarnation {
            Incarnation::Life(known) => known.boot == life.boot && known.epoch >= life.epoch,
            Incarnation::Lease(_) | Incarnation::Revision(_) | Incarnation::Unknown => false,
        };
        if is_late {
            return;
        }
        let address = endpoint.address.clone();
        let twin = self
            .endpoints_at(&address)
            .find(|(other, e)| *other != id && e.incarnation == incarnation)
            .map(|(twin, _)| twin);
        if let Some(twin) = twin {
            self.redirect(id, twin);
            self.remove(id);
        } else {
            self.become_life(id, incarnation);
        }
    }

    /// The endpoint is another life from here on.
    fn become_life(&mut self, id: EndpointId, incarnation: Incarnation) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        let was_hidden = self.tombstones.hides(endpoint.incarnation);
        let same_boot = same_boot(endpoint.incarnation, incarnation);
        endpoint.incarnation = incarnation;
        self.out.push_back(Output::Became {
            endpoint: id,
            incarnation,
        });
        if was_hidden && same_boot && !self.tombstones.hides(incarnation) {
            let address = endpoint.address.clone();
            self.out.push_back(Output::Event(Event::ClosingLifted {
                address,
                incarnation,
            }));
        }
    }

    fn health(&mut self, id: EndpointId, serving: bool) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        endpoint.serving = Some(serving);
        let (address, incarnation) = (endpoint.address.clone(), endpoint.incarnation);
        let guessed = self.tombstones.get(incarnation).is_some_and(is_health_made);
        if serving && guessed && self.tombstones.lift(incarnation) {
            self.out.push_back(Output::Event(Event::ClosingLifted {
                address,
                incarnation,
            }));
        }
    }

    fn peer_ended(&mut self, now: Timestamp, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get(&id) else {
            return;
        };
        if endpoint.serving == Some(false) || mutant!("directory/end-alone-is-not-closing") {
            self.close(now, endpoint.incarnation, ClosingSource::Health);
        }
    }

    fn link(&mut self, id: EndpointId, up: bool) {
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.up = up;
        }
    }

    /// Brings dials, removals, tiers and the published view in line with what is known.
    fn settle(&mut self) {
        let supports = self.supports();
        let ids: Vec<EndpointId> = self.endpoints.keys().copied().collect();
        let support = |id: &EndpointId| supports.get(id).copied().unwrap_or_default();
        for id in &ids {
            self.settle_dialling(*id, support(id));
            self.settle_tier(*id, support(id));
        }
        let any_ready = self.endpoints.values().any(|e| e.tier == Tier::Ready);
        for id in ids {
            let Some(endpoint) = self.endpoints.get(&id) else {
                continue;
            };
            // While nothing is ready, one that still answers is better than none.
            let spare = any_ready || !endpoint.up || mutant!("directory/keeps-the-last");
            let unlisted = !support(&id).listed;
            if (unlisted && spare) || (!endpoint.dialling && !endpoint.up) {
                self.remove(id);
            }
        }
        self.publish();
    }

    fn settle_dialling(&mut self, id: EndpointId, support: Support) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        let stone = self.tombstones.get(endpoint.incarnation);
        let closed = stone.is_some_and(|stone| !is_health_made(stone));
        // Who starts while an instance is closing may use it as a last resort: dialled once. A
        // registry that still says "serving" may be dead or late: the next life at that address
        // is then found by dialling, or a restart of everybody would leave nobody.
        let announced = support.closing && !endpoint.was_up;
        let over =
            closed && support.closing && !announced && !mutant!("directory/closing-ends-dials");
        let allowed = support.listed && (support.open || !over);
        if endpoint.dialling != allowed {
            self.out.push_back(Output::Dialling {
                endpoint: id,
                allowed,
            });
        }
        endpoint.dialling = allowed;
        endpoint.was_up |= endpoint.up;
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
        endpoint.tier = tier;
        let (address, incarnation) = (endpoint.address.clone(), endpoint.incarnation);
        self.out.push_back(Output::Event(Event::TierChanged {
            address,
            incarnation,
            tier,
        }));
    }

    fn remove(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.remove(&id) else {
            return;
        };
        if let Some(beside) = self.addresses.get_mut(&endpoint.address) {
            beside.remove(&id);
            if beside.is_empty() {
                self.addresses.remove(&endpoint.address);
            }
        }
        for listed in self.entries.values_mut() {
            if listed.endpoint == Some(id) {
                listed.endpoint = None;
            }
        }
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

    fn publish(&mut self) {
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
            stale: self.stale.clone(),
            known_empty,
        };
        if self.published.as_ref() != Some(&snapshot) {
            self.published = Some(snapshot.clone());
            self.out.push_back(Output::Publish(snapshot));
        }
    }
}

fn is_health_made(stone: &Tombstone) -> bool {
    stone.source == ClosingSource::Health
}

fn same_boot(left: Incarnation, right: Incarnation) -> bool {
    match (left, right) {
        (Incarnation::Life(left), Incarnation::Life(right)) => left.boot == right.boot,
        _ => false,
    }
}

impl Machine for Directory {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Timestamp, input: Input) {
        self.tombstones.expire(now);
        match input {
            Input::Update(update) => self.update(now, update),
            Input::Closing {
                incarnation,
                source,
            } => self.close(now, incarnation, source),
            Input::Identified {
                endpoint,
                life,
                right_service,
            } => {
                self.identified(endpoint, life, right_service);
            }
            Input::Link { endpoint, up } => self.link(endpoint, up),
            Input::Health { endpoint, serving } => self.health(endpoint, serving),
            Input::PeerEnded { endpoint } => self.peer_ended(now, endpoint),
        }
        self.settle();
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if self.tombstones.expire(now) {
            self.settle();
        }
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<(Timestamp, &'static str)> {
        self.tombstones
            .deadline()
            .map(|at| (at, "tombstone expires"))
    }
}

#[cfg(test)]
mod tests;
