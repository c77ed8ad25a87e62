//! The lab's own bounds, each with its reason.

use std::time::Duration;

/// From the instant a call was due to its whole answer. Later is lost: nobody waits for it.
pub const DEADLINE: Duration = Duration::from_secs(1);
/// The same where links are slow: the largest answers take 0.7 s each on a link of their own, and
/// several share one link while a server is away.
pub const DEADLINE_SLOW: Duration = Duration::from_secs(10);
/// Bytes a second of one slow link, towards the caller: 48 Mbit/s, as between two sites. One link is one
/// TCP connection.
pub const LINK_RATE: u32 = 6_000_000;
/// Bytes that a slow link takes from the server at once: small beside an answer, so that what is not on
/// its way yet waits in the server's kernel, as it does where the link is a real one.
pub const LINK_BUFFER: u32 = 64 * 1024;
/// One call in so many has a large answer where links are slow. The others are small: they show that
/// each server is in use when its turn comes.
pub const LARGE_EVERY: u64 = 100;
/// Smallest and largest of these answers, in bytes: from what one socket buffer holds to what the largest
/// one does (4 MiB by Linux's defaults).
pub const LARGE: (u32, u32) = (1_000_000, 4_000_000);
/// Hundredths of what all slow links carry that the large answers may need. With more they queue, and
/// calls are late without any fault of a server.
pub const LINK_SHARE_MAX: u64 = 70;
/// Calls a second on slow links unless said: small calls enough for a valid run, and one large answer on
/// its way from every server nearly always.
pub const RATE_SLOW: u32 = 600;
/// Calls a second otherwise.
pub const RATE: u32 = 2_000;
/// Requests after which nginx ends a connection unless said: some connections end in each roll.
pub const KEEPALIVE_REQUESTS: u32 = 500;
/// Calls a second, at most: more than the processes of one machine send, so that such a run would
/// only be invalid, and late.
pub const RATE_MAX: u32 = 100_000;
/// A call sent no later than this after it was due counts as sent. A stall that is longer makes the
/// run invalid, and one that is shorter leaves the longest stream time enough, so that a busy machine
/// is not taken for a lost call.
pub const SENT_WITHIN: Duration = Duration::from_millis(100);
/// Hundredths of each second's calls that must be sent, for the run to be valid.
pub const SENT_PERCENT: u64 = 99;
/// A thread that only sleeps and wakes up this much too late has met a machine that stands still. Less
/// is what any machine does now and then, and is nothing against the 0.3 s that the longest stream has
/// to spare.
pub const STALL_MIN: Duration = Duration::from_millis(20);
/// A late call is put down to stalls where they took at least one part in so many of the time that it
/// had to spare. Not all of it: the system wakes a thread that only sleeps before those that work.
pub const STALL_SHARE: u32 = 2;
/// Hundredths of the drains that must have had a call in flight at their signal.
pub const BUSY_DRAINS_PERCENT: usize = 90;
/// Each caller must have sent a life something in this time before its signal.
pub const USED_WITHIN: Duration = Duration::from_millis(200);
/// Shortest and longest unary work.
pub const WORK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(20));
/// Shortest and longest stream. The longest outlives a server's time of closing (0.5 s), and leaves
/// 0.3 s of the deadline.
pub const STREAM: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(700));
/// Time between two items of a stream.
pub const STREAM_GAP: Duration = Duration::from_millis(20);
/// Calls that a rule broken on purpose must cost, or the control controls nothing.
pub const SABOTAGE_COST: u64 = 20;
/// How often a comparison repeats a column whose run proves nothing. The other columns stand, so that
/// one moment in which the machine is busy does not cost all; a machine that is too small is told.
pub const COLUMN_REPEATED_MAX: usize = 3;
/// Stories of lost calls that a report tells; the rest is counted.
pub const STORIES_MAX: usize = 5;
/// Calls sent later than this after a kill have no right to be lost by it: the kernel resets a killed
/// process's connections at once, and a caller reads that within milliseconds.
pub const KILL_NOTICED: Duration = Duration::from_millis(250);

/// Points of a chart over time: no more than a page is wide.
pub const CHART_POINTS_MAX: usize = 400;
/// Shortest time that one point of a chart stands for: a tenth of a second has enough calls to count.
pub const CHART_POINT_MIN: Duration = Duration::from_millis(100);
/// Lost calls that a page tells of, for each kind of children; the rest is counted.
pub const CHART_LOST_MAX: usize = 200;

// --- the run ------------------------------------------------------------------------------------

/// The exit code of a server that, perhaps among other things, could not take its registration back.
pub const INCOMPLETE: i32 = 10;
/// How often the disk is asked how long a small write takes. An etcd writes more often.
pub const DISK_EVERY: Duration = Duration::from_millis(200);
/// How often the lab reads what its children have written.
pub const TICK: Duration = Duration::from_millis(20);
/// For a registry that is said to be there to accept a connection.
pub const REACH_MAX: Duration = Duration::from_secs(3);
/// For all servers to come up, and for all callers to find them.
pub const READY_MAX: Duration = Duration::from_secs(15);
/// From the word to start to the first call: the word must have arrived by then.
pub const START_AHEAD: Duration = Duration::from_millis(200);
/// Load before the first roll: connections, caches and averages are as they will be.
pub const WARM_UP: Duration = Duration::from_millis(1_500);
/// After a successor is in use, this long and at most twice so until the next roll.
pub const SETTLE: Duration = Duration::from_millis(400);
/// How long a frozen server is: several deadlines, and less than a lease lives.
pub const FROZEN: Duration = Duration::from_secs(3);
/// How long the registry is held back at least: a roll falls into it, and no lease ends by it.
pub const HELD_BACK: Duration = Duration::from_secs(3);
/// For a successor to be used by every caller. One that is never used is a loss of its own.
pub const USED_MAX: Duration = Duration::from_secs(15);
/// For a server to be gone: its whole budget, and what a busy machine adds.
pub const EXIT_MAX: Duration = Duration::from_secs(30);
/// For a caller to see its last calls' ends.
pub const CALLER_STOP_MAX: Duration = Duration::from_secs(5);
/// After its deadline, a call gets this long to say so itself, before its caller ends it.
pub const DEADLINE_GRACE: Duration = Duration::from_millis(250);
