//! One child process: the same binary as the lab, whatever has happened to its file since.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use lameduck_core::time::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, Command};

use super::clock;
use super::control::Word;
use super::error::{LabError, doing};
use super::spec::{ChildSpec, SUBCOMMAND};

/// Linux keeps this link on the binary that runs, even after its file was replaced.
const SELF: &str = "/proc/self/exe";
/// Last bytes of a child's stderr that an error shows.
const LAST_WORDS: usize = 2_000;

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: tokio::process::Child,
    control: Option<ChildStdin>,
    stderr: PathBuf,
}

impl Process {
    /// Starts a child under `name`, whose stderr goes to a file in `home`.
    ///
    /// It has a process group of its own, so that Ctrl-C on a terminal reaches the lab alone.
    ///
    /// # Errors
    ///
    /// Where it cannot be started.
    pub fn start(name: &str, spec: &ChildSpec, home: &Path) -> Result<Self, LabError> {
        let stderr = home.join(format!("{name}.stderr"));
        let file = doing(
            File::create(&stderr),
            format!("making {}", stderr.display()),
        )?;
        let spec = serde_json::to_string(spec).expect("a specification is plain data");
        let mut command = Command::new(SELF);
        command
            .args([SUBCOMMAND, &spec])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(file)
            .process_group(0)
            .kill_on_drop(true);
        let mut child = doing(command.spawn(), format!("starting {name}"))?;
        let control = child.stdin.take();
        let name = name.to_owned();
        Ok(Self {
            name,
            child,
            control,
            stderr,
        })
    }

    /// What it is called in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends a signal, and tells the time right before.
    ///
    /// # Errors
    ///
    /// Where the child is gone already.
    pub fn signal(&self, signal: Signal) -> Result<Timestamp, LabError> {
        let pid = self
            .child
            .id()
            .and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let at = clock::now();
        let sent = pid
            .ok_or_else(gone)
            .and_then(|pid| Ok(kill_process(pid, signal)?));
        doing(sent, format!("signalling {}", self.name)).map(|()| at)
    }

    /// Says a word to the child. One that is gone does not hear it, and that is no error here:
    /// whoever waits for it sees how it ended.
    pub async fn say(&mut self, word: Word) {
        if let Some(control) = &mut self.control {
            let _ = control.write_all(format!("{word}\n").as_bytes()).await;
        }
    }

    /// How the child ended, where it has.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, LabError> {
        doing(
            self.child.try_wait(),
            format!("looking after {}", self.name),
        )
    }

    /// Waits for the child's end; `None` where it has not come in time. May be dropped and called
    /// again.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub async fn wait(&mut self, most: Duration) -> Result<Option<ExitStatus>, LabError> {
        match tokio::time::timeout(most, self.child.wait()).await {
            Ok(status) => doing(status, format!("waiting for {}", self.name)).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Kills the child and waits for its end.
    pub async fn kill(mut self) {
        // A child that is gone already needs no killing.
        let _ = self.child.kill().await;
    }

    /// What the child said last, as an error about it.
    #[must_use]
    pub fn error(&self, what: &str) -> LabError {
        let said = fs::read(&self.stderr).unwrap_or_default();
        let last = &said[said.len().saturating_sub(LAST_WORDS)..];
        LabError::Child {
            what: format!("{} {what}", self.name),
            stderr: String::from_utf8_lossy(last).trim().to_owned(),
        }
    }
}
