//! What every page must hold, and what none may.

use std::time::Duration;

use super::super::books::Books;
use super::super::chart::chart;
use super::super::compare::forget_picks;
use super::super::ledger::Source;
use super::super::limits::{CHART_LOST_MAX, CHART_POINTS_MAX};
use super::super::options::{Options, Registry};
use super::super::record::{Kind, Record};
use super::super::report::{Jitter, Report};
use super::super::sabotage::Sabotage;
use super::super::stages::Stage;
use super::super::synthetic::{KILLED, SIGNAL, Synthetic};
use super::text::escape;
use super::*;

const NASTY: &str = "<script>alert(\"x\" & 'y')</script>";

/// A run in which some calls end with `error`.
fn outcome(lost: usize, error: &str) -> Outcome {
    let mut run = Synthetic::clean(1);
    let begins = [Duration::ZERO, SIGNAL, KILLED].map(|after| run.at(after));
    let stages = [Stage::Quiet, Stage::Rolls, Stage::Kill];
    run.history.stages = stages.into_iter().zip(begins).collect();
    let closing = Record::Phase("closing".to_owned());
    run.add(Source::Server(0), run.at(SIGNAL), closing);
    let lines = run.lines.iter_mut().map(|(_, line)| line);
    let answers = lines.filter(|line| matches!(line.record, Record::Answered { .. }));
    for line in answers.take(lost) {
        if let Record::Answered { id, .. } = line.record {
            let error = error.to_owned();
            line.record = Record::Failed { id, error };
        }
    }
    let mut books = Books::default();
    books.ledger = run.ledger();
    let problems = vec![error.to_owned()];
    let report = Report::new(
        &Options::default(),
        &books.ledger,
        &run.plan,
        &run.history,
        problems,
        Jitter::default(),
    );
    let mut chart = chart(&books, &run.plan, &run.history, &report).unwrap();
    for lost in &mut chart.lost {
        lost.story = error.to_owned();
    }
    Outcome {
        report,
        stories: Vec::new(),
        chart: Some(chart),
    }
}

fn count(page: &str, part: &str) -> usize {
    page.matches(part).count()
}

