//! A thread that only sleeps, and measures how much longer than asked.
//!
//! What it finds is the machine's own lateness: no window can be judged finer than that.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::clock;
use super::report::{Jitter, millis};

const NAP: Duration = Duration::from_millis(1);

/// A running sentinel. Dropping it ends its thread.
#[derive(Debug)]
pub struct Sentinel {
    stop: Sender<()>,
    thread: JoinHandle<Histogram<u64>>,
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

    /// Ends, and tells what it found.
    #[must_use]
    pub fn finish(self) -> Jitter {
        drop(self.stop);
        let Ok(found) = self.thread.join() else {
            return Jitter::default();
        };
        let in_millis = |nanos| millis(Duration::from_nanos(nanos));
        Jitter {
            max: in_millis(found.max()),
            p99: in_millis(found.value_at_quantile(0.99)),
        }
    }
}

fn measure(stopped: &Receiver<()>) -> Histogram<u64> {
    let mut found = Histogram::new(3).expect("three digits are within the histogram's bounds");
    loop {
        let before = clock::now();
        if stopped.recv_timeout(NAP) != Err(RecvTimeoutError::Timeout) {
            return found;
        }
        let slept = clock::now().saturating_since(before);
        let late = slept.saturating_sub(NAP).as_nanos() as u64;
        found
            .record(late)
            .expect("the histogram grows with what it is given");
    }
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
            watched.finish()
        });
        let jitter = measured.find(|jitter| jitter.max > 0.0);
        assert!(jitter.is_some_and(|jitter| jitter.p99 <= jitter.max));
    }
}
