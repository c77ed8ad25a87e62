//! Running other programs, and saying so.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
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

/// A directory of ours below the cache of the user, where what is costly to build is kept. It may not be
/// there yet.
pub fn cache(name: &str) -> Result<PathBuf, Failure> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(home);
    let cache = cache.ok_or_else(|| Failure("neither HOME nor XDG_CACHE_HOME is set".into()))?;
    Ok(cache.join("lameduck").join(name))
}

/// `cargo` with `arguments`, in the workspace's root: the cargo that runs this task.
pub fn cargo<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// Takes from the command what whoever called us may have set for himself: tests must not accept
/// whatever they find, and flags for the compiler given this way would stand before those of a task.
pub fn forget_settings(command: &mut Command) {
    for name in ["LAMEDUCK_BLESS", "CARGO_ENCODED_RUSTFLAGS"] {
        command.env_remove(name);
    }
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

/// What a child prints, line by line, as it comes.
pub struct Printed {
    lines: Receiver<String>,
}

impl Printed {
    /// Reads what `output` gives, and shows it on our standard output where it `is_shown`.
    pub fn of(output: ChildStdout, is_shown: bool) -> Self {
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output
                .read_until(b'\n', &mut line)
                .is_ok_and(|read| read > 0)
            {
                let text = String::from_utf8_lossy(&line).into_owned();
                if is_shown {
                    print!("{text}");
                }
                if tell.send(text).is_err() {
                    return;
                }
                line.clear();
            }
        });
        Self { lines }
    }

    /// All of it, once the child has ended. Somebody whom it left behind may keep its output open for
    /// ever: then it is what came until `limit` had passed.
    pub fn finish(self, limit: Duration) -> String {
        let end = Instant::now() + limit;
        let left = || end.saturating_duration_since(Instant::now());
        std::iter::from_fn(|| self.lines.recv_timeout(left()).ok()).collect()
    }
}

/// Waits for the child's end; none where the limit passes first, and then the child is killed, and
/// all that it started with it: what lives on would disturb whatever is run next.
pub fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>, Failure> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            kill_tree(child.id());
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::park_timeout(Duration::from_millis(50));
    }
}

/// Kills the process and all that it and they have started. A process group of their own would be
/// simpler, but then the terminal's Ctrl-C would not reach them.
fn kill_tree(root: u32) {
    let mut tree: Vec<u32> = Vec::new();
    let mut found = vec![root];
    // Who is stopped starts nobody: once no new one is found, these are all.
    while !found.is_empty() {
        found
            .iter()
            .for_each(|process| signal(*process, Signal::STOP));
        tree.append(&mut found);
        let children = tree.iter().flat_map(|process| children(*process));
        found = children.filter(|child| !tree.contains(child)).collect();
    }
    tree.iter()
        .for_each(|process| signal(*process, Signal::KILL));
}

/// Sends a signal to a process that may have ended.
pub fn signal(process: u32, signal: Signal) {
    if let Some(process) = Pid::from_raw(process.cast_signed()) {
        // One that has ended meanwhile needs no signal.
        let _ended = kill_process(process, signal);
    }
}

/// The children of all threads of a process; none of one that is gone.
fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter();
    let threads = threads.flatten().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let numbers = |list: String| {
        let numbers = list.split_whitespace().filter_map(|pid| pid.parse().ok());
        numbers.collect::<Vec<u32>>()
    };
    lists.flat_map(numbers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn programs_are_those_that_cargo_names() {
        let messages = "{\"executable\":null}\n{\"executable\":\"x/core-1\"}\nnoise\n{}\n";
        assert_eq!(executables(messages), [PathBuf::from("x/core-1")]);
    }

    fn started(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped());
        let command = command.stdout(Stdio::piped());
        command.spawn().expect("a shell")
    }

    #[test]
    fn all_that_a_child_started_ends_with_it() {
        // The inner shell says who its child is, and waits for it.
        let mut child = started("sh -c '(sleep 60; echo it lives) & echo $!; wait'; true");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("the child's number");
        assert_eq!(wait(&mut child, Duration::ZERO).expect("killed"), None);
        // Its end closes the last copy of the output.
        let rest = std::io::read_to_string(output).expect("an end");
        assert_eq!(rest, "", "process {line}");
    }

    #[test]
    fn output_that_is_kept_open_is_not_waited_for() {
        let mut child = started("echo one; exec 3<&0; { read x <&3; } & echo two");
        let printed = Printed::of(child.stdout.take().expect("piped"), false);
        let ended = wait(&mut child, Duration::from_secs(600)).expect("it ends");
        assert!(ended.is_some_and(|status| status.success()));
        assert_eq!(printed.finish(Duration::from_secs(2)), "one\ntwo\n");
    }
}
