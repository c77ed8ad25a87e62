//! How much of what an endpoint answers succeeds.

use crate::mutant;

/// All of it succeeds.
const WHOLE: u32 = 1 << 16;
/// Below half, an endpoint counts as failing (as go-zero's p2c does).
const FAILING: u32 = WHOLE / 2;
/// Each answer counts an eighth: six failures in a row after nothing but successes make it failing, and
/// single failures among successes never do.
const SHIFT: u32 = 3;
/// What is added to the load of one that is failing: more than calls in flight can be.
const PENALTY: u64 = 1 << 32;

/// The share of answers that succeed, the latest counting most. It begins with all of them.
///
/// A server that fails at once has the fewest calls in flight of all, so that [`p2c`](super::p2c) alone
/// would send it more than the healthy ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success(u32);

impl Success {
    /// Nothing has failed.
    pub const WHOLE: Self = Self(WHOLE);

    /// Takes it from a number that [`to_bits`](Self::to_bits) gave.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(WHOLE.saturating_sub(bits))
    }

    /// A number to keep it as: 0 where nothing has failed.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        WHOLE - self.0
    }

    /// After one more answer.
    #[must_use]
    pub const fn after(self, succeeded: bool) -> Self {
        if succeeded {
            Self(self.0 + (WHOLE - self.0).div_ceil(1 << SHIFT))
        } else {
            Self(self.0 - (self.0 >> SHIFT))
        }
    }

    /// Whether it fails more than it succeeds.
    #[must_use]
    pub const fn is_failing(self) -> bool {
        self.0 < FAILING
    }

    /// One that is failing, when it is to be tried again: the next failure makes it failing anew.
    #[must_use]
    pub const fn tried_again(self) -> Self {
        if self.is_failing() {
            Self(FAILING)
        } else {
            self
        }
    }

    /// The load that a choice is to see, where so many calls are in flight.
    #[must_use]
    pub fn load(self, in_flight: u64) -> u64 {
        if self.is_failing() && !mutant!("success/failing-is-loaded") {
            in_flight.saturating_add(PENALTY)
        } else {
            in_flight
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::p2c;
    use crate::rng::Rng;
    use proptest::prelude::*;

    fn after(success: Success, answers: &[bool]) -> Success {
        answers
            .iter()
            .fold(success, |success, one| success.after(*one))
    }

    #[test]
    fn r27_six_failures_in_a_row_make_it_failing_and_a_trial_decides() {
        assert!(!after(Success::WHOLE, &[false; 5]).is_failing());
        let failing = after(Success::WHOLE, &[false; 6]);
        assert!(failing.is_failing());
        let tried = failing.tried_again();
        assert!(!tried.is_failing());
        assert!(tried.after(false).is_failing());
        assert!(!after(tried, &[true, true, false]).is_failing());
        assert_eq!(Success::WHOLE.tried_again(), Success::WHOLE);
    }

    #[test]
    fn r27_a_third_that_fails_is_none() {
        let mut success = Success::WHOLE;
        for _ in 0..1_000 {
            success = after(success, &[true, true, false]);
            assert!(!success.is_failing());
        }
    }

    #[test]
    fn r27_one_of_three_that_fails_at_once_gets_next_to_nothing() {
        let mut rng = Rng::from_seed(27);
        let (mut success, mut failed) = (Success::WHOLE, 0);
        for _ in 0..1_000 {
            // The healthy ones are busy; the one that fails at once never is.
            let load = |member: usize| match member {
                0 => success.load(0),
                _ => Success::WHOLE.load(4),
            };
            if p2c(rng.next_u64(), 3, |member| Some(load(member))) == Some(0) {
                failed += 1;
                success = success.after(false);
            }
        }
        assert_eq!(failed, 6);
    }

    proptest! {
        #[test]
        fn stays_within_its_bounds_and_recovers(answers in prop::collection::vec(any::<bool>(), 0..200)) {
            let success = after(Success::WHOLE, &answers);
            prop_assert_eq!(Success::from_bits(success.to_bits()), success);
            prop_assert!(success.0 <= WHOLE);
            prop_assert!(!after(success, &[true; 6]).is_failing());
            prop_assert_eq!(after(success, &[true; 200]), Success::WHOLE);
        }
    }
}
