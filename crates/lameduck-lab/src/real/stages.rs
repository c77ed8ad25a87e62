//! What each part of a run has cost: the same sum for every kind of children.

use hdrhistogram::Histogram;
use lameduck_core::time::Timestamp;
use serde::Serialize;

use super::ledger::{Call, End, Ledger};
use super::oracle::{History, loss, lost_at, missing};
use super::plan::{Plan, Planned};
use super::report::millis;

/// A part of a run. It ends where the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Load, and nothing else.
    Quiet,
    /// Servers are told to leave, and their successors start, one after the other.
    Rolls,
    /// One is killed and started again.
    Kill,
    /// The proxy before all servers starts anew.
    Reload,
    /// One is stopped for a while as a whole, then goes on.
    Freeze,
    /// The registry is stopped as a whole while a server is rolled, and goes on after that.
    LateRegistry,
}

impl Stage {
    /// All, in their order.
    pub const ALL: [Self; 6] = [
        Self::Quiet,
        Self::Rolls,
        Self::Kill,
        Self::Reload,
        Self::Freeze,
        Self::LateRegistry,
    ];

    /// In words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Rolls => "rolls",
            Self::Kill => "kill",
            Self::Reload => "reload",
            Self::Freeze => "freeze",
            Self::LateRegistry => "late registry",
        }
    }
}

/// What became of the calls of one stage. A call counts where it was due, and its loss where it was
/// lost: a stream that a kill cuts is lost by the kill, whenever it began, and what nobody answers is
/// lost at its deadline. Every loss counts, whether or not it could have been helped. Times are milliseconds; latencies are those of answered calls, from the instant at
/// which they were due, streams left out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StageReport {
    /// Which one.
    pub stage: Stage,
    /// Since the first call was due.
    pub from_ms: f64,
    /// Since the first call was due.
    pub to_ms: f64,
    /// Calls due.
    pub calls: u64,
    /// Lost in it, declared idempotent.
    pub lost_idempotent: u64,
    /// Lost in it, not declared so.
    pub lost_other: u64,
    /// Half were not slower.
    pub p50_ms: f64,
    /// 99 of 100 were not slower.
    pub p99_ms: f64,
    /// The slowest.
    pub max_ms: f64,
}

impl StageReport {
    /// All lost calls.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost_idempotent + self.lost_other
    }
}

/// One report for each stage of a run. Every call of the run is in one of them, and every loss:
/// callers go on until the word to stop has reached them, so the last stage has no end of its own.
#[must_use]
pub fn stages(ledger: &Ledger, plan: &Plan, history: &History) -> Vec<StageReport> {
    let begun = |instant| history.stages.partition_point(|(_, from)| *from <= instant);
    let stage_at = |instant| begun(instant).saturating_sub(1);
    let mut sums: Vec<Sum> = history.stages.iter().map(|_| Sum::new()).collect();
    let never = Call::default();
    let unsent = missing(ledger, plan, history).map(|id| (id, &never));
    for (id, call) in ledger.calls().chain(unsent) {
        let planned = plan.call(id);
        if let Some(sum) = sums.get_mut(stage_at(planned.due)) {
            sum.add(call, &planned);
        }
        if loss(call, &planned).is_some()
            && let Some(sum) = sums.get_mut(stage_at(lost_at(call, &planned)))
        {
            sum.add_loss(&planned);
        }
    }
    let ends = history.stages.iter().skip(1).map(|(_, from)| *from);
    let spans = history.stages.iter().zip(ends.chain([history.stopped]));
    let sums = sums.iter().zip(spans);
    sums.map(|(sum, ((stage, from), to))| sum.report(*stage, plan, (*from, to)))
        .collect()
}

/// The longest latency that is told apart: no call is waited for that long.
const MICROS_MAX: u64 = 60_000_000;

struct Sum {
    calls: u64,
    lost_idempotent: u64,
    lost_other: u64,
    micros: Histogram<u64>,
}

impl Sum {
    fn new() -> Self {
        Self {
            calls: 0,
            lost_idempotent: 0,
            lost_other: 0,
            micros: Histogram::new_with_bounds(1, MICROS_MAX, 3)
                .expect("three digits are within its bounds"),
        }
    }

