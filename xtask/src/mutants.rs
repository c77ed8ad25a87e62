//! `cargo xtask mutants`: a rule that no test misses when it is switched off is not tested.
//!
//! Every `mutant!("machine/rule")` of the core is switched off in turn, and the core's tests, built once
//! with `--cfg lameduck_mutants` in a target directory of their own, must fail.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::shell::{self, Failure, Outcome};

/// The crate whose rules have switches, relative to the root.
const CORE: &str = "crates/lameduck-core";

/// How a rule is switched off.
const SWITCH: &str = "LAMEDUCK_MUTANT";

/// A test that never ends because a rule is off has noticed.
const LIMIT: Duration = Duration::from_secs(60);

/// `cargo xtask mutants`.
pub fn run(arguments: &[String]) -> Outcome {
    if !arguments.is_empty() {
        return Err(Failure("it takes no argument".to_owned()));
    }
    let programs = build()?;
    if let Some(program) = failing(&programs, "")? {
        return Err(Failure(format!(
            "{} fails with every rule on",
            program.display()
        )));
    }
    let mut survivors = 0;
    for (name, place) in switches(&shell::root().join(CORE).join("src"))? {
        if failing(&programs, &name)?.is_some() {
            println!("caught   {name}");
        } else {
            survivors += 1;
            println!("SURVIVED {name}");
            eprintln!("{place}: no test misses the rule `{name}`: add one to its machine's tests");
        }
    }
    match survivors {
        0 => Ok(()),
        n => Err(Failure(format!("{n} rules can be off and no test notices"))),
    }
}

/// Builds the core's tests and returns their programs.
fn build() -> Result<Vec<PathBuf>, Failure> {
    let what = [
        "test",
        "--locked",
        "--no-run",
        "-p",
        "lameduck-core",
        "--lib",
        "--tests",
    ];
    let how = ["--target-dir", "target/mutants", "--message-format", "json"];
    let mut command = shell::cargo(what.into_iter().chain(how));
    command.env("RUSTFLAGS", "--cfg lameduck_mutants");
    eprintln!("+ {}", shell::shown(&command));
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(Failure("the core's tests do not build".to_owned()));
    }
    Ok(executables(&String::from_utf8_lossy(&output.stdout)))
}

/// The programs that cargo's messages name.
pub fn executables(messages: &str) -> Vec<PathBuf> {
    let json = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    json.filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .collect()
}

/// The first program whose tests fail, or do not end, with the rule `name` off.
fn failing<'a>(programs: &'a [PathBuf], name: &str) -> Result<Option<&'a Path>, Failure> {
    for program in programs {
        let mut command = Command::new(program);
        command
            .current_dir(shell::root().join(CORE))
            .env(SWITCH, name);
        // A failure that was asked for leaves no seed in the tree, and need not be made small.
        command
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            .env("PROPTEST_CASES", "64")
            .env("RUST_BACKTRACE", "0");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let ended = shell::wait(&mut command.spawn()?, LIMIT)?;
        if !ended.is_some_and(|status| status.success()) {
            return Ok(Some(program));
        }
    }
    Ok(None)
}

/// Every switch below `directory`, with the place where it stands.
fn switches(directory: &Path) -> Result<BTreeMap<String, String>, Failure> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(switches(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let root = shell::root();
            let shown = path
                .strip_prefix(&root)
                .unwrap_or(&path)
                .display()
                .to_string();
            found.extend(switches_of(&shown, &fs::read_to_string(&path)?));
        }
    }
    Ok(found)
}

fn switches_of(path: &str, text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        for rest in line.split("mutant!(\"").skip(1) {
            if let Some((name, _)) = rest.split_once('"') {
                found.push((name.to_owned(), format!("{path}:{}", index + 1)));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_found_but_not_in_comments() {
        let text = "if a && !mutant!(\"a/b\") || mutant!(\"a/c\") {\n/// mutant!(\"a/d\")\n";
        let place = || "x.rs:1".to_owned();
        let expected = [("a/b".to_owned(), place()), ("a/c".to_owned(), place())];
        assert_eq!(switches_of("x.rs", text), expected);
    }

    #[test]
    fn programs_are_those_that_cargo_names() {
        let messages = "{\"executable\":null}\n{\"executable\":\"x/core-1\"}\nnoise\n{}\n";
        assert_eq!(executables(messages), [PathBuf::from("x/core-1")]);
    }
}
