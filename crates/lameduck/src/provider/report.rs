//! The one line that a stop leaves on stderr.
//!
//! Nobody may read it any more, or the pipe may be full for ever: neither keeps a stop from ending.
//! The line is written by a thread of its own, past the lock of Rust's stderr, which somebody may hold
//! who waits for that pipe.

use std::fmt::Display;
use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lameduck_core::drain::Report;
use lameduck_core::limits::{FAREWELL_MAX, FAREWELL_MIN};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::sync::oneshot;

use crate::foreign::Awake;
use crate::observe::Said;

/// Waits until the last events are shown and then until the line is written, with what the budget has
/// left, on a thread: the runtime's time may stand still.
pub(super) async fn farewell(service: &str, report: &Report, said: Said, budget: Duration) {
    let left = budget.saturating_sub(report.total) / 2;
    let most = left.clamp(FAREWELL_MIN, FAREWELL_MAX);
    let (service, what) = (service.to_owned(), report.to_string());
    let (done, waits) = oneshot::channel();
    let farewell = move || {
        said.wait(most);
        say(&service, &what, most);
        // Nobody waits where `run` was dropped meanwhile.
        let _ = done.send(());
    };
    let _awake = Awake::here();
    let thread = thread::Builder::new().name("lameduck-report".to_owned());
    if thread.spawn(farewell).is_ok() {
        // The thread bounds itself. An error means that it is gone.
        let _ = waits.await;
    }
}

/// Says how a process ended, and waits for `most` at most until that is written.
pub(super) fn say(service: &str, what: &dyn Display, most: Duration) {
    let line = format!("lameduck: {service} {what}\n");
    let (done, waits) = mpsc::channel();
    let until = Instant::now() + most;
    let write = move || {
        write(line.as_bytes(), until);
        let _ = done.send(());
    };
    let thread = thread::Builder::new().name("lameduck-stderr".to_owned());
    if thread.spawn(write).is_ok() {
        // Not written in time: whoever should read it does not.
        let _ = waits.recv_timeout(most);
    }
}

fn write(mut line: &[u8], until: Instant) {
    let stderr = io::stderr();
    while !line.is_empty() {
        match rustix::io::write(stderr.as_fd(), line) {
            Ok(0) => return,
            Ok(count) => line = line.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let left = until.saturating_duration_since(Instant::now());
                let left = Timespec::try_from(left).ok();
                let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
                if !matches!(poll(&mut ready, left.as_ref()), Ok(1..)) {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}
