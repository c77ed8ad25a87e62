//! What a run has shown, in the form that `--json` prints.

use std::time::Duration;

use serde::Serialize;

use super::ledger::{Ledger, Retried};
use super::limits::INCOMPLETE;
use super::options::{Options, Settings};
use super::oracle::{Drain, Fault, History, KillToll, Verdict, judge};
use super::plan::Plan;
use super::record::CallId;
use super::sabotage::Sabotage;
use super::stages::{StageReport, stages};
use super::stalls::{left_behind, stalled};
use super::validity::{Reason, reasons, sentences};
use super::windows::{Windows, windows};

/// The outcome of a run. Times are milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was asked for.
    pub options: Settings,
    /// Calls of the plan.
    pub calls: u64,
    /// Answered whole and in time.
    pub ok: u64,
    /// Lost, in whatever stage, with no kill or freeze to excuse it: an error, a late answer, a stream
    /// with a gap.
    pub failed: u64,
    /// Without any end.
    pub unknown: u64,
    /// Started twice without being declared idempotent.
    pub started_twice: u64,
    /// Placed more than once, by proof.
    pub retried: RetriedReport,
    /// One for each server told to leave, in their order.
    pub drains: Vec<DrainReport>,
    /// One for each server killed.
    pub kills: Vec<KillReport>,
    /// One for each server frozen.
    pub freezes: Vec<KillReport>,
    /// What each part of the run has cost.
    pub stages: Vec<StageReport>,
    /// Whether the run measured what it says.
    pub valid: bool,
    /// How much longer than asked a sleeping thread slept.
    pub jitter_ms: Jitter,
    /// Why it is invalid.
    pub invalid: Vec<String>,
    /// Why runs before this one were invalid, one sentence each: a comparison repeats such a column.
    pub repeated: Vec<String>,
    /// What must not have been, beside the counts: broken rules, servers that did not leave.
    pub problems: Vec<String>,
    /// How long it took.
    pub elapsed_ms: f64,
    /// The same on other libraries, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compare: Option<Box<Compare>>,
    /// Lost calls, each with what is wrong with it. Not part of the printed object.
    #[serde(skip)]
    pub faults: Vec<(CallId, Fault)>,
}

/// Runs on other libraries, each with the keys of a run of its own.
#[derive(Clone, Debug, Serialize)]
pub struct Compare {
    /// On tonic's server and channel, as documented.
    pub tonic: Report,
    /// On these with what people add.
    pub tonic_hardened: Report,
}

/// Calls placed more than once.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RetriedReport {
    /// Provably not processed before.
    pub proven: u64,
    /// Perhaps processed before: declared idempotent.
    pub unproven: u64,
}

/// One drain.
#[derive(Clone, Debug, Serialize)]
pub struct DrainReport {
    /// Which server, from 0.
    pub server: u16,
    /// Signal → last new call admitted there.
    pub window_admit_ms: f64,
    /// Signal → last time a caller chose it; null where callers cannot tell.
    pub window_pick_ms: Option<f64>,
    /// Signal → out of tier 1 in every caller; null where a caller never took it out.
    pub window_directory_ms: Option<f64>,
    /// Signal → its process was gone.
    pub exit_ms: f64,
    /// Calls that it had started and not answered at the signal.
    pub in_flight_at_signal: u64,
    /// Requests that it says it cut; null where it never said.
    pub abandoned: Option<u64>,
}

/// One kill or freeze.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct KillReport {
    /// Which server, from 0.
    pub server: u16,
    /// Calls that it had started and not answered.
    pub in_flight: u64,
    /// Lost calls declared idempotent.
    pub failed_idempotent: u64,
    /// Lost calls not declared so.
    pub failed_other: u64,
    /// Calls declared idempotent that were started again elsewhere.
    pub started_twice_idempotent: u64,
}

/// What a thread that only sleeps has measured: how late the machine is by itself.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Jitter {
    /// The worst.
    pub max: f64,
    /// 99 of 100 were not worse.
    pub p99: f64,
}

/// How a run ended, for an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Valid, and nothing was lost.
    Clean,
    /// Valid, and calls were lost, or the judge found a rule broken.
    Lost,
    /// Valid, and no call was lost, but something else was not as it must be: a stop that did not end
    /// well, a step that did not come true in time.
    Broken,
    /// It proves nothing.
    Invalid,
}

