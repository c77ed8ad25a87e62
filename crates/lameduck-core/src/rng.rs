//! Randomness from a seed: equal seeds give equal runs.

use core::time::Duration;

/// A small, fast pseudo-random generator (SplitMix64, Steele, Lea and Flood 2014).
///
/// Good for jitter and for choosing instances, never for secrets: boot ids come from the operating
/// system at the edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A generator whose whole sequence is fixed by `seed`.
    #[must_use]
    pub const fn from_seed(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number in `0..bound`, without bias worth naming (multiply and shift); 0 where `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next_u64()) * bound as u128;
        (wide >> 64) as usize
    }

    /// A duration in `low..=high`; `low` where `high` is not above it.
    pub fn between(&mut self, low: Duration, high: Duration) -> Duration {
        let span = u64::try_from(high.saturating_sub(low).as_nanos()).unwrap_or(u64::MAX);
        let wide = u128::from(self.next_u64()) * (u128::from(span) + 1);
        low + Duration::from_nanos((wide >> 64) as u64)
    }
}

/// The finaliser of SplitMix64: spreads a counter over all 64 bits.
#[must_use]
pub const fn mix(counter: u64) -> u64 {
    let mut bits = counter;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_sequences() {
        let mut left = Rng::from_seed(7);
        let mut right = Rng::from_seed(7);
        for _ in 0..100 {
            assert_eq!(left.next_u64(), right.next_u64());
        }
        assert_ne!(Rng::from_seed(7).next_u64(), Rng::from_seed(8).next_u64());
    }

    #[test]
    fn bounds_hold() {
        let mut rng = Rng::from_seed(1);
        assert_eq!(rng.below(0), 0);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[rng.below(5)] = true;
            let some = rng.between(Duration::from_millis(10), Duration::from_millis(12));
            assert!((10..=12).contains(&some.as_millis()));
        }
        assert_eq!(seen, [true; 5]);
        let low = Duration::from_millis(9);
        assert_eq!(rng.between(low, Duration::ZERO), low);
    }
}
