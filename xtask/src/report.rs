//! What ran, what failed and what was left out: the last lines that a task prints.

use std::time::{Duration, Instant};

use crate::shell::{Failure, Outcome};

/// The steps of one task so far.
pub struct Report {
    task: &'static str,
    lines: Vec<Line>,
}

struct Line {
    verdict: Verdict,
    name: String,
    took: Duration,
    note: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    Failed,
    NotRun,
    /// Not run, and nobody is asked to make it run.
    Extra,
}

impl Report {
    pub fn new(task: &'static str) -> Self {
        Self {
            task,
            lines: Vec::new(),
        }
    }

    /// Runs one step and remembers how it went; the next one runs in any case.
    pub fn step(&mut self, name: &str, run: impl FnOnce() -> Outcome) {
        eprintln!("== {name}");
        let start = Instant::now();
        let outcome = run();
        let (verdict, note) = match outcome {
            Ok(()) => (Verdict::Ok, String::new()),
            Err(Failure(why)) => (Verdict::Failed, why),
        };
        if verdict == Verdict::Failed {
            eprintln!("== {name}: {note}");
        }
        self.lines.push(Line {
            verdict,
            name: name.to_owned(),
            took: start.elapsed(),
            note,
        });
    }

    /// Adds a remark to the latest step.
    pub fn note(&mut self, note: String) {
        if let Some(line) = self.lines.last_mut().filter(|line| line.note.is_empty()) {
            line.note = note;
        }
    }

    /// Remembers what was left out, and why.
    pub fn left_out(&mut self, name: &str, why: String) {
        self.not_run(Verdict::NotRun, name, why);
    }

    /// The same of what proves more than must be proved: no run fails for it.
    pub fn extra_left_out(&mut self, name: &str, why: String) {
        self.not_run(Verdict::Extra, name, why);
    }

    fn not_run(&mut self, verdict: Verdict, name: &str, why: String) {
        let line = Line {
            verdict,
            name: name.to_owned(),
            took: Duration::ZERO,
            note: why,
        };
        self.lines.push(line);
    }

    /// Prints every step. Fails where one failed; what was left out fails where `CI` is set.
    pub fn finish(self) -> Outcome {
        println!("\nxtask {}:", self.task);
        for line in &self.lines {
            println!("  {line}");
        }
        let count = |verdict| {
            self.lines
                .iter()
                .filter(|line| line.verdict == verdict)
                .count()
        };
        let (failed, left_out) = (count(Verdict::Failed), count(Verdict::NotRun));
        match (failed, left_out) {
            (0, 0) => println!("all {} ran and hold", self.lines.len()),
            (0, n) => println!("{} hold, {n} NOT RUN", self.lines.len() - n),
            (n, m) => println!("{n} FAILED, {m} not run"),
        }
        if failed > 0 || (left_out > 0 && in_ci()) {
            return Err(Failure(format!("{failed} failed, {left_out} not run")));
        }
        Ok(())
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Failed => "FAILED",
            Verdict::NotRun => "NOT RUN",
            Verdict::Extra => "not run",
        };
        let seconds = self.took.as_secs_f64();
        write!(f, "{verdict:<8} {seconds:>7.1}s  {}", self.name)?;
        if self.note.is_empty() {
            Ok(())
        } else {
            write!(f, " ({})", self.note)
        }
    }
}

/// Whether this run must prove everything: `CI` is set.
pub fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_step_fails_the_task_and_the_rest_still_runs() {
        let mut report = Report::new("test");
        let mut ran = Vec::new();
        report.step("a", || {
            ran.push("a");
            Err(Failure("broken".to_owned()))
        });
        report.step("b", || {
            ran.push("b");
            Ok(())
        });
        assert_eq!(ran, ["a", "b"]);
        assert!(report.finish().is_err());
    }

    #[test]
    fn task_whose_steps_hold_succeeds() {
        let mut report = Report::new("test");
        report.step("a", || Ok(()));
        assert!(report.finish().is_ok());
    }

    #[test]
    fn what_was_left_out_is_shown_as_such() {
        let mut report = Report::new("test");
        report.left_out("etcd", "`etcd` is missing".to_owned());
        let shown = report.lines[0].to_string();
        assert!(shown.starts_with("NOT RUN"), "{shown}");
        assert!(shown.ends_with("etcd (`etcd` is missing)"), "{shown}");
    }
}
