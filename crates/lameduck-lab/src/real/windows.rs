//! How long callers and servers took to act on a signal.

use std::time::Duration;

use lameduck_core::event::Tier;
use lameduck_core::time::Timestamp;

use super::ledger::{Ledger, LifeAccount};
use super::oracle::{Drain, was_in_flight};
use super::plan::Plan;

/// One drain in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Signal → last new call admitted there.
    pub admit: Duration,
    /// Signal → last time a caller chose it.
    pub pick: Duration,
    /// Signal → out of tier 1 in every caller; `None` where a caller never took it out.
    pub directory: Option<Duration>,
    /// Signal → its process was gone.
    pub exit: Duration,
    /// Calls that it had started and not answered at the signal.
    pub in_flight_at_signal: u64,
    /// Requests that it says it cut; `None` where it never said.
    pub abandoned: Option<u64>,
}

/// Reads the windows of `drain` off the ledger.
#[must_use]
pub fn windows(ledger: &Ledger, plan: &Plan, drain: &Drain) -> Windows {
    let since = |instant: Timestamp| instant.saturating_since(drain.signalled);
    let account = ledger.life(drain.life);
    let last_picks = account
        .into_iter()
        .flat_map(|account| account.last_picked.values());
    let oldest = drain.signalled - 2 * plan.deadline();
    let calls = ledger.calls_due(plan, oldest, drain.signalled);
    let in_flight = calls.filter(|(_, call)| was_in_flight(call, drain.life, drain.signalled));
    Windows {
        admit: account
            .and_then(|account| account.last_started)
            .map(since)
            .unwrap_or_default(),
        pick: last_picks.copied().max().map(since).unwrap_or_default(),
        directory: account
            .and_then(|account| left(account, plan, drain.signalled))
            .map(since),
        exit: since(drain.exited),
        in_flight_at_signal: in_flight.count() as u64,
        abandoned: account
            .and_then(|account| account.drained)
            .map(|(_, abandoned)| abandoned),
    }
}

/// When the last caller took this life out of its first tier, the signal's time at the earliest.
fn left(account: &LifeAccount, plan: &Plan, signalled: Timestamp) -> Option<Timestamp> {
    let of_caller = |caller| {
        let moves = account.moves.get(&caller)?;
        let stood = moves.iter().rev().find(|(at, _)| *at <= signalled);
        let is_out_before = stood.is_some_and(|(_, tier)| *tier != Tier::Ready);
        let mut later = moves.iter().filter(|(at, _)| *at > signalled);
        let left = later
            .find(|(_, tier)| *tier != Tier::Ready)
            .map(|(at, _)| *at);
        if is_out_before { Some(signalled) } else { left }
    };
    let all: Option<Vec<Timestamp>> = (0..plan.callers).map(of_caller).collect();
    all?.into_iter().max()
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Source;
    use super::super::record::Record;
    use super::super::synthetic::{SIGNAL, Synthetic, life, ms, place};
    use super::*;

    fn check(plant: impl FnOnce(&mut Synthetic), expected: impl FnOnce(&mut Windows)) {
        let windows_of =
            |run: &Synthetic| windows(&run.ledger(), &run.plan, &run.history.drains[0]);
        let mut run = Synthetic::clean(1);
        let mut wanted = windows_of(&run);
        plant(&mut run);
        expected(&mut wanted);
        assert_eq!(windows_of(&run), wanted);
    }

    #[test]
    fn a_clean_drain() {
        let expect = |windows: &mut Windows| {
            assert!(windows.in_flight_at_signal > 0);
            windows.admit = Duration::ZERO;
            windows.pick = Duration::ZERO;
            windows.directory = Some(ms(3));
            windows.exit = ms(400);
            windows.abandoned = Some(0);
        };
        check(|_| (), expect);
    }

    #[test]
    fn the_last_pick_and_the_last_start_count() {
        let late = |run: &mut Synthetic| {
            let id = run.a_call(super::super::record::Kind::Put, SIGNAL);
            let tier = Tier::Ready;
            let (id, place) = (Some(id), place(0, 0));
            let at = run.at(SIGNAL);
            run.add(
                Source::Caller(1),
                at + ms(2),
                Record::Picked { id, place, tier },
            );
            let (id, life) = (id.unwrap(), life(0, 0));
            run.add(Source::Server(0), at + ms(7), Record::Started { id, life });
        };
        let expect = |windows: &mut Windows| (windows.pick, windows.admit) = (ms(2), ms(7));
        check(late, expect);
    }

    #[test]
    fn every_caller_must_let_go() {
        let is_out = |record: &Record| matches!(record, Record::Moved { place, tier: Tier::Out } if place.life == Some(life(0, 0)));
        let never = |run: &mut Synthetic| {
            run.lines
                .retain(|(source, line)| *source != Source::Caller(1) || !is_out(&line.record))
        };
        check(never, |windows| windows.directory = None);
        let slow = |run: &mut Synthetic| {
            let at = run.at(SIGNAL) + ms(9);
            run.record(is_out).at = at;
        };
        check(slow, |windows| windows.directory = Some(ms(9)));
        let before = |run: &mut Synthetic| {
            let at = run.at(SIGNAL) - ms(9);
            for (_, line) in run
                .lines
                .iter_mut()
                .filter(|(_, line)| is_out(&line.record))
            {
                line.at = at;
            }
        };
        check(before, |windows| windows.directory = Some(ms(0)));
    }

    #[test]
    fn a_server_that_never_said_goodbye() {
        let mute =
            |run: &mut Synthetic| run.remove(|record| matches!(record, Record::Drained { .. }));
        check(mute, |windows| windows.abandoned = None);
    }
}
