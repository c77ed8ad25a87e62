//! Which hosts a closing server has told to go, and whether a request comes of one that came back.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use lameduck_core::limits::FAREWELL_HOSTS_MAX;

use crate::cell::switch::Switch;

/// The hosts that were told to go since the closing was announced, by GOAWAY or `Connection: close`.
///
/// A peer is known by its host: the connection that it comes back on is a new one. Several callers at one
/// address (behind a proxy or a NAT, or all on one machine) count as one.
#[derive(Default)]
pub(super) struct Farewell {
    // Read by every request: the lock is for a closing server alone.
    begun: Switch,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    /// Connections with a smaller number existed at the announcement.
    next: u64,
    hosts: HashSet<IpAddr>,
}

impl Farewell {
    /// The closing is announced; connections accepted later have a number of at least `next`.
    pub(super) fn begin(&self, next: u64) {
        if self.begun.is_on() {
            return;
        }
        self.with(|told| told.next = next);
        self.begun.set(true);
    }

    /// The closing is taken back.
    pub(super) fn take_back(&self) {
        self.begun.set(false);
        self.with(|told| told.hosts.clear());
    }

    /// This host has been told.
    pub(super) fn tell(&self, host: IpAddr) {
        if self.begun.is_on() {
            self.with(|told| {
                if told.hosts.len() < FAREWELL_HOSTS_MAX {
                    told.hosts.insert(host);
                }
            });
        }
    }

    /// Whether a request on connection `number` of this host comes of a peer that was told and came back.
    pub(super) fn came_back(&self, number: u64, host: IpAddr) -> bool {
        self.begun.is_on() && self.with(|told| number >= told.next && told.hosts.contains(&host))
    }

    fn with<T>(&self, look: impl FnOnce(&mut Told) -> T) -> T {
        // Whole whoever panicked.
        look(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn s6_only_a_new_connection_of_a_host_that_was_told_comes_back() {
        let farewell = Farewell::default();
        farewell.tell(host(1));
        assert!(!farewell.came_back(9, host(1)), "nothing is announced");
        farewell.begin(5);
        assert!(!farewell.came_back(9, host(1)), "told of something else");
        farewell.tell(host(1));
        farewell.begin(7);
        let came_back =
            [(4, 1), (5, 1), (6, 2)].map(|(number, at)| farewell.came_back(number, host(at)));
        assert_eq!(came_back, [false, true, false]);
        farewell.take_back();
        assert!(!farewell.came_back(9, host(1)));
        farewell.begin(7);
        assert!(!farewell.came_back(9, host(1)), "of another life");
    }

    #[test]
    fn s6_so_many_hosts_are_remembered_at_most() {
        let farewell = Farewell::default();
        farewell.begin(0);
        let max = u32::try_from(FAREWELL_HOSTS_MAX).expect("a small number");
        (0..max + 1).for_each(|number| farewell.tell(host(number)));
        assert!(farewell.came_back(0, host(max - 1)));
        assert!(!farewell.came_back(0, host(max)));
    }
}
