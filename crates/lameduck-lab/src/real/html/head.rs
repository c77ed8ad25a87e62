//! What a reader must see first: whether calls were lost, where, and how fast everybody acted.

use super::super::flavour::Flavour;
use super::super::options::Settings;
use super::super::report::{Ending, KillReport, Report};
use super::super::sabotage::Sabotage;
use super::super::stages::Stage;
use super::Column;
use super::tables::{again, of, worst};
use super::text::{Cell, Page, grouped};

/// Sentences about validity; the rest is counted.
const NOTES_MAX: usize = 12;

/// Verdict, what the same cost the others, settings, figures.
pub(super) fn head(page: &mut Page, columns: &[Column<'_>]) {
    let Some((_, own)) = columns.first() else {
        return;
    };
    let report = &own.report;
    let sabotage = report.options.sabotage;
    let (class, verdict) = match report.ending() {
        Ending::Clean => ("clean", "Not one call was lost in rolls"),
        Ending::Lost if sabotage.is_some() => ("lost", "Calls were lost, as they must be here"),
        Ending::Lost => ("lost", "Calls were lost"),
        Ending::Broken => (
            "lost",
            "No call was lost in rolls, but not all is as it must be",
        ),
        Ending::Invalid => ("invalid", "This run proves nothing"),
    };
    page.raw("<header>\n<h1>lameduck lab</h1>\n");
    if let Some(rule) = sabotage {
        page.put("p", "verdict sabotage", &broken_on_purpose(rule));
    }
    page.put("p", &format!("verdict {class}"), verdict);
    notes(page, report);
    let others: Vec<String> = columns[1..]
        .iter()
        .filter_map(|(flavour, outcome)| beside(*flavour, &outcome.report))
        .collect();
    if !others.is_empty() {
        let beside = format!("In the same rolls, {}.", others.join("; "));
        page.put("p", "beside", &beside);
    }
    page.put("p", "settings", &settings(&report.options));
    tiles(page, report);
    words(page);
    page.raw("</header>\n");
}

/// Why a run is not valid, and what must not have been, the first few.
pub(super) fn notes(page: &mut Page, report: &Report) {
    let all: Vec<&String> = report.invalid.iter().chain(&report.problems).collect();
    if all.is_empty() {
        return;
    }
    page.raw("<ul class=\"notes\">\n");
    for what in all.iter().take(NOTES_MAX) {
        page.put("li", "", what);
    }
    if all.len() > NOTES_MAX {
        page.put("li", "", &format!("and {} more", all.len() - NOTES_MAX));
    }
    page.raw("</ul>\n");
}

fn beside(flavour: Flavour, report: &Report) -> Option<String> {
    let rolls = of(report, Stage::Rolls)?;
    let (lost, calls) = (grouped(rolls.lost()), grouped(rolls.calls));
    Some(format!("{}, lost {lost} of {calls}", flavour.as_str()))
}

/// What a reader must know before the verdict: such a run accuses nobody.
fn broken_on_purpose(rule: Sabotage) -> String {
    format!(
        "Sabotage: this run broke the rule {rule} on purpose ({}). What it lost shows that the judge \
         sees it, and nothing about lameduck as it is.",
        rule.about()
    )
}

fn settings(options: &Settings) -> String {
    let registry = match options.registry.as_str() {
        "dev" => "the development server",
        "etcd" => "an etcd of its own",
        other => other,
    };
    let rate = grouped(options.rate);
    let (servers, callers, rolls) = (options.servers, options.callers, options.rolls);
    let times = match rolls {
        1 => "each rolled once".to_owned(),
        times => format!("each rolled {times} times"),
    };
    let seed = options.seed;
    let failover = if options.failover {
        ""
    } else {
        ", no failover"
    };
    let ordeals = if options.ordeals { ", ordeals" } else { "" };
    let proxy = options.proxy.map(|proxy| format!(", proxy: {proxy}"));
    let requests = options.keepalive_requests;
    let requests = requests.map(|requests| format!(", {requests} requests a connection"));
    let proxy = proxy.unwrap_or_default() + &requests.unwrap_or_default();
    let slow = if options.slow_link {
        ", slow links"
    } else {
        ""
    };
    let sabotage = options.sabotage.map(|rule| format!(", sabotage: {rule}"));
    let sabotage = sabotage.unwrap_or_default();
    format!(
        "{rate} calls a second, {callers} callers, {servers} servers, {times}, seed {seed}, registry: \
         {registry}{failover}{ordeals}{slow}{proxy}{sabotage}"
    )
}

/// What the figures count: a sheet of its own at the end would be read by nobody.
fn words(page: &mut Page) {
    let version = env!("CARGO_PKG_VERSION");
    let text = format!(
        "Lost is a call that ended with an error, more than a second after it was due, with an item missing, or \
         never. A loss counts in the stage in which it came, whether or not anybody could have \
         helped it; without excuse are those, of all stages, that neither a kill nor a freeze \
         explains. Latencies are those of answered unary calls, from the instant at which they were \
         due. Made by lameduck {version}."
    );
    page.put("p", "note", &text);
}

fn tiles(page: &mut Page, report: &Report) {
    let ms = |value: Option<f64>| -> Cell { value.map(|ms| format!("{ms:.1} ms").into()).into() };
    let drains = || report.drains.iter();
    let mut tiles: Vec<(&str, Cell)> = vec![
        (
            "lost in rolls",
            of(report, Stage::Rolls)
                .map(|rolls| Cell::count(rolls.lost()))
                .into(),
        ),
        (
            "lost without excuse",
            Cell::count(report.failed + report.unknown),
        ),
        ("started twice", Cell::count(report.started_twice)),
    ];
    for (name, tolls) in [
        ("taken by the kill", &report.kills),
        ("taken by the freeze", &report.freezes),
    ] {
        if !tolls.is_empty() {
            tiles.push((name, toll(tolls)));
        }
    }
    tiles.extend([
        ("placed again, proven + not", again(report)),
        (
            "last pick after a signal",
            ms(worst(drains().filter_map(|drain| drain.window_pick_ms))),
        ),
        (
            "last call admitted",
            ms(worst(drains().map(|drain| drain.window_admit_ms))),
        ),
        (
            "slowest exit",
            ms(worst(drains().map(|drain| drain.exit_ms))),
        ),
        ("drains", grouped(report.drains.len() as u64).into()),
        ("calls", grouped(report.calls).into()),
        ("jitter of the machine", ms(Some(report.jitter_ms.max))),
    ]);
    page.raw("<dl class=\"tiles\">\n");
    for (name, value) in tiles {
        page.raw("<div>");
        page.put("dt", "", name);
        page.put("dd", value.class, &value.text);
        page.raw("</div>\n");
    }
    page.raw("</dl>\n");
}

/// What was lost by right is told, but not as a fault.
fn toll(tolls: &[KillReport]) -> Cell {
    grouped(tolls.iter().map(KillReport::lost).sum::<u64>()).into()
}
