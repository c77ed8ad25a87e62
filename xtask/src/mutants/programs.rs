//! The test programs that are run against each rule: built once, run many times.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::shell::{self, Failure, Printed};

/// The crate that the simulator is in.
const LAB: &str = "crates/lameduck-lab";

/// The one test of the lab that is the simulator's judgement.
const WORLDS: &str = "sim::tests::worlds_hold_until_one_does_not";

/// The arguments that ask for it alone.
const JUDGEMENT: [&str; 2] = ["--exact", WORLDS];

/// How a rule is switched off.
const SWITCH: &str = "LAMEDUCK_MUTANT";

/// A test that never ends because a rule is off has noticed. Unit tests and worlds take seconds; on a
/// machine on which they take longer with every rule on, [`TIMES`] as long as then.
const UNIT_MAX: Duration = Duration::from_secs(60);
/// Integration tests wait for real time.
const INTEGRATION_MAX: Duration = Duration::from_secs(300);

/// What a test takes with every rule on varies less than this.
const TIMES: u32 = 5;
/// For what a test program has printed to be read once it has ended.
const OUTPUT_MAX: Duration = Duration::from_secs(10);

/// One test program.
struct Program {
    /// The crate that it tests: a directory, relative to the root.
    home: String,
    path: PathBuf,
    /// Whether it is the crate's unit tests, which are quicker than the others and come first.
    is_unit: bool,
    /// What all of its tests say while every rule is on, once it was asked.
    whole: OnceLock<Sound>,
    /// What the simulated worlds say then.
    worlds: OnceLock<Sound>,
}

/// How long tests take while every rule is on, or why they fail.
type Sound = Result<Duration, String>;

/// All of them.
pub struct Programs {
    /// Unit tests first.
    all: Vec<Program>,
}

/// What a test program says of a rule that is off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All tests pass.
    Unnoticed,
    /// A test fails, with this reason where it gives one; or does not end.
    Noticed(String),
}

/// One run of a test program.
struct Ran {
    verdict: Verdict,
    output: String,
    /// Whether it came to its end by itself.
    has_ended: bool,
    took: Duration,
}

impl Programs {
    /// Builds the tests of the crates in `homes`, and the simulator.
    pub fn build(homes: &BTreeSet<&str>) -> Result<Self, Failure> {
        let packages = homes.iter().copied().chain([LAB]).collect::<BTreeSet<_>>();
        let packages = packages
            .iter()
            .flat_map(|home| ["-p", home.rsplit('/').next().unwrap_or(home)]);
        let what = ["test", "--locked", "--no-run", "--lib", "--tests"];
        let how = ["--target-dir", "target/mutants", "--message-format", "json"];
        let mut command = shell::cargo(what.into_iter().chain(packages).chain(how));
        shell::forget_settings(&mut command);
        command.env("RUSTFLAGS", "--cfg lameduck_mutants");
        eprintln!(
            "building tests in which rules can be off, in target/mutants: minutes, the first time"
        );
        eprintln!("+ {}", shell::shown(&command));
        let output = command
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err(Failure("the tests do not build".to_owned()));
        }
        let output = String::from_utf8_lossy(&output.stdout);
        Ok(Self::of(&output, &shell::root()))
    }

    /// The programs that cargo's messages name.
    fn of(output: &str, root: &Path) -> Self {
        let programs = shell::messages(output).filter_map(|message| program(&message, root));
        let mut all: Vec<Program> = programs.collect();
        all.sort_by_key(|program| !program.is_unit);
        Self { all }
    }

    /// What the tests of the crate `home` say of the rule `name`. A test that also fails while every
    /// rule is on proves nothing, and is an error.
    pub fn suite(&self, home: &str, name: &str) -> Result<Verdict, Failure> {
        for program in self.all.iter().filter(|program| program.home == home) {
            let verdict = program.judge(&[], name, &program.whole)?.verdict;
            if verdict != Verdict::Unnoticed {
                return Ok(verdict);
            }
        }
        Ok(Verdict::Unnoticed)
    }

    /// What the simulated worlds say of the rule `name`.
    pub fn simulator(&self, name: &str) -> Result<Verdict, Failure> {
        let simulator = self.simulated()?;
        let ran = simulator.judge(&JUDGEMENT, name, &simulator.worlds)?;
        if ran.verdict == Verdict::Unnoticed && !ran.output.contains("1 passed") {
            return Err(Failure(format!("{LAB} has no test {WORLDS}")));
        }
        Ok(ran.verdict)
    }

    /// An error where the simulator objects while every rule is on.
    pub fn simulator_is_sound(&self) -> Result<(), Failure> {
        let simulator = self.simulated()?;
        simulator.sound(&JUDGEMENT, &simulator.worlds).map(|_| ())
    }

    fn simulated(&self) -> Result<&Program, Failure> {
        let is_lab = |program: &&Program| program.home == LAB && program.is_unit;
        let simulator = self.all.iter().find(is_lab);
        simulator.ok_or_else(|| Failure(format!("{LAB} has no tests")))
    }
}

