//! What a lab leaves behind, however it ends, and what it prints.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests, outside of test functions"
)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

const LAMEDUCK: &str = env!("CARGO_BIN_EXE_lameduck");

/// A directory for temporary files of one test's lab, so that what it leaves there is seen.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("lameduck-test-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Process ids come again, in a container soon: a test that was killed may have left it.
        let _none_there = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self { path }
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(&self.path).unwrap().next().is_none()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A lab under load.
struct Running {
    lab: Child,
    children: Vec<OwnedFd>,
}

fn lab(binary: &Path, scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary);
    command
        .arg("lab")
        .args(["--registry", "none", "--rate", "200", "--servers", "2"])
        .args(arguments)
        .env("TMPDIR", &scratch.path)
        .stdin(Stdio::null());
    command
}

/// Starts a lab and waits until its first calls go out: two servers and two callers run then.
fn start(command: &mut Command) -> Running {
    let mut lab = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let stderr = lab.stderr.as_mut().unwrap();
    BufReader::with_capacity(1, stderr)
        .read_line(&mut line)
        .unwrap();
    assert!(line.contains("calls/s"), "{line}");
    // The line may be older than the last of them.
    let mut children = open_children(lab.id());
    while children.len() < 4 {
        assert!(lab.try_wait().unwrap().is_none(), "the lab has ended");
        children = open_children(lab.id());
    }
    assert_eq!(children.len(), 4);
    Running { lab, children }
}

/// Those that run now.
fn open_children(parent: u32) -> Vec<OwnedFd> {
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    let pids = list.split_whitespace().map(|pid| pid.parse().unwrap());
    let open = |pid| pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
    pids.map(open).collect()
}

impl Running {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.lab.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for the lab, then for each of its children; fails where one outlives it for 10 s.
    fn end(mut self) -> ExitStatus {
        let status = self.lab.wait().unwrap();
        let most = Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        for child in &self.children {
            let mut ended = [PollFd::new(child, PollFlags::IN)];
            assert_eq!(
                poll(&mut ended, Some(&most)).unwrap(),
                1,
                "a child lives on"
            );
        }
        status
    }
}

#[test]
fn a_killed_lab_leaves_nothing() {
    let scratch = Scratch::new("killed");
    let running = start(&mut lab(Path::new(LAMEDUCK), &scratch, &[]));
    assert!(!scratch.is_empty());
    running.signal(Signal::KILL);
    running.end();
    assert!(scratch.is_empty());
}

#[test]
fn an_interrupted_lab_leaves_nothing() {
    let scratch = Scratch::new("interrupted");
    let running = start(&mut lab(Path::new(LAMEDUCK), &scratch, &[]));
    running.signal(Signal::INT);
    assert_eq!(running.end().code(), Some(1));
    assert!(scratch.is_empty());
}

/// A machine that is busy for a moment makes a run invalid, which proves nothing: it is repeated. One
/// that is busy for a minute may do so several times in a row.
const RUNS_MAX: u32 = 10;
/// Exit code of an invalid run.
const INVALID: Option<i32> = Some(21);

/// Runs a lab from a copy of the binary that is gone once it runs; gives its exit code and what it
/// printed and said.
fn run_replaced(name: &str) -> (Option<i32>, String, String) {
    let scratch = Scratch::new(name);
    let copy = scratch.path.join("lameduck");
    // Not by ourselves: a child of a test beside this one would inherit the file while it is open for
    // writing, and such a file cannot be run.
    let copied = Command::new("cp").arg(LAMEDUCK).arg(&copy).status();
    assert!(copied.unwrap().success());
    let mut command = lab(&copy, &scratch, &["--rolls", "1", "--json"]);
    let mut running = start(command.stdout(Stdio::piped()));
    fs::remove_file(&copy).unwrap();
    let stderr = running.lab.stderr.take().unwrap();
    let stdout = running.lab.stdout.take().unwrap();
    let said = std::io::read_to_string(stderr).unwrap();
    let printed = std::io::read_to_string(stdout).unwrap();
    let code = running.end().code();
    assert!(scratch.is_empty());
    (code, printed, said)
}