/// Every element of the body that is opened is closed, in the right order.
fn assert_balanced(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let (_, body) = page.split_once("<body>").unwrap();
    let (mut rest, _) = body.split_once("</body>").unwrap();
    while let Some((_, after)) = rest.split_once('<') {
        let (tag, after) = after.split_once('>').unwrap();
        rest = after;
        let name = tag.split([' ', '\n']).next().unwrap();
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert_eq!(open, [""; 0]);
}

#[test]
fn a_page_has_all_its_parts() {
    let own = outcome(0, "");
    let page = page(&[(Flavour::Lameduck, &own)]);
    for part in [
        "Over time",
        "Before, during and after",
        "After the signal",
        "server 0",
        "server 1",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(count(&page, "<svg"), 2);
    let toll = own.report.kills[0].failed_other as usize;
    assert_eq!(count(&page, "<details"), toll);
    assert!(page.contains("class=\"closing\"") && page.contains("killed at 2.000 s"));
}

#[test]
fn a_page_of_a_broken_rule_says_so_first() {
    let mut own = outcome(30, "gone");
    own.report.problems.clear();
    let is_told = |own: &Outcome| {
        let page = page(&[(Flavour::Lameduck, own)]);
        let (_, body) = page.split_once("<h1>").unwrap();
        let (before, _) = body.split_once("Calls were lost").unwrap();
        let settings = page.contains(", sabotage: no-tombstone<");
        assert_eq!(settings, before.contains("Sabotage: "));
        settings && before.contains("broke the rule no-tombstone on purpose")
    };
    assert!(!is_told(&own));
    own.report.options.sabotage = Some(Sabotage::NoTombstone);
    assert!(is_told(&own));
}

#[test]
fn the_tiles_say_what_the_stages_say() {
    let mut own = outcome(0, "");
    let tile = |own: &Outcome, name: &str| {
        let page = page(&[(Flavour::Lameduck, own)]);
        let (_, rest) = page.split_once(&format!("<dt>{name}</dt>")).unwrap();
        let (_, rest) = rest.split_once('>').unwrap();
        rest.split_once('<').unwrap().0.to_owned()
    };
    (own.report.failed, own.report.unknown) = (9, 2);
    own.report.stages[1].lost_other = 4;
    assert_eq!(tile(&own, "lost in rolls"), "4");
    assert_eq!(tile(&own, "lost without excuse"), "11");
}

#[test]
fn only_a_freeze_has_a_colour_for_it() {
    let mut own = outcome(0, "");
    let is_told = |own: &Outcome| page(&[(Flavour::Lameduck, own)]).contains("frozen</span>");
    assert!(!is_told(&own));
    let bands = &mut own.chart.as_mut().unwrap().rows[0].bands;
    bands[0].phase = "frozen".to_owned();
    assert!(is_told(&own));
}

#[test]
fn columns_stand_side_by_side() {
    let own = outcome(0, "");
    let mut other = outcome(30, "gone");
    forget_picks(&mut other.report);
    let columns = [(Flavour::Lameduck, &own), (Flavour::Tonic, &other)];
    let page = page(&columns);
    assert!(page.contains("Side by side") && page.contains("<th>tonic, as documented</th>"));
    assert_eq!(count(&page, "<svg"), 4);
    assert!(page.contains("No call was lost in rolls, but not all is as it must be"));
    assert!(page.contains("In the same rolls, tonic, as documented, lost "));
    let left_out = other.chart.as_ref().unwrap().lost.len() - 20;
    assert_eq!(count(&page, "<details class=\"screen\""), left_out);
    assert!(page.contains(&format!("tell their story, and {left_out} are left out.")));
}

#[test]
fn what_comes_from_data_is_escaped() {
    let mut own = outcome(3, NASTY);
    own.report.options.registry = Registry::At(NASTY.to_owned()).to_string();
    let page = page(&[(Flavour::Lameduck, &own)]);
    assert!(!page.contains("<script"), "a script came through");
    let escaped = "&lt;script&gt;alert(&quot;x&quot; &amp; &#39;y&#39;)&lt;/script&gt;";
    assert!(count(&page, escaped) >= 3);
    assert_eq!(escape("a\u{0}b\u{1b}\nc"), "a\u{fffd}b\u{fffd}\nc");
    assert_balanced(&page);
}

#[test]
fn a_page_asks_nobody_for_anything() {
    let own = outcome(3, "an error");
    let page = page(&[(Flavour::Lameduck, &own)]);
    for part in [
        "http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link",
    ] {
        assert!(!page.contains(part), "{part}");
    }
    assert!(page.contains("content=\"default-src 'none'; style-src 'unsafe-inline'\""));
    assert_balanced(&page);
}

#[test]
fn a_lost_call_says_why_in_its_own_line() {
    let mut lost = outcome(1, "an error").chart.unwrap().lost.remove(0);
    let mut check = |error: &str, faults: &[&str], expected: &str| {
        lost.story = format!("call {0}:\n  0.1 ms caller-0: F {0} {error}", lost.id);
        lost.faults = faults.iter().map(|fault| (*fault).to_owned()).collect();
        assert_eq!(super::lost::why(&lost), expected);
    };
    check("Unavailable: gone", &["Failed"], "Unavailable: gone");
    let life = format!("a:1 ({}.0): gone (twice)", "0123456789abcdef".repeat(2));
    check(&life, &["Failed"], "a:1: gone (twice)");
    check("gone", &["Failed", "StartedTwice"], "StartedTwice, gone");
    let long = "x".repeat(500);
    check(&long, &["Failed"], &format!("{} …", &long[..140]));
    lost.story = "call".to_owned();
    assert_eq!(super::lost::why(&lost), "Failed");
}

#[test]
fn stories_are_few_on_paper() {
    let own = outcome(40, "an error");
    let told = own.chart.as_ref().unwrap().lost.len();
    let page = page(&[(Flavour::Lameduck, &own)]);
    assert_eq!(count(&page, "<details class=\"brief\""), told - 12);
    assert!(page.contains("On paper only the first 12 tell their story."));
}

#[test]
fn counts_are_grouped() {
    for (count, expected) in [
        (0, "0"),
        (999, "999"),
        (1_000, "1\u{202f}000"),
        (1_234_567, "1\u{202f}234\u{202f}567"),
    ] {
        assert_eq!(text::grouped(count as u64), expected);
    }
}

#[test]
fn names_of_short_stages_do_not_meet() {
    let report = |stage: Stage, from_ms: f64| super::super::stages::StageReport {
        stage,
        from_ms,
        ..outcome(0, "").report.stages[0]
    };
    let own = outcome(0, "");
    let chart = own.chart.as_ref().unwrap();
    let mut page = Page::default();
    let stages = [
        report(Stage::Kill, 0.0),
        report(Stage::Freeze, 20.0),
        report(Stage::LateRegistry, 2_000.0),
    ];
    timeline::timeline(&mut page, chart, &stages);
    let page = page.finish();
    let line = |name: &str| {
        let (before, _) = page.split_once(&format!(">{name}</text>")).unwrap();
        before
            .rsplit_once(" y=\"")
            .unwrap()
            .1
            .split('"')
            .next()
            .unwrap()
            .to_owned()
    };
    assert_ne!(line("kill"), line("freeze"));
    assert_eq!(line("kill"), line("late registry"));
}

#[test]
fn a_page_is_bounded() {
    let own = outcome(900, "an error");
    let chart = own.chart.as_ref().unwrap();
    assert!(chart.lost_all >= 900 && chart.points.len() <= CHART_POINTS_MAX);
    assert_eq!(chart.lost.len(), CHART_LOST_MAX);
    let page = page(&[(Flavour::Lameduck, &own)]);
    assert_eq!(count(&page, "<details"), CHART_LOST_MAX);
    assert!(page.contains("the others are counted only"));
    assert!(page.len() < 400_000, "{}", page.len());
}

#[test]
fn a_lost_call_is_told_where_it_was() {
    let own = outcome(1, "an error");
    let chart = own.chart.as_ref().unwrap();
    let first = &chart.lost[0];
    assert_eq!(first.faults, ["Failed"]);
    assert!(first.server.is_some() && matches!(first.kind, Kind::Get | Kind::Put | Kind::Stream));
    let by_server: u32 = chart.rows.iter().flat_map(|row| &row.lost).sum();
    let over_time: u32 = chart.points.iter().map(|point| point.lost).sum();
    assert_eq!(
        (by_server as usize, over_time as usize),
        (chart.lost_all, chart.lost_all)
    );
}
