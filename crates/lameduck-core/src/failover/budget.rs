//! How many retries all calls together may cause.

use core::time::Duration;

use crate::limits::{RETRIES_PER_SECOND, RETRY_PERCENT, RETRY_WINDOW};
use crate::mutant;
use crate::time::Timestamp;

/// Slots of the window: coarse enough to be cheap, fine enough that a burst is forgotten in steps.
const SLOTS: usize = 10;
/// What one retry costs, in hundredths of a call.
const RETRY_COST: u64 = 100;

/// A sliding window: each call deposits [`RETRY_PERCENT`] hundredths of a retry, the clock deposits
/// [`RETRIES_PER_SECOND`] a second, each retry takes a whole one. Counted in whole hundredths, so
/// that no percentage is lost to rounding (tower-rs/tower#857).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryBudget {
    percent: u32,
    per_second: u32,
    calls: [u64; SLOTS],
    retries: [u64; SLOTS],
    slot: u64,
}

impl RetryBudget {
    /// A budget of `percent` hundredths of the calls of the last 10 s, plus `per_second`.
    #[must_use]
    pub const fn new(percent: u32, per_second: u32) -> Self {
        Self {
            percent,
            per_second,
            calls: [0; SLOTS],
            retries: [0; SLOTS],
            slot: 0,
        }
    }

    /// Notes a call, which allows a fraction of a retry.
    pub fn deposit(&mut self, now: Timestamp) {
        self.deposit_many(now, 1);
    }

    /// Notes several calls at once.
    pub fn deposit_many(&mut self, now: Timestamp, calls: u64) {
        let slot = self.advance(now);
        self.calls[slot] += calls;
    }

    /// Takes one retry; false where the budget is used up.
    pub fn withdraw(&mut self, now: Timestamp) -> bool {
        let slot = self.advance(now);
        let calls: u64 = self.calls.iter().sum();
        let spent: u64 = self.retries.iter().sum();
        let free = u64::from(self.per_second) * RETRY_WINDOW.as_secs() * RETRY_COST;
        let allowed = calls * u64::from(self.percent) + free;
        let granted = (spent + 1) * RETRY_COST <= allowed || mutant!("budget/bounded");
        self.retries[slot] += u64::from(granted);
        granted
    }

    /// Empties the slots that time has passed over, and gives the present one.
    fn advance(&mut self, now: Timestamp) -> usize {
        let width = slot_width().as_nanos() as u64;
        let slot = now.as_nanos() / width;
        let passed = slot.saturating_sub(self.slot).min(SLOTS as u64);
        for step in 1..=passed {
            let index = ((self.slot + step) % SLOTS as u64) as usize;
            self.calls[index] = 0;
            self.retries[index] = 0;
        }
        if passed == SLOTS as u64 {
            self.calls = [0; SLOTS];
            self.retries = [0; SLOTS];
        }
        self.slot = self.slot.max(slot);
        (self.slot % SLOTS as u64) as usize
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self::new(RETRY_PERCENT, RETRIES_PER_SECOND)
    }
}

const fn slot_width() -> Duration {
    Duration::from_nanos(RETRY_WINDOW.as_nanos() as u64 / SLOTS as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn a_fifth_of_the_calls_and_a_few() {
        let mut budget = RetryBudget::default();
        let now = Timestamp::from_millis(500);
        for _ in 0..1_000 {
            budget.deposit(now);
        }
        let granted = (0..1_000).filter(|_| budget.withdraw(now)).count();
        assert_eq!(granted, 230);
        let later = now + RETRY_WINDOW;
        let granted = (0..1_000).filter(|_| budget.withdraw(later)).count();
        assert_eq!(granted, 30);
    }

    #[test]
    fn no_percentage_is_lost_to_rounding() {
        let mut budget = RetryBudget::new(30, 0);
        for _ in 0..10 {
            budget.deposit(Timestamp::ZERO);
        }
        let granted = (0..10).filter(|_| budget.withdraw(Timestamp::ZERO)).count();
        assert_eq!(granted, 3);
    }

    proptest! {
        #[test]
        fn never_more_than_allowed(steps in prop::collection::vec((0_u64..400, any::<bool>()), 0..400)) {
            let mut budget = RetryBudget::default();
            let (mut now, mut calls, mut retries) = (Timestamp::ZERO, Vec::new(), Vec::new());
            let within = |log: &[Timestamp], now: Timestamp, time| {
                log.iter().filter(|at| now.saturating_since(**at) < time).count() as u64
            };
            for (pause, is_retry) in steps {
                now += Duration::from_millis(pause);
                if !is_retry {
                    budget.deposit(now);
                    calls.push(now);
                } else if budget.withdraw(now) {
                    retries.push(now);
                    // Judged when one is granted: what allowed it may be forgotten before it is. One
                    // slot of slack, since the window moves in steps.
                    let spent = within(&retries, now, RETRY_WINDOW - slot_width());
                    let earned = within(&calls, now, RETRY_WINDOW);
                    prop_assert!(spent * 100 <= earned * 20 + 3 * 10 * 100);
                }
            }
        }
    }
}
