//! What all connections of one server share.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::http::{Extensions, HeaderValue};
use arc_swap::ArcSwap;
use lameduck_core::conn::Bounds;
use lameduck_core::event::Event;
use lameduck_core::instance::Life;
use lameduck_core::limits::{HANDSHAKE_MAX, PEERS_TOLD_MAX};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::farewell::Farewell;
use super::limits::Limits;
use crate::cell::gate::Gate;
use crate::cell::tally::{Numbers, Tally};
use crate::mark::{Identity, ShowLife, life_value};
use crate::observe::Events;
use lameduck_core::effects::connection::Orders;

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

/// How many connections there are when one more is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crowd {
    /// At most half of the bound.
    Few,
    /// More than that: slots run short.
    Many,
}

/// `age`, a tenth more or less: connections that were opened together do not all end in one moment.
fn spread(age: Duration, number: u64) -> Duration {
    // Neighbours in time get parts far from each other: the golden section, as in a hash of Knuth's.
    let part = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    age.mul_f64(0.9 + 0.2 * part as f64 / f64::from(u32::MAX))
}

/// Adds what every request carries to its extensions.
pub(crate) type Extend = Arc<dyn Fn(&mut Extensions) + Send + Sync>;

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
    pub(super) limits: Limits,
    pub(super) shows: ShowLife,
    pub(super) extend: Option<Extend>,
    /// Paths whose requests are nobody's work.
    pub(super) unobserved: Vec<String>,
    pub(super) tally: Tally,
    pub(super) orders: watch::Sender<Orders>,
    pub(super) listening: watch::Sender<Listening>,
    pub(super) numbers: Numbers,
    pub(super) farewell: Farewell,
    /// Cancelled when health streams end, whoever serves them.
    pub(super) health_ends: CancellationToken,
    events: Events,
    refused: ToldPeers,
    resetting: ToldPeers,
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
    /// The times of connection `number`.
    pub(super) fn bounds(&self, number: u64, crowd: Crowd) -> Bounds {
        let limits = &self.limits;
        let first_byte = match crowd {
            Crowd::Few => limits.first_byte,
            Crowd::Many => Some(
                limits
                    .first_byte
                    .map_or(HANDSHAKE_MAX, |most| most.min(HANDSHAKE_MAX)),
            ),
        };
        Bounds {
            first_byte,
            first_head: limits.first_head,
            http2_idle: limits.http2_idle,
            age: limits.age.map(|age| spread(age, number)),
        }
    }

    pub(super) fn new(
        gate: Gate,
        life: Life,
        services: Vec<String>,
        events: Events,
        limits: Limits,
    ) -> Self {
        Self {
            gate,
            announcement: ArcSwap::from_pointee(Announcement::of(life, &services, 1)),
            services,
            limits,
            shows: ShowLife::default(),
            extend: None,
            unobserved: Vec::new(),
            tally: Tally::default(),
            orders: watch::Sender::default(),
            listening: watch::Sender::new(Listening::Open),
            numbers: Numbers::default(),
            farewell: Farewell::default(),
            health_ends: CancellationToken::new(),
            events,
            refused: ToldPeers::default(),
            resetting: ToldPeers::default(),
        }
    }

    /// The same for a server that shows its life to these.
    pub(super) fn showing(mut self, shows: ShowLife) -> Self {
        self.shows = shows;
        self
    }

    /// The same for a server whose requests carry more.
    pub(super) fn extending(mut self, extend: Option<Extend>) -> Self {
        self.extend = extend;
        self
    }

    /// The same for a server that does not count requests of these paths.
    pub(super) fn unobserving(mut self, paths: Vec<String>) -> Self {
        self.unobserved = paths;
        self
    }

    /// Says that a connection of this host was ended for its resets. Once a host.
    pub(super) fn tell_resetting(&self, remote: SocketAddr) {
        if self.resetting.tell(remote.ip()) {
            let remote = remote.into();
            self.events.emit(&Event::TooManyResets { remote });
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

#[cfg(test)]
mod tests {
    use super::*;
    use lameduck_core::instance::BootId;

    fn shared(limits: Limits) -> Shared {
        let life = Life::first(BootId::from_bits(1));
        Shared::new(Gate::new(), life, Vec::new(), Events::default(), limits)
    }

    #[test]
    fn s11_silent_connections_get_less_time_where_slots_run_short() {
        let mut limits = Limits::default();
        for (first_byte, few, many) in [
            (None, None, HANDSHAKE_MAX),
            (
                Some(HANDSHAKE_MAX * 2),
                Some(HANDSHAKE_MAX * 2),
                HANDSHAKE_MAX,
            ),
            (
                Some(HANDSHAKE_MAX / 2),
                Some(HANDSHAKE_MAX / 2),
                HANDSHAKE_MAX / 2,
            ),
        ] {
            limits.first_byte = first_byte;
            let shared = shared(limits.clone());
            assert_eq!(shared.bounds(0, Crowd::Few).first_byte, few);
            assert_eq!(shared.bounds(0, Crowd::Many).first_byte, Some(many));
        }
    }

    #[test]
    fn s11_ages_differ_by_a_tenth() {
        let limits = Limits {
            age: Some(Duration::from_secs(1_000)),
            ..Limits::default()
        };
        let shared = shared(limits);
        let ages = (0..1_000).map(|number| shared.bounds(number, Crowd::Few).age);
        let mut seconds: Vec<u64> = ages.map(|age| age.expect("it is set").as_secs()).collect();
        seconds.sort_unstable();
        assert!((900..905).contains(&seconds[0]), "{}", seconds[0]);
        assert!((1_095..=1_100).contains(&seconds[999]), "{}", seconds[999]);
        let widest = seconds.windows(2).map(|two| two[1] - two[0]).max();
        assert!(widest < Some(3), "{widest:?}");
    }
}
