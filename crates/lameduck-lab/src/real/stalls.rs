//! Times in which nobody ran, as threads found that only sleep, and which losses they explain.
//!
//! A call that was too late while the machine stood still says nothing of lameduck. One that was
//! refused, cut, started twice or placed at a life that had closed says as much as ever: no stall
//! explains it, and the run is judged by it.

use std::fmt;
use std::time::Duration;

use lameduck_core::limits::REVOKE_MAX;
use lameduck_core::time::Timestamp;

use super::ledger::{Call, End, Ledger, Source};
use super::limits::STALL_SHARE;
use super::oracle::{Drain, Fault, History, Verdict};
use super::plan::{Plan, Planned};
use super::record::CallId;
use super::validity::Reason;

/// Who stood still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The lab itself, which does nothing: whoever it meets, it meets all.
    Machine,
    /// One of its children, which the system let wait.
    Child(Source),
    /// The disk that the run's own etcd writes to, and waits for.
    Disk,
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("in the lab itself"),
            Self::Disk => f.write_str("in waiting for the disk"),
            Self::Child(Source::Server(server)) => write!(f, "in server {server}"),
            Self::Child(Source::Caller(caller)) => write!(f, "in caller {caller}"),
        }
    }
}

/// From when a thread that only sleeps wanted to be awake until it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Whose thread.
    pub whose: Whose,
    /// From when.
    pub from: Timestamp,
    /// Until when.
    pub to: Timestamp,
}

impl Stall {
    /// One that ended `awake`, after so much time.
    #[must_use]
    pub fn new(whose: Whose, awake: Timestamp, late: Duration) -> Self {
        Self {
            whose,
            from: awake - late,
            to: awake,
        }
    }

    /// How long it was.
    #[must_use]
    pub const fn length(&self) -> Duration {
        self.to.saturating_since(self.from)
    }

    /// Whether it has to do with a call that was there.
    fn concerns(&self, ledger: &Ledger, id: CallId, call: &Call) -> bool {
        let lives = call.starts.iter().map(|(life, _)| *life);
        let is_at = |server| {
            let mut accounts = lives
                .chain(call.picked)
                .filter_map(|life| ledger.life(life));
            accounts.any(|account| account.server == server)
        };
        match self.whose {
            Whose::Machine => true,
            Whose::Disk => false,
            Whose::Child(Source::Caller(caller)) => id.caller == caller,
            Whose::Child(Source::Server(server)) => is_at(server),
        }
    }

    /// Whether the lab itself had stopped that process.
    fn is_freeze(&self, history: &History) -> bool {
        let mut freezes = history.freezes.iter();
        freezes.any(|freeze| {
            self.whose == Whose::Child(Source::Server(freeze.server))
                && self.from <= freeze.thawed
                && self.to >= freeze.at
        })
    }
}

/// What a caller writes of a call whose time was over by its own clock: the code, by name, or its own
/// words where nobody had said anything.
pub const NO_END: &str = "no end after its deadline";

/// Whether an error of a call says that its time was over.
#[must_use]
pub fn is_timeout(error: &str) -> bool {
    error.starts_with("DeadlineExceeded:") || error == NO_END
}

/// Why the run proves nothing, where every fault of it is one that a stall explains.
pub(super) fn stalled(
    ledger: &Ledger,
    plan: &Plan,
    history: &History,
    verdict: &Verdict,
) -> Option<Reason> {
    let stalls = ledger.stalls.iter().copied();
    let stalls: Vec<Stall> = stalls.filter(|stall| !stall.is_freeze(history)).collect();
    let mut behind: Vec<Stall> = Vec::new();
    for (id, fault) in &verdict.faults {
        let call = ledger.call_of(*id)?;
        let planned = plan.call(*id);
        let concerned = stalls
            .iter()
            .filter(|stall| stall.concerns(ledger, *id, call));
        let explaining = within(concerned, planned.due, planned.deadline);
        if !is_lateness(*fault, call, &planned) || !is_enough(&explaining, &planned) {
            return None;
        }
        behind.extend(explaining);
    }
    let longest = behind.into_iter().max_by_key(Stall::length)?;
    let lost = verdict.faults.len();
    Some(Reason::Stalled { lost, longest })
}

