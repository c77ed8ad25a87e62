//! What every page must hold, and what none may.

use std::time::Duration;

use super::super::books::Books;
use super::super::chart::chart;
use super::super::compare::forget_picks;
use super::super::ledger::Source;
use super::super::limits::{CHART_LOST_MAX, CHART_POINTS_MAX};
use super::super::record::{Kind, Record};
use super::super::report::{Jitter, Report};
use super::super::stages::Stage;
use super::super::synthetic::{KILLED, SIGNAL, Synthetic};
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
    let page = page(&Options::default(), &[(Flavour::Lameduck, &own)]);
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
fn columns_stand_side_by_side() {
    let own = outcome(0, "");
    let mut other = outcome(30, "gone");
    forget_picks(&mut other.report);
    let columns = [(Flavour::Lameduck, &own), (Flavour::Tonic, &other)];
    let page = page(&Options::default(), &columns);
    assert!(page.contains("Side by side") && page.contains("<th>tonic, as documented</th>"));
    assert_eq!(count(&page, "<svg"), 4);
    assert!(page.contains("calls were lost") || page.contains("not one call was lost in rolls"));
}

#[test]
fn what_comes_from_data_is_escaped() {
    let own = outcome(3, NASTY);
    let options = Options {
        registry: Registry::At(NASTY.to_owned()),
        ..Options::default()
    };
    let page = page(&options, &[(Flavour::Lameduck, &own)]);
    assert!(!page.contains("<script"), "a script came through");
    let escaped = "&lt;script&gt;alert(&quot;x&quot; &amp; &#39;y&#39;)&lt;/script&gt;";
    assert!(count(&page, escaped) >= 3);
    assert_eq!(escape("a\u{0}b\u{1b}\nc"), "a\u{fffd}b\u{fffd}\nc");
    assert_balanced(&page);
}

#[test]
fn a_page_asks_nobody_for_anything() {
    let own = outcome(3, "an error");
    let page = page(&Options::default(), &[(Flavour::Lameduck, &own)]);
    for part in [
        "http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link",
    ] {
        assert!(!page.contains(part), "{part}");
    }
    assert_balanced(&page);
}

#[test]
fn a_page_is_bounded() {
    let own = outcome(900, "an error");
    let chart = own.chart.as_ref().unwrap();
    assert!(chart.lost_all >= 900 && chart.points.len() <= CHART_POINTS_MAX);
    assert_eq!(chart.lost.len(), CHART_LOST_MAX);
    let page = page(&Options::default(), &[(Flavour::Lameduck, &own)]);
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
