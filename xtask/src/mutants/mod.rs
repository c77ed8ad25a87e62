//! `cargo xtask mutants`: a rule that nobody misses when it is switched off is not tested.
//!
//! Every `mutant!("machine/rule")` of any crate is switched off in turn, in test programs that are
//! built once with `--cfg lameduck_mutants` in a target directory of their own. Two judges look on:
//! the tests of the crate that keeps the rule, and the simulator's worlds. One of them must fail.

mod programs;
mod rules;

use std::collections::BTreeSet;
use std::num::NonZero;
use std::sync::Mutex;
use std::thread;

use crate::shell::{Failure, Outcome};
use programs::{Programs, Verdict};
use rules::Rule;

/// `cargo xtask mutants [--list | RULE…]`.
pub fn run(arguments: &[String]) -> Outcome {
    let rules = rules::all()?;
    if arguments == ["--list"] {
        for rule in rules {
            println!("{:<36} {}", rule.name, rule.place);
        }
        return Ok(());
    }
    let rules = rules::chosen(rules, arguments)?;
    let homes: BTreeSet<&str> = rules.iter().map(|rule| rule.home.as_str()).collect();
    let programs = Programs::build(&homes)?;
    // A judge that objects while every rule is on proves nothing.
    programs.simulator_is_sound()?;
    let judged = judge_all(&programs, rules)?;
    report(&judged)
}

/// One rule, and what was said while it was off.
struct Judged {
    rule: Rule,
    suite: Verdict,
    simulator: Verdict,
}

/// Switches each rule off, as many at a time as there are cores.
fn judge_all(programs: &Programs, rules: Vec<Rule>) -> Result<Vec<Judged>, Failure> {
    let waiting = Mutex::new(rules.into_iter());
    let next = || waiting.lock().expect("nobody panics with it").next();
    let worker = || -> Result<Vec<Judged>, Failure> {
        let mut done = Vec::new();
        while let Some(rule) = next() {
            let suite = programs.suite(&rule.home, &rule.name)?;
            let simulator = programs.simulator(&rule.name)?;
            let judged = Judged {
                rule,
                suite,
                simulator,
            };
            println!("{}", judged.line());
            done.push(judged);
        }
        Ok(done)
    };
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    let mut judged = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        let ends = workers
            .into_iter()
            .map(|one| one.join().expect("a worker returns its failure"));
        ends.collect::<Result<Vec<_>, Failure>>()
    })?
    .into_iter()
    .flatten()
    .collect::<Vec<_>>();
    judged.sort_by(|a, b| a.rule.name.cmp(&b.rule.name));
    Ok(judged)
}

impl Judged {
    /// Who noticed, and what the simulator saw.
    fn line(&self) -> String {
        let who = match (&self.suite, &self.simulator) {
            (Verdict::Noticed(_), Verdict::Noticed(_)) => "both",
            (Verdict::Noticed(_), Verdict::Unnoticed) => "its own suite",
            (Verdict::Unnoticed, Verdict::Noticed(_)) => "simulator",
            (Verdict::Unnoticed, Verdict::Unnoticed) => "NOBODY",
        };
        let saw = match &self.simulator {
            Verdict::Noticed(saw) => saw.as_str(),
            Verdict::Unnoticed => "",
        };
        let saw = saw.chars().take(SAW_MAX).collect::<String>();
        format!("{:<36} {who:<14} {saw}", self.rule.name)
            .trim_end()
            .to_owned()
    }
}

/// So much of what a world says is told: its seed, and what is wrong.
const SAW_MAX: usize = 90;

/// The counts, and the rules that nobody misses.
fn report(judged: &[Judged]) -> Outcome {
    let count = |noticed: fn(&Judged) -> bool| judged.iter().filter(|one| noticed(one)).count();
    let suite = count(|one| one.suite != Verdict::Unnoticed);
    let simulator = count(|one| one.simulator != Verdict::Unnoticed);
    let all = judged.len();
    println!("{all} rules: {suite} noticed by their own suite, {simulator} by the simulator");
    let missed = judged
        .iter()
        .filter(|one| one.suite == Verdict::Unnoticed && one.simulator == Verdict::Unnoticed);
    let missed: Vec<&Rule> = missed.map(|one| &one.rule).collect();
    for Rule { name, home, place } in &missed {
        eprintln!("{place}: nobody misses the rule `{name}`: add a test to {home}");
    }
    match missed.len() {
        0 => Ok(()),
        n => Err(Failure(format!("{n} rules can be off and nobody notices"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(suite: bool, simulator: bool) -> Judged {
        let verdict = |noticed: bool, why: &str| match noticed {
            true => Verdict::Noticed(why.to_owned()),
            false => Verdict::Unnoticed,
        };
        Judged {
            rule: Rule {
                name: "a/b".to_owned(),
                home: "crates/a".to_owned(),
                place: "x.rs:1".to_owned(),
            },
            suite: verdict(suite, "a::test"),
            simulator: verdict(simulator, "seed 7: lost"),
        }
    }

    #[test]
    fn rule_that_nobody_misses_fails_the_whole() {
        assert!(report(&[judged(true, false), judged(false, true)]).is_ok());
        let why = report(&[judged(true, true), judged(false, false)]).expect_err("one is missed");
        assert_eq!(why.to_string(), "1 rules can be off and nobody notices");
    }

    #[test]
    fn line_says_who_noticed() {
        let line = |suite, simulator| {
            let line = judged(suite, simulator).line();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line(true, true), "a/b both seed 7: lost");
        assert_eq!(line(true, false), "a/b its own suite");
        assert_eq!(line(false, true), "a/b simulator seed 7: lost");
        assert_eq!(line(false, false), "a/b NOBODY");
    }
}
