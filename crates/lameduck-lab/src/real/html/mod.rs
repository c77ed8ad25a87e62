//! A finished run as one page: no script, no network, nothing beside the file.
//!
//! Everything that comes from data goes through `text::escape`; the drawings are made here, as
//! SVG, so that the page can be sent, kept and printed as it is.

mod drawing;
mod head;
mod lost;
mod tables;
#[cfg(test)]
mod tests;
mod text;
mod timeline;
mod windows;

use super::flavour::Flavour;
use super::run::Outcome;
use text::Page;

/// How the page looks, on light, on dark and on paper.
const STYLE: &str = include_str!("style.css");

/// One run of the page.
pub type Column<'a> = (Flavour, &'a Outcome);

/// The whole page. The first column is the one that is judged; the others stand beside it.
#[must_use]
pub fn page(columns: &[Column<'_>]) -> String {
    let mut page = Page::default();
    page.raw("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.raw("<meta name=\"color-scheme\" content=\"light dark\">\n");
    // Nothing may be loaded or run, not even where an escape were forgotten.
    page.raw("<meta http-equiv=\"Content-Security-Policy\" content=\"");
    page.raw("default-src 'none'; style-src 'unsafe-inline'\">\n");
    page.raw("<title>lameduck lab</title>\n<style>\n");
    page.raw(STYLE);
    page.raw("</style>\n</head>\n<body>\n<main>\n");
    head::head(&mut page, columns);
    if columns.len() > 1 {
        page.raw("<section>\n<h2>Side by side</h2>\n");
        tables::compare(&mut page, columns);
        page.raw("</section>\n");
    }
    for column in columns {
        section(&mut page, column);
    }
    page.raw("</main>\n</body>\n</html>\n");
    page.finish()
}

fn section(page: &mut Page, (flavour, outcome): &Column<'_>) {
    let report = &outcome.report;
    page.raw("<section class=\"column\">\n");
    page.put("h2", "", flavour.as_str());
    if *flavour != Flavour::Lameduck {
        // Its own stand in the head.
        head::notes(page, report);
    }
    if let Some(chart) = &outcome.chart {
        page.raw("<div class=\"block\">\n");
        page.put("h3", "", "Over time");
        timeline::legend(page, chart);
        timeline::timeline(page, chart, &report.stages);
        page.raw("</div>\n");
        let point = format!(
            "One point stands for {:.0} ms. A pin marks a server told to leave, killed or frozen.",
            chart.point_ms
        );
        page.put("p", "note", &point);
    }
    page.put("h3", "", "Before, during and after");
    tables::stages(page, &report.stages);
    if !report.drains.is_empty() {
        page.raw("<div class=\"block\">\n");
        page.put("h3", "", "After the signal");
        windows::windows(page, &report.drains);
        page.raw("</div>\n");
        tables::drains(page, &report.drains);
    }
    tables::tolls(page, report);
    if let Some(chart) = &outcome.chart {
        lost::lost(page, *flavour, chart);
    }
    page.raw("</section>\n");
}
