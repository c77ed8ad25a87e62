//! A child that says what happens, a line at a time.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::shell::{self, Failure};

/// How long anything that is waited for may take, on whatever machine.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// The child, until it is dropped.
pub struct Process {
    pub name: &'static str,
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    pub fn start(name: &'static str, mut command: Command) -> Result<Self, Failure> {
        eprintln!("+ {}", shell::shown(&command));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let started = command.spawn();
        let mut child =
            started.map_err(|error| Failure(format!("{name} could not be started: {error}")))?;
        let output = child.stdout.take().expect("its standard output is piped");
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines();
            for line in lines.map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { name, child, lines })
    }

    /// The next line that it prints; `what` says what is expected of it.
    pub fn line(&self, what: &str) -> Result<String, Failure> {
        let name = self.name;
        self.lines
            .recv_timeout(WAIT_MAX)
            .map_err(|error| match error {
                RecvTimeoutError::Timeout => Failure(format!("{name} did not say {what}")),
                RecvTimeoutError::Disconnected => Failure(format!("{name} ended before {what}")),
            })
    }

    /// Ends its standard input.
    pub fn end_input(&mut self) {
        drop(self.child.stdin.take());
    }

    pub fn signal(&self, signal: Signal) {
        shell::signal(self.child.id(), signal);
    }

    /// Waits for its end.
    pub fn end(&mut self) -> Result<ExitStatus, Failure> {
        let status = shell::wait(&mut self.child, WAIT_MAX)?;
        status.ok_or_else(|| Failure(format!("{} did not end", self.name)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
