//! A flag that one sets and others read, a signal handler among them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set by ordinary code; may be read within a signal handler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Switch(Arc<AtomicBool>);

impl Switch {
    /// Turns it on or off. What was done before is seen by a handler that sees this.
    pub(crate) fn set(&self, on: bool) {
        self.0.store(on, Ordering::SeqCst);
    }

    /// Whether it is on.
    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// What a handler reads.
    pub(crate) fn shared(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}
