//! How many dials there may be at once, and which descriptors they leave to others.
//!
//! The kernel gives the lowest number that is free. So a new socket's number tells how many descriptors the
//! process has at least, without a count: one close to the limit is given back, and the instance waits.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lameduck_core::event::Event;
use lameduck_core::limits::{
    DESCRIPTORS_KEPT, DESCRIPTORS_KEPT_DIVISOR, DESCRIPTORS_LAST_DIALS, DESCRIPTORS_SETTLED,
    DIALS_MAX,
};
use lameduck_core::time::Timestamp;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::hub::HubHandle;

/// What the dials of one hub share.
#[derive(Debug)]
pub(crate) struct Descriptors {
    dials: Semaphore,
    last: Semaphore,
    short: Mutex<Option<Short>>,
}

/// The want of descriptors, while it lasts.
#[derive(Clone, Copy, Debug)]
struct Short {
    since: Timestamp,
    last: Timestamp,
}

/// The right to dial, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    _dial: SemaphorePermit<'a>,
    last: Option<SemaphorePermit<'a>>,
}

impl Default for Descriptors {
    fn default() -> Self {
        Self {
            dials: Semaphore::new(DIALS_MAX),
            last: Semaphore::new(DESCRIPTORS_LAST_DIALS),
            short: Mutex::default(),
        }
    }
}

impl Descriptors {
    /// Waits until there may be one more dial. `can_do_without`: calls have somewhere to go already, and
    /// this one is not to take the last descriptors.
    pub(super) async fn turn(&self, can_do_without: bool) -> Turn<'_> {
        let dial = self.dials.acquire().await;
        let last = if can_do_without {
            None
        } else {
            self.last.try_acquire().ok()
        };
        Turn {
            _dial: dial.expect("it is never closed"),
            last,
        }
    }

    /// A dial found no descriptor.
    pub(super) fn ran_short(&self, hub: &HubHandle, why: &str) {
        let now = hub.clock().now();
        let mut short = self.lock();
        let is_new = short.is_none();
        let since = short.map_or(now, |short| short.since);
        *short = Some(Short { since, last: now });
        drop(short);
        if is_new {
            hub.emit(&Event::DescriptorsShort {
                error: why.to_owned(),
            });
        }
    }

    /// A dial found one.
    pub(super) fn sufficed(&self, hub: &HubHandle) {
        let now = hub.clock().now();
        let is_over = |short: &mut Short| short.last + DESCRIPTORS_SETTLED <= now;
        let over = self.lock().take_if(is_over);
        if let Some(Short { since, .. }) = over {
            let after = now.saturating_since(since);
            hub.emit(&Event::DescriptorsFree { after });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Short>> {
        // Two numbers are whole whoever panicked.
        self.short.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// How many descriptors its dial leaves to others.
    pub(super) fn kept(&self) -> u64 {
        if self.last.is_some() {
            0
        } else {
            kept(limit())
        }
    }
}

/// Of so many descriptors.
fn kept(limit: Option<u64>) -> u64 {
    let (least, most) = DESCRIPTORS_KEPT;
    limit.map_or(0, |limit| {
        let part = (limit / DESCRIPTORS_KEPT_DIVISOR).clamp(least, most);
        part.min(limit / 2)
    })
}

/// How many descriptors this process may have; `None` where nothing bounds them.
#[cfg(unix)]
fn limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

#[cfg(not(unix))]
fn limit() -> Option<u64> {
    None
}

/// Whether `socket` is one of the last `kept` descriptors that the process may have.
#[cfg(unix)]
pub(super) fn is_among_last(socket: &impl std::os::fd::AsRawFd, kept: u64) -> bool {
    let number = u64::try_from(socket.as_raw_fd()).unwrap_or_default();
    kept > 0 && limit().is_some_and(|limit| number.saturating_add(kept) >= limit)
}

#[cfg(not(unix))]
pub(super) fn is_among_last<T>(_socket: &T, _kept: u64) -> bool {
    false
}

/// Whether the system says that there is no descriptor left, for the process or at all.
#[cfg(unix)]
pub(super) fn is_starved(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let starved = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    error
        .raw_os_error()
        .is_some_and(|code| starved.contains(&code))
}

#[cfg(not(unix))]
pub(super) fn is_starved(_error: &io::Error) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_kept_within_bounds() {
        let expected = [
            (None, 0),
            (Some(20), 10),
            (Some(256), 32),
            (Some(1_024), 128),
            (Some(1 << 20), 1_024),
        ];
        for (limit, expected) in expected {
            assert_eq!(kept(limit), expected, "{limit:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_number_of_a_socket_tells() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        assert!(!is_among_last(&socket, 0));
        let all = limit().unwrap_or(u64::MAX);
        assert!(is_among_last(&socket, all));
        assert!(is_starved(&rustix::io::Errno::MFILE.into()));
        assert!(!is_starved(&rustix::io::Errno::CONNREFUSED.into()));
    }

    #[tokio::test]
    async fn only_a_few_take_the_last_ones_and_only_who_must() {
        let descriptors = Descriptors::default();
        let mut turns = Vec::new();
        for can_do_without in [true, false, false, false] {
            turns.push(descriptors.turn(can_do_without).await);
        }
        let last: Vec<bool> = turns.iter().map(|turn| turn.last.is_some()).collect();
        assert_eq!(last, [false, true, true, false]);
        turns.clear();
        assert!(descriptors.turn(false).await.last.is_some());
    }
}
