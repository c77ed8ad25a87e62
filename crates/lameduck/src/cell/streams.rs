//! The stream tasks of one HTTP/2 connection, so that they can be ended together.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::rt::Executor;
use tokio::task::JoinSet;

/// Spawns the stream tasks of one connection into one set.
///
/// The lock is taken by the connection's own task alone (hyper spawns while it is polled, and the
/// cut comes from the same task), so it is never waited for; it only makes the set shareable.
#[derive(Clone, Default)]
pub(crate) struct Streams {
    set: Arc<Mutex<JoinSet<()>>>,
}

impl Streams {
    /// Ends every stream at its next await: each open one is reset (CANCEL).
    pub(crate) fn abort_all(&self) {
        self.with(JoinSet::abort_all);
    }

    fn with<T>(&self, action: impl FnOnce(&mut JoinSet<()>) -> T) -> T {
        // A panic cannot leave the set half changed.
        action(&mut self.set.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        self.with(|set| {
            while set.try_join_next().is_some() {}
            set.spawn(future);
        });
    }
}