/// The test program that a message of cargo speaks of.
fn program(message: &Value, root: &Path) -> Option<Program> {
    let path = PathBuf::from(message["executable"].as_str()?);
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let home = manifest.parent()?.strip_prefix(root).ok()?;
    let home = home.display().to_string();
    let kinds = message["target"]["kind"].as_array()?;
    Some(Program {
        home,
        path,
        is_unit: kinds.iter().any(|kind| kind == "lib"),
        whole: OnceLock::new(),
        worlds: OnceLock::new(),
    })
}

impl Program {
    /// What it says of the rule `name`. Where it notices, it must not do so with every rule on; where
    /// it does not end, that must not be what it takes on this machine.
    fn judge(
        &self,
        arguments: &[&str],
        name: &str,
        sound: &OnceLock<Sound>,
    ) -> Result<Ran, Failure> {
        let limit = self.limit();
        let ran = self.run(arguments, name, limit)?;
        if ran.verdict == Verdict::Unnoticed {
            return Ok(ran);
        }
        let enough = self.sound(arguments, sound)? * TIMES;
        if ran.has_ended || enough <= limit {
            return Ok(ran);
        }
        self.run(arguments, name, enough)
    }

    /// How long it takes with every rule on. Where it fails then, it is asked once more before it is an
    /// error: two programs run at a time here, and a test that needs a quiet machine accuses no rule.
    fn sound(&self, arguments: &[&str], known: &OnceLock<Sound>) -> Result<Duration, Failure> {
        if known.get().is_none() {
            let mut asked = self.ask(arguments)?;
            if asked.is_err() {
                asked = self.ask(arguments)?;
            }
            // Two may ask at once: both are told the same.
            let _other_was_first = known.set(asked);
        }
        let known = known.get().expect("it was set just now");
        known.clone().map_err(|why| {
            let home = &self.home;
            Failure(format!(
                "the tests of {home} fail with every rule on, twice: {why}"
            ))
        })
    }

    fn ask(&self, arguments: &[&str]) -> Result<Sound, Failure> {
        let ran = self.run(arguments, "", self.limit() * TIMES)?;
        Ok(match ran.verdict {
            Verdict::Unnoticed => Ok(ran.took),
            Verdict::Noticed(why) => Err(why),
        })
    }

    const fn limit(&self) -> Duration {
        if self.is_unit {
            UNIT_MAX
        } else {
            INTEGRATION_MAX
        }
    }

    /// Runs it with the rule `name` off, for `limit` at most; an empty name leaves all on.
    fn run(&self, arguments: &[&str], name: &str, limit: Duration) -> Result<Ran, Failure> {
        let begun = Instant::now();
        let mut child = self.command(arguments, name).spawn()?;
        let output = child.stdout.take().expect("its standard output is piped");
        let printed = Printed::of(output, false);
        let ended = shell::wait(&mut child, limit)?;
        let took = begun.elapsed();
        // What it said until it ended, or was ended.
        let output = printed.finish(OUTPUT_MAX);
        let verdict = match ended {
            Some(status) if status.success() => Verdict::Unnoticed,
            Some(_) => Verdict::Noticed(reason(&output)),
            None => Verdict::Noticed("it does not end".to_owned()),
        };
        Ok(Ran {
            verdict,
            output,
            has_ended: ended.is_some(),
            took,
        })
    }

