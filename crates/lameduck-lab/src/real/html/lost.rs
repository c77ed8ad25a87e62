//! Every lost call with its story.

use super::super::chart::{Chart, Lost};
use super::text::{Page, escape};

/// Stories that stand open; the rest opens on a click, and on paper.
const OPEN_MAX: usize = 3;

/// The lost calls, as many as the chart holds.
pub(super) fn lost(page: &mut Page, chart: &Chart) {
    page.put("h3", "", &format!("Lost calls: {}", chart.lost_all));
    if chart.lost.len() < chart.lost_all {
        let shown = format!(
            "These are the first {}; the others are counted only.",
            chart.lost.len()
        );
        page.put("p", "note", &shown);
    }
    for (position, lost) in chart.lost.iter().enumerate() {
        story(page, lost, position < OPEN_MAX);
    }
}

fn story(page: &mut Page, lost: &Lost, is_open: bool) {
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
        lost.faults.join(", "),
    );
    let open = if is_open { " open" } else { "" };
    page.raw(&format!(
        "<details{open}><summary>{}</summary>",
        escape(&line)
    ));
    page.put("pre", "", &lost.story);
    page.raw("</details>\n");
}
