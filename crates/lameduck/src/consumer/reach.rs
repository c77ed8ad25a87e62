//! Whether an endpoint can be reached: said once when it cannot, and once when that is over.
//!
//! An endpoint that is known to be closing may refuse: that is no outage, and is not said.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lameduck_core::time::Timestamp;

/// How the dials of one endpoint went. A lock, since each dial has a task; never held across an await.
#[derive(Debug, Default)]
pub(super) struct Reach(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    /// The last dial succeeded, or none has ended yet.
    #[default]
    Fine,
    /// It failed.
    Failing(Failure),
    /// Nobody dials any more.
    Over,
}

#[derive(Debug)]
struct Failure {
    why: Arc<str>,
    since: Timestamp,
    said: bool,
}

impl Reach {
    /// Why the last dial failed, if it did.
    pub(super) fn failure(&self) -> Option<Arc<str>> {
        match &*self.lock() {
            State::Failing(failure) => Some(Arc::clone(&failure.why)),
            State::Fine | State::Over => None,
        }
    }

    /// A dial failed. True where that is to be said: it is an outage, and was not said before.
    pub(super) fn failed(&self, now: Timestamp, why: &str, expected: bool) -> bool {
        let mut state = self.lock();
        let (since, said) = match &*state {
            State::Fine => (now, false),
            State::Failing(failure) => (failure.since, failure.said),
            State::Over => return false,
        };
        *state = State::Failing(Failure {
            why: why.into(),
            since,
            said: said || !expected,
        });
        !said && !expected
    }

    /// A dial succeeded. How long none had, where that was said.
    pub(super) fn reached(&self, now: Timestamp) -> Option<Duration> {
        let mut state = self.lock();
        match &*state {
            State::Over => None,
            State::Fine | State::Failing(_) => outage(now, mem::take(&mut *state)),
        }
    }

    /// Nobody dials any more, and what still comes does not count. As [`reached`](Self::reached).
    pub(super) fn over(&self, now: Timestamp) -> Option<Duration> {
        outage(now, mem::replace(&mut *self.lock(), State::Over))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every step leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn outage(now: Timestamp, state: State) -> Option<Duration> {
    match state {
        State::Failing(failure) if failure.said => Some(now.saturating_since(failure.since)),
        State::Failing(_) | State::Fine | State::Over => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHY: &str = "connection refused";

    fn at(milliseconds: u64) -> Timestamp {
        Timestamp::from_millis(milliseconds)
    }

    #[test]
    fn an_outage_is_said_once_and_so_is_its_end() {
        let reach = Reach::default();
        assert_eq!(reach.reached(at(0)), None);
        assert!(reach.failed(at(1), WHY, false));
        assert!(!reach.failed(at(2), WHY, false));
        assert_eq!(reach.failure().as_deref(), Some(WHY));
        assert_eq!(reach.reached(at(11)), Some(Duration::from_millis(10)));
        assert_eq!(reach.reached(at(12)), None);
        assert_eq!(reach.failure(), None);
        assert!(reach.failed(at(13), WHY, false), "the next one");
    }

    #[test]
    fn what_is_expected_is_said_only_where_it_lasts_longer_than_that() {
        let reach = Reach::default();
        assert!(!reach.failed(at(1), WHY, true));
        assert_eq!(reach.reached(at(2)), None);
        assert!(!reach.failed(at(3), WHY, true));
        assert!(reach.failed(at(4), WHY, false));
        assert!(!reach.failed(at(5), WHY, true));
        assert_eq!(reach.over(at(6)), Some(Duration::from_millis(3)));
    }

    #[test]
    fn a_dial_that_ends_after_all_is_over_says_nothing() {
        let reach = Reach::default();
        assert_eq!(reach.over(at(1)), None);
        assert!(!reach.failed(at(2), WHY, false));
        assert_eq!(reach.reached(at(3)), None);
        assert_eq!(reach.over(at(4)), None);
    }
}
