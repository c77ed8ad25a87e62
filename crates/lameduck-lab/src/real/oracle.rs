//! The judge: which calls were lost, from the ledger alone.

use std::collections::BTreeSet;

use lameduck_core::instance::Life;
use lameduck_core::time::Timestamp;

use super::ledger::{Call, End, Intent, Ledger};
use super::limits::KILL_NOTICED;
use super::plan::{Plan, Planned};
use super::record::{CallId, Kind};
use super::stages::Stage;

/// One server told to leave, as the lab saw it.
#[derive(Clone, Debug)]
pub struct Drain {
    /// Which server.
    pub server: u16,
    /// Which life of it.
    pub life: Life,
    /// When the signal was sent.
    pub signalled: Timestamp,
    /// When its process was gone.
    pub exited: Timestamp,
}

/// One server killed without a word.
#[derive(Clone, Debug)]
pub struct Kill {
    /// Which server.
    pub server: u16,
    /// Which life of it.
    pub life: Life,
    /// When.
    pub at: Timestamp,
}

/// One server stopped as a whole for a while.
#[derive(Clone, Debug)]
pub struct Freeze {
    /// Which server.
    pub server: u16,
    /// Which life of it.
    pub life: Life,
    /// From when.
    pub at: Timestamp,
    /// Until when.
    pub thawed: Timestamp,
}

/// What the lab itself did.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Whether callers may place a call more than once. Where they may not, a kill loses calls
    /// declared idempotent by right, too.
    pub failover: bool,
    /// Whether a proxy chooses the server of each call. Then no caller has servers of its own.
    pub proxied: bool,
    /// In their order.
    pub drains: Vec<Drain>,
    /// In their order.
    pub kills: Vec<Kill>,
    /// In their order.
    pub freezes: Vec<Freeze>,
    /// When each part of the run began, in their order.
    pub stages: Vec<(Stage, Timestamp)>,
    /// Those of [`History::drains`] that ended with the exit code of a registration that may be left,
    /// while the lab did not hold the registry back.
    pub incomplete: Vec<Drain>,
    /// When the callers were told to stop.
    pub stopped: Timestamp,
}

/// What is wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// It ended with an error.
    Failed,
    /// It was answered after its deadline, counted from the instant at which it was due.
    Late,
    /// It was answered with fewer or more items than it asked for.
    Items,
    /// It has no end.
    NeverEnded,
    /// It ended twice.
    EndedTwice,
    /// It was started twice, and its method is not declared idempotent.
    StartedTwice,
    /// It was answered by a life that never started it.
    AnsweredUnstarted,
    /// It was started without having been sent, or before.
    StartedUnsent,
    /// The plan wants it, and it was not sent; or it was sent otherwise than planned.
    OffPlan,
    /// It was placed at a life after the caller took that life's closing statement.
    PickedClosing,
}

/// What became of the calls around one kill or freeze.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KillToll {
    /// Calls that this life had started and not answered.
    pub in_flight: u64,
    /// Lost calls that were declared idempotent. Must be 0 in a kill where callers may place a call
    /// again.
    pub failed_idempotent: u64,
    /// Lost calls that were not: nobody can tell whether they were processed.
    pub failed_other: u64,
    /// Calls started a second time, declared idempotent.
    pub started_twice_idempotent: u64,
}

/// The judgement.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Calls of the plan up to where the callers stopped.
    pub calls: u64,
    /// Answered whole and in time.
    pub ok: u64,
    /// Not so, the ones in [`Verdict::kills`] and [`Verdict::freezes`] left out.
    pub failed: u64,
    /// Without any end.
    pub unknown: u64,
    /// Started twice without being declared idempotent.
    pub started_twice: u64,
    /// One for each kill.
    pub kills: Vec<KillToll>,
    /// One for each freeze.
    pub freezes: Vec<KillToll>,
    /// Everything that must not be, in the order of calls.
    pub faults: BTreeSet<(CallId, Fault)>,
    /// Starts by lives that never said that they live, and picks against the rule that name no call.
    pub anonymous: u64,
}

impl Verdict {
    /// Whether nothing was lost and no rule was broken.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty() && self.anonymous == 0
    }
}

