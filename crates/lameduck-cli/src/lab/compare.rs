//! The columns of a comparison side by side, as numbers alone.

use std::fmt::Write;

use lameduck_lab::real::flavour::Flavour;
use lameduck_lab::real::report::{Compare, DrainReport, Report};
use lameduck_lab::real::stages::{Stage, StageReport};

/// All columns.
const FLAVOURS: [Flavour; 3] = Flavour::ALL;
/// Lines about one column's validity; the rest is counted.
const PROBLEMS_MAX: usize = 3;
const NAME_WIDTH: usize = 26;
/// With what a usual run counts, and the columns' names, all fit into 80.
const WIDTHS: [usize; 3] = [16, 21, 17];

/// One row for each figure.
pub fn compare(own: &Report, others: &Compare) -> String {
    let columns = [own, &others.tonic, &others.tonic_hardened];
    let mut out = String::new();
    row(
        &mut out,
        "",
        FLAVOURS.map(|flavour| flavour.as_str().to_owned()),
    );
    row(
        &mut out,
        "calls",
        columns.map(|column| column.calls.to_string()),
    );
    for stage in Stage::ALL {
        let name = format!("lost, {}", stage.as_str());
        row(&mut out, &name, columns.map(|column| lost(column, stage)));
    }
    row(
        &mut out,
        "started twice",
        columns.map(|column| column.started_twice.to_string()),
    );
    row(&mut out, "placed again, proven + not", columns.map(again));
    for stage in Stage::ALL {
        let name = format!("p50/p99/max, {}", stage.as_str());
        row(
            &mut out,
            &name,
            columns.map(|column| latency(column, stage)),
        );
    }
    row(
        &mut out,
        "admit, median / worst",
        columns.map(|column| spread(column, |drain| Some(drain.window_admit_ms))),
    );
    row(
        &mut out,
        "pick, median / worst",
        columns.map(|column| spread(column, |drain| drain.window_pick_ms)),
    );
    row(
        &mut out,
        "exit, median / worst",
        columns.map(|column| spread(column, |drain| Some(drain.exit_ms))),
    );
    row(
        &mut out,
        "valid",
        columns.map(|column| column.valid.to_string()),
    );
    problems(&mut out, columns);
    repeated(&mut out, columns);
    out.push_str("lost = idempotent + others, in the stage in which they were lost; times in ms\n");
    out
}

/// Which columns were made again, since a run of them had proved nothing.
fn repeated(out: &mut String, columns: [&Report; 3]) {
    for (flavour, column) in FLAVOURS.iter().zip(columns) {
        for why in &column.repeated {
            writeln!(out, "{}: made again: {why}", flavour.as_str())
                .expect("writing to a String cannot fail");
        }
    }
}

/// What is wrong with a column, the first few of each.
fn problems(out: &mut String, columns: [&Report; 3]) {
    for (flavour, column) in FLAVOURS.iter().zip(columns).skip(1) {
        let all: Vec<&String> = column.invalid.iter().chain(&column.problems).collect();
        for what in all.iter().take(PROBLEMS_MAX) {
            writeln!(out, "{}: {what}", flavour.as_str()).expect("writing to a String cannot fail");
        }
        if all.len() > PROBLEMS_MAX {
            let more = all.len() - PROBLEMS_MAX;
            writeln!(out, "{}: {more} more of this kind", flavour.as_str())
                .expect("writing to a String cannot fail");
        }
    }
}

fn row(out: &mut String, name: &str, cells: [String; 3]) {
    let cells: String = cells
        .iter()
        .zip(WIDTHS)
        .map(|(cell, width)| format!("{cell:>width$}"))
        .collect();
    writeln!(out, "{name:<NAME_WIDTH$}{cells}").expect("writing to a String cannot fail");
}

fn of(column: &Report, stage: Stage) -> Option<&StageReport> {
    column.stages.iter().find(|report| report.stage == stage)
}

fn lost(column: &Report, stage: Stage) -> String {
    or_dash(of(column, stage).map(|report| {
        let (lost, idempotent, other) = (report.lost(), report.lost_idempotent, report.lost_other);
        format!("{lost} ({idempotent} + {other})")
    }))
}

fn latency(column: &Report, stage: Stage) -> String {
    or_dash(of(column, stage).map(|report| {
        format!(
            "{:.0} / {:.0} / {:.0}",
            report.p50_ms, report.p99_ms, report.max_ms
        )
    }))
}

fn again(column: &Report) -> String {
    format!("{} + {}", column.retried.proven, column.retried.unproven)
}

fn spread(column: &Report, of: impl Fn(&DrainReport) -> Option<f64>) -> String {
    let values: Option<Vec<f64>> = column.drains.iter().map(of).collect();
    or_dash(
        values
            .filter(|values| !values.is_empty())
            .map(|mut values| {
                values.sort_by(f64::total_cmp);
                let (median, worst) = (values[values.len() / 2], values[values.len() - 1]);
                format!("{median:.1} / {worst:.1}")
            }),
    )
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usual_row_fits_into_eighty_columns() {
        let mut out = String::new();
        row(
            &mut out,
            "p50/p99/max, late registry",
            [
                "1247 (531 + 716)",
                "tonic, as documented",
                "1247 (531 + 716)",
            ]
            .map(str::to_owned),
        );
        assert_eq!(out.trim_end().chars().count(), 80, "{out}");
        assert!(out.contains(") tonic, as documented 1247"), "{out}");
    }
}
