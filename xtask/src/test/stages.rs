//! What `cargo xtask test` runs, in order.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::comparison::{self, Shown};
use crate::metadata::Workspace;
use crate::shell::{self, Failure, Printed};

/// One stage: what it runs, and how that must end.
#[derive(Clone)]
pub struct Stage {
    /// What the report calls it.
    pub name: Cow<'static, str>,
    /// Needs without which it cannot run.
    pub needs: &'static [&'static str],
    program: Program,
    arguments: &'static [&'static str],
    /// The exit code that means that it holds.
    exit_code: i32,
    minutes_max: u64,
}

#[derive(Clone)]
enum Program {
    /// cargo.
    Cargo,
    /// `lameduck lab`, as an earlier stage has built it.
    Lab,
    /// The same with a proxy, which the arguments name, before its servers.
    Behind,
    /// A lab with a report, and its output is judged.
    Comparison,
    /// A program below the target directory that an earlier stage has built.
    Built(Cow<'static, str>),
}

/// All stages but the examples. A new stage is one line.
pub const STAGES: &[Stage] = &[
    cargo(
        "unit, integration and doc tests",
        &["test", "--workspace", "--locked", "--no-fail-fast"],
    ),
    cargo(
        "every rule's mutant is caught",
        &["run", "--quiet", "-p", "xtask", "--", "mutants"],
    ),
    cargo(
        "the command, as it is released",
        &["build", "--release", "--locked", "-p", "lameduck-cli"],
    ),
    Stage {
        name: Cow::Borrowed("5,000 simulated worlds hold"),
        needs: &[],
        program: Program::Built(Cow::Borrowed(LAB)),
        arguments: &["lab", "sim", "--seeds", "5000"],
        exit_code: 0,
        minutes_max: 3,
    },
    Stage {
        name: Cow::Borrowed("h2spec finds our HTTP/2 as strict as hyper's"),
        needs: &["go"],
        program: Program::Cargo,
        arguments: &["run", "--quiet", "-p", "xtask", "--", "h2spec"],
        exit_code: 0,
        minutes_max: 5,
    },
    Stage {
        name: Cow::Borrowed("stock callers with several hosts lose nothing in rolls"),
        needs: &["go", "python"],
        program: Program::Cargo,
        arguments: &["run", "--quiet", "-p", "xtask", "--", "stock"],
        exit_code: 0,
        minutes_max: 15,
    },
    lab("a short lab loses nothing", &[], 0),
    lab("nor without a second placement", &["--no-failover"], 0),
    lab("nor where links are slow", &["--slow-link"], 0),
    Stage {
        name: Cow::Borrowed("nor on a real etcd"),
        needs: &["etcd"],
        program: Program::Lab,
        arguments: &["--registry", "etcd"],
        exit_code: 0,
        minutes_max: 3,
    },
    behind(
        "nor behind an nginx that ends connections after 100 requests",
        &["nginx"],
        &["nginx", "--keepalive-requests", "100"],
    ),
    behind(
        "nor after 500",
        &["nginx"],
        &["nginx", "--keepalive-requests", "500"],
    ),
    behind(
        "nor after 1,000",
        &["nginx"],
        &["nginx", "--keepalive-requests", "1000"],
    ),
    behind("nor behind HAProxy", &["haproxy"], &["haproxy"]),
    Stage {
        name: Cow::Borrowed("a whole comparison loses nothing of ours"),
        needs: &[],
        program: Program::Comparison,
        arguments: &[
            "--compare",
            "tonic",
            "--json",
            "--rate",
            "600",
            "--servers",
            "3",
        ],
        exit_code: 0,
        minutes_max: 10,
    },
    Stage {
        name: Cow::Borrowed("its report holds in a browser"),
        needs: &["chromium"],
        program: Program::Cargo,
        arguments: &["run", "--quiet", "-p", "xtask", "--", "page"],
        exit_code: 0,
        minutes_max: 5,
    },
    broken(
        "a lab that breaks permit-at-head is caught",
        &["--sabotage", "permit-at-head"],
    ),
    broken(
        "a lab that breaks no-refuse-proof is caught",
        &["--sabotage", "no-refuse-proof"],
    ),
    broken(
        "a lab that breaks no-announce is caught",
        &["--sabotage", "no-announce", "--no-failover"],
    ),
    broken(
        "a lab that breaks no-closing is caught",
        &["--sabotage", "no-closing", "--no-failover"],
    ),
    broken(
        "a lab that breaks no-tombstone is caught",
        &["--sabotage", "no-tombstone"],
    ),
];

/// The command, below the target directory.
const LAB: &str = "release/lameduck";
/// What a lab with a proxy begins with; its name follows. At this rate each server has calls in flight
/// always, and two cores have time for the proxy as well.
const PROXIED: [&str; 5] = ["--registry", "none", "--rate", "500", "--proxy"];
/// Exit code of a lab that was valid and lost calls.
const LOST: i32 = 20;
/// Exit code of a lab whose run proves nothing: the machine could not keep the schedule.
const INVALID: i32 = 21;
/// A run that proves nothing is repeated until so much time has passed since the first one began: what
/// disturbs a machine may do so for minutes, and one that is too small is told.
const REPEATED_MAX: Duration = Duration::from_secs(600);
/// For what a stage has printed to be read once it has ended.
const OUTPUT_MAX: Duration = Duration::from_secs(10);

/// A lab that breaks one rule on purpose: it must lose calls for it, and be valid.
const fn broken(name: &'static str, arguments: &'static [&'static str]) -> Stage {
    lab(name, arguments, LOST)
}

/// A lab of real processes in which every server is rolled once.
const fn lab(name: &'static str, arguments: &'static [&'static str], exit_code: i32) -> Stage {
    Stage {
        name: Cow::Borrowed(name),
        needs: &[],
        program: Program::Lab,
        arguments,
        exit_code,
        minutes_max: 3,
    }
}

/// A lab whose servers are rolled behind a proxy of others, which is reloaded after that.
const fn behind(
    name: &'static str,
    needs: &'static [&'static str],
    arguments: &'static [&'static str],
) -> Stage {
    Stage {
        name: Cow::Borrowed(name),
        needs,
        program: Program::Behind,
        arguments,
        exit_code: 0,
        minutes_max: 3,
    }
}

const fn cargo(name: &'static str, arguments: &'static [&'static str]) -> Stage {
    Stage {
        name: Cow::Borrowed(name),
        needs: &[],
        program: Program::Cargo,
        arguments,
        exit_code: 0,
        minutes_max: 30,
    }
}

/// The examples of the library whose names begin with a digit: they tell a story and come to an end.
/// The others serve until they are told to stop. The tests have built them all.
pub fn examples(workspace: &Workspace) -> Vec<Stage> {
    let targets = workspace
        .packages
        .iter()
        .flat_map(|package| &package.targets);
    let stories = targets.filter(|target| {
        target.kind == "example" && target.name.starts_with(|c: char| c.is_ascii_digit())
    });
    stories.map(|target| example(&target.name)).collect()
}

fn example(name: &str) -> Stage {
    Stage {
        name: Cow::Owned(format!("example {name}")),
        needs: &[],
        program: Program::Built(Cow::Owned(format!("debug/examples/{name}"))),
        arguments: &[],
        exit_code: 0,
        minutes_max: 2,
    }
}

impl Stage {
    /// The command, ready to be started.
    pub fn command(&self, workspace: &Workspace) -> Result<Command, Failure> {
        let target = &workspace.target_directory;
        let mut command = match &self.program {
            Program::Cargo => shell::cargo([]),
            Program::Lab | Program::Behind | Program::Comparison => {
                let mut command = Command::new(target.join(LAB));
                command.args(["lab", "--rolls", "1"]);
                command
            }
            Program::Built(path) => {
                let mut command = Command::new(target.join(path.as_ref()));
                command.current_dir(shell::root());
                command
            }
        };
        match self.program {
            Program::Comparison => comparison::prepare(&mut command, target)?,
            Program::Behind => {
                command.args(PROXIED);
            }
            _ => {}
        }
        command.args(self.arguments);
        Ok(command)
    }
}

/// What the tests of one stage say of themselves.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    passed: u64,
    failed: u64,
    ignored: u64,
    programs: u64,
}

impl Tally {
    /// Adds a line such as `test result: ok. 3 passed; 0 failed; 0 ignored; ...`.
    fn read(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else {
            return;
        };
        self.programs += 1;
        for part in counts.split([';', '.']) {
            if let Some((number, what)) = part.trim().split_once(' ') {
                let number: u64 = number.parse().unwrap_or(0);
                match what {
                    "passed" => self.passed += number,
                    "failed" => self.failed += number,
                    "ignored" => self.ignored += number,
                    _ => {}
                }
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.programs == 0 {
            return Ok(());
        }
        let Self {
            passed,
            failed,
            ignored,
            programs,
        } = self;
        write!(
            f,
            "{passed} passed, {failed} failed, {ignored} ignored in {programs} programs"
        )
    }
}

/// Runs a stage to its end or its limit, with its output on ours. A run that says of itself that it
/// proves nothing, since the machine was busy with something else, is run again.
pub fn run(command: &mut Command, stage: &Stage, target: &Path) -> Result<Tally, Failure> {
    run_within(command, stage, target, REPEATED_MAX)
}

/// The same; the last run begins no later than `repeated_max` after the first.
fn run_within(
    command: &mut Command,
    stage: &Stage,
    target: &Path,
    repeated_max: Duration,
) -> Result<Tally, Failure> {
    let begun = Instant::now();
    loop {
        let once = run_once(command, stage, target)?;
        match once.outcome {
            Err(why) if once.proves_nothing && begun.elapsed() < repeated_max => {
                eprintln!("this run proves nothing: {why}; once more");
            }
            outcome => return outcome,
        }
    }
}

/// One run of a stage that came to its end.
struct Once {
    proves_nothing: bool,
    outcome: Result<Tally, Failure>,
}

fn run_once(command: &mut Command, stage: &Stage, target: &Path) -> Result<Once, Failure> {
    let shown = shell::shown(command);
    eprintln!("+ {shown}");
    let (status, output) = run_to_end(command, stage)?;
    let mut tally = Tally::default();
    output.lines().for_each(|line| tally.read(line));
    if status.code() != Some(stage.exit_code) {
        let separator = if tally == Tally::default() { "" } else { "; " };
        let expected = stage.exit_code;
        let because = reasons(&output);
        let why = format!("`{shown}`: {status}, expected {expected}{separator}{tally}{because}");
        return Ok(Once {
            proves_nothing: status.code() == Some(INVALID),
            outcome: Err(Failure(why)),
        });
    }
    let shows = match stage.program {
        Program::Comparison => comparison::judge(target, &output)?,
        Program::Cargo | Program::Lab | Program::Behind | Program::Built(_) => Shown::Holds,
    };
    let because = |why: &str| Err(Failure(format!("`{shown}`: {why}")));
    let proves_nothing = shows == Shown::Nothing;
    let outcome = match shows {
        Shown::Holds => Ok(tally),
        Shown::Nothing => Err(Failure(format!("`{shown}`{}", reasons(&output)))),
        Shown::Faults(faults) => because(&faults.join("; ")),
    };
    Ok(Once {
        proves_nothing,
        outcome,
    })
}

/// Why a lab's run proves nothing, as its table or its JSON says.
fn reasons(output: &str) -> String {
    let said = output.lines().filter(|line| line.starts_with("invalid: "));
    let said = said.map(str::to_owned);
    let run: Option<Value> = serde_json::from_str(output).ok();
    let listed = run.iter().flat_map(comparison::invalid);
    said.chain(listed).map(|why| format!("; {why}")).collect()
}

/// Runs a stage's command, and gives its end and what it printed.
fn run_to_end(command: &mut Command, stage: &Stage) -> Result<(ExitStatus, String), Failure> {
    let shown = shell::shown(command);
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child =
        started.map_err(|error| Failure(format!("`{shown}` could not be started: {error}")))?;
    let output = child.stdout.take().expect("its standard output is piped");
    let printed = Printed::of(output, true);
    let Some(status) = shell::wait(&mut child, Duration::from_secs(60 * stage.minutes_max))? else {
        let minutes = stage.minutes_max;
        return Err(Failure(format!(
            "`{shown}` did not end within {minutes} min"
        )));
    };
    Ok((status, printed.finish(OUTPUT_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell_stage(exit_code: i32) -> Stage {
        Stage {
            exit_code,
            minutes_max: 1,
            ..example("a")
        }
    }

    fn check(script: &str, stage: &Stage) -> Result<Tally, String> {
        let mut command = Command::new("sh");
        let command = command.args(["-c", script]);
        run_within(command, stage, Path::new(""), Duration::ZERO)
            .map_err(|failure| failure.to_string())
    }

    #[test]
    fn expected_exit_code_holds_and_another_does_not() {
        assert_eq!(check("exit 0", &shell_stage(0)), Ok(Tally::default()));
        assert_eq!(check("exit 20", &shell_stage(20)), Ok(Tally::default()));
        let why = check("exit 21", &shell_stage(20)).expect_err("21 is not 20");
        assert!(why.ends_with("exit status: 21, expected 20"), "{why}");
        assert!(check("exit 0", &shell_stage(20)).is_err());
    }

    #[test]
    fn run_that_proves_nothing_is_repeated_until_its_time_is_over() {
        let runs = std::env::temp_dir().join(format!("xtask runs {}", std::process::id()));
        let mut command = Command::new("sh");
        let script = "echo x >>\"$0\"; test \"$(wc -l <\"$0\")\" -ge 5 || exit 21";
        command.args(["-c", script]).arg(&runs);
        let long = Duration::from_secs(600);
        let tally = run_within(&mut command, &shell_stage(0), Path::new(""), long);
        assert_eq!(tally.expect("the fifth run proves it"), Tally::default());
        std::fs::remove_file(runs).expect("it was written");
        let why = check("echo 'invalid: too busy'; exit 21", &shell_stage(0));
        let why = why.expect_err("it proves nothing, and there is no time");
        let expected = "exit status: 21, expected 0; invalid: too busy";
        assert!(why.ends_with(expected), "{why}");
    }

    #[test]
    fn reasons_of_all_columns_are_told() {
        let columns = r#"{"invalid":["a"],"compare":{"tonic":{"invalid":["b"]},"tonic_hardened":{"invalid":[]}}}"#;
        assert_eq!(reasons(columns), "; lameduck: a; tonic: b");
    }

    #[test]
    fn stage_without_end_is_killed_at_its_limit() {
        let stage = Stage {
            minutes_max: 0,
            ..shell_stage(0)
        };
        let why = check("exec sleep 600", &stage).expect_err("it does not end by itself");
        assert!(why.ends_with("did not end within 0 min"), "{why}");
    }

    #[test]
    fn summaries_are_added_up() {
        let line = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out";
        let mut tally = Tally::default();
        for line in [
            line,
            "running 3 tests",
            "test result: FAILED. 2 passed; 1 failed;",
        ] {
            tally.read(line);
        }
        assert_eq!(
            tally.to_string(),
            "5 passed, 1 failed, 1 ignored in 2 programs"
        );
        assert_eq!(Tally::default().to_string(), "");
    }
}
