//! The program's own conditions of readiness.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use lameduck_core::drain::Input;

use super::handle::Commands;

/// Which conditions do not hold. All others do.
#[derive(Default)]
pub(super) struct Readiness(Mutex<Conditions>);

#[derive(Default)]
struct Conditions {
    unmet: BTreeSet<String>,
    /// Whether the machine is told of each change.
    runs: bool,
}

impl Conditions {
    fn hold(&self) -> bool {
        self.unmet.is_empty()
    }
}

impl Readiness {
    /// Sets one. The machine hears of it where that changes the sum of all, in the order of the changes.
    pub(super) fn set(&self, name: &str, holds: bool, commands: &Commands) {
        let mut conditions = self.lock();
        let before = conditions.hold();
        if holds {
            conditions.unmet.remove(name);
        } else if !conditions.unmet.contains(name) {
            conditions.unmet.insert(name.to_owned());
        }
        let now = conditions.hold();
        if conditions.runs && now != before {
            // Where nobody listens, it has stopped, and is not ready.
            let _ = commands.inputs.send(Input::Ready(now));
        }
    }

    /// The run begins.
    pub(super) fn run(&self, commands: &Commands) {
        let mut conditions = self.lock();
        conditions.runs = true;
        // Where nobody listens, it has stopped.
        let _ = commands.inputs.send(Input::Ready(conditions.hold()));
    }

    pub(super) fn unmet(&self) -> Vec<String> {
        self.lock().unmet.iter().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Conditions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