/// Why the run proves nothing where a server could not take its registration back: it asked while the
/// machine, it itself, or the registry's disk stood still for a good part of the time that it waits.
/// None where it did anything else wrong, and where nobody stood still: then that is its own doing.
pub(super) fn left_behind(ledger: &Ledger, drain: &Drain) -> Option<Reason> {
    let account = ledger.life(drain.life)?;
    if account.only_left != Some(true) || account.drained.is_none_or(|(_, cut)| cut > 0) {
        return None;
    }
    let server = Whose::Child(Source::Server(drain.server));
    let concerned = ledger
        .stalls
        .iter()
        .filter(|stall| [Whose::Machine, Whose::Disk, server].contains(&stall.whose));
    let stalls = within(concerned, drain.signalled, drain.exited);
    let taken = taken(&stalls, drain.signalled, drain.exited);
    let longest = stalls.into_iter().max_by_key(Stall::length)?;
    let server = drain.server;
    (taken * STALL_SHARE >= REVOKE_MAX).then_some(Reason::LeftBehind { server, longest })
}

/// Whether the fault is that time was over, and nothing else.
fn is_lateness(fault: Fault, call: &Call, planned: &Planned) -> bool {
    let deadline = planned.deadline;
    match fault {
        Fault::Late | Fault::NeverEnded => true,
        // A millisecond is what a timer may be early, and more than a deadline loses on the wire.
        Fault::Failed => matches!(call.end, End::Failed { at, timed_out: true }
            if at + Duration::from_millis(1) >= deadline),
        _ => false,
    }
}

/// The stalls that fell into that time, as they are, in their order.
fn within<'a>(
    stalls: impl Iterator<Item = &'a Stall>,
    from: Timestamp,
    to: Timestamp,
) -> Vec<Stall> {
    let then = stalls.filter(|stall| stall.from < to && stall.to > from);
    let mut then: Vec<Stall> = then.copied().collect();
    then.sort_by_key(|stall| stall.from);
    then
}

/// What `stalls`, in their order, took of that time. When two stood still at once it counts once.
fn taken(stalls: &[Stall], from: Timestamp, to: Timestamp) -> Duration {
    let mut until = from;
    let mut taken = Duration::ZERO;
    for stall in stalls {
        let (from, to) = (stall.from.max(until), stall.to.min(to));
        taken += to.saturating_since(from);
        until = until.max(to);
    }
    taken
}

/// Whether `stalls`, in their order, took enough of what the call had to spare.
fn is_enough(stalls: &[Stall], planned: &Planned) -> bool {
    let all = planned.deadline.saturating_since(planned.due);
    let spare = all.saturating_sub(planned.work * planned.items);
    taken(stalls, planned.due, planned.deadline) * STALL_SHARE >= spare
}

#[cfg(test)]
mod tests {
    use super::super::limits::DEADLINE;
    use super::super::oracle::judge;
    use super::super::record::{Kind, Record};
    use super::super::synthetic::{Synthetic, life, ms};
    use super::*;
    use crate::real::oracle::Freeze;

    /// A call that nothing happened to yet, and what is planted there.
    fn check(plant: impl FnOnce(&mut Synthetic, CallId, &Planned), is_excused: bool) {
        let mut run = Synthetic::clean(1);
        let id = run.a_call(Kind::Stream, ms(300));
        let planned = run.plan.call(id);
        plant(&mut run, id, &planned);
        let ledger = run.ledger();
        let verdict = judge(&ledger, &run.plan, &run.history);
        assert!(!verdict.is_clean(), "something was planted");
        let reason = stalled(&ledger, &run.plan, &run.history, &verdict);
        assert_eq!(reason.is_some(), is_excused, "{reason:?}");
    }

    fn answer(run: &mut Synthetic, id: CallId) -> &mut super::super::record::Line {
        run.record(|record| matches!(record, Record::Answered { id: of, .. } if *of == id))
    }

    fn make_late(run: &mut Synthetic, id: CallId, planned: &Planned) {
        answer(run, id).at = planned.due + DEADLINE + ms(5);
    }

    fn fail(run: &mut Synthetic, id: CallId, at: Timestamp, error: &str) {
        let line = answer(run, id);
        let error = error.to_owned();
        (line.at, line.record) = (at, Record::Failed { id, error });
    }

    /// The server that had the call.
    fn server(id: CallId) -> Source {
        Source::Server((id.number % 2) as u16)
    }

    fn stall(run: &mut Synthetic, whose: Source, planned: &Planned, late: Duration) {
        let record = Record::Stalled { late };
        run.add(whose, planned.due + late + ms(2), record);
    }

