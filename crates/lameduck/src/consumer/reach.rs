//! Whether an endpoint can be reached: said once when it cannot, and once when that is over. And whether a
//! call that finds nothing else has something to hope for here.
//!
//! An endpoint that is known to be closing may refuse: that is no outage, and is not said.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lameduck_core::limits::DIAL_WANTED_AFTER;
use lameduck_core::time::Timestamp;

/// What a call that finds nothing to choose can hope for from an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// Nothing: its last dial was refused just now.
    InVain,
    /// Something is under way, or unknown.
    Wait,
    /// Another dial, which is due: its machine is to be told.
    Dial,
}

/// A dial that failed, as its endpoint sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// It is no outage: the instance is known to be closing, or another connection to it is up, or
    /// nobody dialled it for want of descriptors.
    pub(super) expected: bool,
    /// Nothing listens there.
    pub(super) refused: bool,
}

/// How the dials of one endpoint went. A lock, since each dial has a task; never held across an await.
#[derive(Debug, Default)]
pub(super) struct Reach(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: State,
    /// When a call wanted it last, where no dial had failed.
    wanted: Option<Timestamp>,
    coming: Coming,
}

/// Whether a connection that calls may use is to be expected soon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Coming {
    /// A dial is under way, or about to begin; the last one, if there was one, ended well.
    #[default]
    UnderWay,
    /// It is there since then. The directory is about to hear of it.
    Since(Timestamp),
    /// The last dial brought none.
    No,
}

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
    refused: bool,
    /// When the last dial ended.
    at: Timestamp,
    /// Whether another one is under way, or is going to be made.
    again: bool,
}

impl Reach {
    /// Why the last dial failed, if it did.
    pub(super) fn failure(&self) -> Option<Arc<str>> {
        match &self.lock().state {
            State::Failing(failure) => Some(Arc::clone(&failure.why)),
            State::Fine | State::Over => None,
        }
    }

    /// A dial failed. True where that is to be said: it is an outage, and was not said before.
    pub(super) fn failed(&self, now: Timestamp, why: &str, outcome: Outcome) -> bool {
        let Outcome { expected, refused } = outcome;
        let Inner { state, coming, .. } = &mut *self.lock();
        *coming = Coming::No;
        let (since, said) = match &*state {
            State::Fine => (now, false),
            State::Failing(failure) => (failure.since, failure.said),
            State::Over => return false,
        };
        *state = State::Failing(Failure {
            why: why.into(),
            since,
            said: said || !expected,
            refused,
            at: now,
            again: false,
        });
        !said && !expected
    }

    /// A dial succeeded. How long none had, where that was said.
    pub(super) fn reached(&self, now: Timestamp) -> Option<Duration> {
        let state = &mut self.lock().state;
        match state {
            State::Over => None,
            State::Fine | State::Failing(_) => outage(now, mem::take(state)),
        }
    }

    /// Nobody dials any more, and what still comes does not count. As [`reached`](Self::reached).
    pub(super) fn over(&self, now: Timestamp) -> Option<Duration> {
        let inner = &mut *self.lock();
        inner.coming = Coming::No;
        outage(now, mem::replace(&mut inner.state, State::Over))
    }

    /// Another dial begins.
    pub(super) fn begins(&self) {
        let inner = &mut *self.lock();
        if let State::Failing(failure) = &mut inner.state {
            failure.again = true;
        }
        if inner.coming != Coming::No {
            inner.coming = Coming::UnderWay;
        }
    }

    /// Calls may use what was dialled.
    pub(super) fn offered(&self, now: Timestamp) {
        self.lock().coming = Coming::Since(now);
    }

    /// A connection ended. One that calls were never offered brought nothing.
    pub(super) fn ended(&self) {
        let coming = &mut self.lock().coming;
        if *coming == Coming::UnderWay {
            *coming = Coming::No;
        }
    }

    /// Whether a call that has failed elsewhere gains by waiting for this endpoint.
    pub(super) fn is_coming(&self, now: Timestamp) -> bool {
        match self.lock().coming {
            Coming::UnderWay => true,
            Coming::Since(at) => now < at + DIAL_WANTED_AFTER,
            Coming::No => false,
        }
    }

