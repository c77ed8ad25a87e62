//! A thread that only sleeps, and measures how much longer than asked.
//!
//! What it finds is the machine's own lateness: no window can be judged finer than that. The lab has
//! one, and each server and caller has one of its own, for the system may let a single process wait.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use hdrhistogram::Histogram;

use lameduck_core::time::Timestamp;

use super::clock;
use super::limits::STALL_MIN;
use super::report::{Jitter, millis};
use super::stalls::{Stall, Whose};

const NAP: Duration = Duration::from_millis(1);

/// A running sentinel. Dropping it ends its thread.
#[derive(Debug)]
pub struct Sentinel {
    stop: Sender<()>,
    thread: JoinHandle<(Histogram<u64>, Vec<Stall>)>,
}

impl Sentinel {
    /// Starts to measure.
    ///
    /// # Errors
    ///
    /// Where the system starts no thread.
    pub fn start() -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("sentinel".to_owned())
            .spawn(move || measure(&stopped))?;
        Ok(Self { stop, thread })
    }

    /// Ends, and tells what it found: how late it was, and when it was so late that the machine stood
    /// still.
    #[must_use]
    pub fn finish(self) -> (Jitter, Vec<Stall>) {
        drop(self.stop);
        let Ok((found, stalls)) = self.thread.join() else {
            return (Jitter::default(), Vec::new());
        };
        let in_millis = |nanos| millis(Duration::from_nanos(nanos));
        let jitter = Jitter {
            max: in_millis(found.max()),
            p99: in_millis(found.value_at_quantile(0.99)),
        };
        (jitter, stalls)
    }
}

/// Starts to measure for as long as this process lives; tells `stalled` of each time at which it was
/// late enough, and by how much.
///
/// # Errors
///
/// Where the system starts no thread.
pub fn watch(mut stalled: impl FnMut(Duration) + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("sentinel".to_owned());
    thread.spawn(move || {
        let (_open, stopped) = mpsc::channel();
        while let Some((_, late)) = nap(&stopped) {
            if late >= STALL_MIN {
                stalled(late);
            }
        }
    })?;
    Ok(())
}

fn measure(stopped: &Receiver<()>) -> (Histogram<u64>, Vec<Stall>) {
    let mut found = Histogram::new(3).expect("three digits are within the histogram's bounds");
    let mut stalls = Vec::new();
    while let Some((awake, late)) = nap(stopped) {
        found
            .record(late.as_nanos() as u64)
            .expect("the histogram grows with what it is given");
        if late >= STALL_MIN {
            stalls.push(Stall::new(Whose::Machine, awake, late));
        }
    }
    (found, stalls)
}

/// When one nap was over, and how much longer it was than asked for; none once it is told to stop.
fn nap(stopped: &Receiver<()>) -> Option<(Timestamp, Duration)> {
    let before = clock::now();
    let is_over = stopped.recv_timeout(NAP) == Err(RecvTimeoutError::Timeout);
    let awake = clock::now();
    let slept = awake.saturating_since(before);
    is_over.then(|| (awake, slept.saturating_sub(NAP)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_measures_until_told() {
        let (_stop, stopped) = mpsc::channel::<()>();
        let mut measured = (0..10).map(|round| {
            let watched = Sentinel::start().unwrap();
            // Nobody speaks, so that this is but a wait. A machine that has no time for the thread
            // in a short one has it in a longer one.
            let _ = stopped.recv_timeout(5 * NAP * (1 << round));
            watched.finish().0
        });
        let jitter = measured.find(|jitter| jitter.max > 0.0);
        assert!(jitter.is_some_and(|jitter| jitter.p99 <= jitter.max));
    }
}
