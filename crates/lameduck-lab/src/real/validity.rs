//! Whether a run measured what it says. An invalid run proves nothing, neither good nor bad.

use std::fmt;
use std::time::Duration;

use lameduck_core::instance::Life;

use super::ledger::Ledger;
use super::limits::{BUSY_DRAINS_PERCENT, DEADLINE, SENT_PERCENT, SENT_WITHIN, USED_WITHIN};
use super::oracle::{Drain, History};
use super::plan::Plan;
use super::windows::Windows;

/// Why a run is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Too little of the plan was sent in this second of the run.
    Schedule {
        /// Which second, from 0.
        second: u64,
        /// Calls sent in time.
        sent: u64,
        /// Calls due.
        due: u64,
    },
    /// Too many drains had nothing in flight at their signal.
    IdleDrains {
        /// Drains without a call in flight.
        idle: usize,
        /// All drains.
        all: usize,
    },
    /// A caller had sent a life nothing right before its signal, so that its leaving could not hurt.
    Unused {
        /// Which caller.
        caller: u16,
        /// Which server.
        server: u16,
        /// Which life of it.
        life: Life,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Schedule { second, sent, due } => write!(
                f,
                "second {second}: {sent} of {due} calls were sent in time; the machine is too busy, \
                 or --rate too high for it"
            ),
            Self::IdleDrains { idle, all } => write!(
                f,
                "{idle} of {all} drains had no call in flight at their signal; raise --rate"
            ),
            Self::Unused {
                caller,
                server,
                life,
            } => write!(
                f,
                "caller {caller} had sent server {server} (life {life}) nothing in the {} ms before \
                 its signal; raise --rate",
                USED_WITHIN.as_millis()
            ),
        }
    }
}

/// All reasons why the run is invalid; none for a valid one. `windows` are those of its drains.
#[must_use]
pub fn reasons(
    ledger: &Ledger,
    plan: &Plan,
    history: &History,
    windows: &[Windows],
) -> Vec<Reason> {
    let mut reasons: Vec<Reason> = late_seconds(ledger, plan, history).collect();
    let (idle, all) = (
        windows
            .iter()
            .filter(|windows| windows.in_flight_at_signal == 0)
            .count(),
        windows.len(),
    );
    if idle * 100 > all * (100 - BUSY_DRAINS_PERCENT) {
        reasons.push(Reason::IdleDrains { idle, all });
    }
    let unused = history
        .drains
        .iter()
        .flat_map(|drain| unused(ledger, plan, drain));
    reasons.extend(unused);
    reasons
}

fn late_seconds(ledger: &Ledger, plan: &Plan, history: &History) -> impl Iterator<Item = Reason> {
    let whole = history.stopped.saturating_since(plan.start()).as_secs();
    (0..whole).filter_map(move |second| {
        let from = plan.start() + Duration::from_secs(second);
        let to = from + Duration::from_secs(1);
        let due = plan.count_due(from, to);
        let intents = ledger
            .calls_due(plan, from, to)
            .filter_map(|(_, call)| call.intent);
        let in_time = intents.filter(|intent| intent.sent <= intent.due + SENT_WITHIN);
        let sent = in_time.count() as u64;
        (sent * 100 < due * SENT_PERCENT).then_some(Reason::Schedule { second, sent, due })
    })
}

fn unused(ledger: &Ledger, plan: &Plan, drain: &Drain) -> Vec<Reason> {
    let is_used = |caller: u16| {
        let recently = drain.signalled - USED_WITHIN;
        let oldest = recently - DEADLINE;
        let mut calls = ledger.calls_due(plan, oldest, drain.signalled);
        calls.any(|(id, call)| {
            let mut starts = call.starts.iter();
            id.caller == caller
                && starts.any(|(life, at)| {
                    *life == drain.life && *at >= recently && *at <= drain.signalled
                })
        })
    };
    let idle = (0..plan.callers).filter(|caller| !is_used(*caller));
    let reason = |caller| Reason::Unused {
        caller,
        server: drain.server,
        life: drain.life,
    };
    idle.map(reason).collect()
}

#[cfg(test)]
mod tests {
    use super::super::record::{CallId, Record};
    use super::super::synthetic::{SIGNAL, Synthetic, life, ms};
    use super::super::windows::windows;
    use super::*;

    fn check(plant: impl FnOnce(&mut Synthetic), expected: &[Reason]) {
        let mut run = Synthetic::clean(1);
        plant(&mut run);
        let ledger = run.ledger();
        let drains = run.history.drains.iter();
        let windows: Vec<Windows> = drains
            .map(|drain| windows(&ledger, &run.plan, drain))
            .collect();
        let reasons = reasons(&ledger, &run.plan, &run.history, &windows);
        assert_eq!(reasons, expected);
    }

    #[test]
    fn a_clean_run_is_valid() {
        check(|_| (), &[]);
    }

    #[test]
    fn a_second_that_was_not_sent_is_told() {
        let late = |count: usize| {
            move |run: &mut Synthetic| {
                let lines = run.lines.iter_mut().map(|(_, line)| line);
                let intents = lines.filter(|line| matches!(line.record, Record::Intent { .. }));
                for line in intents.skip(410).take(count) {
                    line.at += SENT_WITHIN;
                }
            }
        };
        let (second, due) = (1, 400);
        check(late(4), &[]);
        check(
            late(5),
            &[Reason::Schedule {
                second,
                sent: 395,
                due,
            }],
        );
    }

    #[test]
    fn idle_drains_and_unused_lives_are_told() {
        let is_there = |record: &Record| {
            matches!(record, Record::Started { id: CallId { caller: 0, .. }, life: there }
                if *there == life(0, 0))
        };
        let unused = Reason::Unused {
            caller: 0,
            server: 0,
            life: life(0, 0),
        };
        let one = |run: &mut Synthetic| run.remove(is_there);
        check(one, std::slice::from_ref(&unused));
        let long_ago = |run: &mut Synthetic| {
            let recently = run.at(SIGNAL) - USED_WITHIN - ms(10);
            run.lines
                .retain(|(_, line)| line.at < recently || !is_there(&line.record));
        };
        check(long_ago, std::slice::from_ref(&unused));
        let all = |run: &mut Synthetic| {
            run.remove(|record| {
                matches!(record, Record::Started { life: there, .. } if *there == life(0, 0))
            });
        };
        let idle = Reason::IdleDrains { idle: 1, all: 1 };
        let other = Reason::Unused {
            caller: 1,
            server: 0,
            life: life(0, 0),
        };
        check(all, &[idle, unused, other]);
    }
}
