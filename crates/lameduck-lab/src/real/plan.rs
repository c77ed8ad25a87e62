//! Which calls are due, and when: a pure function of the seed, for callers and judge alike.

use std::time::Duration;

use lameduck_core::rng::mix;
use lameduck_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::limits::{DEADLINE, DEADLINE_SLOW, LARGE, LARGE_EVERY, STREAM, STREAM_GAP, WORK};
use super::record::{CallId, Kind};

/// An open loop: calls come at their instants, whatever became of those before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Equal seeds give equal calls.
    pub seed: u64,
    /// Calls a second, of all callers together. Not 0.
    pub rate: u32,
    /// Number of callers. Not 0.
    pub callers: u16,
    /// When it begins, in nanoseconds of the monotonic clock.
    pub start_ns: u64,
    /// Whether links are slow, so that some answers are large and all have more time.
    pub slow_link: bool,
}

/// One call of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// When it is to be sent.
    pub due: Timestamp,
    /// What it asks for.
    pub kind: Kind,
    /// Items of the stream; 1 for unary.
    pub items: u32,
    /// How long the work takes; for a stream, the time between two items.
    pub work: Duration,
    /// Bytes of payload in the answer; for a stream, in each item.
    pub payload_bytes: u32,
    /// When its whole answer must have come.
    pub deadline: Timestamp,
}

impl Plan {
    /// The call that `id` names.
    ///
    /// Callers take turns, so that calls are evenly spaced over all of them.
    #[must_use]
    pub fn call(&self, id: CallId) -> Planned {
        let turn = u64::from(id.number) * u64::from(self.callers) + u64::from(id.caller);
        let bits = mix(self.seed ^ mix(turn));
        let kind = match bits % 100 {
            0..10 => Kind::Stream,
            10..55 => Kind::Get,
            _ => Kind::Put,
        };
        let (items, work) = if kind == Kind::Stream {
            let items = between(bits >> 32, STREAM).as_nanos() / STREAM_GAP.as_nanos();
            (u32::try_from(items).unwrap_or(u32::MAX), STREAM_GAP)
        } else {
            (1, between(bits >> 32, WORK))
        };
        let due = self.start() + self.offset(turn);
        Planned {
            due,
            kind,
            items,
            work,
            payload_bytes: self.large(bits) / items,
            deadline: due + self.deadline(),
        }
    }

    /// From the instant at which a call is due to its whole answer.
    #[must_use]
    pub const fn deadline(&self) -> Duration {
        if self.slow_link {
            DEADLINE_SLOW
        } else {
            DEADLINE
        }
    }

    /// Bytes of payload in a whole answer: 0 for most.
    fn large(&self, bits: u64) -> u32 {
        // Bits that do not choose the kind as well: all kinds have large answers.
        let bits = mix(bits);
        if !self.slow_link || !bits.is_multiple_of(LARGE_EVERY) {
            return 0;
        }
        let (low, high) = LARGE;
        low + ((bits >> 32) % u64::from(high - low + 1)) as u32
    }

    /// The first call of `caller` that is due at `instant` or later.
    #[must_use]
    pub fn first_due(&self, caller: u16, instant: Timestamp) -> u32 {
        let is_before = |number: u32| self.call(CallId { caller, number }).due < instant;
        let (mut low, mut high) = (0, u32::MAX);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_before(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// When it begins.
    #[must_use]
    pub const fn start(&self) -> Timestamp {
        Timestamp::from_nanos(self.start_ns)
    }

    /// How many calls are due in `from..to`.
    #[must_use]
    pub fn count_due(&self, from: Timestamp, to: Timestamp) -> u64 {
        let of_caller = |caller| {
            let (first, end) = (self.first_due(caller, from), self.first_due(caller, to));
            u64::from(end.saturating_sub(first))
        };
        (0..self.callers).map(of_caller).sum()
    }

    fn offset(&self, turn: u64) -> Duration {
        let nanos = u128::from(turn) * 1_000_000_000 / u128::from(self.rate);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// A duration in `bounds`, from 32 random bits.
fn between(bits: u64, (low, high): (Duration, Duration)) -> Duration {
    let span = (high - low).as_nanos() as u64;
    low + Duration::from_nanos(((bits & 0xffff_ffff) * (span + 1)) >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(seed: u64) -> Plan {
        Plan {
            seed,
            rate: 2000,
            callers: 2,
            start_ns: 1_000_000_000,
            slow_link: false,
        }
    }

    fn calls(plan: &Plan, count: u32) -> Vec<Planned> {
        let ids = (0..count).map(|number| CallId { caller: 0, number });
        ids.map(|id| plan.call(id)).collect()
    }

    #[test]
    fn the_mix_is_as_promised() {
        let calls = calls(&plan(1), 20_000);
        let share = |kind| calls.iter().filter(|call| call.kind == kind).count();
        assert!((1_850..2_150).contains(&share(Kind::Stream)));
        assert!((8_700..9_300).contains(&share(Kind::Get)));
        assert!((8_700..9_300).contains(&share(Kind::Put)));
        for call in &calls {
            let (low, high) = if call.kind == Kind::Stream {
                STREAM
            } else {
                WORK
            };
            let whole = call.work * call.items;
            assert!(low <= whole && whole <= high, "{call:?}");
        }
    }

    #[test]
    fn only_slow_links_have_large_answers() {
        assert!(
            calls(&plan(1), 20_000)
                .iter()
                .all(|call| call.payload_bytes == 0)
        );
        let slow = Plan {
            slow_link: true,
            ..plan(1)
        };
        let calls = calls(&slow, 20_000);
        let large: Vec<_> = calls.iter().filter(|call| call.payload_bytes > 0).collect();
        assert!((150..250).contains(&large.len()), "{}", large.len());
        let (low, high) = LARGE;
        for call in &large {
            let whole = call.payload_bytes * call.items;
            assert!(whole + call.items > low && whole <= high, "{call:?}");
        }
        let kinds = [Kind::Get, Kind::Put, Kind::Stream];
        assert!(
            kinds
                .iter()
                .all(|kind| large.iter().any(|call| call.kind == *kind))
        );
        assert!(
            calls
                .iter()
                .all(|call| call.deadline == call.due + DEADLINE_SLOW)
        );
    }

    #[test]
    fn equal_seeds_give_equal_calls() {
        assert_eq!(calls(&plan(7), 100), calls(&plan(7), 100));
        assert_ne!(calls(&plan(7), 100), calls(&plan(8), 100));
    }

    #[test]
    fn callers_take_turns() {
        let plan = plan(1);
        let due = |caller, number| plan.call(CallId { caller, number }).due.as_nanos();
        assert_eq!(due(0, 0), 1_000_000_000);
        assert_eq!(due(1, 0), 1_000_500_000);
        assert_eq!(due(0, 1), 1_001_000_000);
    }

    proptest! {
        #[test]
        fn the_first_due_call_is_found(
            rate in 1u32..10_000, callers in 1u16..9, number in 0u32..1_000_000, caller in 0u16..9,
        ) {
            let caller = caller % callers;
            let plan = Plan { seed: 1, rate, callers, start_ns: 5, slow_link: false };
            let due = plan.call(CallId { caller, number }).due;
            prop_assert_eq!(plan.first_due(caller, due), number);
            let later = due + Duration::from_nanos(1);
            prop_assert_eq!(plan.first_due(caller, later), number + 1);
        }
    }
}
