//! The retry budget that all calls of a service share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lameduck_core::failover::budget::RetryBudget;
use lameduck_core::time::Timestamp;

/// A [`RetryBudget`] that many calls use at once.
///
/// Each call only counts itself; the count goes into the budget when a retry asks, or the first
/// time that a call finds another second begun. So the lock is taken about once a second, by whom
/// it does not delay.
#[derive(Debug, Default)]
pub(crate) struct SharedBudget {
    calls: AtomicU64,
    second: AtomicU64,
    budget: Mutex<RetryBudget>,
}

const SECOND: u64 = 1_000_000_000;

impl SharedBudget {
    /// Notes a call.
    pub(crate) fn deposit(&self, now: Timestamp) {
        let second = now.as_nanos() / SECOND;
        // Looked at first: most calls find nothing to change.
        if self.second.load(Ordering::Relaxed) != second
            && self.second.swap(second, Ordering::Relaxed) != second
        {
            let earlier = Timestamp::from_nanos(now.as_nanos().saturating_sub(SECOND));
            drop(self.settled(earlier));
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes one retry; false where the budget is used up.
    pub(crate) fn withdraw(&self, now: Timestamp) -> bool {
        self.settled(now).withdraw(now)
    }

    fn settled(&self, now: Timestamp) -> MutexGuard<'_, RetryBudget> {
        // Plain counters: whoever panicked while holding them left them usable.
        let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
        budget.deposit_many(now, self.calls.swap(0, Ordering::Relaxed));
        budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_the_calls_of_the_last_ten_seconds() {
        let budget = SharedBudget::default();
        for millis in 0..1_000 {
            budget.deposit(Timestamp::from_millis(millis));
        }
        let granted = |at: u64| {
            let now = Timestamp::from_millis(at);
            (0..2_000).filter(|_| budget.withdraw(now)).count()
        };
        assert_eq!(granted(1_500), 230);
        assert_eq!(granted(12_500), 30);
    }
}