/// Judges a finished run.
#[must_use]
pub fn judge(ledger: &Ledger, plan: &Plan, history: &History) -> Verdict {
    let mut verdict = Verdict {
        kills: vec![KillToll::default(); history.kills.len()],
        freezes: vec![KillToll::default(); history.freezes.len()],
        anonymous: ledger.starts_of_strangers,
        ..Verdict::default()
    };
    for (id, call) in ledger.calls() {
        judge_call(&mut verdict, history, id, call, &plan.call(id));
    }
    for id in missing(ledger, plan, history) {
        verdict.calls += 1;
        verdict.unknown += 1;
        verdict.faults.insert((id, Fault::OffPlan));
    }
    for id in &ledger.second_ends {
        verdict.faults.insert((*id, Fault::EndedTwice));
    }
    for (_, _, id) in &ledger.bad_picks {
        match id {
            Some(id) => {
                verdict.faults.insert((*id, Fault::PickedClosing));
            }
            None => verdict.anonymous += 1,
        }
    }
    verdict
}

/// Calls that the plan wants and nobody wrote about, after the last one that anybody did.
pub(super) fn missing<'a>(
    ledger: &'a Ledger,
    plan: &'a Plan,
    history: &'a History,
) -> impl Iterator<Item = CallId> + 'a {
    (0..plan.callers).flat_map(|caller| {
        let due = plan.first_due(caller, history.stopped);
        let end = ledger
            .stopped
            .get(&caller)
            .map_or(due, |next| due.max(*next));
        (ledger.known(caller)..end).map(move |number| CallId { caller, number })
    })
}

fn judge_call(
    verdict: &mut Verdict,
    history: &History,
    id: CallId,
    call: &Call,
    planned: &Planned,
) {
    verdict.calls += 1;
    let mut fault = |fault| verdict.faults.insert((id, fault));
    let Some(intent) = call.intent else {
        let what = if call.starts.is_empty() {
            Fault::OffPlan
        } else {
            Fault::StartedUnsent
        };
        fault(what);
        verdict.unknown += 1;
        return;
    };
    if (intent.kind, intent.due) != (planned.kind, planned.due) {
        fault(Fault::OffPlan);
    }
    if call.starts.iter().any(|(_, at)| *at < intent.sent) {
        fault(Fault::StartedUnsent);
    }
    if let End::Answered { life, .. } = call.end
        && call.starts.iter().all(|(start, _)| *start != life)
    {
        fault(Fault::AnsweredUnstarted);
    }
    let is_twice = call.starts.len() > 1;
    if is_twice && !intent.kind.is_idempotent() {
        fault(Fault::StartedTwice);
        verdict.started_twice += 1;
    }
    let lost = loss(call, planned);
    count_in_flight(verdict, history, call, intent.kind);
    match lost {
        None => verdict.ok += 1,
        Some(_) if count_frozen(verdict, history, call, intent) => {}
        Some(fault) => count_loss(verdict, history, (id, call, planned, intent.kind), fault),
    }
}

/// What is wrong with the end of a call.
pub(super) fn loss(call: &Call, planned: &Planned) -> Option<Fault> {
    match call.end {
        End::Open => Some(Fault::NeverEnded),
        End::Failed { .. } => Some(Fault::Failed),
        End::Answered { items, .. } if items != planned.items => Some(Fault::Items),
        End::Answered { at, .. } if at > planned.deadline => Some(Fault::Late),
        End::Answered { .. } => None,
    }
}

/// When a lost call was lost: at its end, and at its deadline at the latest.
pub(super) fn lost_at(call: &Call, planned: &Planned) -> Timestamp {
    let deadline = planned.deadline;
    call.end.at().map_or(deadline, |end| end.min(deadline))
}

fn count_in_flight(verdict: &mut Verdict, history: &History, call: &Call, kind: Kind) {
    let kills = history.kills.iter().map(|kill| (kill.life, kill.at));
    let freezes = history
        .freezes
        .iter()
        .map(|freeze| (freeze.life, freeze.at));
    let tolls = verdict.kills.iter_mut().zip(kills);
    for (toll, (life, at)) in tolls.chain(verdict.freezes.iter_mut().zip(freezes)) {
        if was_in_flight(call, life, at) {
            toll.in_flight += 1;
            toll.started_twice_idempotent +=
                u64::from(kind.is_idempotent() && call.starts.len() > 1);
        }
    }
}

