//! Every lost call with its story.

use lameduck_core::instance::Life;

use super::super::chart::{Chart, Lost};
use super::super::flavour::Flavour;
use super::text::{Page, escape};

/// Stories that stand open; the rest opens on a click.
const OPEN_MAX: usize = 3;
/// Stories that are told on paper of the run that is judged, where nobody can click …
const PAPER_OWN_MAX: usize = 12;
/// … and of each run beside it.
const PAPER_OTHER_MAX: usize = 3;
/// Calls that have a line on paper: two sheets of them …
const PAPER_OWN_LINES_MAX: usize = 80;
/// … and half of one.
const PAPER_OTHER_LINES_MAX: usize = 20;
/// Characters of an error that stand in its call's own line; the story has all of it.
const HOW_MAX: usize = 140;

/// The lost calls, as many as the chart holds.
pub(super) fn lost(page: &mut Page, flavour: Flavour, chart: &Chart) {
    page.put("h3", "", &format!("Lost calls: {}", chart.lost_all));
    if chart.lost.is_empty() {
        return;
    }
    if chart.lost.len() < chart.lost_all {
        let shown = format!(
            "These are the first {}; the others are counted only.",
            chart.lost.len()
        );
        page.put("p", "note", &shown);
    }
    page.put(
        "p",
        "note",
        "In a story, I is the intent to call, P where a caller placed it, S its start in a handler, \
         R one more placement, A an answer, F the failure; times count from the first line.",
    );
    let (told, lines) = match flavour {
        Flavour::Lameduck => (PAPER_OWN_MAX, PAPER_OWN_LINES_MAX),
        Flavour::Tonic | Flavour::TonicHardened => (PAPER_OTHER_MAX, PAPER_OTHER_LINES_MAX),
    };
    if chart.lost.len() > told {
        let left_out = match chart.lost.len() > lines {
            true => format!(", and {} are left out", chart.lost.len() - lines),
            false => String::new(),
        };
        let note = format!("On paper only the first {told} tell their story{left_out}.");
        page.put("p", "note paper", &note);
    }
    for (position, lost) in chart.lost.iter().enumerate() {
        let class = match position {
            _ if position < told => "",
            _ if position < lines => "brief",
            _ => "screen",
        };
        story(page, lost, class, position < OPEN_MAX);
    }
}

/// A call's line, and its story behind it; `class` says what of it stands on paper.
fn story(page: &mut Page, lost: &Lost, class: &str, is_open: bool) {
    let place = lost
        .server
        .map_or("at no known server".to_owned(), |server| {
            format!("at server {server}")
        });
    let line = format!(
        "{} {}, due at {:.3} s, lost at {:.3} s {place}: {}",
        lost.kind,
        lost.id,
        lost.due_ms / 1000.0,
        lost.at_ms / 1000.0,
        why(lost),
    );
    let open = if is_open { " open" } else { "" };
    let class = match class {
        "" => String::new(),
        class => format!(" class=\"{class}\""),
    };
    page.raw(&format!(
        "<details{class}{open}><summary>{}</summary>",
        escape(&line)
    ));
    page.put("pre", "", &lost.story);
    page.raw("</details>\n");
}

/// What its caller was told, and what else is wrong with it.
pub(super) fn why(lost: &Lost) -> String {
    let said = error(lost).map(without_lives);
    let faults = lost.faults.iter().map(String::as_str);
    let faults = faults.filter(|fault| *fault != "Failed" || said.is_none());
    let all: Vec<&str> = faults.chain(said.as_deref()).collect();
    let all = all.join(", ");
    match all.char_indices().nth(HOW_MAX) {
        Some((end, _)) => format!("{} …", &all[..end]),
        None => all,
    }
}

/// An error without the lives that stand in it in brackets: they are long, and the story has them.
fn without_lives(error: &str) -> String {
    let mut parts = error.split(" (");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part
            .split_once(')')
            .filter(|(inner, _)| inner.parse::<Life>().is_ok())
        {
            Some((_, rest)) => text.push_str(rest),
            None => {
                text.push_str(" (");
                text.push_str(part);
            }
        }
    }
    text
}

/// The error in the story's line of the failure.
fn error(lost: &Lost) -> Option<&str> {
    let mark = format!(": F {} ", lost.id);
    let found = lost.story.lines().find_map(|line| line.split_once(&mark));
    found.map(|(_, error)| error)
}
