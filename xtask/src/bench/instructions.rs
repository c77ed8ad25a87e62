//! Instructions that one unary call costs its caller, counted by callgrind where it is present.
//!
//! The same on every run of the same program, whatever else the machine does; but not time: what
//! waits for memory or for another core costs none. So it stands beside the ratios, without a limit.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::shell::{self, Failure, Outcome, executables};

/// The bench that can make so many calls and end.
pub const BENCH: &str = "unary";
/// Who calls, ours first; as the bench names them.
const WHO: [&str; 4] = ["channel", "tonic-balance-list", "tonic-channel", "by-hand"];
/// Calls of the two runs, whose difference is what is told.
const CALLS: [u64; 2] = [500, 1_500];

/// Prints the table, or why there is none.
pub fn show() -> Outcome {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("\ninstructions are not counted: valgrind is missing");
        return Ok(());
    }
    let program = build()?;
    println!("\ninstructions of a unary call, one at a time, in the caller's process");
    let mut ours = None;
    for who in WHO {
        let [few, many] = [run(&program, who, CALLS[0])?, run(&program, who, CALLS[1])?];
        let each = many.saturating_sub(few) / (CALLS[1] - CALLS[0]);
        let ours = *ours.get_or_insert(each);
        println!("{who:<20} {each:>8}  {:.2}", ours as f64 / each as f64);
    }
    Ok(())
}

fn build() -> Result<std::path::PathBuf, Failure> {
    let what = ["bench", "--locked", "-p", "lameduck", "--bench", BENCH];
    let how = ["--no-run", "--message-format", "json"];
    let mut command = shell::cargo(what.into_iter().chain(how));
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    let programs = executables(&String::from_utf8_lossy(&output.stdout));
    let missing = || Failure(format!("the bench {BENCH} does not build"));
    programs.into_iter().next_back().ok_or_else(missing)
}

fn run(program: &Path, who: &str, calls: u64) -> Result<u64, Failure> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(program).args(["once", who, "1"]);
    let output = command
        .arg(calls.to_string())
        .stdin(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    collected(&text).ok_or_else(|| Failure(format!("callgrind has counted nothing:\n{text}")))
}

/// What callgrind says at its end.
fn collected(text: &str) -> Option<u64> {
    let mut lines = text.lines().rev();
    let count = lines.find_map(|line| line.split_once("Collected :"))?.1;
    count.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read() {
        let text = "==1== Events    : Ir\n==1== Collected : 46700123\n==1== \n";
        assert_eq!(collected(text), Some(46_700_123));
        assert_eq!(collected("==1== nothing"), None);
    }
}
