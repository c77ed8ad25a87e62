//! Exponential back-off with full jitter below a floor.

use core::time::Duration;

use crate::mutant;
use crate::rng::Rng;

/// The pauses between attempts: doubled each time from `first` to `last`, each drawn between half
/// of itself and itself, so that a thousand clients of one dead server do not come back together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    last: Duration,
    failures: u32,
}

impl Backoff {
    /// Pauses from `first` up to `last`. `last` below `first` counts as `first`.
    #[must_use]
    pub fn new(first: Duration, last: Duration) -> Self {
        Self {
            first,
            last: last.max(first),
            failures: 0,
        }
    }

    /// The pause after one more failure.
    pub fn next(&mut self, rng: &mut Rng) -> Duration {
        let doubled = self.first.saturating_mul(1_u32 << self.failures.min(31));
        let pause = doubled.min(self.last);
        if !mutant!("backoff/doubles") {
            self.failures = self.failures.saturating_add(1);
        }
        rng.between(pause / 2, pause)
    }

    /// Forgets all failures: the next pause is the first again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// How many failures in a row there were.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_last_and_starts_anew() {
        let mut rng = Rng::from_seed(3);
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        let mut full = 50;
        for _ in 0..40 {
            let pause = backoff.next(&mut rng).as_millis();
            assert!(
                full / 2 <= pause && pause <= full,
                "{pause} not in {full}/2..={full}"
            );
            full = (full * 2).min(5_000);
        }
        assert_eq!(backoff.failures(), 40);
        backoff.reset();
        assert!(backoff.next(&mut rng).as_millis() <= 50);
    }
}
