//! Whether a run measured what it says. An invalid run proves nothing, neither good nor bad.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use lameduck_core::instance::Life;

use super::ledger::Ledger;
use super::limits::{BUSY_DRAINS_PERCENT, SENT_PERCENT, SENT_WITHIN, USED_WITHIN};
use super::oracle::{Drain, History};
use super::plan::Plan;
use super::stalls::Stall;
use super::windows::Windows;

/// Why a run is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Too little of the plan was sent in some seconds of the run.
    Schedule {
        /// How many seconds.
        seconds: u64,
        /// All of the run.
        all: u64,
        /// The one in which least was sent.
        worst: Second,
    },
    /// Too many drains had nothing in flight at their signal.
    IdleDrains {
        /// Drains without a call in flight.
        idle: usize,
        /// All drains.
        all: usize,
    },
    /// A life had been sent nothing right before its signal, so that its leaving could not hurt.
    Unused {
        /// How often: once for each drain, and for each caller where callers choose.
        times: usize,
        /// Which caller had sent nothing, the first time; none where no caller had, behind a proxy.
        caller: Option<u16>,
        /// Which server.
        server: u16,
        /// Which life of it.
        life: Life,
    },
    /// A server could not take its registration back while somebody stood still.
    LeftBehind {
        /// Which server.
        server: u16,
        /// The longest stall.
        longest: Stall,
    },
    /// All that is wrong is that calls were too late, and somebody stood still meanwhile.
    Stalled {
        /// How many calls.
        lost: usize,
        /// The longest of these stalls.
        longest: Stall,
    },
}

/// A second of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Second {
    /// Which, from 0.
    pub second: u64,
    /// Calls sent in time.
    pub sent: u64,
    /// Calls due.
    pub due: u64,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Schedule {
                seconds,
                all,
                worst: Second { second, sent, due },
            } => write!(
                f,
                "too little was sent in time in {seconds} of {all} seconds, least in second {second}: \
                 {sent} of {due} calls; the machine is too busy, or --rate too high for it"
            ),
            Self::IdleDrains { idle, all } => {
                write!(
                    f,
                    "{idle} of {all} drains had no call in flight at their signal"
                )
            }
            Self::Unused {
                times,
                caller: Some(caller),
                server,
                life,
            } => write!(
                f,
                "callers had sent a server nothing in the {} ms before its signal ({times} in all): \
                 first caller {caller} to server {server} (life {life})",
                USED_WITHIN.as_millis()
            ),
            Self::Unused {
                times,
                caller: None,
                server,
                life,
            } => write!(
                f,
                "the proxy had passed a server nothing on in the {} ms before its signal ({times} in \
                 all): first server {server} (life {life})",
                USED_WITHIN.as_millis()
            ),
            Self::LeftBehind { server, longest } => write!(
                f,
                "server {server} could not take its registration back in time: {} ms were lost {}",
                longest.length().as_millis(),
                longest.whose
            ),
            Self::Stalled { lost, longest } => write!(
                f,
                "nothing is wrong but that {lost} calls were too late while the machine stood still: \
                 a thread that only sleeps was late by {} ms {}",
                longest.length().as_millis(),
                longest.whose
            ),
        }
    }
}

/// One sentence for each reason. More calls help only where those of the plan were sent.
#[must_use]
pub fn sentences(reasons: &[Reason]) -> Vec<String> {
    let helps =
        |reason: &Reason| matches!(reason, Reason::IdleDrains { .. } | Reason::Unused { .. });
    let is_late = !reasons.iter().all(helps);
    let advice = if is_late { "" } else { "; raise --rate" };
    let sentences = reasons.iter().map(|reason| format!("{reason}{advice}"));
    sentences.collect()
}

/// All reasons why the run is invalid; none for a valid one. `windows` are those of its drains.
#[must_use]
pub fn reasons(
    ledger: &Ledger,
    plan: &Plan,
    history: &History,
    windows: &[Windows],
) -> Vec<Reason> {
    let mut reasons: Vec<Reason> = late(ledger, plan, history).into_iter().collect();
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
    let unused = history.drains.iter().flat_map(|drain| {
        let callers = unused(ledger, plan, history.proxied, drain);
        callers.into_iter().map(move |caller| (caller, drain))
    });
    let unused: Vec<(Option<u16>, &Drain)> = unused.collect();
    if let Some((caller, drain)) = unused.first() {
        reasons.push(Reason::Unused {
            times: unused.len(),
            caller: *caller,
            server: drain.server,
            life: drain.life,
        });
    }
    reasons
}

fn late(ledger: &Ledger, plan: &Plan, history: &History) -> Option<Reason> {
    let run = history.stopped.saturating_since(plan.start());
    let late: Vec<Second> = late_seconds(ledger, plan, run).collect();
    let share = |second: &Second| second.sent * 100 / second.due.max(1);
    let worst = *late.iter().min_by_key(|second| share(second))?;
    let seconds = late.len() as u64;
    Some(Reason::Schedule {
        seconds,
        all: whole(run),
        worst,
    })
}

/// How many seconds `run` has; one that has but begun is one.
const fn whole(run: Duration) -> u64 {
    run.as_secs() + (run.subsec_nanos() > 0) as u64
}

/// The last one ends with the run, and so may have a part of the one before.
fn late_seconds(ledger: &Ledger, plan: &Plan, run: Duration) -> impl Iterator<Item = Second> {
    let last = run.saturating_sub(Duration::from_secs(1));
    (0..whole(run)).filter_map(move |second| {
        let from = plan.start() + Duration::from_secs(second).min(last);
        let to = from + Duration::from_secs(1);
        let due = plan.count_due(from, to);
        let intents = ledger
            .calls_due(plan, from, to)
            .filter_map(|(_, call)| call.intent);
        let in_time = intents.filter(|intent| intent.sent <= intent.due + SENT_WITHIN);
        let sent = in_time.count() as u64;
        (sent * 100 < due * SENT_PERCENT).then_some(Second { second, sent, due })
    })
}

