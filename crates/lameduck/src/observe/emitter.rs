//! The thread that shows events to code that is not ours.
//!
//! A subscriber of the log or an observer may panic, or block for ever: on a pipe that nobody reads, on
//! a lock. Whoever says an event only puts it into a queue; what is done with it happens here, in the
//! order in which events were said. The thread begins with the first event, and ends once everything is
//! shown and nobody can say any more.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lameduck_core::event::Event;
use lameduck_core::limits::EVENTS_WAITING_MAX;
use tracing::level_filters::LevelFilter;
use tracing::{Dispatch, dispatcher, warn};

use super::{Observers, level, log, log_left_out};
use crate::foreign::{Panicked, discard, quietly};

/// What says events to the thread. The thread ends after the last of them is gone.
#[derive(Debug, Default)]
pub(super) struct Emitter {
    queue: Arc<Queue>,
}

/// What the two sides share.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    observers: Observers,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Item>,
    /// How many were said, those that were lost not counted.
    said: u64,
    /// How many of them are shown.
    shown: u64,
    /// How many were lost since the last one that was shown.
    lost: u64,
    /// Whether the thread runs.
    running: bool,
    /// Nobody can say any more.
    closed: bool,
}

/// Something to show, and the log of the thread on which it happened.
struct Item {
    what: What,
    log: Dispatch,
}

enum What {
    Event(Event),
    /// An observer that is called where events happen has panicked.
    LeftOut(Panicked),
}

impl Emitter {
    /// Shows events to the log and, on the same thread, to `observers`.
    pub(super) fn new(observers: Observers) -> Self {
        let queue = Queue {
            observers,
            ..Queue::default()
        };
        Self {
            queue: Arc::new(queue),
        }
    }

    /// Takes an event, unless nobody would see it.
    pub(super) fn say(&self, event: &Event) {
        let queue = &self.queue;
        if queue.observers.is_empty() && level(event) > LevelFilter::current() {
            return;
        }
        self.put(What::Event(event.clone()));
    }

    /// An observer has panicked, and is called no more.
    pub(super) fn left_out(&self, why: Panicked) {
        self.put(What::LeftOut(why));
    }

    fn put(&self, what: What) {
        let queue = &self.queue;
        let log = dispatcher::get_default(Dispatch::clone);
        let mut state = queue.lock();
        if state.waiting.len() >= EVENTS_WAITING_MAX {
            state.lost += 1;
            return;
        }
        state.said += 1;
        state.waiting.push_back(Item { what, log });
        if !state.running {
            let shown = Arc::clone(queue);
            let thread = std::thread::Builder::new().name("lameduck-events".to_owned());
            // Where there is no thread to be had, events wait for the next attempt.
            state.running = thread.spawn(move || shown.run()).is_ok();
        }
        drop(state);
        queue.changed.notify_all();
    }

    /// What waits until all that has been said by now is shown.
    pub(super) fn said(&self) -> Said {
        Said {
            count: self.queue.lock().said,
            queue: Arc::clone(&self.queue),
        }
    }
}

impl Drop for Emitter {
    fn drop(&mut self) {
        self.queue.lock().closed = true;
        self.queue.changed.notify_all();
    }
}

/// Events that were said.
#[derive(Debug)]
pub(crate) struct Said {
    queue: Arc<Queue>,
    count: u64,
}

impl Said {
    /// Blocks the thread until they are shown, for `most` at most.
    pub(crate) fn wait(&self, most: Duration) {
        let waits = |state: &mut State| state.running && state.shown < self.count;
        let state = self.queue.lock();
        // Whether it came in time is nobody's business: what blocks the log has a reason.
        drop(self.queue.changed.wait_timeout_while(state, most, waits));
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every step on it leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while let Some((item, lost)) = self.next() {
            let Item { what, log: to } = item;
            // A log whose pipe is closed panics each time; it may have another pipe next time.
            let logged = |show: &dyn Fn()| drop(quietly(|| dispatcher::with_default(&to, show)));
            if lost > 0 {
                logged(&|| {
                    warn!(
                        lost,
                        "events were not shown: the log or an observer is too slow"
                    )
                });
            }
            match what {
                What::Event(event) => {
                    logged(&|| log(&event));
                    let left_out = |why| logged(&|| log_left_out(&why));
                    self.observers.show(&event, left_out);
                }
                What::LeftOut(why) => logged(&|| log_left_out(&why)),
            }
            discard(to);
            self.lock().shown += 1;
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<(Item, u64)> {
        let waits = |state: &mut State| state.waiting.is_empty() && !state.closed;
        let state = self.changed.wait_while(self.lock(), waits);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let item = state.waiting.pop_front()?;
        Some((item, std::mem::take(&mut state.lost)))
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State({} wait, {} lost)", self.waiting.len(), self.lost)
    }
}
