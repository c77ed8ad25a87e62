//! A stock caller: it calls until its standard input ends, and prints what comes of that.

use std::collections::BTreeSet;
use std::process::Command;

use super::process::Process;
use crate::shell::{Failure, Outcome};

/// So many failed calls are reason enough: whatever else is waited for may never come.
const FAILED_MAX: usize = 100;

/// What it has said so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// All calls that it made, known at its end.
    pub calls: u64,
    /// Why calls failed, one text for each.
    pub failed: Vec<String>,
    /// The servers that have answered some calls.
    served: BTreeSet<String>,
}

pub struct Caller {
    process: Process,
    account: Account,
}

impl Caller {
    pub fn start(name: &'static str, command: Command) -> Result<Self, Failure> {
        Ok(Self {
            process: Process::start(name, command)?,
            account: Account::default(),
        })
    }

    pub const fn name(&self) -> &'static str {
        self.process.name
    }

    /// Waits until this server has answered some of its calls.
    pub fn served_by(&mut self, server: &str) -> Outcome {
        while !self.account.served.contains(server) {
            let line = self.process.line(&format!("that {server} serves it"));
            // What it said before is the reason.
            let line = line.map_err(|Failure(why)| Failure(self.account.explained(why)))?;
            self.account.read(&line)?;
            if self.account.failed.len() >= FAILED_MAX {
                let why = format!("no sign that {server} serves {}", self.name());
                return Err(Failure(self.account.explained(why)));
            }
        }
        Ok(())
    }

    /// Lets it end, and gives all that it said.
    pub fn finish(mut self) -> Result<Account, Failure> {
        self.process.end_input();
        while self.account.calls == 0 {
            let line = self.process.line("how many calls it made")?;
            self.account.read(&line)?;
        }
        let status = self.process.end()?;
        match status.success() {
            true => Ok(self.account),
            false => Err(Failure(format!("{}: {status}", self.process.name))),
        }
    }
}

impl Account {
    fn read(&mut self, line: &str) -> Outcome {
        let unknown = || Failure(format!("a caller said {line:?}"));
        let (what, rest) = line.split_once(' ').ok_or_else(unknown)?;
        match what {
            "served" => {
                self.served.insert(rest.to_owned());
            }
            "failed" => self.failed.push(rest.to_owned()),
            "calls" => self.calls = rest.parse().map_err(|_| unknown())?,
            _ => return Err(unknown()),
        }
        Ok(())
    }

    fn explained(&self, why: String) -> String {
        match self.failed.first() {
            Some(first) => format!("{why}; {} calls failed: {first}", self.failed.len()),
            None => why,
        }
    }

    /// What is wrong with it.
    pub fn faults(&self, name: &str, calls_min: u64) -> Vec<String> {
        let mut faults = Vec::new();
        if self.calls < calls_min {
            let calls = self.calls;
            faults.push(format!("{name} made {calls} calls, not {calls_min}"));
        }
        if let Some(first) = self.failed.first() {
            let (failed, calls) = (self.failed.len(), self.calls);
            faults.push(format!("{name} lost {failed} of {calls} calls: {first}"));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lines: &[&str], expected: &[&str]) {
        let mut account = Account::default();
        lines.iter().for_each(|line| account.read(line).unwrap());
        assert_eq!(account.faults("a", 300), expected);
    }

    #[test]
    fn what_a_caller_says_is_judged() {
        check(&["served x#1", "served y#2", "calls 300"], &[]);
        check(&["calls 299"], &["a made 299 calls, not 300"]);
        check(
            &["served x#1", "failed why", "failed else", "calls 400"],
            &["a lost 2 of 400 calls: why"],
        );
        check(&[], &["a made 0 calls, not 300"]);
    }

    #[test]
    fn other_words_are_no_account() {
        for line in [
            "",
            "calls",
            "calls many",
            "Traceback (most recent call last):",
        ] {
            assert!(Account::default().read(line).is_err(), "{line}");
        }
    }
}
