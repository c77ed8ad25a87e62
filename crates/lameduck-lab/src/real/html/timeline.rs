//! Calls, losses, servers and latencies over one axis of time.

use super::super::chart::{Chart, Point, Row};
use super::super::stages::StageReport;
use super::drawing::{Anchor, Drawing, LEFT, RIGHT, across, step};
use super::text::{Page, key};

/// Heights of the panels, from above.
const STAGES: f64 = 34.0;
/// Where the names of stages stand: near the panels, or above where they would meet the one before.
const STAGE_LINES: [f64; 2] = [24.0, 11.0];
/// A letter's width at most, in the size that names of stages have.
const LETTER: f64 = 7.0;
const CALLS: f64 = 84.0;
const LOST: f64 = 44.0;
const SERVER: f64 = 40.0;
const LATENCY: f64 = 110.0;
const GAP: f64 = 14.0;
/// The scale of latencies, as powers of ten of milliseconds.
const LATENCY_POWERS: (i32, i32) = (0, 4);
/// Phases that have a colour of their own; what servers call otherwise looks like the last.
const PHASES: [&str; 5] = ["serving", "closing", "draining", "frozen", "stopped"];

pub(super) fn legend(page: &mut Page, chart: &Chart) {
    let bands = || chart.rows.iter().flat_map(|row| &row.bands);
    page.raw("<p class=\"legend\">");
    for name in PHASES.into_iter().filter(|name| *name != "stopped") {
        // Only an ordeal freezes anybody.
        if name != "frozen" || bands().any(|band| band.phase == name) {
            key(page, name, name);
        }
    }
    for (class, name) in [
        ("answered", "answered"),
        ("started", "started there"),
        ("lost", "lost"),
        ("p50", "p50"),
        ("p99", "p99"),
    ] {
        key(page, class, name);
    }
    page.raw("</p>\n");
}

pub(super) fn timeline(page: &mut Page, chart: &Chart, stages: &[StageReport]) {
    let mut panels = Panels {
        drawing: Drawing::new(),
        chart,
        y: STAGES,
    };
    let servers = (SERVER + GAP) * chart.rows.len() as f64;
    let bottom = STAGES + CALLS + GAP + LOST + GAP + servers + LATENCY;
    panels.stages(stages, bottom);
    panels.calls();
    panels.lost();
    for row in &chart.rows {
        panels.server(row);
    }
    panels.latency();
    panels.seconds(bottom);
    panels.drawing.put(
        page,
        "timeline",
        bottom + 26.0,
        "calls, losses, phases of servers and latencies over time",
    );
}

struct Panels<'a> {
    drawing: Drawing,
    chart: &'a Chart,
    /// Where the next panel begins.
    y: f64,
}