    fn command(&self, arguments: &[&str], name: &str) -> Command {
        let mut command = Command::new(&self.path);
        command
            .args(arguments)
            .current_dir(shell::root().join(&self.home));
        shell::forget_settings(&mut command);
        // A failure that was asked for leaves no seed in the tree, and need not be made small.
        command
            .env(SWITCH, name)
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            .env("PROPTEST_CASES", "64")
            .env("RUST_BACKTRACE", "0");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
    }
}

/// What the simulator says, or else the name of the first test that failed.
fn reason(output: &str) -> String {
    let said = output.lines().find(|line| line.starts_with("seed "));
    let failed = || {
        let mut lines = output.lines();
        lines.find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
    };
    said.or_else(failed).unwrap_or("it ends at once").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_those_that_cargo_names() {
        let message = |home: &str, program: &str, kind: &str| {
            let manifest = format!("\"manifest_path\":\"/w/{home}/Cargo.toml\"");
            let target = format!("\"target\":{{\"kind\":[\"{kind}\"]}}");
            format!("{{\"executable\":{program},{manifest},{target}}}\n")
        };
        let messages = [
            message("crates/a", "null", "lib"),
            message("crates/a", "\"/x/it-1\"", "test"),
            "noise\n{}\n".to_owned(),
            message(LAB, "\"/x/lab-1\"", "lib"),
        ];
        let programs = Programs::of(&messages.concat(), Path::new("/w"));
        let named = programs.all.iter().map(|program| {
            let path = program.path.display().to_string();
            (program.home.as_str(), path, program.is_unit)
        });
        let expected = [
            (LAB, "/x/lab-1".to_owned(), true),
            ("crates/a", "/x/it-1".to_owned(), false),
        ];
        assert_eq!(named.collect::<Vec<_>>(), expected);
    }

    /// A program that is a shell, so that its one argument is what it does.
    fn shell() -> Program {
        Program {
            home: String::new(),
            path: PathBuf::from("/bin/sh"),
            is_unit: true,
            whole: OnceLock::new(),
            worlds: OnceLock::new(),
        }
    }

    fn script(text: &str) -> [&str; 2] {
        ["-c", text]
    }

    #[test]
    fn what_fails_with_every_rule_on_is_asked_twice() {
        let file = std::env::temp_dir().join(format!("xtask asked {}", std::process::id()));
        let count = format!("echo x >>'{}'; ", file.display());
        let asked = |then: &str, name: &str| {
            let (program, text) = (shell(), format!("{count}{then}"));
            let judged = program.judge(&script(&text), name, &program.whole);
            let runs = std::fs::read_to_string(&file).expect("it was run");
            std::fs::remove_file(&file).expect("it is there");
            let judged = judged.map(|ran| ran.verdict).map_err(|why| why.to_string());
            (judged, runs.lines().count())
        };
        let noticed = Ok(Verdict::Noticed("it ends at once".to_owned()));
        let with_rules_on = format!("test \"$(wc -l <'{}')\" ", file.display());
        // The rule is off, then on.
        assert_eq!(asked("test -z $LAMEDUCK_MUTANT", "a"), (noticed.clone(), 2));
        assert_eq!(asked(&format!("{with_rules_on} -ge 3"), "a"), (noticed, 3));
        let (unsound, runs) = asked("false", "a");
        let why = unsound.expect_err("it always fails");
        assert!(why.contains("every rule on, twice"), "{why}");
        assert_eq!(runs, 3);
        assert_eq!(asked("true", "a"), (Ok(Verdict::Unnoticed), 1));
    }

    #[test]
    fn who_does_not_end_is_ended() {
        let ran = shell().run(
            &script("echo one; exec sleep 600"),
            "",
            Duration::from_millis(200),
        );
        let ran = ran.expect("it runs");
        assert!(!ran.has_ended);
        assert_eq!(ran.verdict, Verdict::Noticed("it does not end".to_owned()));
    }

    #[test]
    fn reason_is_the_world_or_the_test() {
        let failed = "test a::b ... ok\ntest a::c ... FAILED\n";
        assert_eq!(reason(failed), "a::c");
        assert_eq!(reason(&format!("{failed}seed 4: lost\n")), "seed 4: lost");
        assert_eq!(reason(""), "it ends at once");
    }
}