#[test]
fn a_lab_rolls_on_while_its_binary_is_replaced() {
    let mut runs = (0..RUNS_MAX).map(|run| run_replaced(&format!("replaced-{run}")));
    let valid = runs.find(|(code, ..)| *code != INVALID);
    let (code, printed, said) = valid.expect("one run in ten is valid");
    assert_eq!(code, Some(0), "{said}\n{printed}");
    let report: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(report["valid"], true, "{report}");
    assert_eq!(report["calls"].as_u64(), total(&report), "{report}");
    assert_eq!(report["drains"].as_array().unwrap().len(), 2);
    for key in ["failed", "unknown", "started_twice"] {
        assert_eq!(report[key], 0, "{report}");
    }
    for key in [
        "server",
        "window_admit_ms",
        "window_pick_ms",
        "window_directory_ms",
        "exit_ms",
        "in_flight_at_signal",
        "abandoned",
    ] {
        assert!(report["drains"][0][key].is_number(), "{key}: {report}");
    }
    assert!(report["kills"][0]["failed_other"].is_number());
    let options = &report["options"];
    for (key, value) in [("rate", 200), ("servers", 2), ("rolls", 1), ("seed", 1)] {
        assert_eq!(options[key], value, "{report}");
    }
    assert_eq!(options["registry"], "none");
    assert!(options["sabotage"].is_null() && options["failover"] == true);
    assert!(report["jitter_ms"]["max"].is_number());
}

/// What became of all calls, added up.
fn total(report: &serde_json::Value) -> Option<u64> {
    let ended = ["ok", "failed", "unknown"].map(|key| report[key].as_u64());
    let killed = ["failed_idempotent", "failed_other"].map(|key| report["kills"][0][key].as_u64());
    ended.into_iter().chain(killed).sum()
}

#[test]
fn options_without_sense_are_told() {
    let scratch = Scratch::new("usage");
    let check = |arguments: &[&str], code: i32, part: &str| {
        let mut command = Command::new(LAMEDUCK);
        let command = command.arg("lab").args(arguments);
        let output = command.env("TMPDIR", &scratch.path).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(part), "{said}");
        assert!(scratch.is_empty());
    };
    check(&["--callers", "0"], 2, "--callers");
    check(&["--rate", "4000000000"], 2, "--rate");
    check(&["--rolls", "0"], 2, "--rolls");
    check(&["sim", "--seeds", "0"], 2, "--seeds");
    check(&["sim", "--from", "18446744073709551615"], 2, "--from");
    check(&["--keep", "/proc/none"], 2, "--keep /proc/none: ");
    check(&["--keep", "/proc"], 2, "--keep /proc: it is not empty");
    check(&["--sabotage", "everything"], 2, "permit-at-head");
    check(&["--registry", "nonsense"], 2, "nonsense");
    check(&["--registry", "foo://x"], 2, "foo://x: no such registry");
    check(&["--registry", "etcd://x"], 2, "no port");
    let unheard = ["--registry", "none", "--sabotage", "no-tombstone"];
    check(&unheard, 2, "leave out --registry none");
    let nobody = "etcd://127.0.0.1:1";
    check(&["--registry", nobody], 22, nobody);
}

/// A run without an outcome leaves no report, and the one that was there.
#[test]
fn a_report_is_whole_or_not_there() {
    let scratch = Scratch::new("report");
    let report = scratch.path.join("report.html");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(LAMEDUCK);
        command
            .arg("lab")
            .args(arguments)
            .arg("--report")
            .arg(&report);
        command.env("TMPDIR", &scratch.path).output().unwrap()
    };
    let nobody = ["--registry", "etcd://127.0.0.1:1"];
    assert_eq!(run(&nobody).status.code(), Some(22));
    assert!(scratch.is_empty());
    fs::write(&report, "old").unwrap();
    assert_eq!(run(&nobody).status.code(), Some(22));
    assert_eq!(fs::read_to_string(&report).unwrap(), "old");
    let output = run(&[
        "--registry",
        "none",
        "--rate",
        "100",
        "--rolls",
        "1",
        "--servers",
        "2",
    ]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the report is in "), "{said}");
    let page = fs::read_to_string(&report).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert_eq!(fs::read_dir(&scratch.path).unwrap().count(), 1);
}

/// Whoever reads may go; what was found is in the exit code.
#[test]
fn nobody_needs_to_listen() {
    let scratch = Scratch::new("unheard");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(LAMEDUCK);
    let command = command.args(["lab", "--callers", "0"]).stderr(writer);
    let command = command.env("TMPDIR", &scratch.path);
    assert_eq!(command.status().unwrap().code(), Some(2));
}
