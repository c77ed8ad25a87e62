//! Running other programs, and saying so.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// What a task, or a part of one, comes to.
pub type Outcome = Result<(), Failure>;

/// Why a task failed, in words for the one who called it.
#[derive(Debug)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

/// The workspace's root.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent()
        .expect("xtask lies in the workspace's root")
        .to_owned()
}

/// `cargo` with `arguments`, in the workspace's root: the cargo that runs this task.
pub fn cargo<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// Prints the command and runs it to its end, with its output on ours.
pub fn run(command: &mut Command) -> Outcome {
    let shown = shown(command);
    eprintln!("+ {shown}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure(format!("`{shown}` failed ({status})"))),
        Err(error) => Err(Failure(format!("`{shown}` could not be started: {error}"))),
    }
}

/// The command as one would type it: variables that it sets, program, arguments.
pub fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or(command.get_program());
    let set = command
        .get_envs()
        .filter_map(|(name, value)| Some(format!("{}={:?}", name.display(), value?)));
    let words = std::iter::once(program).chain(command.get_args());
    set.chain(words.map(|word| word.display().to_string()))
        .collect::<Vec<_>>()
        .join(" ")
}

/// What a cargo that builds says in JSON, a message a line; other lines are passed over.
pub fn messages(output: &str) -> impl Iterator<Item = Value> {
    output
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
}

/// The programs that such messages name.
pub fn executables(output: &str) -> Vec<PathBuf> {
    messages(output)
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .collect()
}

/// Waits for the child's end; none where the limit passes first, and then the child is killed.
pub fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>, Failure> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::park_timeout(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_those_that_cargo_names() {
        let messages = "{\"executable\":null}\n{\"executable\":\"x/core-1\"}\nnoise\n{}\n";
        assert_eq!(executables(messages), [PathBuf::from("x/core-1")]);
    }
}