impl Panels<'_> {
    fn x(&self, ms: f64) -> f64 {
        across(ms / self.chart.end_ms.max(1.0))
    }

    fn x_of_point(&self, position: usize) -> f64 {
        self.x(position as f64 * self.chart.point_ms)
    }

    /// How wide a point is; at least a hair.
    fn point(&self) -> f64 {
        (self.x(self.chart.point_ms) - LEFT).max(0.5)
    }

    /// Every other stage is shaded over all panels; all have their names above.
    fn stages(&mut self, stages: &[StageReport], bottom: f64) {
        let mut free = [LEFT; STAGE_LINES.len()];
        for (position, stage) in stages.iter().enumerate() {
            let (from, to) = (self.x(stage.from_ms), self.x(stage.to_ms));
            if position % 2 == 1 {
                let size = (to - from, bottom - STAGES + 6.0);
                self.drawing.rect("shade", (from, STAGES - 6.0), size, "");
            }
            let name = stage.stage.as_str();
            let x = from + 3.0;
            let line = free.iter().position(|free| *free <= x).unwrap_or_default();
            free[line] = x + LETTER * name.len() as f64;
            self.drawing
                .text("axis", (x, STAGE_LINES[line]), Anchor::Start, name);
        }
    }

    /// Names a panel and its top value, and gives its upper and lower edge.
    fn panel(&mut self, height: f64, name: &str, top: &str) -> (f64, f64) {
        let (high, low) = (self.y, self.y + height);
        self.y = low + GAP;
        let (x, under) = (LEFT - 10.0, high + 12.0);
        self.drawing.text("name", (x, under), Anchor::End, name);
        self.drawing
            .text("axis", (x, under + 14.0), Anchor::End, top);
        self.drawing.line("base", (LEFT, low), (RIGHT, low));
        (high, low)
    }

    fn calls(&mut self) {
        let per_second = 1_000.0 / self.chart.point_ms;
        let answered: Vec<u32> = self
            .chart
            .points
            .iter()
            .map(|point| point.answered)
            .collect();
        let most = f64::from(answered.iter().copied().max().unwrap_or_default().max(1));
        let top = format!("up to {:.0}/s", most * per_second);
        let (high, low) = self.panel(CALLS, "answered", &top);
        self.area("answered", &answered, most, (high, low));
    }

    fn lost(&mut self) {
        let lost: Vec<u32> = self.chart.points.iter().map(|point| point.lost).collect();
        let most = lost.iter().copied().max().unwrap_or_default();
        let top = format!("up to {most} in {:.0} ms", self.chart.point_ms);
        let edges = self.panel(LOST, "lost", &top);
        self.bars(&lost, most, edges);
    }

    /// One server: its phases as bands, its calls and losses on them, and what was done to it.
    fn server(&mut self, row: &Row) {
        let address = row
            .address
            .map_or(String::new(), |address| address.to_string());
        let (high, low) = self.panel(SERVER, &format!("server {}", row.server), &address);
        for band in &row.bands {
            let known = PHASES.iter().find(|phase| **phase == band.phase);
            let class = known.copied().unwrap_or("stopped");
            let (from, to) = (self.x(band.from_ms), self.x(band.to_ms));
            let title = format!(
                "{} from {:.3} s to {:.3} s",
                band.phase,
                band.from_ms / 1000.0,
                band.to_ms / 1000.0
            );
            let size = ((to - from).max(0.5), low - high);
            self.drawing.rect(class, (from, high), size, &title);
        }
        let most = f64::from(row.started.iter().copied().max().unwrap_or_default().max(1));
        self.area("started", &row.started, most, (high + 4.0, low));
        let most = self
            .chart
            .rows
            .iter()
            .flat_map(|row| &row.lost)
            .copied()
            .max();
        self.bars(&row.lost, most.unwrap_or_default(), (high + 4.0, low));
        let chart = self.chart;
        for mark in chart.marks.iter().filter(|mark| mark.server == row.server) {
            let x = self.x(mark.at_ms);
            self.drawing.line("mark", (x, high - 5.0), (x, low));
            let title = format!("{} at {:.3} s", mark.what, mark.at_ms / 1000.0);
            self.drawing.circle("mark", (x, high - 5.0), 3.0, &title);
        }
    }

    fn latency(&mut self) {
        let (lowest, highest) = LATENCY_POWERS;
        let edges = self.panel(LATENCY, "latency", "");
        let y_of = |ms: f64| {
            let share = ms.max(1.0).log10() / f64::from(highest - lowest);
            edges.1 - (edges.1 - edges.0) * share.clamp(0.0, 1.0)
        };
        for power in lowest..=highest {
            let ms = 10_f64.powi(power);
            self.drawing
                .line("grid", (LEFT, y_of(ms)), (RIGHT, y_of(ms)));
            if power == highest {
                // It would touch the panel above.
                continue;
            }
            let label = if power < 3 {
                format!("{ms:.0} ms")
            } else {
                format!("{:.0} s", ms / 1000.0)
            };
            self.drawing
                .text("axis", (LEFT - 10.0, y_of(ms) + 4.0), Anchor::End, &label);
        }
        for (class, of) in [
            (
                "p99",
                (|point: &Point| point.p99_ms) as fn(&Point) -> Option<f64>,
            ),
            ("p50", |point: &Point| point.p50_ms),
        ] {
            let half = self.point() / 2.0;
            let at = |(position, point): (usize, &Point)| {
                of(point).map(|ms| (self.x_of_point(position) + half, y_of(ms)))
            };
            let points: Vec<_> = self.chart.points.iter().enumerate().map(at).collect();
            self.drawing.path(class, points.into_iter());
        }
    }

    fn seconds(&mut self, bottom: f64) {
        let end = self.chart.end_ms / 1_000.0;
        let step = step(end, 12.0);
        let mut second = 0.0;
        while second <= end {
            let x = self.x(second * 1_000.0);
            self.drawing.line("base", (x, bottom), (x, bottom + 5.0));
            let label = format!("{second:.0} s");
            self.drawing
                .text("axis", (x, bottom + 18.0), Anchor::Middle, &label);
            second += step;
        }
    }

    fn area(&mut self, class: &str, values: &[u32], most: f64, (high, low): (f64, f64)) {
        let at = |(position, value): (usize, &u32)| {
            let y = low - (low - high) * f64::from(*value) / most;
            (self.x_of_point(position), y)
        };
        let steps: Vec<(f64, f64)> = values.iter().enumerate().map(at).collect();
        let width = self.point();
        self.drawing.area(class, low, &steps, width);
    }

    fn bars(&mut self, values: &[u32], most: u32, (high, low): (f64, f64)) {
        let width = self.point().max(2.0);
        for (position, value) in values.iter().enumerate().filter(|(_, value)| **value > 0) {
            let height = ((low - high) * f64::from(*value) / f64::from(most.max(1))).max(3.0);
            let x = self.x_of_point(position);
            let title = format!("{value} lost");
            self.drawing
                .rect("lost", (x, low - height), (width, height), &title);
        }
    }
}
