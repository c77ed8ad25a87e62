//! Numbers that nobody is ordered by.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lameduck_core::time::Timestamp;

/// Counts what nobody decides on: no order with anything else is needed.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How many so far.
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that one notes and others read.
#[derive(Debug, Default)]
pub(crate) struct Number(AtomicU32);

impl Number {
    /// One more.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// This, from here on.
    pub(crate) fn set(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// What it is now.
    pub(crate) fn now(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// When something was done last, so that it is not done again at once.
#[derive(Debug, Default)]
pub(crate) struct Pace(AtomicU64);

impl Pace {
    /// True for one of those who ask within `every`, and the first time.
    pub(crate) fn is_due(&self, now: Timestamp, every: Duration) -> bool {
        // Above 0, which is never.
        let now = now.as_nanos().saturating_add(1);
        let last = self.0.load(Ordering::Relaxed);
        let every = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
        let due = last == 0 || now.saturating_sub(last) >= every;
        let swap = |last| {
            self.0
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
        };
        due && swap(last).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_due_the_first_time_and_then_again_after_a_while() {
        let pace = Pace::default();
        let every = Duration::from_millis(100);
        let due = |millis| pace.is_due(Timestamp::from_millis(millis), every);
        assert_eq!(
            [0, 0, 99, 100, 101, 250].map(due),
            [true, false, false, true, false, true]
        );
    }
}
