//! Code that is not ours: observers, subscribers of the log, hooks, resolvers, registries.
//!
//! What of it panics hurts itself alone. What of it blocks is run on a thread of its own where a
//! stop would wait for it.

use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::mpsc;
use std::task::Poll;

use futures_util::FutureExt;
use tokio::runtime::{Handle, RuntimeFlavor};

/// A panic of foreign code, in its own words.
#[derive(Debug)]
pub(crate) struct Panicked(String);

impl Panicked {
    /// Reads the payload of a panic, and drops it: its destructor is foreign code too.
    pub(crate) fn of(payload: Box<dyn Any + Send>) -> Self {
        let text = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned());
        discard(payload);
        Self(text.unwrap_or_else(|| "without a message".to_owned()))
    }
}

impl Panicked {
    /// Its own words alone.
    pub(crate) fn message(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it panicked: {}", self.0)
    }
}

/// Runs foreign code to its end or its panic.
///
/// # Errors
/// The panic.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(Panicked::of)
}

/// Runs a future of foreign code, which `make` makes, to its end or its panic. Its destructor may
/// panic too, also where this is dropped before its end.
///
/// # Errors
/// The panic.
pub(crate) async fn quietly_await<F: Future>(
    make: impl FnOnce() -> F,
) -> Result<F::Output, Panicked> {
    let mut running = Running(Some(Box::pin(async move { make().await })));
    let running = poll_fn(|context| match &mut running.0 {
        Some(future) => future.as_mut().poll(context),
        // Taken by the destructor alone.
        None => Poll::Pending,
    });
    let ended = AssertUnwindSafe(running).catch_unwind().await;
    ended.map_err(Panicked::of)
}

struct Running<F>(Option<Pin<Box<F>>>);

impl<F> Drop for Running<F> {
    fn drop(&mut self) {
        discard(self.0.take());
    }
}

/// Held while a thread outside the runtime works: time that is paused, in a test on a runtime of one
/// thread, must not take that for idleness and run on.
#[derive(Debug)]
pub(crate) struct Awake {
    _until_dropped: Option<mpsc::Sender<()>>,
}

impl Awake {
    /// Within a runtime.
    pub(crate) fn here() -> Self {
        let runtime = Handle::current();
        let one = runtime.runtime_flavor() == RuntimeFlavor::CurrentThread;
        let hold = || {
            let (awake, held) = mpsc::channel();
            runtime.spawn_blocking(move || {
                // Until the sender is gone.
                let _ = held.recv();
            });
            awake
        };
        Self {
            _until_dropped: one.then(hold),
        }
    }
}

/// Drops a value whose destructor may panic.
pub(crate) fn discard<T>(value: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(move || drop(value))) {
        // Whoever panics in a destructor may do so again.
        std::mem::forget(payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics when it is dropped.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a bomb");
        }
    }

    #[test]
    fn s3_a_payload_that_panics_in_its_destructor_is_one_panic() {
        let said = quietly(|| std::panic::panic_any(Bomb)).expect_err("it panicked");
        assert_eq!(said.to_string(), "it panicked: without a message");
        let said = quietly(|| panic!("number {}", 7)).expect_err("it panicked");
        assert_eq!(said.to_string(), "it panicked: number 7");
        discard(Bomb);
    }

    #[tokio::test]
    async fn s3_futures_that_panic_in_each_of_their_parts() {
        let at_once = quietly_await(|| -> std::future::Ready<()> { panic!("at once") });
        let said = at_once.await.expect_err("it panicked").to_string();
        assert_eq!(said, "it panicked: at once");
        let later = quietly_await(|| async {
            tokio::task::yield_now().await;
            panic!("later")
        });
        let said: Result<(), _> = later.await;
        assert_eq!(
            said.expect_err("it panicked").to_string(),
            "it panicked: later"
        );
        let at_its_end = quietly_await(|| async {
            let _bomb = Bomb;
        });
        assert!(at_its_end.await.is_err());
        let mut dropped = Box::pin(quietly_await(|| async {
            let _bomb = Bomb;
            std::future::pending::<()>().await;
        }));
        assert!(futures_util::poll!(dropped.as_mut()).is_pending());
        drop(dropped);
    }
}
