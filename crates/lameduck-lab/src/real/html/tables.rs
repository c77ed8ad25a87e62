//! The page's figures as tables.

use super::super::report::{DrainReport, KillReport, Report};
use super::super::stages::{Stage, StageReport};
use super::Column;
use super::text::Page;

/// All stages, in their order.
const STAGES: [Stage; 5] = [
    Stage::Quiet,
    Stage::Rolls,
    Stage::Kill,
    Stage::Freeze,
    Stage::LateRegistry,
];

/// The counts of the run that is judged.
pub(super) fn tiles(page: &mut Page, report: &Report) {
    let again = format!("{} + {}", report.retried.proven, report.retried.unproven);
    let jitter = format!("{:.1} ms", report.jitter_ms.max);
    let tiles = [
        ("calls", report.calls.to_string(), false),
        ("ok", report.ok.to_string(), false),
        ("failed", report.failed.to_string(), report.failed > 0),
        ("unknown", report.unknown.to_string(), report.unknown > 0),
        (
            "started twice",
            report.started_twice.to_string(),
            report.started_twice > 0,
        ),
        ("placed again, proven + not", again, false),
        ("drains", report.drains.len().to_string(), false),
        ("jitter of the machine", jitter, false),
    ];
    page.raw("<dl class=\"tiles\">\n");
    for (name, value, is_bad) in tiles {
        page.raw(if is_bad {
            "<div class=\"bad\">"
        } else {
            "<div>"
        });
        page.put("dt", "", name);
        page.put("dd", "", &value);
        page.raw("</div>\n");
    }
    page.raw("</dl>\n");
}

/// One row for each figure, one column for each run.
pub(super) fn compare(page: &mut Page, columns: &[Column<'_>]) {
    let mut head = vec![""];
    head.extend(columns.iter().map(|(flavour, _)| flavour.as_str()));
    let row = |name: &str, of: &dyn Fn(&Report) -> String| {
        let cells = columns.iter().map(|(_, outcome)| of(&outcome.report));
        [name.to_owned()]
            .into_iter()
            .chain(cells)
            .collect::<Vec<_>>()
    };
    let mut rows = vec![row("calls", &|report| report.calls.to_string())];
    for stage in STAGES {
        let name = format!("lost, {}", stage.as_str());
        rows.push(row(&name, &|report| or_dash(of(report, stage).map(lost))));
    }
    rows.push(row("started twice, not idempotent", &|report| {
        report.started_twice.to_string()
    }));
    rows.push(row("placed again, proven + not", &|report| {
        format!("{} + {}", report.retried.proven, report.retried.unproven)
    }));
    for stage in STAGES {
        let name = format!("p99 ms, {}", stage.as_str());
        rows.push(row(&name, &|report| {
            or_dash(of(report, stage).map(|stage| format!("{:.0}", stage.p99_ms)))
        }));
    }
    rows.push(row("exit ms, median / worst", &|report| {
        or_dash(spread(report.drains.iter().map(|drain| drain.exit_ms)))
    }));
    rows.push(row("valid", &|report| {
        if report.valid { "yes" } else { "no" }.to_owned()
    }));
    page.table(&head, &rows);
    page.put("p", "note", "lost = idempotent calls + others");
}

fn of(report: &Report, stage: Stage) -> Option<&StageReport> {
    report.stages.iter().find(|one| one.stage == stage)
}

fn lost(stage: &StageReport) -> String {
    let (idempotent, other) = (stage.lost_idempotent, stage.lost_other);
    match stage.lost() {
        0 => "0".to_owned(),
        all => format!("{all} ({idempotent} + {other})"),
    }
}

/// What each part of the run has cost.
pub(super) fn stages(page: &mut Page, stages: &[StageReport]) {
    let row = |stage: &StageReport| {
        let seconds = |ms: f64| format!("{:.1}", ms / 1000.0);
        vec![
            stage.stage.as_str().to_owned(),
            seconds(stage.from_ms),
            seconds(stage.to_ms),
            stage.calls.to_string(),
            lost(stage),
            format!("{:.1}", stage.p50_ms),
            format!("{:.1}", stage.p99_ms),
            format!("{:.1}", stage.max_ms),
        ]
    };
    let head = [
        "stage", "from s", "to s", "calls", "lost", "p50 ms", "p99 ms", "max ms",
    ];
    page.table(&head, &stages.iter().map(row).collect::<Vec<_>>());
}

/// The windows in numbers, the first few of them.
pub(super) fn drains(page: &mut Page, drains: &[DrainReport]) {
    let row = |drain: &DrainReport| {
        vec![
            format!("server {}", drain.server),
            or_dash(drain.window_pick_ms.map(|ms| format!("{ms:.2}"))),
            or_dash(drain.window_directory_ms.map(|ms| format!("{ms:.2}"))),
            format!("{:.1}", drain.window_admit_ms),
            format!("{:.1}", drain.exit_ms),
            drain.in_flight_at_signal.to_string(),
            or_dash(drain.abandoned.map(|cut| cut.to_string())),
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
    let rows: Vec<Vec<String>> = drains
        .iter()
        .take(super::windows::DRAINS_MAX)
        .map(row)
        .collect();
    page.table(&head, &rows);
}

/// Kills and freezes.
pub(super) fn tolls(page: &mut Page, report: &Report) {
    let row = |what: &str, toll: &KillReport| {
        vec![
            format!("server {} {what}", toll.server),
            toll.in_flight.to_string(),
            toll.failed_idempotent.to_string(),
            toll.failed_other.to_string(),
            toll.started_twice_idempotent.to_string(),
        ]
    };
    let kills = report.kills.iter().map(|toll| row("killed", toll));
    let freezes = report.freezes.iter().map(|toll| row("frozen", toll));
    let rows: Vec<Vec<String>> = kills.chain(freezes).collect();
    if rows.is_empty() {
        return;
    }
    page.put("h3", "", "What the kill took, and the freeze");
    let head = [
        "",
        "in flight",
        "lost, idempotent",
        "lost, others",
        "started again, idempotent",
    ];
    page.table(&head, &rows);
}

fn spread(values: impl Iterator<Item = f64>) -> Option<String> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (median, worst) = (values.get(values.len() / 2)?, values.last()?);
    Some(format!("{median:.0} / {worst:.0}"))
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".to_owned())
}
