//! The page's figures as tables.

use super::super::report::{DrainReport, KillReport, Report};
use super::super::stages::{Stage, StageReport};
use super::Column;
use super::text::{Cell, Page, grouped};

/// One row for each figure, one column for each run: first what was lost, last what it rests on.
pub(super) fn compare(page: &mut Page, columns: &[Column<'_>]) {
    let mut head = vec![""];
    head.extend(columns.iter().map(|(flavour, _)| flavour.as_str()));
    let row = |name: &str, of: &dyn Fn(&Report) -> Cell| {
        let cells = columns.iter().map(|(_, outcome)| of(&outcome.report));
        [name.into()].into_iter().chain(cells).collect::<Vec<_>>()
    };
    let mut rows = Vec::new();
    for stage in Stage::ALL {
        let name = format!("lost, {}", stage.as_str());
        rows.push(row(&name, &|report| of(report, stage).map(lost).into()));
    }
    rows.push(row("started twice, not idempotent", &|report| {
        Cell::count(report.started_twice)
    }));
    let worst = |of: fn(&DrainReport) -> Option<f64>| {
        move |report: &Report| -> Cell {
            let values = report.drains.iter().filter_map(of);
            worst(values).map(|ms| format!("{ms:.1}").into()).into()
        }
    };
    rows.push(row(
        "last pick ms, worst",
        &worst(|drain| drain.window_pick_ms),
    ));
    rows.push(row(
        "last admitted ms, worst",
        &worst(|drain| Some(drain.window_admit_ms)),
    ));
    rows.push(row("exit ms, median / worst", &|report| {
        spread(report.drains.iter().map(|drain| drain.exit_ms)).into()
    }));
    for stage in Stage::ALL {
        let name = format!("p99 ms, {}", stage.as_str());
        rows.push(row(&name, &|report| {
            let p99 = of(report, stage).map(|stage| format!("{:.0}", stage.p99_ms).into());
            p99.into()
        }));
    }
    rows.push(row("placed again, proven + not", &again));
    rows.push(row("calls", &|report| grouped(report.calls).into()));
    rows.push(row("valid", &|report| {
        if report.valid { "yes" } else { "no" }.into()
    }));
    page.table("compare", &head, &rows);
    page.put("p", "note", "lost = idempotent calls + others");
}

/// Calls placed more than once.
pub(super) fn again(report: &Report) -> Cell {
    let (proven, unproven) = (report.retried.proven, report.retried.unproven);
    format!("{} + {}", grouped(proven), grouped(unproven)).into()
}

/// The figures of one stage, where the run had it.
pub(super) fn of(report: &Report, stage: Stage) -> Option<&StageReport> {
    report.stages.iter().find(|one| one.stage == stage)
}

fn lost(stage: &StageReport) -> Cell {
    let (idempotent, other) = (stage.lost_idempotent, stage.lost_other);
    match stage.lost() {
        0 => "0".into(),
        all => Cell::loss(format!(
            // A line is broken before the brackets alone.
            "{} ({}\u{a0}+\u{a0}{})",
            grouped(all),
            grouped(idempotent),
            grouped(other)
        )),
    }
}

/// What each part of the run has cost.
pub(super) fn stages(page: &mut Page, stages: &[StageReport]) {
    let row = |stage: &StageReport| -> Vec<Cell> {
        let seconds = |ms: f64| format!("{:.1}", ms / 1000.0).into();
        vec![
            stage.stage.as_str().into(),
            seconds(stage.from_ms),
            seconds(stage.to_ms),
            grouped(stage.calls).into(),
            lost(stage),
            format!("{:.1}", stage.p50_ms).into(),
            format!("{:.1}", stage.p99_ms).into(),
            format!("{:.1}", stage.max_ms).into(),
        ]
    };
    let head = [
        "stage", "from s", "to s", "calls", "lost", "p50 ms", "p99 ms", "max ms",
    ];
    page.table("stages", &head, &stages.iter().map(row).collect::<Vec<_>>());
}

/// The windows in numbers, the first few of them.
pub(super) fn drains(page: &mut Page, drains: &[DrainReport]) {
    let row = |drain: &DrainReport| -> Vec<Cell> {
        let window = |ms: Option<f64>| ms.map(|ms| format!("{ms:.2}").into()).into();
        vec![
            format!("server {}", drain.server).into(),
            window(drain.window_pick_ms),
            window(drain.window_directory_ms),
            format!("{:.1}", drain.window_admit_ms).into(),
            format!("{:.1}", drain.exit_ms).into(),
            drain.in_flight_at_signal.to_string().into(),
            drain.abandoned.map(Cell::count).into(),
        ]
    };
    let head = [
        "told to leave",
        "pick ms",
        "directory ms",
        "admit ms",
        "exit ms",
        "in flight",
        "cut",
    ];
    let shown = drains.iter().take(super::windows::DRAINS_MAX);
    page.table("drains", &head, &shown.map(row).collect::<Vec<_>>());
}

/// Kills and freezes.
pub(super) fn tolls(page: &mut Page, report: &Report) {
    let row = |what: &str, toll: &KillReport| -> Vec<Cell> {
        vec![
            format!("server {} {what}", toll.server).into(),
            grouped(toll.in_flight).into(),
            Cell::count(toll.failed_idempotent),
            Cell::count(toll.failed_other),
            grouped(toll.started_twice_idempotent).into(),
        ]
    };
    let kills = report.kills.iter().map(|toll| row("killed", toll));
    let freezes = report.freezes.iter().map(|toll| row("frozen", toll));
    let rows: Vec<Vec<Cell>> = kills.chain(freezes).collect();
    if rows.is_empty() {
        return;
    }
    let title = match report.freezes.is_empty() {
        true => "What the kill took",
        false => "What the kill took, and the freeze",
    };
    page.put("h3", "", title);
    let head = [
        "",
        "in flight",
        "lost, idempotent",
        "lost, others",
        "started again, idempotent",
    ];
    page.table("tolls", &head, &rows);
}

/// The largest.
pub(super) fn worst(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.max_by(f64::total_cmp)
}

fn spread(values: impl Iterator<Item = f64>) -> Option<Cell> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (median, worst) = (values.get(values.len() / 2)?, values.last()?);
    Some(format!("{median:.0} / {worst:.0}").into())
}