    /// A call finds nothing to choose. Each dial is asked for by one of those who want it.
    pub(super) fn want(&self, now: Timestamp) -> Want {
        let inner = &mut *self.lock();
        match &mut inner.state {
            State::Over => Want::InVain,
            State::Fine => {
                let due = |at: Timestamp| at + DIAL_WANTED_AFTER <= now;
                if inner.wanted.is_some_and(|at| !due(at)) {
                    return Want::Wait;
                }
                inner.wanted = Some(now);
                Want::Dial
            }
            State::Failing(failure) if failure.again => Want::Wait,
            State::Failing(failure) if failure.at + DIAL_WANTED_AFTER <= now => {
                failure.again = true;
                Want::Dial
            }
            State::Failing(failure) if failure.refused => Want::InVain,
            State::Failing(_) => Want::Wait,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
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

    const SILENT: Outcome = Outcome {
        expected: false,
        refused: false,
    };
    const EXPECTED: Outcome = Outcome {
        expected: true,
        ..SILENT
    };
    const REFUSED: Outcome = Outcome {
        refused: true,
        ..SILENT
    };

    #[test]
    fn r21_a_call_hopes_for_nothing_right_after_a_refusal_and_for_the_next_dial_after_that() {
        let reach = Reach::default();
        assert_eq!(reach.want(at(0)), Want::Dial, "a pause may be ended");
        assert_eq!(reach.want(at(1)), Want::Wait);
        reach.failed(at(1), WHY, REFUSED);
        assert_eq!(reach.want(at(2)), Want::InVain);
        reach.begins();
        assert_eq!(reach.want(at(3)), Want::Wait, "it is dialled by itself");
        reach.failed(at(4), WHY, REFUSED);
        let due = at(4) + DIAL_WANTED_AFTER;
        assert_eq!(reach.want(due), Want::Dial);
        assert_eq!(reach.want(due), Want::Wait, "another call asked for it");
        reach.failed(due, WHY, SILENT);
        assert_eq!(reach.want(due), Want::Wait, "silence is no refusal");
        reach.reached(due);
        assert_eq!(reach.want(due), Want::Dial);
        reach.over(due);
        assert_eq!(reach.want(due), Want::InVain, "nobody dials it any more");
    }

    #[test]
    fn r29_who_failed_elsewhere_waits_for_a_first_dial_and_not_for_one_that_has_failed() {
        let reach = Reach::default();
        assert!(reach.is_coming(at(0)), "it is about to be dialled");
        reach.begins();
        assert!(reach.is_coming(at(1)));
        reach.reached(at(2));
        assert!(reach.is_coming(at(2)), "it is asked for its health");
        reach.offered(at(3));
        assert!(reach.is_coming(at(3)), "the directory hears of it");
        let heard = at(3) + DIAL_WANTED_AFTER;
        assert!(!reach.is_coming(heard), "what it says keeps calls away");
        reach.ended();
        reach.begins();
        assert!(reach.is_coming(heard), "the successor of a good connection");
        reach.failed(heard, WHY, SILENT);
        reach.begins();
        assert!(!reach.is_coming(heard), "the last one failed");
        reach.reached(heard);
        assert!(!reach.is_coming(heard));
        reach.offered(heard);
        reach.begins();
        assert!(reach.is_coming(heard));
        reach.ended();
        reach.begins();
        assert!(!reach.is_coming(heard), "it ended without a word");
        reach.offered(heard);
        reach.over(heard);
        assert!(!reach.is_coming(heard));
    }

    fn at(milliseconds: u64) -> Timestamp {
        Timestamp::from_millis(milliseconds)
    }

    #[test]
    fn an_outage_is_said_once_and_so_is_its_end() {
        let reach = Reach::default();
        assert_eq!(reach.reached(at(0)), None);
        assert!(reach.failed(at(1), WHY, SILENT));
        assert!(!reach.failed(at(2), WHY, SILENT));
        assert_eq!(reach.failure().as_deref(), Some(WHY));
        assert_eq!(reach.reached(at(11)), Some(Duration::from_millis(10)));
        assert_eq!(reach.reached(at(12)), None);
        assert_eq!(reach.failure(), None);
        assert!(reach.failed(at(13), WHY, SILENT), "the next one");
    }

    #[test]
    fn what_is_expected_is_said_only_where_it_lasts_longer_than_that() {
        let reach = Reach::default();
        assert!(!reach.failed(at(1), WHY, EXPECTED));
        assert_eq!(reach.reached(at(2)), None);
        assert!(!reach.failed(at(3), WHY, EXPECTED));
        assert!(reach.failed(at(4), WHY, SILENT));
        assert!(!reach.failed(at(5), WHY, EXPECTED));
        assert_eq!(reach.over(at(6)), Some(Duration::from_millis(3)));
    }

    #[test]
    fn a_dial_that_ends_after_all_is_over_says_nothing() {
        let reach = Reach::default();
        assert_eq!(reach.over(at(1)), None);
        assert!(!reach.failed(at(2), WHY, SILENT));
        assert_eq!(reach.reached(at(3)), None);
        assert_eq!(reach.over(at(4)), None);
    }
}
