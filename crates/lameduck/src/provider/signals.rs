//! SIGTERM and SIGINT, on a thread of their own: they are heard while every worker is busy.
//!
//! The first signal begins a stop; further ones change nothing, but the second SIGINT ends the
//! process with exit code 11. A signal before `run` ends it at once with code 0: nothing has been
//! registered, nobody is served. So does the first one after a stop that no signal began: nobody
//! else would listen any more. A stop that has not ended with its budget, because the runtime is
//! blocked, is ended with exit code 10. This is the only place that ends the process.

use std::io::{self, IsTerminal};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lameduck_core::drain::{Input, Reason};
use lameduck_core::limits::ABORT_MAX;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use super::handle::Shared;
use super::report;

/// Exit code of a stop that was forced.
const FORCED: i32 = 11;
/// Exit code of a stop that is incomplete when its budget is used up.
const INCOMPLETE: i32 = 10;

/// How far the provider has come, as the signals need to know it.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    cell: Arc<(Mutex<Step>, Condvar)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Built,
    Running,
    Ended,
}

impl Progress {
    /// `run` has begun. Waits for ever where a signal is just ending the process.
    pub(super) fn run(&self) {
        *self.lock() = Step::Running;
    }

    /// The report is written.
    pub(super) fn end(&self) {
        *self.lock() = Step::Ended;
        self.cell.1.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Step> {
        self.cell.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_end(&self) -> bool {
        let (step, _) = self
            .cell
            .1
            .wait_timeout_while(self.lock(), ABORT_MAX * 2, |step| *step != Step::Ended)
            .unwrap_or_else(PoisonError::into_inner);
        *step == Step::Ended
    }
}

/// Catches signals from the moment this returns, for the rest of the process's life.
///
/// # Errors
///
/// What the system says of the thread or of the handlers.
pub(super) fn install(
    shared: Arc<Shared>,
    service: String,
    progress: Progress,
    budget: Duration,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (terminate, interrupt) = {
        let _inside = runtime.enter();
        (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        )
    };
    let listener = Listener {
        shared,
        service,
        progress,
        budget,
        overdue: None,
        heard: false,
        interrupts: 0,
    };
    let listen = move || runtime.block_on(listener.listen(terminate, interrupt));
    std::thread::Builder::new()
        .name("lameduck-signals".to_owned())
        .spawn(listen)?;
    Ok(())
}

struct Listener {
    shared: Arc<Shared>,
    service: String,
    progress: Progress,
    budget: Duration,
    /// When the stop that a signal began must have ended.
    overdue: Option<Instant>,
    /// Whether there was a signal before.
    heard: bool,
    interrupts: u32,
}

impl Listener {
    async fn listen(mut self, mut terminate: Signal, mut interrupt: Signal) {
        loop {
            let overdue = self.overdue;
            let end = sleep_until(overdue.unwrap_or_else(Instant::now));
            // Where both wait, nobody knows which came first: the orderly one is the reason.
            tokio::select! {
                biased;
                Some(()) = terminate.recv() => self.begin(Reason::Sigterm),
                Some(()) = interrupt.recv() => self.interrupted(),
                () = end, if overdue.is_some() => {
                    self.overdue = None;
                    self.end_overdue();
                }
                else => return,
            }
        }
    }

    fn interrupted(&mut self) {
        self.interrupts += 1;
        if self.interrupts > 1 {
            self.force();
        } else if io::stdin().is_terminal() {
            self.begin(Reason::Terminal);
        } else {
            self.begin(Reason::Sigint);
        }
    }

    fn begin(&mut self, reason: Reason) {
        let first = !std::mem::replace(&mut self.heard, true);
        let step = self.progress.lock();
        let when = match *step {
            Step::Built => "before it served",
            Step::Ended if first => "after it had served",
            Step::Running | Step::Ended => {
                drop(step);
                if first {
                    self.overdue = Some(Instant::now() + self.budget);
                }
                drop(
                    self.shared
                        .commands
                        .send(|command| Input::Begin(command, reason)),
                );
                return;
            }
        };
        report::say(&self.service, &format_args!("stopped ({reason}) {when}"));
        // The lock is held: `run` cannot begin, and register, in between.
        std::process::exit(0);
    }

    /// The drain keeps its budget by itself, but not where its runtime does not run it.
    fn end_overdue(&self) {
        if !self.progress.wait_for_end() {
            let abandoned = self.shared.gate.in_flight().total;
            let what = format!("is stuck: its runtime is blocked, abandoned {abandoned}");
            report::say(&self.service, &what);
            std::process::exit(INCOMPLETE);
        }
    }

    /// The runtime gets a moment to cut and to say what it abandons; a stuck one gets no more.
    fn force(&self) {
        let _ = self.shared.commands.inputs.send(Input::Abort);
        if !self.progress.wait_for_end() {
            let abandoned = self.shared.gate.in_flight().total;
            let what = format!("was forced to stop, abandoned {abandoned}");
            report::say(&self.service, &what);
        }
        std::process::exit(FORCED);
    }
}
