//! The outcome as a table for people. Its lines are no longer than 80 columns with the figures of a usual run.

use std::fmt::Write;

use super::compare::compare;
use lameduck_lab::real::report::{DrainReport, Ending, KillReport, Report};

/// The whole table, with a last line that says how it ended.
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    settings(&mut out, report);
    drains(&mut out, &report.drains);
    kills(&mut out, "killed", &report.kills);
    kills(&mut out, "frozen", &report.freezes);
    counts(&mut out, report);
    for reason in &report.invalid {
        line(&mut out, &format!("invalid: {reason}"));
    }
    for problem in &report.problems {
        line(&mut out, &format!("problem: {problem}"));
    }
    faults(&mut out, report);
    line(&mut out, &verdict(report));
    if let Some(others) = &report.compare {
        line(&mut out, "");
        out.push_str(&compare(report, others));
    }
    out
}

/// What the run was asked to do, and first of all whether a rule was broken in it.
fn settings(out: &mut String, report: &Report) {
    let options = &report.options;
    if let Some(rule) = options.sabotage {
        line(
            out,
            &format!("SABOTAGE: {rule} is broken on purpose; losses do not accuse lameduck"),
        );
        line(out, &format!("  ({})", rule.about()));
    }
    let (rate, callers, servers) = (options.rate, options.callers, options.servers);
    let (rolls, seed, registry) = (options.rolls, options.seed, &options.registry);
    let failover = if options.failover {
        ""
    } else {
        ", no failover"
    };
    let proxy = options.proxy.map(|proxy| format!(", proxy {proxy}"));
    let requests = options.keepalive_requests;
    let requests = requests.map(|requests| format!(", {requests} requests a connection"));
    let proxy = proxy.unwrap_or_default() + &requests.unwrap_or_default();
    let slow = if options.slow_link {
        ", slow links"
    } else {
        ""
    };
    line(
        out,
        &format!(
            "{rate} calls/s, {callers} callers, {servers} servers, rolls {rolls}, seed {seed}, \
             registry {registry}{failover}{slow}{proxy}"
        ),
    );
}

fn drains(out: &mut String, drains: &[DrainReport]) {
    if drains.is_empty() {
        return;
    }
    line(
        out,
        "after the signal, in ms        pick  directory   admit     exit  in flight  cut",
    );
    for drain in drains {
        let directory = match (drain.window_directory_ms, drain.window_pick_ms) {
            (Some(ms), _) => format!("{ms:.2}"),
            // Callers cannot tell which server they call, so that this says nothing of it.
            (None, None) => "?".to_owned(),
            (None, Some(_)) => "never".to_owned(),
        };
        line(
            out,
            &format!(
                "  server {:<3} told to leave {:>8}  {:>9}  {:6.1}  {:7.1}  {:9}  {:>3}",
                drain.server,
                drain
                    .window_pick_ms
                    .map_or("?".to_owned(), |ms| format!("{ms:.2}")),
                directory,
                drain.window_admit_ms,
                drain.exit_ms,
                drain.in_flight_at_signal,
                drain
                    .abandoned
                    .map_or("?".to_owned(), |cut| cut.to_string()),
            ),
        );
    }
    let pick = spread(drains.iter().filter_map(|drain| drain.window_pick_ms));
    let exit = spread(drains.iter().map(|drain| drain.exit_ms));
    line(
        out,
        &format!("  median and worst: pick {pick}, exit {exit}"),
    );
}

fn kills(out: &mut String, what: &str, kills: &[KillReport]) {
    for kill in kills {
        line(
            out,
            &format!(
                "  server {:<3} {what}: {} in flight; lost {} idempotent, {} others; {} started again",
                kill.server,
                kill.in_flight,
                kill.failed_idempotent,
                kill.failed_other,
                kill.started_twice_idempotent,
            ),
        );
    }
}

fn counts(out: &mut String, report: &Report) {
    line(
        out,
        &format!(
            "{} calls in {:.1} s: {} ok, {} failed, {} unknown, {} started twice",
            report.calls,
            report.elapsed_ms / 1000.0,
            report.ok,
            report.failed,
            report.unknown,
            report.started_twice
        ),
    );
    if report.failed + report.unknown > 0 {
        let stages = report.stages.iter();
        let by_stage = stages.map(|stage| format!("{} {}", stage.stage.as_str(), stage.lost()));
        let by_stage = by_stage.collect::<Vec<_>>().join(", ");
        line(out, &format!("lost, excused or not: {by_stage}"));
    }
    line(
        out,
        &format!(
            "placed again: {} provably unprocessed, {} idempotent",
            report.retried.proven, report.retried.unproven,
        ),
    );
    line(
        out,
        &format!(
            "a sleeping thread was late by at most {:.2} ms ({:.2} ms in 99 of 100)",
            report.jitter_ms.max, report.jitter_ms.p99
        ),
    );
}

