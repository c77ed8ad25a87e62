//! The test programs that are run against each rule: built once, run many times.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::shell::{self, Failure};

/// The crate that the simulator is in.
const LAB: &str = "crates/lameduck-lab";

/// The one test of the lab that is the simulator's judgement.
const WORLDS: &str = "sim::tests::worlds_hold_until_one_does_not";

/// How a rule is switched off.
const SWITCH: &str = "LAMEDUCK_MUTANT";

/// A test that never ends because a rule is off has noticed. Unit tests and worlds take seconds.
const UNIT_MAX: Duration = Duration::from_secs(60);
/// Integration tests wait for real time.
const INTEGRATION_MAX: Duration = Duration::from_secs(300);

/// One test program.
struct Program {
    /// The crate that it tests: a directory, relative to the root.
    home: String,
    path: PathBuf,
    /// Whether it is the crate's unit tests, which are quicker than the others and come first.
    is_unit: bool,
    /// What it says while every rule is on, once it was asked.
    whole: OnceLock<Verdict>,
}

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
            let verdict = program.run(&[], name)?.0;
            if verdict != Verdict::Unnoticed {
                return program.is_sound().map(|()| verdict);
            }
        }
        Ok(Verdict::Unnoticed)
    }

    /// What the simulated worlds say of the rule `name`.
    pub fn simulator(&self, name: &str) -> Result<Verdict, Failure> {
        let is_lab = |program: &&Program| program.home == LAB && program.is_unit;
        let simulator = self.all.iter().find(is_lab);
        let simulator = simulator.ok_or_else(|| Failure(format!("{LAB} has no tests")))?;
        let (verdict, output) = simulator.run(&["--exact", WORLDS], name)?;
        if verdict == Verdict::Unnoticed && !output.contains("1 passed") {
            return Err(Failure(format!("{LAB} has no test {WORLDS}")));
        }
        Ok(verdict)
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
    })
}

impl Program {
    /// An error where it fails with every rule on.
    fn is_sound(&self) -> Result<(), Failure> {
        if self.whole.get().is_none() {
            // Two may ask at once: both are told the same.
            let _other_was_first = self.whole.set(self.run(&[], "")?.0);
        }
        match self.whole.get() {
            Some(Verdict::Noticed(why)) => Err(Failure(format!(
                "the tests of {} fail with every rule on: {why}",
                self.home
            ))),
            _ => Ok(()),
        }
    }

    /// Runs it with the rule `name` off; an empty name leaves all on.
    fn run(&self, arguments: &[&str], name: &str) -> Result<(Verdict, String), Failure> {
        let mut command = Command::new(&self.path);
        command
            .args(arguments)
            .current_dir(shell::root().join(&self.home))
            .env(SWITCH, name);
        // A failure that was asked for leaves no seed in the tree, and need not be made small.
        command
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            .env("PROPTEST_CASES", "64")
            .env("RUST_BACKTRACE", "0");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn()?;
        let mut output = child.stdout.take().expect("its standard output is piped");
        let reader = thread::spawn(move || {
            let mut text = Vec::new();
            // What it said until it ended, or was ended.
            let _as_far_as_it_goes = output.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let limit = if self.is_unit {
            UNIT_MAX
        } else {
            INTEGRATION_MAX
        };
        let ended = shell::wait(&mut child, limit)?;
        let text = reader.join().expect("the reader only reads");
        let verdict = match ended {
            Some(status) if status.success() => Verdict::Unnoticed,
            Some(_) => Verdict::Noticed(reason(&text)),
            None => Verdict::Noticed("it does not end".to_owned()),
        };
        Ok((verdict, text))
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

    #[test]
    fn reason_is_the_world_or_the_test() {
        let failed = "test a::b ... ok\ntest a::c ... FAILED\n";
        assert_eq!(reason(failed), "a::c");
        assert_eq!(reason(&format!("{failed}seed 4: lost\n")), "seed 4: lost");
        assert_eq!(reason(""), "it ends at once");
    }
}
