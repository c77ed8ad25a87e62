//! The live view: bars and rows on a terminal, now and then a line elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use lameduck_lab::real::progress::{Onlooker, Progress, Row};

use crate::say::say;

/// Without a terminal: a line at least this often.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// What suits stderr.
pub fn view() -> Box<dyn Onlooker> {
    if std::io::stderr().is_terminal() {
        Box::new(Live::default())
    } else {
        Box::new(Plain::default())
    }
}

/// A bar with what is being done, the figures of all, and a row for each server. A line that is wider
/// than the terminal is cut, so what matters stands on the left.
#[derive(Default)]
struct Live {
    all: MultiProgress,
    bar: Option<ProgressBar>,
    figures: Option<ProgressBar>,
    rows: Vec<ProgressBar>,
}

impl Onlooker for Live {
    fn see(&mut self, progress: &Progress) {
        let bar = self.bar.get_or_insert_with(|| {
            let bar = self.all.add(ProgressBar::new(progress.steps));
            bar.set_style(style("{bar:20} {pos}/{len}  {wide_msg}"));
            bar
        });
        bar.set_position(progress.steps_done);
        bar.set_message(progress.doing.clone());
        let all = &self.all;
        let line = || {
            let line = all.add(ProgressBar::new(0));
            line.set_style(style("  {wide_msg}"));
            line
        };
        let figures_line = self.figures.get_or_insert_with(line);
        figures_line.set_message(figures(progress));
        while self.rows.len() < progress.rows.len() {
            self.rows.push(line());
        }
        for (line, row) in self.rows.iter().zip(&progress.rows) {
            line.set_message(row_text(row));
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        for line in self.rows.iter().chain(&self.figures).chain(&self.bar) {
            line.finish_and_clear();
        }
    }
}

/// A line where calls begin, a step was done, or [`LINE_EVERY`] has passed.
#[derive(Default)]
struct Plain {
    steps: u64,
    at: Option<Duration>,
}

impl Onlooker for Plain {
    fn see(&mut self, progress: &Progress) {
        let is_due = match self.at {
            None => !progress.elapsed.is_zero(),
            Some(at) => progress.elapsed.saturating_sub(at) >= LINE_EVERY,
        };
        if is_due || self.steps != progress.steps_done {
            (self.steps, self.at) = (progress.steps_done, Some(progress.elapsed));
            let (done, all) = (progress.steps_done, progress.steps);
            let (figures, doing) = (figures(progress), &progress.doing);
            say(format_args!("{done}/{all}  {figures}  {doing}"));
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is a constant that a test reads")
}

fn figures(progress: &Progress) -> String {
    let killed = match progress.failed_since_kill {
        0 => String::new(),
        killed => format!(" (and {killed} since the kill)"),
    };
    format!(
        "{:5.1} s  {:5.0} calls/s  {} failed{killed}",
        progress.elapsed.as_secs_f64(),
        progress.calls_per_second,
        progress.failed,
    )
}

fn row_text(row: &Row) -> String {
    format!(
        "server {:<2} {:<21} {:<9} {:5.0} calls/s  {} failed",
        row.server, row.address, row.phase, row.calls_per_second, row.failed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_read() {
        style("{bar:20} {pos}/{len}  {wide_msg}");
        style("  {wide_msg}");
    }
}
