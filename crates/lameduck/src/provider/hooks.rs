//! What a program wants done after its last request: flush, close, say goodbye.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use lameduck_core::drain::{HookPlan, Input};
use lameduck_core::machine::Ticket;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::foreign::{Awake, Panicked, quietly_await};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;
type Work = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;

/// One hook. Begun at most once, after everything in flight is done.
pub(super) struct Hook {
    name: String,
    /// How long it may take at most.
    max: Duration,
    work: Option<Work>,
}

impl Hook {
    pub(super) fn new<F, Fut>(name: &str, max: Duration, work: F) -> Self
    where
        F: FnOnce() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        Self {
            name: name.to_owned(),
            max,
            work: Some(Box::new(move || Box::pin(work()))),
        }
    }

    /// What the drain knows of it.
    pub(super) fn plan(&self) -> HookPlan {
        HookPlan {
            name: self.name.clone(),
            max: self.max,
        }
    }

    /// Begins it on a thread of its own: one that panics, hangs or blocks hurts only itself, also where
    /// it does so before its first await, and where the runtime has one thread.
    pub(super) fn begin(&mut self) -> Option<Running> {
        let work = self.work.take()?;
        let runtime = Handle::current();
        let (done, ended) = oneshot::channel();
        let awake = Awake::here();
        let run = move || {
            let outcome = runtime.block_on(quietly_await(work));
            // Where it took too long, nobody waits any more.
            let _ = done.send(outcome);
        };
        let thread = std::thread::Builder::new().name("lameduck-hook".to_owned());
        let ended = thread.spawn(run).map(|_| ended);
        Some(Running {
            ended,
            _awake: awake,
        })
    }
}

/// A hook that has begun. Dropped, it is left behind.
pub(super) struct Running {
    ended: io::Result<oneshot::Receiver<Result<Outcome, Panicked>>>,
    _awake: Awake,
}

impl Running {
    /// What the machine hears of its end.
    pub(super) async fn done(self, ticket: Ticket) -> Input {
        let result = match self.ended {
            Ok(ended) => match ended.await {
                Ok(Ok(outcome)) => outcome.map_err(|error| error.to_string()),
                Ok(Err(panicked)) => Err(panicked.to_string()),
                Err(_) => Err("its runtime ended".to_owned()),
            },
            Err(error) => Err(format!("no thread for it: {error}")),
        };
        Input::HookDone(ticket, result)
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hook({})", self.name)
    }
}
