//! What must hold in every world, judged by what was really started and really answered.

use std::collections::BTreeMap;

use lameduck_core::event::Tier;
use lameduck_core::failover::Proof;
use lameduck_core::instance::Incarnation;
use lameduck_core::time::Timestamp;

use super::wire::CallId;

/// How a call ended for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    /// The last attempt failed, with this proof.
    Failed(Proof),
    /// Nothing to place it on.
    NoEndpoint,
    TooLate,
}

/// What a process suffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Harm {
    process: usize,
    from: Timestamp,
    until: Timestamp,
}

#[derive(Clone, Debug, Default)]
struct Story {
    idempotent: bool,
    made: Timestamp,
    starts: Vec<(Timestamp, usize)>,
    placed: Vec<(Timestamp, usize)>,
    fate: Option<Fate>,
}

/// Collects, and says what was violated.
#[derive(Default)]
pub(super) struct Oracle {
    stories: BTreeMap<CallId, Story>,
    harms: Vec<Harm>,
    pub(super) violations: Vec<String>,
    pub(super) answered: u64,
    pub(super) excused: u64,
    pub(super) drains: u64,
    /// When each process started the last call that keeps it from being quiet.
    pub(super) last_start: BTreeMap<usize, Timestamp>,
    /// Nothing is placed twice.
    pub(super) once: bool,
}

impl Oracle {
    pub(super) fn made(&mut self, now: Timestamp, call: CallId, idempotent: bool) {
        let story = Story {
            idempotent,
            made: now,
            ..Story::default()
        };
        self.stories.insert(call, story);
    }

    pub(super) fn placed(&mut self, now: Timestamp, call: CallId, process: usize) {
        if let Some(story) = self.stories.get_mut(&call) {
            story.placed.push((now, process));
            if self.once && story.placed.len() > 1 {
                let placed = &story.placed;
                self.violations.push(format!(
                    "call {} was placed twice without failover: {placed:?}",
                    call.0
                ));
            }
        }
    }

    pub(super) fn started(&mut self, now: Timestamp, call: CallId, process: usize) {
        let Some(story) = self.stories.get_mut(&call) else {
            return;
        };
        story.starts.push((now, process));
        if story.starts.len() > 1 && !story.idempotent {
            let starts = &story.starts;
            self.violations.push(format!(
                "call {} may run once and ran twice: {starts:?}",
                call.0
            ));
        }
    }

    pub(super) fn ended(&mut self, now: Timestamp, call: CallId, fate: Fate) {
        let Some(story) = self.stories.get_mut(&call) else {
            return;
        };
        if let Some(before) = story.fate.replace(fate) {
            self.violations
                .push(format!("call {} ended twice: {before:?}, {fate:?}", call.0));
        }
        if fate == Fate::Answered {
            self.answered += 1;
            if story.starts.is_empty() {
                self.violations
                    .push(format!("call {} was answered and never started", call.0));
            }
            return;
        }
        let harmed = story.placed.iter().any(|(at, process)| {
            self.harms
                .iter()
                .any(|harm| harm.process == *process && harm.from <= now && *at <= harm.until)
        });
        if harmed {
            self.excused += 1;
        } else {
            let placed = &story.placed;
            self.violations.push(format!(
                "call {} made at {} was lost: {fate:?}, placed {placed:?}",
                call.0, story.made
            ));
        }
    }

    /// A process is killed, paused or cut off: calls that it has, or gets until then, may be lost.
    pub(super) fn harm(&mut self, process: usize, from: Timestamp, until: Timestamp) {
        self.harms.push(Harm {
            process,
            from,
            until,
        });
    }

    /// The exact rule: once the closing event of a life was processed, it is not chosen while
    /// another is ready.
    pub(super) fn picked(
        &mut self,
        call: CallId,
        life: Incarnation,
        closed: bool,
        tier: Tier,
        any_ready: bool,
    ) {
        if closed && any_ready {
            self.violations.push(format!(
                "call {} was given to {life}, known to be closing ({tier:?})",
                call.0
            ));
        }
    }

    /// Whether a process was killed, paused or cut off after `since`.
    pub(super) fn was_harmed(&self, process: usize, since: Timestamp) -> bool {
        let harms = self.harms.iter();
        harms
            .clone()
            .any(|harm| harm.process == process && harm.until >= since)
    }

    pub(super) fn unfinished(&mut self) {
        let open = self
            .stories
            .iter()
            .filter(|(_, story)| story.fate.is_none());
        for (call, story) in open {
            self.violations.push(format!(
                "call {} made at {} never ended",
                call.0, story.made
            ));
        }
    }

    pub(super) fn require(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(what());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(5);

    fn one_call(idempotent: bool) -> Oracle {
        let mut oracle = Oracle::default();
        oracle.made(NOW, CallId(1), idempotent);
        oracle.placed(NOW, CallId(1), 0);
        oracle.started(NOW, CallId(1), 0);
        oracle
    }

    #[test]
    fn a_clean_call_is_clean() {
        let mut oracle = one_call(false);
        oracle.ended(NOW, CallId(1), Fate::Answered);
        oracle.unfinished();
        assert_eq!(oracle.violations, [""; 0]);
    }

    #[test]
    fn finds_what_ran_twice_but_not_where_that_is_declared() {
        let mut oracle = one_call(false);
        oracle.started(NOW, CallId(1), 1);
        assert_eq!(oracle.violations.len(), 1);
        let mut oracle = one_call(true);
        oracle.started(NOW, CallId(1), 1);
        assert_eq!(oracle.violations, [""; 0]);
    }

    #[test]
    fn finds_the_lost_and_excuses_the_harmed() {
        let mut oracle = one_call(false);
        oracle.ended(NOW, CallId(1), Fate::Failed(Proof::Unknown));
        assert_eq!(oracle.violations.len(), 1);
        let mut oracle = one_call(false);
        oracle.harm(0, NOW, NOW);
        oracle.ended(NOW, CallId(1), Fate::Failed(Proof::Unknown));
        assert_eq!((oracle.violations.len(), oracle.excused), (0, 1));
    }

    #[test]
    fn finds_the_unfinished_and_the_answer_from_nowhere() {
        let mut oracle = one_call(false);
        oracle.unfinished();
        assert_eq!(oracle.violations.len(), 1);
        let mut oracle = Oracle::default();
        oracle.made(NOW, CallId(1), false);
        oracle.ended(NOW, CallId(1), Fate::Answered);
        assert_eq!(oracle.violations.len(), 1);
    }

    #[test]
    fn finds_a_pick_against_better_knowledge() {
        let mut oracle = Oracle::default();
        oracle.picked(
            CallId(1),
            Incarnation::Lease(1),
            true,
            Tier::LastResort,
            false,
        );
        assert_eq!(oracle.violations, [""; 0]);
        oracle.picked(
            CallId(1),
            Incarnation::Lease(1),
            true,
            Tier::LastResort,
            true,
        );
        assert_eq!(oracle.violations.len(), 1);
    }
}
