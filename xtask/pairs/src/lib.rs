//! Compares two pieces of code on a machine that is never quiet.
//!
//! A figure alone (12 ns) says little: it differs from machine to machine and from minute to minute. A
//! *ratio* of two pieces of code that run in turns says much. [`compare`] runs them in the order
//! A B B A, so that a slow drift of the machine meets both alike, at least [`ROUNDS_MIN`] times, and
//! takes the median of the rounds' ratios with a 95 % interval from order statistics (the sign test's:
//! it assumes no distribution, and one round that an interrupt spoilt moves it by one rank at most).
//!
//! It is a crate because benches of every floor use it, and none but benches does: it depends on
//! nothing, and nothing that is published depends on it. What it prints, `cargo xtask bench` reads.

mod stats;

use std::fmt;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

pub use stats::Interval;

/// Fewest rounds of A B B A. The 95 % interval of 30 rounds spans ranks 10 to 21.
pub const ROUNDS_MIN: usize = 30;

/// Rounds that [`compare`] runs.
pub const ROUNDS: usize = 60;

/// Shortest time of one block: above the granularity of timers and below a scheduler's slice, so that
/// most blocks run undisturbed.
pub const BLOCK_MIN: Duration = Duration::from_millis(2);

/// One of the two: its name, and how to run it a number of times.
pub struct Side<'a> {
    name: &'a str,
    run: Box<dyn FnMut(u64) -> Duration + 'a>,
}

impl<'a> Side<'a> {
    /// `run` repeats the code as often as it is told and says how long that took. The name must hold
    /// no blank.
    pub fn new(name: &'a str, run: impl FnMut(u64) -> Duration + 'a) -> Self {
        Self {
            name,
            run: Box::new(run),
        }
    }

    /// Code that one thread repeats.
    pub fn single<T>(name: &'a str, mut code: impl FnMut() -> T + 'a) -> Self {
        Self::new(name, move |times| {
            let start = Instant::now();
            for _ in 0..times {
                black_box(code());
            }
            start.elapsed()
        })
    }

    /// Code that `count` threads repeat at once, each as often as told: the time from the first one's
    /// start to the last one's end.
    pub fn threads<T>(name: &'a str, count: usize, code: impl Fn() -> T + Sync + 'a) -> Self {
        Self::new(name, move |times| on_threads(count, times, &code))
    }

    /// Repeats that take [`BLOCK_MIN`] or a little longer, whatever disturbs one of the tries.
    fn calibrate(&mut self) -> u64 {
        let mut times = 1;
        while (0..3).any(|_| (self.run)(times) < BLOCK_MIN) {
            times *= 2;
        }
        times
    }
}

fn on_threads<T>(count: usize, times: u64, code: &(impl Fn() -> T + Sync)) -> Duration {
    let barrier = Barrier::new(count);
    let repeat = || {
        barrier.wait();
        let start = Instant::now();
        for _ in 0..times {
            black_box(code());
        }
        (start, Instant::now())
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..count).map(|_| scope.spawn(repeat)).collect();
        let spans = running
            .into_iter()
            .map(|thread| thread.join().expect("a bench panics nowhere"));
        let spans: Vec<(Instant, Instant)> = spans.collect();
        let first = spans.iter().map(|span| span.0).min();
        let last = spans.iter().map(|span| span.1).max();
        first
            .zip(last)
            .map_or(Duration::ZERO, |(first, last)| last - first)
    })
}

/// What a comparison found.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The first side's name and its time for one repeat, in nanoseconds.
    pub a: (String, f64),
    /// The second side's.
    pub b: (String, f64),
    /// The first side's time over the second's.
    pub ratio: Interval,
}

/// Runs both sides in interleaved pairs.
#[must_use]
pub fn compare(mut a: Side<'_>, mut b: Side<'_>) -> Comparison {
    let (times_a, times_b) = (a.calibrate(), b.calibrate());
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let first = per_repeat((a.run)(times_a), times_a);
        let second = per_repeat((b.run)(times_b), times_b);
        let third = per_repeat((b.run)(times_b), times_b);
        let fourth = per_repeat((a.run)(times_a), times_a);
        rounds.push((f64::midpoint(first, fourth), f64::midpoint(second, third)));
    }
    let median = |side: fn(&(f64, f64)) -> f64| Interval::of(rounds.iter().map(side)).median;
    Comparison {
        a: (a.name.to_owned(), median(|round| round.0)),
        b: (b.name.to_owned(), median(|round| round.1)),
        ratio: Interval::of(rounds.iter().map(|round| round.0 / round.1)),
    }
}

/// Nanoseconds for one repeat.
fn per_repeat(time: Duration, times: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "no bench repeats 2^53 times")]
    let times = times as f64;
    time.as_secs_f64() * 1e9 / times
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, nanos) in [&self.a, &self.b] {
            // What takes milliseconds is told in them.
            let (figure, unit) = if *nanos < 1e6 {
                (*nanos, "ns")
            } else {
                (nanos / 1e6, "ms")
            };
            writeln!(f, "bench {name} {figure:.2} {unit}")?;
        }
        let Interval { low, median, high } = self.ratio;
        write!(
            f,
            "ratio {} {} {median:.3} {low:.3} {high:.3}",
            self.a.0, self.b.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A side that takes exactly so many nanoseconds a repeat, but for each tenth block.
    fn exact(name: &str, ns: u64) -> Side<'_> {
        let mut blocks = 0;
        Side::new(name, move |times| {
            blocks += 1;
            let spoilt = if blocks % 10 == 0 { 50 } else { 1 };
            Duration::from_nanos(ns * times * spoilt)
        })
    }

    #[test]
    fn ratio_is_found_in_spite_of_spoilt_rounds() {
        let found = compare(exact("a", 300), exact("b", 200));
        assert!((found.ratio.median - 1.5).abs() < 1e-9, "{found:?}");
        assert!((found.a.1 - 300.0).abs() < 1e-6, "{found:?}");
        assert!(
            found.ratio.low <= 1.5 && found.ratio.high >= 1.5,
            "{found:?}"
        );
    }

    #[test]
    fn lines_are_those_that_the_runner_reads() {
        let ratio = Interval {
            low: 1.0,
            median: 1.5,
            high: 2.0,
        };
        let found = Comparison {
            a: ("x".into(), 3.0),
            b: ("y".into(), 2.0),
            ratio,
        };
        let expected = "bench x 3.00 ns\nbench y 2.00 ns\nratio x y 1.500 1.000 2.000";
        assert_eq!(found.to_string(), expected);
    }

    #[test]
    fn threads_all_run() {
        let count = std::sync::atomic::AtomicU64::new(0);
        let add = || count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let took = on_threads(3, 100, &add);
        assert!(took > Duration::ZERO);
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 300);
    }
}