fn faults(out: &mut String, report: &Report) {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for (_, fault) in &report.faults {
        let name = format!("{fault:?}");
        match kinds.iter_mut().find(|(kind, _)| *kind == name) {
            Some((_, count)) => *count += 1,
            None => kinds.push((name, 1)),
        }
    }
    for (kind, count) in kinds {
        line(out, &format!("fault: {count} × {kind}"));
    }
}

fn verdict(report: &Report) -> String {
    let sabotage = report.options.sabotage;
    let text = match report.ending() {
        Ending::Clean => return clean(report),
        Ending::Lost if sabotage.is_some() => "LOST, as must be: a rule was broken on purpose",
        Ending::Lost => "LOST: see above, and the stories of the first lost calls on stderr",
        Ending::Broken => "BROKEN: no call lost in rolls, but not all is as it must be: see above",
        Ending::Invalid => "INVALID: this run proves nothing; see above",
    };
    text.to_owned()
}

/// Nothing was lost in rolls; what was lost by right stands in the same line.
fn clean(report: &Report) -> String {
    let whose = if report.compare.is_some() {
        "lameduck: "
    } else {
        ""
    };
    let took =
        |what: &str, tolls: &[KillReport]| match tolls.iter().map(KillReport::lost).sum::<u64>() {
            _ if tolls.is_empty() => String::new(),
            0 => format!("; the {what} took none"),
            taken => format!("; the {what} took {taken}"),
        };
    let (kill, freeze) = (took("kill", &report.kills), took("freeze", &report.freezes));
    format!("{whose}not one call was lost in rolls{kill}{freeze}")
}

fn spread(values: impl Iterator<Item = f64>) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match (values.get(values.len() / 2), values.last()) {
        (Some(median), Some(worst)) => format!("{median:.2} and {worst:.2} ms"),
        _ => "?".to_owned(),
    }
}

fn line(out: &mut String, text: &str) {
    writeln!(out, "{text}").expect("writing to a String cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use lameduck_lab::real::options::Options;
    use lameduck_lab::real::report::{Compare, Jitter, RetriedReport};
    use lameduck_lab::real::sabotage::Sabotage;

    fn toll(failed_other: u64) -> KillReport {
        KillReport {
            server: 1,
            in_flight: 30,
            failed_idempotent: 0,
            failed_other,
            started_twice_idempotent: 3,
        }
    }

    fn report(options: &Options) -> Report {
        Report {
            options: options.into(),
            calls: 1_000,
            ok: 975,
            failed: 0,
            unknown: 0,
            started_twice: 0,
            retried: RetriedReport {
                proven: 1,
                unproven: 3,
            },
            drains: Vec::new(),
            kills: vec![toll(25)],
            freezes: Vec::new(),
            stages: Vec::new(),
            valid: true,
            jitter_ms: Jitter::default(),
            invalid: Vec::new(),
            repeated: Vec::new(),
            problems: Vec::new(),
            elapsed_ms: 1.0,
            compare: None,
            faults: Vec::new(),
        }
    }

    fn last(report: &Report) -> String {
        let table = table(report);
        let mut lines = table.lines().filter(|line| line.contains("in rolls"));
        lines.next().unwrap_or_default().to_owned()
    }

    #[test]
    fn the_last_line_says_what_was_lost_by_right() {
        let mut report = report(&Options::default());
        let rolls = "not one call was lost in rolls";
        assert_eq!(last(&report), format!("{rolls}; the kill took 25"));
        report.kills = vec![toll(0)];
        report.freezes = vec![toll(105)];
        let took = "; the kill took none; the freeze took 105";
        assert_eq!(last(&report), format!("{rolls}{took}"));
        report.compare = Some(Box::new(Compare {
            tonic: report.clone(),
            tonic_hardened: report.clone(),
        }));
        assert_eq!(last(&report), format!("lameduck: {rolls}{took}"));
    }

    #[test]
    fn a_broken_rule_comes_first() {
        for rule in Sabotage::ALL {
            let options = Options {
                sabotage: Some(rule),
                failover: false,
                ..Options::default()
            };
            let table = table(&report(&options));
            assert!(table.starts_with(&format!("SABOTAGE: {rule} is broken on purpose")));
            let widest = table.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(80), "{table}");
        }
    }
}
