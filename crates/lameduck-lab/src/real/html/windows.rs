//! How long everybody took to act on a signal: a row of dots for each drain, on a logarithmic scale.

use super::super::report::DrainReport;
use super::drawing::{Anchor, Drawing, LEFT, RIGHT, across};
use super::text::{Page, key};

/// Drains that are drawn and listed; the rest is counted.
pub(super) const DRAINS_MAX: usize = 48;
const ROW: f64 = 18.0;
const TOP: f64 = 8.0;
/// The scale begins at 0.1 ms, …
const LOWEST: f64 = -1.0;
/// … and ends at 100 s.
const HIGHEST: f64 = 5.0;

pub(super) fn windows(page: &mut Page, drains: &[DrainReport]) {
    page.raw("<p class=\"legend\">");
    for (class, name) in [
        ("pick", "last picked by a caller"),
        ("directory", "out of the first choice in every caller"),
        ("admit", "last call admitted"),
        ("exit", "process gone"),
    ] {
        key(page, class, name);
    }
    page.raw("</p>\n");
    let shown = &drains[..drains.len().min(DRAINS_MAX)];
    let bottom = TOP + ROW * shown.len() as f64;
    let mut drawing = Drawing::new();
    for power in -1..=5 {
        let x = x_of(10_f64.powi(power));
        drawing.line("grid", (x, TOP), (x, bottom));
        drawing.text("axis", (x, bottom + 16.0), Anchor::Middle, &label(power));
    }
    for (position, drain) in shown.iter().enumerate() {
        row(&mut drawing, TOP + ROW * (position as f64 + 0.5), drain);
    }
    drawing.put(
        page,
        "windows",
        bottom + 24.0,
        "windows after each signal, in milliseconds",
    );
    if drains.len() > DRAINS_MAX {
        let rest = format!("The first {DRAINS_MAX} of {} drains.", drains.len());
        page.put("p", "note", &rest);
    }
}

fn row(drawing: &mut Drawing, y: f64, drain: &DrainReport) {
    let name = format!("server {}", drain.server);
    drawing.text("name", (LEFT - 10.0, y + 4.0), Anchor::End, &name);
    drawing.line("grid", (LEFT, y), (RIGHT, y));
    let dots = [
        ("exit", Some(drain.exit_ms)),
        ("admit", Some(drain.window_admit_ms)),
        ("directory", drain.window_directory_ms),
        ("pick", drain.window_pick_ms),
    ];
    for (class, ms) in dots {
        if let Some(ms) = ms {
            let title = format!("{name}, {class}: {ms:.2} ms");
            drawing.circle(class, (x_of(ms), y), 5.0, &title);
        }
    }
}

fn x_of(ms: f64) -> f64 {
    let power = ms.max(0.001).log10();
    across((power - LOWEST) / (HIGHEST - LOWEST))
}

fn label(power: i32) -> String {
    match power {
        ..=-1 => "≤ 0.1 ms".to_owned(),
        0..3 => format!("{:.0} ms", 10_f64.powi(power)),
        _ => format!("{:.0} s", 10_f64.powi(power - 3)),
    }
}
