//! The machine's monotonic clock, which all processes of a run share.

use lameduck_core::time::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// The present on CLOCK_MONOTONIC: comparable between processes of one machine.
#[must_use]
pub fn now() -> Timestamp {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).expect("the monotonic clock starts at zero");
    let nanos = u64::try_from(time.tv_nsec).expect("nanoseconds of a second are not negative");
    Timestamp::from_nanos(seconds * 1_000_000_000 + nanos)
}
