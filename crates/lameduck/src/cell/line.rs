//! Calls that wait for a stream, in the order in which they came.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

/// The line of those that found all streams in use.
///
/// Only the first of the line looks for a stream, and a call that comes while there is a line goes to
/// its end: a caller that begins a call as soon as the last one is answered would otherwise always be
/// faster than one that waits.
#[derive(Debug)]
pub(crate) struct Line {
    first: Semaphore,
    waiting: AtomicU64,
    joined: AtomicU64,
}

/// A place in the line. Given up when dropped.
#[derive(Debug)]
struct Place<'a>(&'a Line);

/// The first of the line, until this is dropped.
#[derive(Debug)]
pub(crate) struct First<'a> {
    // Dropped in this order: who is counted may find that it is its turn.
    _turn: SemaphorePermit<'a>,
    _place: Place<'a>,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            first: Semaphore::new(1),
            waiting: AtomicU64::new(0),
            joined: AtomicU64::new(0),
        }
    }
}

impl Line {
    /// Whether somebody waits. One load, no order with anything else: who overlooks the line by a
    /// moment takes one turn before it.
    pub(crate) fn is_formed(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// How many wait now.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How many have waited so far, those that wait now among them.
    pub(crate) fn joined(&self) -> u64 {
        self.joined.load(Ordering::Relaxed)
    }

    /// Waits until all that came before have a stream or have given up.
    pub(crate) async fn join(&self) -> First<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.joined.fetch_add(1, Ordering::Relaxed);
        let place = Place(self);
        let turn = self.first.acquire().await;
        First {
            _turn: turn.expect("it is never closed"),
            _place: place,
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn in_the_order_in_which_they_came_and_without_those_that_gave_up() {
        let line = Line::default();
        assert!(!line.is_formed());
        let first = line.join().await;
        let mut second = Box::pin(line.join());
        let mut third = Box::pin(line.join());
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        assert_eq!(line.waiting(), 3);
        drop(first);
        assert!((&mut third).now_or_never().is_none(), "not its turn");
        drop(second);
        let third = third.await;
        assert_eq!((line.waiting(), line.joined()), (1, 3));
        drop(third);
        assert!(!line.is_formed());
    }
}