impl Report {
    /// Forgets where callers chose to call: behind a proxy they know one address, whoever answers.
    pub fn forget_choices(&mut self) {
        for drain in &mut self.drains {
            drain.window_pick_ms = None;
            drain.window_directory_ms = None;
        }
    }

    /// Reads the whole outcome off the ledger. `problems` are those that the lab met itself.
    #[must_use]
    pub fn new(
        options: &Options,
        ledger: &Ledger,
        plan: &Plan,
        history: &History,
        mut problems: Vec<String>,
        jitter_ms: Jitter,
    ) -> Self {
        let verdict = judge(ledger, plan, history);
        let windows: Vec<Windows> = history
            .drains
            .iter()
            .map(|drain| windows(ledger, plan, drain))
            .collect();
        let mut invalid = reasons(ledger, plan, history, &windows);
        problems.extend(anonymous(&verdict));
        invalid.extend(excuses(ledger, plan, history, &verdict, &mut problems));
        Self {
            options: options.into(),
            calls: verdict.calls,
            ok: verdict.ok,
            failed: verdict.failed,
            unknown: verdict.unknown,
            started_twice: verdict.started_twice,
            retried: ledger.retried.into(),
            drains: drain_reports(history, &windows),
            kills: kill_reports(&history.kills, |kill| kill.server, &verdict.kills),
            freezes: kill_reports(&history.freezes, |freeze| freeze.server, &verdict.freezes),
            stages: stages(ledger, plan, history),
            valid: invalid.is_empty(),
            jitter_ms,
            invalid: sentences(&invalid),
            repeated: Vec::new(),
            problems,
            elapsed_ms: millis(history.stopped.saturating_since(plan.start())),
            compare: None,
            faults: verdict.faults.into_iter().collect(),
        }
    }

    /// Makes the run invalid where breaking `rule` has lost fewer than `least` calls in its rolls:
    /// such a control controls nothing.
    pub fn expect_cost(&mut self, rule: Sabotage, least: u64) {
        let cost = self.failed + self.unknown;
        if cost < least {
            let reason = format!("breaking {rule} must cost {least} calls, and has cost {cost}");
            self.invalid.push(reason);
            self.valid = false;
        }
    }

    /// Lost in all, by stage: what a kill or a freeze excuses is in it.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.stages.iter().map(StageReport::lost).sum()
    }

    /// How it ended. An invalid run proves nothing, whatever it lost.
    #[must_use]
    pub const fn ending(&self) -> Ending {
        if !self.valid {
            Ending::Invalid
        } else if !self.faults.is_empty() {
            Ending::Lost
        } else if !self.problems.is_empty() {
            Ending::Broken
        } else {
            Ending::Clean
        }
    }
}

impl KillReport {
    /// Lost by it.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.failed_idempotent + self.failed_other
    }
}

impl From<Retried> for RetriedReport {
    fn from(Retried { proven, unproven }: Retried) -> Self {
        Self { proven, unproven }
    }
}

/// Why the run proves nothing, where all that is wrong is what a stall explains. Where anything else is,
/// a registration that was left behind is a problem, too, as it is where nobody stood still.
fn excuses(
    ledger: &Ledger,
    plan: &Plan,
    history: &History,
    verdict: &Verdict,
    problems: &mut Vec<String>,
) -> Vec<Reason> {
    let lateness = stalled(ledger, plan, history, verdict);
    let is_lost = !verdict.faults.is_empty() && lateness.is_none();
    let drains = history.incomplete.iter();
    let left: Option<Vec<Reason>> = drains.map(|drain| left_behind(ledger, drain)).collect();
    match left {
        Some(left) if !is_lost && problems.is_empty() => left.into_iter().chain(lateness).collect(),
        _ => {
            problems.extend(history.incomplete.iter().map(incomplete));
            Vec::new()
        }
    }
}

fn incomplete(drain: &Drain) -> String {
    let Drain { server, life, .. } = drain;
    format!("server {server} (life {life}) ended with exit status: {INCOMPLETE}")
}

fn anonymous(verdict: &Verdict) -> Option<String> {
    (verdict.anonymous > 0).then(|| {
        format!(
            "{} starts by unknown lives, or picks of closing lives by calls that cannot be named",
            verdict.anonymous
        )
    })
}

fn drain_reports(history: &History, windows: &[Windows]) -> Vec<DrainReport> {
    let pairs = history.drains.iter().zip(windows);
    let report = |(drain, windows): (&super::oracle::Drain, &Windows)| DrainReport {
        server: drain.server,
        window_admit_ms: millis(windows.admit),
        window_pick_ms: Some(millis(windows.pick)),
        window_directory_ms: windows.directory.map(millis),
        exit_ms: millis(windows.exit),
        in_flight_at_signal: windows.in_flight_at_signal,
        abandoned: windows.abandoned,
    };
    pairs.map(report).collect()
}

