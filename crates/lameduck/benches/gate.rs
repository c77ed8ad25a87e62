//! What admitting one request and giving its permit back costs, beside the least that counting in and
//! out can cost: one `fetch_add` and one `fetch_sub`. A mutex and tokio-util's tracker of tasks stand
//! beside it for information.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use lameduck::cell::gate::Gate;
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
        let names = ["gate", "fetch-add-sub", "mutex-gate", "task-tracker"].map(name);
        let ours = || Side::threads(&names[0], threads, || drop(gate.enter()));
        let others = [
            Side::threads(&names[1], threads, || {
                counter.fetch_add(1, Ordering::Relaxed);
                counter.fetch_sub(1, Ordering::AcqRel);
            }),
            Side::threads(&names[2], threads, || drop(locked.enter())),
            Side::threads(&names[3], threads, || drop(tracker.token())),
        ];
        for other in others {
            println!("{}", compare(ours(), other));
        }
    }
}
