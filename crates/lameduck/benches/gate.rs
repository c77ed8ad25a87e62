//! What admitting one request and giving its permit back costs, beside the least that counting in and
//! out can cost: one `fetch_add` and one `fetch_sub`.
//!
//! `gate` is what a server does for each request: the permit keeps the connection's handle, which the
//! request holds anyway. For information: `gate-clone`, a permit that brings a clone of the gate along
//! (the clone counts in and out at a word of its own), a mutex, and tokio-util's tracker of tasks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use lameduck::cell::gate::{Gate, Permit};
use lameduck_pairs::{Side, compare};
use tokio_util::task::TaskTracker;

/// The gate that one would write first.
#[derive(Default)]
struct MutexGate {
    state: Mutex<(bool, u64)>,
}

impl MutexGate {
    fn enter(&self) -> Option<MutexPermit<'_>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 += u64::from(!state.0);
        (!state.0).then_some(MutexPermit(self))
    }
}

struct MutexPermit<'a>(&'a MutexGate);

impl Drop for MutexPermit<'_> {
    fn drop(&mut self) {
        self.0
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1 -= 1;
    }
}

fn main() {
    for threads in [1, 2] {
        let name = |what: &str| format!("{what}/{threads}");
        let (gate, counter, locked) = (Gate::new(), AtomicU64::new(0), MutexGate::default());
        let tracker = TaskTracker::new();
        let names = [
            "gate",
            "fetch-add-sub",
            "gate-clone",
            "mutex-gate",
            "task-tracker",
        ]
        .map(name);
        let ours = || Side::threads(&names[0], threads, || drop(Permit::ask(&gate)));
        let others = [
            Side::threads(&names[1], threads, || {
                counter.fetch_add(1, Ordering::Relaxed);
                counter.fetch_sub(1, Ordering::AcqRel);
            }),
            Side::threads(&names[2], threads, || drop(gate.enter())),
            Side::threads(&names[3], threads, || drop(locked.enter())),
            Side::threads(&names[4], threads, || drop(tracker.token())),
        ];
        for other in others {
            println!("{}", compare(ours(), other));
        }
    }
}
