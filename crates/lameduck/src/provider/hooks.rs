//! What a program wants done after its last request: flush, close, say goodbye.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;

use lameduck_core::drain::Input;
use lameduck_core::machine::Ticket;
use tokio::task::{JoinError, JoinHandle};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;
type Work = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;

/// One hook. Begun at most once, after everything in flight is done.
pub(super) struct Hook {
    pub(super) name: String,
    work: Option<Work>,
}

impl Hook {
    pub(super) fn new<F, Fut>(name: &str, work: F) -> Self
    where
        F: FnOnce() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        Self {
            name: name.to_owned(),
            work: Some(Box::new(move || Box::pin(work()))),
        }
    }

    /// Begins it on a task of its own, so that a hook that panics or hangs hurts only itself.
    pub(super) fn begin(&mut self) -> Option<JoinHandle<Outcome>> {
        let work = self.work.take()?;
        Some(tokio::spawn(work()))
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hook({})", self.name)
    }
}

/// What the machine hears of a hook's end.
pub(super) fn done(ticket: Ticket, joined: Result<Outcome, JoinError>) -> Input {
    let result = match joined {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(join) if join.is_panic() => Err("it panicked".to_owned()),
        Err(_) => Err("it was cancelled".to_owned()),
    };
    Input::HookDone(ticket, result)
}
