//! A flag that a signal handler reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set by ordinary code, read within a signal handler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Switch(Arc<AtomicBool>);

impl Switch {
    /// Turns it on or off. What was done before is seen by a handler that sees this.
    pub(crate) fn set(&self, on: bool) {
        self.0.store(on, Ordering::SeqCst);
    }

    /// What a handler reads.
    pub(crate) fn shared(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}
