//! Calls that wait until there is somewhere to go.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Wakes those who wait, and costs one load where nobody does. Also deals out the numbers that
/// choices are made with, since every choice comes here.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: AtomicU64,
    turn: AtomicU64,
    changed: Notify,
}

/// One who waits; no more once dropped.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a Waiters);

impl Waiters {
    /// Nobody waits yet. The numbers begin with `first`: where it is random, processes that start
    /// together do not choose alike.
    pub(crate) fn starting_at(first: u64) -> Self {
        Self {
            turn: AtomicU64::new(first),
            ..Self::default()
        }
    }

    /// Begins to wait: whatever changes from here on wakes [`Waiting::changed`].
    pub(crate) fn wait(&self) -> Waiting<'_> {
        // Counted before the state is looked at again; who changes it looks at the count after.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Waiting(self)
    }

    /// There may be somewhere to go for everybody.
    pub(crate) fn wake_all(&self) {
        if self.is_waited() {
            self.changed.notify_waiters();
        }
    }

    /// There is room for one.
    pub(crate) fn wake_one(&self) {
        if self.is_waited() {
            self.changed.notify_one();
        }
    }

    fn is_waited(&self) -> bool {
        fence(Ordering::SeqCst);
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// The next number: each is given once, and no order with anything else is needed.
    pub(crate) fn turn(&self) -> u64 {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }
}

impl Waiting<'_> {
    /// Resolves with the next change after this call. Look at the state between this call and its
    /// first await.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.0.changed.notified()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_between_look_and_await_is_not_missed() {
        let waiters = Waiters::starting_at(u64::MAX);
        waiters.wake_all();
        let waiting = waiters.wait();
        let changed = waiting.changed();
        waiters.wake_all();
        changed.await;
        waiters.wake_one();
        waiting.changed().await;
        drop(waiting);
        assert_eq!((waiters.turn(), waiters.turn()), (u64::MAX, 0));
    }
}