/// Counts a lost call with the freeze that it fell into; true where there was one.
fn count_frozen(verdict: &mut Verdict, history: &History, call: &Call, intent: Intent) -> bool {
    let fell_into = |freeze: &Freeze| {
        // A call may be due just before the freeze and sent just after it began.
        let is_sent_then = intent.sent >= freeze.at && intent.due <= freeze.thawed;
        is_sent_then || was_on_its_way(call, intent, freeze)
    };
    let Some(position) = history.freezes.iter().position(fell_into) else {
        return false;
    };
    let toll = &mut verdict.freezes[position];
    if intent.kind.is_idempotent() {
        toll.failed_idempotent += 1;
    } else {
        toll.failed_other += 1;
    }
    true
}

/// Whether a call sent before the freeze was at that life, begun or not, when it came.
fn was_on_its_way(call: &Call, intent: Intent, freeze: &Freeze) -> bool {
    let is_open = call.end.at().is_none_or(|end| end > freeze.at);
    let mut lives = call.starts.iter().map(|(life, _)| *life).chain(call.picked);
    is_open && intent.sent <= freeze.at && lives.any(|life| life == freeze.life)
}

fn count_loss(
    verdict: &mut Verdict,
    history: &History,
    (id, call, planned, kind): (CallId, &Call, &Planned, Kind),
    fault: Fault,
) {
    let victim = history.kills.iter().position(|kill| is_victim(call, kill));
    match victim.map(|position| &mut verdict.kills[position]) {
        // A large answer had begun to arrive, most likely: nobody asks for the rest of it again.
        Some(toll) if kind.is_idempotent() && planned.payload_bytes == 0 => {
            toll.failed_idempotent += 1;
            if !history.failover {
                return;
            }
        }
        Some(toll) => {
            toll.failed_other += 1;
            return;
        }
        None if fault == Fault::NeverEnded => verdict.unknown += 1,
        None => verdict.failed += 1,
    }
    verdict.faults.insert((id, fault));
}

/// Whether `life` had started `call` and its caller had no end of it at `instant`.
#[must_use]
pub fn was_in_flight(call: &Call, life: Life, instant: Timestamp) -> bool {
    let mut starts = call.starts.iter();
    let is_started = starts.any(|(start, at)| *start == life && *at <= instant);
    is_started && call.end.at().is_none_or(|end| end > instant)
}

