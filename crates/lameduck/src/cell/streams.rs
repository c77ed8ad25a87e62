//! The stream tasks of one HTTP/2 connection, so that they can be ended together.

use std::cell::RefCell;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::rt::Executor;
use tokio::task::JoinSet;

/// What lives as long as something else does: a permit.
type Kept = Box<dyn Send>;

tokio::task_local! {
    /// What the tunnel that a stream's task is about to begin will keep.
    static FOR_TUNNEL: RefCell<Option<Kept>>;
}

/// Keeps `kept` until the tunnel ends that this stream becomes: its sending half was closed by its
/// owner, or it was reset, or the connection ended. For a stream's task whose answer accepts a CONNECT:
/// hyper spawns the tunnel's task from it, and there is no other sign of its end. Without a tunnel it is
/// dropped with the stream's task.
pub(crate) fn keep_for_tunnel(kept: Kept) {
    // Outside of a stream's task there is no tunnel to wait for.
    let _ = FOR_TUNNEL.try_with(|slot| slot.replace(Some(kept)));
}

/// Spawns the stream tasks of one connection, and its tunnels, into one set.
///
/// The lock is taken by the connection's own task (hyper spawns while it is polled, and the cut comes
/// from the same task), and by a stream's task that becomes a tunnel: it is held for a moment only.
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
        let kept = FOR_TUNNEL.try_with(RefCell::take).ok().flatten();
        let task = async move {
            future.await;
            drop(kept);
        };
        self.with(|set| {
            while set.try_join_next().is_some() {}
            set.spawn(FOR_TUNNEL.scope(RefCell::new(None), task));
        });
    }
}
