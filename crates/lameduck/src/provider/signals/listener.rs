//! The thread that hears signals while every worker is busy, and what was there before it.
//!
//! It lives as long as a provider that catches signals: with the last one it ends, and nothing is left
//! but the handlers of signal-hook, which bring about what the program's own disposition was.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGQUIT};
use signal_hook::low_level::{emulate_default_handler, pipe, unregister};
use signal_hook::{SigId, flag};

use super::{PROCESS, SIGNALS};
use crate::cell::switch::Switch;

/// While a stop is overdue, so often is looked whether others have ended.
const OVERDUE_LOOK: Duration = Duration::from_millis(100);

/// What the process did with signals before lameduck caught any.
#[derive(Clone)]
pub(super) struct Own {
    /// Those to catch, with what brings their default about.
    defaults: BTreeMap<i32, Option<Switch>>,
}

impl Own {
    /// Reads it from the kernel, and prepares what brings the default of each about.
    pub(super) fn read() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let (ignored, caught) = (mask(&status, "SigIgn:"), mask(&status, "SigCgt:"));
        let has = |mask: u64, signal: i32| mask >> (signal - 1) & 1 == 1;
        // `nohup` and shells that start a job in the background have them ignored, on purpose.
        let left_alone = |signal| [SIGHUP, SIGQUIT].contains(&signal) && has(ignored, signal);
        let caught_here = SIGNALS.into_iter().filter(|signal| !left_alone(*signal));
        let default = |signal| {
            let switch = Switch::default();
            // From here to the listener's handlers a signal does what it did before.
            switch.set(true);
            let ours = !has(caught, signal) && !has(ignored, signal);
            let registered =
                ours && flag::register_conditional_default(signal, switch.shared()).is_ok();
            registered.then_some(switch)
        };
        Self {
            defaults: caught_here
                .map(|signal| (signal, default(signal)))
                .collect(),
        }
    }

    /// Whether signals are to do what they did before, where that was to end the process.
    pub(super) fn restore(&self, default: bool) {
        self.defaults
            .values()
            .flatten()
            .for_each(|switch| switch.set(default));
    }

    /// Does now what the signal did before.
    pub(super) fn act(&self, signal: i32) {
        if let Some(Some(_)) = self.defaults.get(&signal) {
            // Fails for signals that do not exist alone.
            let _ = emulate_default_handler(signal);
        }
    }
}

/// A mask of signals in `/proc/self/status`: the lowest bit is signal 1. Empty where there is none.
fn mask(status: &str, name: &str) -> u64 {
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(name));
    value
        .and_then(|value| u64::from_str_radix(value.trim(), 16).ok())
        .unwrap_or_default()
}

/// A running thread's handlers.
pub(super) struct Listener {
    handlers: Vec<SigId>,
}

impl Listener {
    /// Catches signals from the moment this returns.
    pub(super) fn start(own: Own) -> io::Result<Self> {
        let mut listener = Self {
            handlers: Vec::new(),
        };
        let mut ears = Vec::new();
        let started = (|| {
            for signal in own.defaults.into_keys() {
                let (ear, mouth) = UnixStream::pair()?;
                ear.set_nonblocking(true)?;
                listener.handlers.push(pipe::register(signal, mouth)?);
                ears.push((signal, ear));
            }
            ears.sort_by_key(|(signal, _)| SIGNALS.iter().position(|one| one == signal));
            let thread = std::thread::Builder::new().name("lameduck-signals".to_owned());
            thread.spawn(move || listen(ears)).map(drop)
        })();
        match started {
            Ok(()) => Ok(listener),
            Err(error) => {
                listener.stop();
                Err(error)
            }
        }
    }

    /// Catches no more. The thread ends.
    pub(super) fn stop(self) {
        for handler in self.handlers {
            unregister(handler);
        }
    }
}

/// Hears until the handlers are gone.
fn listen(mut ears: Vec<(i32, UnixStream)>) {
    while !ears.is_empty() {
        let due = PROCESS.lock().due();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            PROCESS.look();
        }
        let left = left.map(|left| left.max(OVERDUE_LOOK));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut ready: Vec<_> = ears
            .iter()
            .map(|(_, ear)| PollFd::new(ear, PollFlags::IN))
            .collect();
        // Whatever woke it: all are looked at.
        let _ = poll(&mut ready, left.as_ref());
        drop(ready);
        ears.retain_mut(|(signal, ear)| {
            let mut bytes = [0; 64];
            loop {
                match ear.read(&mut bytes) {
                    Ok(0) => return false,
                    Ok(count) => PROCESS.heard(*signal, count),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_of_the_kernel() {
        let status = "Name:\ta\nSigIgn:\t0000000000001001\nSigCgt:\t0000000100004002\n";
        assert_eq!(mask(status, "SigIgn:"), 0x1001);
        assert_eq!(mask(status, "SigCgt:"), 0x1_0000_4002);
        assert_eq!(mask(status, "SigBlk:"), 0);
    }
}
