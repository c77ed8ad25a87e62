//! How long a closing connection stays for bytes that its peer has not acknowledged.
//!
//! Once an answer and the FIN behind it are in the kernel's send queue, a `close` may throw them away: any
//! byte that the peer sends after it, a WINDOW_UPDATE for what it reads, is answered by a reset. So
//! the connection stays until the peer has all of it, or has ended.

use core::time::Duration;

use crate::limits::{LINGER_CLEAN_MAX, LINGER_LOOK_MAX, LINGER_LOOK_MIN, LINGER_STALLED_MAX};
use crate::mutant;
use crate::time::Timestamp;

/// One connection's stay, from its FIN on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linger {
    left: u64,
    // When it became less the last time.
    since: Timestamp,
    pause: Duration,
}

impl Linger {
    /// A stay that begins at `now`.
    #[must_use]
    pub const fn new(now: Timestamp) -> Self {
        Self {
            left: 0,
            since: now,
            pause: LINGER_LOOK_MIN,
        }
    }

    /// Whether the peer was still behind at the last look.
    #[must_use]
    pub const fn is_behind(&self) -> bool {
        self.left > 0
    }

    /// At `now` the peer has not acknowledged `bytes`. When to look again; `None` where the stay is over.
    #[must_use]
    pub fn look(&mut self, now: Timestamp, bytes: u64) -> Option<Duration> {
        let before = core::mem::replace(&mut self.left, bytes);
        if mutant!("linger/awaits-the-peer") {
            return None;
        }
        if bytes == 0 {
            // It has just got the last of them: what it says to that is still read, and it may end.
            return (before > 0 && !mutant!("linger/hears-the-end")).then_some(LINGER_CLEAN_MAX);
        }
        if before == 0 || bytes < before {
            self.since = now;
        }
        let stalled = now.saturating_since(self.since) >= LINGER_STALLED_MAX;
        if stalled && !mutant!("linger/is-bounded") {
            return None;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(LINGER_LOOK_MAX);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// The looks until the stay is over: what is left at each, and the pause after it in ms.
    fn check(bytes: impl IntoIterator<Item = u64>, expected: &[Option<u64>]) {
        let mut now = Timestamp::ZERO;
        let mut linger = Linger::new(now);
        let mut seen = Vec::new();
        for left in bytes {
            let pause = linger.look(now, left);
            assert_eq!(linger.is_behind(), left > 0);
            seen.push(pause.map(|pause| u64::try_from(pause.as_millis()).expect("short")));
            let Some(pause) = pause else { break };
            now += pause;
        }
        assert_eq!(seen, expected);
    }

    #[test]
    fn s1_a_peer_that_has_all_is_not_waited_for() {
        check([0], &[None]);
    }

    #[test]
    fn s1_a_slow_peer_is_waited_for_until_it_has_the_last_byte() {
        let left = [900, 800, 700, 600, 500, 1, 0, 0];
        let pauses = [5, 10, 20, 40, 50, 50, 100].map(Some);
        check(left, &[&pauses[..], &[None]].concat());
    }

    #[test]
    fn s1_a_peer_that_takes_nothing_is_given_up() {
        let mut now = Timestamp::ZERO;
        let mut linger = Linger::new(now);
        let mut last = 7_000;
        // Half of the bound, then one byte, then nothing.
        while let Some(pause) = linger.look(now, last) {
            now += pause;
            if now.saturating_since(Timestamp::ZERO) > LINGER_STALLED_MAX / 2 {
                last = 6_999;
            }
        }
        let lasted = now.saturating_since(Timestamp::ZERO);
        let most = LINGER_STALLED_MAX * 3 / 2 + LINGER_LOOK_MAX * 2;
        assert!(lasted > LINGER_STALLED_MAX && lasted < most, "{lasted:?}");
    }
}