    #[test]
    fn lateness_is_explained_by_a_stall_of_those_concerned_alone() {
        check(make_late, false);
        let by = |whose: fn(CallId) -> Source, late: u64| {
            move |run: &mut Synthetic, id: CallId, planned: &Planned| {
                make_late(run, id, planned);
                stall(run, whose(id), planned, ms(late));
            }
        };
        check(by(server, 900), true);
        check(by(|id| Source::Caller(id.caller), 900), true);
        check(by(|id| Source::Caller(id.caller + 1), 900), false);
        let other = |id: CallId| Source::Server(((id.number + 1) % 2) as u16);
        check(by(other, 900), false);
        check(by(server, 100), false);
    }

    #[test]
    fn the_end_of_its_time_is_lateness_and_a_refusal_is_not() {
        let failed = |after: Duration, error: &'static str| {
            move |run: &mut Synthetic, id: CallId, planned: &Planned| {
                fail(run, id, planned.due + after, error);
                stall(run, server(id), planned, ms(900));
            }
        };
        check(failed(DEADLINE, "DeadlineExceeded: no answer"), true);
        check(failed(DEADLINE + ms(250), NO_END), true);
        check(failed(ms(800), "DeadlineExceeded: no answer"), false);
        check(failed(DEADLINE + ms(5), "Unavailable: closing"), false);
        check(failed(DEADLINE + ms(5), "Unknown: reset"), false);
    }

    #[test]
    fn one_fault_of_another_kind_is_enough() {
        check(
            |run, id, planned| {
                make_late(run, id, planned);
                stall(run, server(id), planned, ms(900));
                let record = Record::Started {
                    id,
                    life: life(1, 0),
                };
                run.add(Source::Server(1), planned.due + ms(5), record);
            },
            false,
        );
    }

    #[test]
    fn who_is_frozen_by_the_lab_does_not_stall() {
        check(
            |run, id, planned| {
                make_late(run, id, planned);
                stall(run, server(id), planned, ms(900));
                let Source::Server(server) = server(id) else {
                    return;
                };
                // Of a life that the call was not at: its toll does not excuse the call.
                run.history.freezes.push(Freeze {
                    server,
                    life: life(server, 1),
                    at: planned.due + ms(10),
                    thawed: planned.due + ms(900),
                });
            },
            false,
        );
    }

    #[test]
    fn what_two_lost_at_once_counts_once() {
        let run = Synthetic::clean(1);
        let planned = Planned {
            work: ms(100),
            items: 1,
            ..run.plan.call(run.a_call(Kind::Stream, ms(300)))
        };
        let at =
            |from: u64, to: u64| Stall::new(Whose::Machine, planned.due + ms(to), ms(to - from));
        assert!(is_enough(&[at(0, 250), at(300, 500)], &planned));
        assert!(!is_enough(
            &[at(0, 250), at(10, 200), at(100, 449)],
            &planned
        ));
        assert!(!is_enough(&[at(700, 1_300)], &planned));
    }

    #[test]
    fn a_registration_is_left_behind_by_right_while_somebody_stands_still() {
        let left = |is_left: bool, abandoned: u64, stalled: Option<(Whose, u64)>| {
            let mut run = Synthetic::clean(1);
            let drain = run.history.drains[0].clone();
            let at = drain.signalled;
            let drained = Record::Drained {
                exit: 10,
                abandoned,
            };
            run.remove(|record| matches!(record, Record::Drained { .. }));
            let what = "a".to_owned();
            run.add(
                Source::Server(0),
                at + ms(1),
                Record::Problem { is_left, what },
            );
            run.add(Source::Server(0), at + ms(390), drained);
            let mut ledger = run.ledger();
            let drain = Drain {
                exited: at + ms(1_500),
                ..drain
            };
            // Stalls of the drain end in it.
            let stalls = stalled.map(|(whose, late)| Stall::new(whose, at + ms(1_400), ms(late)));
            ledger.stalls.extend(stalls);
            left_behind(&ledger, &drain).is_some()
        };
        let server = |server| Whose::Child(Source::Server(server));
        for whose in [Whose::Machine, Whose::Disk, server(0)] {
            assert!(left(true, 0, Some((whose, 500))));
            assert!(!left(true, 0, Some((whose, 499))));
            assert!(!left(false, 0, Some((whose, 900))));
            assert!(!left(true, 1, Some((whose, 900))));
        }
        assert!(!left(true, 0, Some((server(1), 900))));
        assert!(!left(true, 0, None));
    }
}
