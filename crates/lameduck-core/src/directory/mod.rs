//! A caller's live view of one service.
//!
//! What the registry lists, what instances say of themselves, and what connections show comes in;
//! a list of endpoints, each with its place in the order of choice, goes out. The machine knows
//! lives, never addresses alone: an endpoint is one life at one address, a tombstone hides one
//! life, and another life at the same address is another endpoint (or makes this one *become* it).
//!
//! What it never does: shrink because of an error, revive what said that it is closing, or hide
//! what never said so.

mod claims;
mod endpoint;
mod merge;
mod settle;
mod tombstone;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use crate::event::{ClosingSource, Event, Tier};
use crate::instance::{Incarnation, Life};
use crate::machine::{Machine, earliest};
use crate::mutant;
use crate::name::{Address, ServiceName};
use crate::registry::{EntryId, Update};
use crate::time::Timestamp;

use claims::Claims;
use endpoint::Endpoint;
use merge::Listed;
use settle::Change;
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
    /// How many are ready.
    ready: usize,
    /// Whether any was at the last look.
    had_ready: bool,
    /// Those of which something has changed since the last look.
    touched: BTreeSet<EndpointId>,
    /// Those that are not listed, and kept while nothing is ready.
    kept: BTreeSet<EndpointId>,
    claims: Claims,
    tombstones: Tombstones,
    next_id: u64,
    /// A whole list was seen: an empty one is knowledge, not ignorance.
    synced: bool,
    /// Why the registry cannot be read, and since when.
    stale: Option<(Timestamp, String)>,
    /// What has changed in the view since it was published.
    change: Change,
    published_at: Timestamp,
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
            ready: 0,
            had_ready: false,
            touched: BTreeSet::new(),
            kept: BTreeSet::new(),
            claims: Claims::new(),
            tombstones,
            next_id: 0,
            synced: false,
            stale: None,
            change: Change::Any,
            published_at: Timestamp::ZERO,
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
        let before = (self.synced, self.stale.is_some());
        match update {
            Update::Reset { entries, .. } => {
                self.synced = true;
                self.live(now);
                self.reset(now, entries);
            }
            Update::Delta {
                changed, removed, ..
            } => {
                for entry in changed {
                    self.upsert(now, entry);
                }
                for id in removed {
                    self.unlist(id);
                }
            }
            Update::Stale(error) => {
                if self.stale.is_none() {
                    self.stale = Some((now, error.message.clone()));
                    let (service, error) = (self.service.clone(), error.message);
                    self.out
                        .push_back(Output::Event(Event::DirectoryStale { service, error }));
                }
            }
            Update::Live => self.live(now),
            Update::Skipped { what } => {
                let service = self.service.clone();
                self.out
                    .push_back(Output::Event(Event::RecordSkipped { service, what }));
            }
        }
        if before != (self.synced, self.stale.is_some()) {
            self.change = Change::Any;
        }
    }

    /// The registry can be read. Said where the opposite was.
    fn live(&mut self, now: Timestamp) {
        if let Some((since, _)) = self.stale.take() {
            let (service, after) = (self.service.clone(), now.saturating_since(since));
            self.out
                .push_back(Output::Event(Event::DirectoryLive { service, after }));
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
            let dropped = self.tombstones.dropped();
            let is_new = self.tombstones.insert(now, incarnation, source);
            if self.tombstones.dropped() != dropped {
                self.unhidden();
            }
            if !is_new {
                continue;
            }
            self.touch_life(incarnation);
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

    /// Whether this life says now, on a connection from here, that it serves. That would lift a guess
    /// from another connection's health, and is not said again for one that comes late.
    fn is_serving(&self, incarnation: Incarnation) -> bool {
        self.endpoints.values().any(|endpoint| {
            endpoint.incarnation == incarnation && endpoint.up && endpoint.serving == Some(true)
        })
    }

    fn identified(&mut self, id: EndpointId, life: Life, right_service: bool) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        endpoint.wrong = !right_service;
        self.touched.insert(id);
        if !right_service {
            return;
        }
        let (address, known) = (endpoint.address.clone(), endpoint.incarnation);
        let incarnation = Incarnation::Life(life);
        let is_late = match known {
            Incarnation::Life(known) => known.boot == life.boot && known.epoch >= life.epoch,
            Incarnation::Lease(_) | Incarnation::Revision(_) | Incarnation::Unknown => false,
        };
        if is_late {
            return;
        }
        let twin = self
            .endpoints_at(&address)
            .find(|(other, twin)| *other != id && twin.incarnation == incarnation);
        if let Some((twin, _)) = twin {
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
        self.touched.insert(id);
        self.change = Change::Any;
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
        self.touched.insert(id);
        let (address, incarnation) = (endpoint.address.clone(), endpoint.incarnation);
        let guessed = self.tombstones.get(incarnation).is_some_and(is_health_made);
        if serving && guessed && self.tombstones.lift(incarnation) {
            self.touch_life(incarnation);
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
            self.touched.insert(id);
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
        self.expire(now);
        match input {
            Input::Update(update) => self.update(now, update),
            Input::Closing {
                incarnation,
                source,
            } => {
                if source != ClosingSource::Health || !self.is_serving(incarnation) {
                    self.close(now, incarnation, source);
                }
            }
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
        self.settle(now);
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.expire(now);
        self.settle(now);
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<(Timestamp, &'static str)> {
        let expiry = self.tombstones.deadline();
        let expiry = expiry.map(|at| (at, "tombstone expires"));
        let claim = self.claims.deadline().map(|at| (at, "say a claim"));
        let publish = self.publish_due().map(|at| (at, "publish"));
        earliest(earliest(expiry, claim), publish)
    }
}

#[cfg(test)]
mod tests;