/// Callers that had sent the life nothing. Behind a proxy one `None`, where it had passed nothing on.
///
/// A caller that chooses servers itself has connections of its own to each: every one of them must be
/// in use, or nothing is shown of what its caller does. Behind a proxy the connections to servers are the
/// proxy's, and all callers share them. Its round robin may give every second call, and so always the
/// same of two callers that take turns, to one server: that is load upon this server nevertheless.
fn unused(ledger: &Ledger, plan: &Plan, proxied: bool, drain: &Drain) -> Vec<Option<u16>> {
    let recently = drain.signalled - USED_WITHIN;
    let oldest = recently - plan.deadline();
    let calls = ledger.calls_due(plan, oldest, drain.signalled);
    let used = calls.filter(|(_, call)| {
        let mut starts = call.starts.iter();
        starts.any(|(life, at)| *life == drain.life && *at >= recently && *at <= drain.signalled)
    });
    let used: BTreeSet<u16> = used.map(|(id, _)| id.caller).collect();
    match (proxied, used.is_empty()) {
        (true, true) => vec![None],
        (true, false) => Vec::new(),
        (false, _) => {
            let unused = (0..plan.callers).filter(|caller| !used.contains(caller));
            unused.map(Some).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{CallId, Record};
    use super::super::stalls::Whose;
    use super::super::synthetic::{SIGNAL, Synthetic, life, ms};
    use super::super::windows::windows;
    use super::*;
    use lameduck_core::time::Timestamp;

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
                seconds: 1,
                all: 3,
                worst: Second {
                    second,
                    sent: 395,
                    due,
                },
            }],
        );
    }

    /// The callers stop at some instant, and not when a second is full.
    #[test]
    fn the_last_second_is_measured_as_well() {
        let cut = |late: bool| {
            move |run: &mut Synthetic| {
                run.history.stopped = run.at(ms(2_900));
                let lines = run.lines.iter_mut().map(|(_, line)| line);
                let intents = lines.filter(|line| matches!(line.record, Record::Intent { .. }));
                for line in intents.skip(1_110).take(if late { 8 } else { 0 }) {
                    line.at += SENT_WITHIN;
                }
            }
        };
        check(cut(false), &[]);
        let worst = Second {
            second: 2,
            sent: 392,
            due: 400,
        };
        let reason = Reason::Schedule {
            seconds: 1,
            all: 3,
            worst,
        };
        check(cut(true), &[reason]);
    }

    #[test]
    fn idle_drains_and_unused_lives_are_told() {
        let is_there = |record: &Record| {
            matches!(record, Record::Started { id: CallId { caller: 0, .. }, life: there }
                if *there == life(0, 0))
        };
        let unused = Reason::Unused {
            times: 1,
            caller: Some(0),
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
        let both = Reason::Unused {
            times: 2,
            caller: Some(0),
            server: 0,
            life: life(0, 0),
        };
        check(all, &[idle, both]);
    }

    /// Two callers whose calls alternate, and a round robin over two servers: each server sees one caller.
    #[test]
    fn behind_a_proxy_one_caller_is_use_enough() {
        let from = |caller: u16| {
            move |record: &Record| {
                matches!(record, Record::Started { id, life: there }
                    if id.caller == caller && *there == life(0, 0))
            }
        };
        for seen in 0..2 {
            let one = |proxied| {
                move |run: &mut Synthetic| {
                    run.history.proxied = proxied;
                    run.remove(from(1 - seen));
                }
            };
            check(one(true), &[]);
            let unused = Reason::Unused {
                times: 1,
                caller: Some(1 - seen),
                server: 0,
                life: life(0, 0),
            };
            check(one(false), &[unused]);
        }
        let none = |run: &mut Synthetic| {
            run.history.proxied = true;
            let recently = run.at(SIGNAL) - USED_WITHIN - ms(10);
            run.lines.retain(|(_, line)| {
                line.at < recently || !(from(0)(&line.record) || from(1)(&line.record))
            });
        };
        let unused = Reason::Unused {
            times: 1,
            caller: None,
            server: 0,
            life: life(0, 0),
        };
        let said = sentences(std::slice::from_ref(&unused)).concat();
        assert!(
            said.contains("the proxy had passed a server nothing on"),
            "{said}"
        );
        check(none, &[unused]);
    }

    #[test]
    fn advice_is_not_given_against_itself() {
        let idle = Reason::IdleDrains { idle: 1, all: 1 };
        let worst = Second {
            second: 3,
            sent: 10,
            due: 400,
        };
        let late = Reason::Schedule {
            seconds: 38,
            all: 40,
            worst,
        };
        let raise = |reasons: &[Reason]| sentences(reasons).concat().matches("raise").count();
        assert_eq!(raise(std::slice::from_ref(&idle)), 1);
        assert_eq!(raise(&[late.clone(), idle]), 0);
        let longest = Stall::new(Whose::Machine, Timestamp::from_nanos(400_000_000), ms(300));
        let stalled = Reason::Stalled { lost: 2, longest };
        let said = sentences(std::slice::from_ref(&stalled)).concat();
        assert!(
            said.contains("2 calls") && said.contains("300 ms in the lab"),
            "{said}"
        );
        assert_eq!(raise(&[stalled]), 0);
        let said = sentences(&[late]).concat();
        assert!(
            said.contains("38 of 40 seconds, least in second 3: 10 of 400"),
            "{said}"
        );
    }
}
