//! What a hub may be made of.

use std::fmt;
use std::sync::{Arc, Mutex};

use lameduck_core::limits::{CLIENT_STREAMS_MAX, CONNECTIONS_PER_ENDPOINT_MAX};
use lameduck_core::registry::Schemes;
use lameduck_registry::driver::Clock;

use super::{Hub, HubHandle};
use crate::cell::counter::Counter;
use crate::consumer::{Descriptors, Lookup};
use crate::observe::{Events, Observer};

/// Makes a [`Hub`] that differs from the usual one.
#[must_use = "a builder does nothing until it is built"]
pub struct HubBuilder {
    pub(super) schemes: Option<Schemes>,
    pub(super) observers: Vec<Observer>,
    pub(super) asks_health: bool,
    pub(super) lookup: Lookup,
    pub(super) bounds: Bounds,
}

/// How much there may be to one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Streams on one connection.
    pub(crate) streams: u32,
    /// Connections.
    pub(crate) connections: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            streams: CLIENT_STREAMS_MAX,
            connections: CONNECTIONS_PER_ENDPOINT_MAX,
        }
    }
}

impl HubBuilder {
    /// Which registries targets may name. Those that are compiled in unless said.
    pub fn schemes(mut self, schemes: Schemes) -> Self {
        self.schemes = Some(schemes);
        self
    }

    /// Hands every event to `observer` too, on the thread on which it happens: be quick. With an
    /// observer there is one event for each call.
    pub fn on_event(mut self, observer: Observer) -> Self {
        self.observers.push(observer);
        self
    }

    /// `false`: connections are used without asking `grpc.health.v1` on them; for servers that
    /// count health streams against a limit.
    pub fn health(mut self, asks: bool) -> Self {
        self.asks_health = asks;
        self
    }

    /// How host names are looked up, at each dial and every
    /// [`LOOKUP_INTERVAL`](lameduck_core::limits::LOOKUP_INTERVAL); the system's resolver unless
    /// said. A connection to an address that its name has no more is let go once another is up.
    pub fn lookup(mut self, lookup: Lookup) -> Self {
        self.lookup = lookup;
        self
    }

    /// Calls at once on one connection, the health Watch among them: as many as the server allows, and at
    /// most this many, at least one.
    /// [`CLIENT_STREAMS_MAX`](lameduck_core::limits::CLIENT_STREAMS_MAX) unless said.
    pub fn streams_per_connection(mut self, max: u32) -> Self {
        self.bounds.streams = max.max(1);
        self
    }

    /// Connections to one instance, at least one: a further one is made where the streams of all others
    /// are in use.
    /// [`CONNECTIONS_PER_ENDPOINT_MAX`](lameduck_core::limits::CONNECTIONS_PER_ENDPOINT_MAX) unless
    /// said. Calls beyond the streams of all connections wait for one, in the order in which they came.
    pub fn connections_per_endpoint(mut self, max: usize) -> Self {
        self.bounds.connections = max.max(1);
        self
    }

    /// The hub.
    #[must_use]
    pub fn build(self) -> Hub {
        let handle = HubHandle {
            schemes: self.schemes.unwrap_or_else(lameduck_registry::builtin),
            events: Events::new(self.observers),
            order: Mutex::default(),
            clock: Clock::start(),
            asks_health: self.asks_health,
            lookup: self.lookup,
            bounds: self.bounds,
            descriptors: Descriptors::default(),
            ignored_marks: Counter::default(),
            rng: Mutex::default(),
            state: Mutex::default(),
        };
        Hub {
            handle: Arc::new(handle),
        }
    }
}

impl fmt::Debug for HubBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubBuilder").finish_non_exhaustive()
    }
}