fn kill_reports<T>(all: &[T], server: impl Fn(&T) -> u16, tolls: &[KillToll]) -> Vec<KillReport> {
    let pairs = all.iter().zip(tolls);
    let report = |(kill, toll): (&T, &KillToll)| KillReport {
        server: server(kill),
        in_flight: toll.in_flight,
        failed_idempotent: toll.failed_idempotent,
        failed_other: toll.failed_other,
        started_twice_idempotent: toll.started_twice_idempotent,
    };
    pairs.map(report).collect()
}

/// Milliseconds with three digits after the point.
#[must_use]
pub fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Source;
    use super::super::limits::DEADLINE;
    use super::super::record::{Kind, Record};
    use super::super::synthetic::{Synthetic, life};
    use super::*;

    fn report(run: &Synthetic) -> Report {
        let (problems, jitter) = (Vec::new(), Jitter::default());
        let options = Options::default();
        Report::new(
            &options,
            &run.ledger(),
            &run.plan,
            &run.history,
            problems,
            jitter,
        )
    }

    #[test]
    fn the_ending_is_what_was_found() {
        let mut run = Synthetic::clean(1);
        assert_eq!(report(&run).ending(), Ending::Clean);
        let problem = Report {
            problems: vec!["one".to_owned()],
            ..report(&run)
        };
        assert_eq!(problem.ending(), Ending::Broken);
        run.remove(|record| matches!(record, Record::Answered { .. }));
        assert_eq!(report(&run).ending(), Ending::Lost);
        run.remove(|record| matches!(record, Record::Started { .. }));
        assert_eq!(report(&run).ending(), Ending::Invalid);
    }

    #[test]
    fn what_is_late_while_the_machine_stands_still_proves_nothing() {
        let late = Duration::from_millis(900);
        let mut run = Synthetic::clean(1);
        let id = run.a_call(Kind::Put, Duration::from_millis(300));
        let due = run.plan.call(id).due;
        let is_answer =
            |record: &Record| matches!(record, Record::Answered { id: of, .. } if *of == id);
        run.record(is_answer).at = due + DEADLINE + late;
        assert_eq!(report(&run).ending(), Ending::Lost);
        let at = due + late;
        run.add(Source::Caller(id.caller), at, Record::Stalled { late });
        let excused = report(&run);
        assert_eq!(excused.ending(), Ending::Invalid);
        assert!(excused.invalid[0].contains("900 ms in caller 0"));
        run.add(
            Source::Server(0),
            at,
            Record::Started {
                id,
                life: life(1, 0),
            },
        );
        assert_eq!(report(&run).ending(), Ending::Lost);
    }

    #[test]
    fn a_registration_that_is_left_proves_nothing_while_somebody_stands_still() {
        let mut run = Synthetic::clean(1);
        let mut drain = run.history.drains[0].clone();
        let (at, second) = (drain.signalled, Duration::from_secs(1));
        drain.exited = at + second;
        run.history.incomplete.push(drain);
        let (is_left, what) = (true, "a".to_owned());
        run.add(Source::Server(0), at, Record::Problem { is_left, what });
        assert_eq!(report(&run).ending(), Ending::Broken);
        let late = second;
        run.add(Source::Server(0), at + late, Record::Stalled { late });
        let told = report(&run);
        assert_eq!(told.ending(), Ending::Invalid, "{:?}", told.problems);
        assert!(told.invalid[0].contains("registration"));
        let id = run.a_call(Kind::Put, Duration::from_millis(300));
        run.remove(|record| matches!(record, Record::Answered { id: of, .. } if *of == id));
        assert_eq!(report(&run).ending(), Ending::Lost);
    }

    #[test]
    fn a_control_that_costs_nothing_is_invalid() {
        let mut run = Synthetic::clean(1);
        let mut weak = report(&run);
        weak.expect_cost(Sabotage::NoAnnounce, 1);
        assert_eq!(weak.ending(), Ending::Invalid);
        run.remove(|record| matches!(record, Record::Answered { .. }));
        let mut strong = report(&run);
        strong.expect_cost(Sabotage::NoAnnounce, 1);
        assert_eq!(strong.ending(), Ending::Lost);
    }
}
