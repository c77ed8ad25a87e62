//! Calls that a peer gives up before their answer begins, against those that are answered.
//!
//! HTTP/2 bounds the streams that are open at once, and a reset frees one at no cost to the peer
//! ("rapid reset", CVE-2023-44487): without a rate, one connection starts any number of handlers. A
//! client whose deadlines pass, or that sends hedges, resets streams too; it gets answers as well, or its
//! calls live for a while, and neither counts against it.

use core::time::Duration;

use crate::limits::RAPID_RESET_MAX;
use crate::mutant;
use crate::time::Timestamp;

/// The account of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp {
    // How much time would pay for what was given up; each call costs `price`.
    debt: Duration,
    price: Duration,
    at: Timestamp,
    answered: u32,
}

impl GivenUp {
    /// An empty account: `most` calls at once, and as many a second. At least one.
    #[must_use]
    pub fn new(most: u32) -> Self {
        Self {
            debt: Duration::ZERO,
            price: Duration::from_secs(1) / most.max(1),
            at: Timestamp::ZERO,
            answered: 0,
        }
    }

    /// Counts a call that was given up at `now`, after it had `lived` for so long. `answered` is the
    /// number of all answers of the connection so far, and may wrap. True where these are too many.
    #[must_use]
    pub fn count(&mut self, now: Timestamp, lived: Duration, answered: u32) -> bool {
        if lived >= RAPID_RESET_MAX && !mutant!("given-up/spares-what-lived") {
            return false;
        }
        let paid = if mutant!("given-up/answers-pay") {
            0
        } else {
            answered.wrapping_sub(self.answered)
        };
        let passed = if mutant!("given-up/time-pays") {
            Duration::ZERO
        } else {
            now.saturating_since(self.at)
        };
        self.debt = self
            .debt
            .saturating_sub(passed)
            .saturating_sub(self.price * paid)
            + self.price;
        (self.at, self.answered) = (now, answered);
        self.debt > Duration::from_secs(1) && !mutant!("given-up/has-a-rate")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 1_000;
    const AT_ONCE: Duration = Duration::ZERO;

    /// How many calls are counted before there are too many: each `pause` after the one before, with so
    /// many answers between two.
    fn check(pause: Duration, lived: Duration, answers: u32, expected: Option<usize>) {
        let mut account = GivenUp::new(MOST);
        let (mut now, mut answered) = (Timestamp::from_millis(5_000), u32::MAX - 7);
        let _ = account.count(now, AT_ONCE, answered);
        let first = (1..20_000).find(|_| {
            now += pause;
            answered = answered.wrapping_add(answers);
            account.count(now, lived, answered)
        });
        assert_eq!(first, expected, "each {pause:?}, lived {lived:?}");
    }

    #[test]
    fn s5_a_flood_of_resets_has_an_end() {
        check(AT_ONCE, AT_ONCE, 0, Some(1_000));
        check(Duration::from_micros(60), AT_ONCE, 0, Some(1_063));
        check(
            Duration::from_micros(500),
            RAPID_RESET_MAX / 2,
            0,
            Some(1_999),
        );
    }

    #[test]
    fn s5_answers_time_and_calls_that_lived_count_in_favour() {
        check(AT_ONCE, AT_ONCE, 1, None);
        check(Duration::from_millis(1), AT_ONCE, 0, None);
        check(AT_ONCE, RAPID_RESET_MAX, 0, None);
    }

    #[test]
    fn s5_a_wave_is_paid_off() {
        let mut account = GivenUp::new(MOST);
        for second in [10, 11, 12] {
            let now = Timestamp::from_millis(second * 1_000);
            assert!(
                (0..1_000).all(|_| !account.count(now, AT_ONCE, 0)),
                "{second}"
            );
        }
        assert!(!GivenUp::new(0).count(Timestamp::ZERO, AT_ONCE, 0));
    }
}
