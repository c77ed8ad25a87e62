//! `cargo xtask test`: everything that is proved by running it, and an account of what was not.

mod comparison;
mod needs;
mod stages;

use crate::metadata::Workspace;
use crate::report::Report;
use crate::shell::{self, Failure, Outcome};
use stages::{STAGES, Stage};

/// Tells tests which needs are not there (names joined by commas): a test that has such a need prints
/// that it did not run, instead of failing or of passing in silence.
const WITHOUT: &str = "LAMEDUCK_WITHOUT";

/// From which property tests draw their cases. The same ones in every run of this command, so that
/// it fails for what was changed and not for what was drawn; whoever looks for more sets another.
const SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "1");

/// `cargo xtask test`. All stages run, whatever the earlier ones say.
pub fn run(arguments: &[String]) -> Outcome {
    if !arguments.is_empty() {
        return Err(Failure("it takes no argument".to_owned()));
    }
    let mut report = Report::new("test");
    let missing = needs::provide();
    let names: Vec<&str> = missing.iter().map(|missing| missing.name).collect();
    let without = names.join(",");
    let workspace = Workspace::load()?;
    for stage in STAGES.iter().cloned().chain(stages::examples(&workspace)) {
        match stage.needs.iter().find(|need| names.contains(need)) {
            Some(need) => report.left_out(&stage.name, format!("{need} is missing")),
            None => run_stage(&mut report, &stage, &workspace, &without),
        }
    }
    for missing in &missing {
        let tests = format!("tests that need {}", missing.name);
        if missing.is_extra() {
            report.extra_left_out(&tests, missing.advice());
        } else {
            report.left_out(&tests, missing.advice());
        }
    }
    report.finish()
}

fn run_stage(report: &mut Report, stage: &Stage, workspace: &Workspace, without: &str) {
    let mut tally = stages::Tally::default();
    report.step(&stage.name, || {
        let mut command = stage.command(workspace)?;
        shell::forget_settings(&mut command);
        if std::env::var_os(SEED.0).is_none() {
            command.env(SEED.0, SEED.1);
        }
        if !without.is_empty() {
            command.env(WITHOUT, without);
        }
        tally = stages::run(&mut command, stage, &workspace.target_directory)?;
        Ok(())
    });
    report.note(tally.to_string());
}
