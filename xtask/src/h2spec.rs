//! `cargo xtask h2spec`: a foreign conformance suite for HTTP/2 on our port.
//!
//! The suite is a Go program; it is built once, outside the tree, by the user's Go.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::metadata::Workspace;
use crate::shell::{self, Failure, Outcome};

/// The suite, at a version.
const MODULE: &str = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible";
/// The directory of the user's cache that it is kept in.
const KEPT: &str = "h2spec-v2.2.1";
/// The server that is asked.
const TARGET: &str = "http_target";
/// What hyper fails too: the answer to an invalid preface, and 6.9.1/3, which depends on who is faster.
const KNOWN_FAILURES: u32 = 2;
/// Fewer tests than this mean that the suite did not run.
const TESTS: u32 = 146;

pub fn run(arguments: &[String]) -> Outcome {
    if !arguments.is_empty() {
        return Err(Failure("it takes no argument".to_owned()));
    }
    let suite = provide()?;
    shell::run(&mut shell::cargo([
        "build",
        "--quiet",
        "--locked",
        "-p",
        "lameduck",
        "--example",
        TARGET,
    ]))?;
    let target = Workspace::load()?.target_directory;
    let server = Server::start(Command::new(target.join("debug/examples").join(TARGET)))?;
    let mut command = Command::new(suite);
    command.args(["--strict", "-h", &server.host, "-p", &server.port]);
    eprintln!("+ {}", shell::shown(&command));
    let output = command.stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    judge(&text).map_err(|why| Failure(format!("{why}\n{}", failures(&text))))?;
    println!("{}", summary(&text).unwrap_or_default());
    Ok(())
}

/// Where the suite is; builds it where it is not there yet.
fn provide() -> Result<PathBuf, Failure> {
    let kept = shell::cache(KEPT)?;
    let program = kept.join("h2spec");
    if !program.is_file() {
        std::fs::create_dir_all(&kept)?;
        let mut install = Command::new("go");
        install.args(["install", MODULE]).env("GOBIN", &kept);
        shell::run(install.current_dir(&kept))?;
    }
    Ok(program)
}

/// The target, until it is dropped.
struct Server {
    child: Child,
    host: String,
    port: String,
}

impl Server {
    fn start(mut command: Command) -> Result<Self, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = child.stdout.take().expect("its standard output is piped");
        let mut server = Self {
            child,
            host: String::new(),
            port: String::new(),
        };
        let mut address = String::new();
        BufReader::new(output).read_line(&mut address)?;
        let parts = address.trim().rsplit_once(':');
        let (host, port) =
            parts.ok_or_else(|| Failure(format!("{TARGET} printed {address:?}, no address")))?;
        (server.host, server.port) = (host.to_owned(), port.to_owned());
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The line that sums up: `146 tests, 144 passed, 0 skipped, 2 failed`.
fn summary(output: &str) -> Option<&str> {
    output.lines().rev().find(|line| line.contains(" tests, "))
}

fn failures(output: &str) -> String {
    let failed = output.lines().filter(|line| line.contains('×'));
    failed.collect::<Vec<_>>().join("\n")
}

fn judge(output: &str) -> Result<(), String> {
    let line = summary(output).ok_or("h2spec printed no summary")?;
    let number = |word: &str| {
        let part = line.split(", ").find(|part| part.ends_with(word))?;
        part.split(' ').next()?.parse::<u32>().ok()
    };
    match (number("tests"), number("failed")) {
        (Some(TESTS), Some(failed)) if failed <= KNOWN_FAILURES => Ok(()),
        _ => Err(format!(
            "{line}; {TESTS} tests, of which at most {KNOWN_FAILURES} may fail"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_judged() {
        let run = |passed: u32, failed: u32| {
            let all = passed + failed;
            judge(&format!(
                "x\n{all} tests, {passed} passed, 0 skipped, {failed} failed\n"
            ))
        };
        assert_eq!(run(146, 0), Ok(()));
        assert_eq!(run(144, 2), Ok(()));
        assert!(run(143, 3).is_err());
        assert!(run(100, 0).is_err());
        assert!(judge("").is_err());
    }
}