    fn add(&mut self, call: &Call, planned: &Planned) {
        self.calls += 1;
        if let (End::Answered { at, .. }, 1) = (call.end, planned.items) {
            let micros = at.saturating_since(planned.due).as_micros();
            self.micros
                .saturating_record(u64::try_from(micros).unwrap_or(u64::MAX));
        }
    }

    fn add_loss(&mut self, planned: &Planned) {
        if planned.kind.is_idempotent() {
            self.lost_idempotent += 1;
        } else {
            self.lost_other += 1;
        }
    }

    fn report(&self, stage: Stage, plan: &Plan, (from, to): (Timestamp, Timestamp)) -> StageReport {
        let at = |instant: Timestamp| millis(instant.saturating_since(plan.start()));
        let slowest_of = |share| self.micros.value_at_quantile(share) as f64 / 1000.0;
        StageReport {
            stage,
            from_ms: at(from),
            to_ms: at(to),
            calls: self.calls,
            lost_idempotent: self.lost_idempotent,
            lost_other: self.lost_other,
            p50_ms: slowest_of(0.5),
            p99_ms: slowest_of(0.99),
            max_ms: self.micros.max() as f64 / 1000.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::judge;
    use super::super::record::{Kind, Record};
    use super::super::synthetic::{KILLED, SIGNAL, Synthetic, ms};
    use super::*;

    #[test]
    fn a_loss_counts_where_it_came() {
        let mut run = Synthetic::clean(1);
        let begins = [ms(0), SIGNAL, KILLED].map(|after| run.at(after));
        let stages_of = [Stage::Quiet, Stage::Rolls, Stage::Kill];
        run.history.stages = stages_of.into_iter().zip(begins).collect();
        let lost = |run: &Synthetic| -> Vec<(u64, u64)> {
            let all = stages(&run.ledger(), &run.plan, &run.history);
            assert_eq!(all.iter().map(|stage| stage.calls).sum::<u64>(), 1_200);
            all.iter()
                .map(|stage| (stage.lost_idempotent, stage.lost_other))
                .collect()
        };
        let before = lost(&run);
        assert_eq!(before[..2], [(0, 0), (0, 0)]);
        // Due in the first stage, and lost only in the second; then one that never ends.
        let late = run.a_call(Kind::Get, ms(300));
        let answer =
            run.record(|record| matches!(record, Record::Answered { id, .. } if *id == late));
        answer.at += ms(1_100);
        let never = run.a_call(Kind::Put, SIGNAL);
        run.remove(|record| matches!(record, Record::Answered { id, .. } if *id == never));
        let (idempotent, other) = before[2];
        assert_eq!(lost(&run), [(0, 0), (1, 0), (idempotent, other + 1)]);
    }

    /// What was sent after the word to stop, what was never sent, and what ended long after anybody
    /// waited for it: each is in a stage.
    #[test]
    fn no_call_is_without_a_stage() {
        let mut run = Synthetic::clean(1);
        let begins = [ms(0), SIGNAL, KILLED].map(|after| run.at(after));
        let stages_of = [Stage::Quiet, Stage::Rolls, Stage::Kill];
        run.history.stages = stages_of.into_iter().zip(begins).collect();
        let late = run.a_call(Kind::Put, ms(200));
        let answer =
            run.record(|record| matches!(record, Record::Answered { id, .. } if *id == late));
        answer.at += ms(60_000);
        run.history.stopped = run.at(ms(2_500));
        let ledger = run.ledger();
        let verdict = judge(&ledger, &run.plan, &run.history);
        let all = stages(&ledger, &run.plan, &run.history);
        assert_eq!(all.iter().map(|stage| stage.calls).sum::<u64>(), 1_200);
        assert_eq!(verdict.calls, 1_200);
        assert_eq!(all[1].lost(), 1, "lost at its deadline, in the rolls");
        run.history.stopped = run.at(ms(3_500));
        let ledger = run.ledger();
        let verdict = judge(&ledger, &run.plan, &run.history);
        let all = stages(&ledger, &run.plan, &run.history);
        assert_eq!(verdict.calls, 1_400);
        assert_eq!(all.iter().map(|stage| stage.calls).sum::<u64>(), 1_400);
        let taken = verdict
            .kills
            .iter()
            .map(|toll| toll.failed_idempotent + toll.failed_other);
        let lost = verdict.failed + verdict.unknown + taken.sum::<u64>();
        assert_eq!(all.iter().map(StageReport::lost).sum::<u64>(), lost);
        assert!(lost > 200);
    }
}
