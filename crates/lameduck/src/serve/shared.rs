//! What all connections of one server share.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use ::http::HeaderValue;
use arc_swap::ArcSwap;
use lameduck_core::event::Event;
use lameduck_core::instance::Life;
use lameduck_core::limits::PEERS_TOLD_MAX;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cell::gate::Gate;
use crate::cell::tally::{Numbers, Tally};
use crate::effects::connection::Orders;
use crate::mark::{Identity, life_value};
use crate::observe::Events;

/// What answers say about who gives them.
#[derive(Clone, Debug)]
pub(super) struct Announcement {
    /// Counts lives: each is told once a connection.
    pub(super) generation: u32,
    /// The `lameduck-life` mark.
    pub(super) identity: HeaderValue,
    /// The value of the other two marks.
    pub(super) life: HeaderValue,
    /// Whether answers are marked as closing.
    pub(super) closing: bool,
}

impl Announcement {
    pub(super) fn of(life: Life, services: &[String], generation: u32) -> Self {
        let identity = Identity {
            life,
            services: services.to_vec(),
        };
        Self {
            generation,
            identity: identity.to_value(),
            life: life_value(life),
            closing: false,
        }
    }

    pub(super) fn closing(&self) -> Self {
        Self {
            closing: true,
            ..self.clone()
        }
    }
}

/// How far the listener has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listening {
    Open,
    Closing,
    Closed,
}

pub(super) struct Shared {
    pub(super) gate: Gate,
    pub(super) announcement: ArcSwap<Announcement>,
    pub(super) services: Vec<String>,
    pub(super) tally: Tally,
    pub(super) orders: watch::Sender<Orders>,
    pub(super) listening: watch::Sender<Listening>,
    pub(super) numbers: Numbers,
    /// Cancelled when health streams end, whoever serves them.
    pub(super) health_ends: CancellationToken,
    events: Events,
    refused: ToldPeers,
}

/// The hosts that something was said of: once each, and of so many at most.
#[derive(Default)]
struct ToldPeers(Mutex<Vec<IpAddr>>);

impl ToldPeers {
    /// True the first time.
    fn tell(&self, host: IpAddr) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = told.len() < PEERS_TOLD_MAX && !told.contains(&host);
        if is_new {
            told.push(host);
        }
        is_new
    }
}

impl Shared {
    pub(super) fn new(gate: Gate, life: Life, services: Vec<String>, events: Events) -> Self {
        Self {
            gate,
            announcement: ArcSwap::from_pointee(Announcement::of(life, &services, 1)),
            services,
            tally: Tally::default(),
            orders: watch::Sender::default(),
            listening: watch::Sender::new(Listening::Open),
            numbers: Numbers::default(),
            health_ends: CancellationToken::new(),
            events,
            refused: ToldPeers::default(),
        }
    }

    /// Says that requests of this host are refused for their authority. Once a host.
    pub(super) fn tell_refused(&self, remote: SocketAddr, authority: &[u8]) {
        if self.refused.tell(remote.ip()) {
            self.events.emit(&Event::AuthorityRefused {
                remote: remote.into(),
                authority: String::from_utf8_lossy(authority).into_owned(),
            });
        }
    }
}