/// Whether a call that failed was last placed at the killed life, before its caller could know.
fn is_victim(call: &Call, kill: &Kill) -> bool {
    let End::Failed { at, .. } = call.end else {
        return false;
    };
    let last = call.picked.or(call.starts.last().map(|(life, _)| *life));
    let in_time = call
        .intent
        .is_some_and(|intent| intent.sent <= kill.at + KILL_NOTICED);
    last == Some(kill.life) && at >= kill.at && in_time
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Source;
    use super::super::limits::DEADLINE;
    use super::super::record::Record;
    use super::super::synthetic::{KILLED, SIGNAL, Synthetic, life, ms, place};
    use super::*;
    use lameduck_core::event::Tier;
    use proptest::prelude::*;

    fn verdict(run: &Synthetic) -> Verdict {
        judge(&run.ledger(), &run.plan, &run.history)
    }

    /// Plants something in a clean run, and expects exactly that to be found.
    fn check(plant: impl FnOnce(&mut Synthetic, CallId), kind: Kind, expected: &[Fault]) {
        let mut run = Synthetic::clean(1);
        let id = run.a_call(kind, ms(300));
        plant(&mut run, id);
        let expected = expected.iter().map(|fault| (id, *fault)).collect();
        assert_eq!(verdict(&run).faults, expected);
    }

    fn is_answer(id: CallId) -> impl Fn(&Record) -> bool {
        move |record| matches!(record, Record::Answered { id: of, .. } if *of == id)
    }

    fn is_start(id: CallId) -> impl Fn(&Record) -> bool {
        move |record| matches!(record, Record::Started { id: of, .. } if *of == id)
    }

    #[test]
    fn a_freeze_has_a_toll_of_its_own() {
        let mut run = Synthetic::clean(1);
        let (at, thawed) = (run.at(ms(200)), run.at(ms(600)));
        let (server, life) = (0, life(0, 0));
        run.history.freezes.push(Freeze {
            server,
            life,
            at,
            thawed,
        });
        let (inside, outside) = (
            run.a_call(Kind::Get, ms(300)),
            run.a_call(Kind::Get, ms(700)),
        );
        run.remove(is_answer(inside));
        run.remove(is_answer(outside));
        let verdict = verdict(&run);
        assert_eq!(
            verdict.faults,
            BTreeSet::from([(outside, Fault::NeverEnded)])
        );
        let toll = verdict.freezes[0];
        assert_eq!((toll.failed_idempotent, toll.failed_other), (1, 0));
        assert!(toll.in_flight > 0);
    }

    #[test]
    fn a_freeze_between_due_and_sent_is_a_freeze() {
        let mut run = Synthetic::clean(1);
        let id = run.a_call(Kind::Put, ms(300));
        let is_intent =
            |record: &Record| matches!(record, Record::Intent { id: of, .. } if *of == id);
        let sent = run.record(is_intent).at;
        run.history.freezes.push(Freeze {
            server: 0,
            life: life(0, 0),
            at: sent - std::time::Duration::from_micros(50),
            thawed: sent + ms(300),
        });
        run.remove(is_answer(id));
        let verdict = verdict(&run);
        assert_eq!(verdict.faults, BTreeSet::new());
        assert_eq!(verdict.freezes[0].failed_other, 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn an_untouched_ledger_is_clean(seed in any::<u64>()) {
            let run = Synthetic::clean(seed);
            let verdict = verdict(&run);
            prop_assert!(verdict.is_clean(), "{:?}", verdict.faults);
            prop_assert_eq!(verdict.calls, 1_200);
            let lost = verdict.kills[0].failed_other;
            prop_assert_eq!(verdict.ok + lost, verdict.calls);
            prop_assert_eq!(verdict.failed + verdict.unknown + verdict.started_twice, 0);
            prop_assert!(lost > 0 && lost < verdict.kills[0].in_flight + 2);
        }

        #[test]
        fn any_answer_that_is_taken_away_is_missed(seed in any::<u64>(), which in any::<prop::sample::Index>()) {
            let mut run = Synthetic::clean(seed);
            let answers = run.lines.iter().enumerate().filter_map(|(position, (_, line))| {
                match line.record {
                    Record::Answered { id, .. } => Some((position, id)),
                    _ => None,
                }
            });
            let answers: Vec<_> = answers.collect();
            let (position, id) = *which.get(&answers);
            run.lines.remove(position);
            let faults = verdict(&run).faults;
            prop_assert_eq!(faults, BTreeSet::from([(id, Fault::NeverEnded)]));
        }
    }

    #[test]
    fn losses_are_found() {
        let fail = |run: &mut Synthetic, id| {
            let error = "no".to_owned();
            run.record(is_answer(id)).record = Record::Failed { id, error };
        };
        for kind in [Kind::Get, Kind::Put, Kind::Stream] {
            check(fail, kind, &[Fault::Failed]);
            check(
                |run, id| run.remove(is_answer(id)),
                kind,
                &[Fault::NeverEnded],
            );
        }
    }

    #[test]
    fn a_late_answer_is_a_lost_call() {
        let late = |run: &mut Synthetic, id: CallId| {
            let due = run.plan.call(id).due;
            run.record(is_answer(id)).at = due + DEADLINE + ms(1);
        };
        check(late, Kind::Get, &[Fault::Late]);
        let in_time = |run: &mut Synthetic, id: CallId| {
            let due = run.plan.call(id).due;
            run.record(is_answer(id)).at = due + DEADLINE;
        };
        check(in_time, Kind::Get, &[]);
    }

    #[test]
    fn a_stream_with_an_item_less_is_a_lost_call() {
        let cut = |run: &mut Synthetic, id| {
            if let Record::Answered { items, .. } = &mut run.record(is_answer(id)).record {
                *items -= 1;
            }
        };
        check(cut, Kind::Stream, &[Fault::Items]);
    }

    #[test]
    fn a_second_start_counts_unless_declared_idempotent() {
        let twice = |run: &mut Synthetic, id: CallId| {
            let record = Record::Started {
                id,
                life: life(1, 0),
            };
            let at = run.plan.call(id).due + ms(5);
            run.add(Source::Server(1), at, record);
        };
        check(twice, Kind::Put, &[Fault::StartedTwice]);
        check(twice, Kind::Stream, &[Fault::StartedTwice]);
        check(twice, Kind::Get, &[]);
    }

    #[test]
    fn answers_and_starts_out_of_nothing_are_found() {
        let unstarted = |run: &mut Synthetic, id| run.remove(is_start(id));
        check(unstarted, Kind::Put, &[Fault::AnsweredUnstarted]);
        let early = |run: &mut Synthetic, id: CallId| {
            let due = run.plan.call(id).due;
            run.record(is_start(id)).at = due;
        };
        check(early, Kind::Put, &[Fault::StartedUnsent]);
        let again = |run: &mut Synthetic, id: CallId| {
            let answer = run.record(is_answer(id)).clone();
            run.add(Source::Caller(0), answer.at, answer.record);
        };
        check(again, Kind::Put, &[Fault::EndedTwice]);
    }

    #[test]
    fn a_call_that_was_never_sent_is_found() {
        let unsent = |run: &mut Synthetic, id: CallId| {
            run.lines
                .retain(|(_, line)| !line.to_string().contains(&format!(" {id} ")));
        };
        check(unsent, Kind::Put, &[Fault::OffPlan]);
        let other = |run: &mut Synthetic, id: CallId| {
            let is_intent =
                |record: &Record| matches!(record, Record::Intent { id: of, .. } if *of == id);
            if let Record::Intent { due, .. } = &mut run.record(is_intent).record {
                *due += ms(1);
            }
        };
        check(other, Kind::Put, &[Fault::OffPlan]);
    }

    #[test]
    fn what_a_kill_lost_is_counted_where_it_was_placed() {
        let run = Synthetic::clean(1);
        let lost = verdict(&run).kills[0].failed_other;
        let ledger = run.ledger();
        assert_eq!(ledger.failed_at.get(&1), Some(&lost));
        assert_eq!(ledger.failed_at.get(&0), None);
    }

    #[test]
    fn callers_that_stop_early_are_found() {
        let mut run = Synthetic::clean(1);
        let late = run.at(ms(2_900));
        run.lines.retain(|(_, line)| match line.record {
            Record::Intent { due, .. } => due < late,
            Record::Picked { .. } => line.at < late,
            _ => true,
        });
        let verdict = verdict(&run);
        assert_eq!(verdict.faults.len(), 40);
        assert_eq!((verdict.calls, verdict.unknown), (1_200, 40));
    }

    #[test]
    fn a_pick_of_a_closing_life_is_found() {
        let pick = |run: &mut Synthetic, id: CallId| {
            let record = Record::Picked {
                id: Some(id),
                place: place(0, 0),
                tier: Tier::Ready,
            };
            let at = run.at(SIGNAL) + ms(4);
            run.add(Source::Caller(0), at, record);
        };
        check(pick, Kind::Put, &[Fault::PickedClosing]);
    }

    #[test]
    fn a_kill_excuses_what_nobody_can_know_and_nothing_else() {
        let mut run = Synthetic::clean(1);
        let doomed = run.lines.iter().find_map(|(_, line)| match line.record {
            Record::Failed { id, .. } => Some(id),
            _ => None,
        });
        let doomed = doomed.unwrap();
        let before = verdict(&run).kills[0];
        run.record(|record| matches!(record, Record::Failed { .. }))
            .at = run.plan.start() + KILLED - ms(1);
        let faults = verdict(&run).faults;
        assert_eq!(faults, BTreeSet::from([(doomed, Fault::Failed)]));

        let mut run = Synthetic::clean(1);
        let start = run.plan.start();
        let saved = run.ledger().calls().find_map(|(id, call)| {
            let is_saved = call.starts.len() > 1;
            is_saved.then_some(id)
        });
        let saved = saved.unwrap();
        let moved = |record: &Record| {
            matches!(record, Record::Picked { id: Some(of), place: at, .. }
                if *of == saved && at.life == Some(life(0, 1)))
        };
        run.remove(moved);
        let error = "gone".to_owned();
        run.record(is_answer(saved)).record = Record::Failed { id: saved, error };
        let after = verdict(&run);
        assert_eq!(after.kills[0].failed_idempotent, 1);
        assert_eq!(after.kills[0].failed_other, before.failed_other);
        assert_eq!(after.faults, BTreeSet::from([(saved, Fault::Failed)]));
        assert!(run.history.kills[0].at == start + KILLED);
        run.history.failover = false;
        assert_eq!(verdict(&run).faults, BTreeSet::new());
    }
}
