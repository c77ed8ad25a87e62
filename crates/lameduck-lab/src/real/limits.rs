//! The lab's own bounds, each with its reason.

use std::time::Duration;

/// From the instant a call was due to its whole answer. Later is lost: nobody waits for it.
pub const DEADLINE: Duration = Duration::from_secs(1);
/// A call sent no later than this after it was due counts as sent: a fifth of its deadline.
pub const SENT_WITHIN: Duration = Duration::from_millis(200);
/// Hundredths of each second's calls that must be sent, for the run to be valid.
pub const SENT_PERCENT: u64 = 99;
/// Hundredths of the drains that must have had a call in flight at their signal.
pub const BUSY_DRAINS_PERCENT: usize = 90;
/// Each caller must have sent a life something in this time before its signal.
pub const USED_WITHIN: Duration = Duration::from_millis(200);
/// Shortest and longest unary work.
pub const WORK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(20));
/// Shortest and longest stream. The longest outlives a server's time of closing (0.5 s), and leaves
/// 0.2 s of the deadline.
pub const STREAM: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(800));
/// Time between two items of a stream.
pub const STREAM_GAP: Duration = Duration::from_millis(20);
/// Stories of lost calls that a report tells; the rest is counted.
pub const STORIES_MAX: usize = 5;
/// Calls sent later than this after a kill have no right to be lost by it: the kernel resets a killed
/// process's connections at once, and a caller reads that within milliseconds.
pub const KILL_NOTICED: Duration = Duration::from_millis(250);
