//! What the JSON of `lab --compare tonic` must say: the comparison is whole, and our own column lost nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::page::Files;
use crate::shell::{Failure, Outcome};

/// The parts of a run with a comparison, in their order.
const STAGES: [&str; 5] = ["quiet", "rolls", "kill", "freeze", "late_registry"];
/// The columns beside our own.
const OTHERS: [&str; 2] = ["tonic", "tonic_hardened"];

/// What a run's output shows.
#[derive(Debug, PartialEq, Eq)]
pub enum Shown {
    /// What was to be shown.
    Holds,
    /// Nothing: the machine was too busy for one of the columns.
    Nothing,
    /// Each of these is wrong.
    Faults(Vec<String>),
}

/// Lets a lab write its report where `cargo xtask page` looks for it. What an earlier run left is removed.
pub fn prepare(command: &mut Command, target: &Path) -> Outcome {
    let files = Files::below(target)?;
    for file in [&files.html, &files.json] {
        if file.exists() {
            fs::remove_file(file)?;
        }
    }
    command.arg("--report").arg(&files.html);
    Ok(())
}

/// Judges what a lab printed, and keeps it beside its report.
pub fn judge(target: &Path, output: &str) -> Result<Shown, Failure> {
    fs::write(Files::below(target)?.json, output)?;
    let run: Value = serde_json::from_str(output)
        .map_err(|error| Failure(format!("--json prints no JSON: {error}")))?;
    let others = OTHERS.map(|name| (name, &run["compare"][name]));
    if others.iter().any(|(_, column)| column["valid"] == false) {
        return Ok(Shown::Nothing);
    }
    let mut faults = own(&run);
    for (name, column) in others {
        faults.extend(beside(name, column, &run));
    }
    if lost(&run["compare"]["tonic"], "rolls") == 0 {
        faults.push("tonic as documented lost nothing in rolls: the load compares nothing".into());
    }
    Ok(match faults.is_empty() {
        true => Shown::Holds,
        false => Shown::Faults(faults),
    })
}

/// Why columns of a run are invalid, each with its name.
pub fn invalid(run: &Value) -> Vec<String> {
    let others = OTHERS.map(|name| (name, &run["compare"][name]));
    let columns = std::iter::once(("lameduck", run)).chain(others);
    let reasons = columns.flat_map(|(name, column)| {
        let reasons = list(column, "invalid").iter().filter_map(Value::as_str);
        reasons.map(move |why| format!("{name}: {why}"))
    });
    reasons.collect()
}

/// Our own column: nothing lost but what a kill or a freeze takes by right, and every call accounted for.
fn own(run: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    for key in ["failed", "unknown", "started_twice"] {
        if run[key] != 0 {
            faults.push(format!("{key} is {}", run[key]));
        }
    }
    let idempotent = list(run, "kills")
        .iter()
        .map(|kill| &kill["failed_idempotent"]);
    if idempotent.clone().any(|lost| *lost != 0) {
        faults.push("the kill took idempotent calls".to_owned());
    }
    for stage in ["quiet", "rolls", "late_registry"] {
        match lost(run, stage) {
            0 => {}
            lost => faults.push(format!("{lost} lost in {stage}")),
        }
    }
    if !list(run, "problems").is_empty() {
        faults.push(format!("problems: {}", run["problems"]));
    }
    faults
}

/// A column beside ours: the same keys, the same stages, as many drains, every call accounted for.
fn beside(name: &str, column: &Value, run: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let (ours, theirs) = (keys(run), keys(column));
    let differ: Vec<&String> = ours.symmetric_difference(&theirs).collect();
    if !differ.is_empty() {
        faults.push(format!(
            "compare.{name} differs from our own column in {differ:?}"
        ));
    }
    for part in ["drains", "kills", "freezes"] {
        let (ours, theirs) = (list(run, part).len(), list(column, part).len());
        if ours != theirs || ours == 0 {
            faults.push(format!(
                "compare.{name} has {theirs} {part}, our own column {ours}"
            ));
        }
    }
    for (whose, column) in [("our own", run), (name, column)] {
        let stages: Vec<&str> = list(column, "stages")
            .iter()
            .filter_map(|stage| stage["stage"].as_str())
            .collect();
        if stages != STAGES {
            faults.push(format!("{whose} column went through {stages:?}"));
        }
        let (calls, all) = (number(&column["calls"]), accounted(column));
        if calls != all || calls == 0 {
            faults.push(format!(
                "{whose} column accounts for {all} of {calls} calls"
            ));
        }
    }
    faults
}

/// Every end that a call may have had.
fn accounted(column: &Value) -> u64 {
    let tolls = list(column, "kills").iter().chain(list(column, "freezes"));
    let taken =
        tolls.map(|toll| number(&toll["failed_idempotent"]) + number(&toll["failed_other"]));
    let ends = ["ok", "failed", "unknown"].map(|end| number(&column[end]));
    ends.iter().sum::<u64>() + taken.sum::<u64>()
}

fn lost(column: &Value, stage: &str) -> u64 {
    let stages = list(column, "stages").iter();
    let named = stages.filter(|one| one["stage"] == stage);
    named
        .map(|one| number(&one["lost_idempotent"]) + number(&one["lost_other"]))
        .sum()
}

/// All keys, with those that lead to them, but those of the comparison.
fn keys(column: &Value) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    gather("", column, &mut all);
    all.retain(|key| !key.starts_with(".compare"));
    all
}

fn gather(path: &str, value: &Value, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = format!("{path}.{key}");
                gather(&path, value, all);
                all.insert(path);
            }
        }
        Value::Array(items) => {
            for item in items {
                gather(&format!("{path}[]"), item, all);
            }
        }
        _ => {}
    }
}

fn list<'a>(column: &'a Value, key: &str) -> &'a [Value] {
    column[key].as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn column(lost: u64) -> Value {
        let stage = |stage: &str| {
            let lost = if stage == "rolls" { lost } else { 0 };
            json!({"stage": stage, "lost_idempotent": lost, "lost_other": 0})
        };
        let toll = json!([{"failed_idempotent": 0, "failed_other": 2}]);
        json!({"calls": 14 + lost, "ok": 10, "failed": lost, "unknown": 0, "started_twice": 0,
            "drains": [{"server": 0}], "kills": toll, "freezes": toll, "valid": true,
            "problems": [], "stages": STAGES.map(stage)})
    }

    fn run() -> Value {
        let mut run = column(0);
        run["compare"] = json!({"tonic": column(7), "tonic_hardened": column(0)});
        run
    }

    /// What is said of a run after `spoil`.
    fn check(spoil: impl FnOnce(&mut Value), expected: &[&str]) {
        let mut run = run();
        spoil(&mut run);
        let target = std::env::temp_dir().join(format!("xtask-comparison-{}", std::process::id()));
        let shown = judge(&target, &run.to_string()).unwrap();
        fs::remove_dir_all(&target).unwrap();
        let expected: Vec<String> = expected.iter().map(|fault| (*fault).to_owned()).collect();
        match shown {
            Shown::Holds => assert_eq!(expected, [""; 0]),
            Shown::Nothing => assert_eq!(expected, ["nothing"]),
            Shown::Faults(faults) => assert_eq!(faults, expected),
        }
    }

    #[test]
    fn a_comparison_is_judged() {
        check(|_| {}, &[]);
        check(
            |run| run["compare"]["tonic"]["valid"] = json!(false),
            &["nothing"],
        );
        let faults = [
            "failed is 1",
            "our own column accounts for 15 of 14 calls",
            "our own column accounts for 15 of 14 calls",
        ];
        check(|run| run["failed"] = json!(1), &faults);
        check(
            |run| run["kills"][0] = json!({"failed_idempotent": 2, "failed_other": 0}),
            &["the kill took idempotent calls"],
        );
        let idle = ["tonic as documented lost nothing in rolls: the load compares nothing"];
        check(|run| run["compare"]["tonic"] = column(0), &idle);
        let differ = ["compare.tonic_hardened differs from our own column in [\".problems\"]"];
        check(
            |run| {
                drop(
                    run["compare"]["tonic_hardened"]
                        .as_object_mut()
                        .unwrap()
                        .remove("problems"),
                )
            },
            &differ,
        );
        let stages = [
            "tonic column went through []",
            "tonic as documented lost nothing in rolls: the load compares nothing",
        ];
        check(|run| run["compare"]["tonic"]["stages"] = json!([]), &[&["compare.tonic differs from our own column in [\".stages[].lost_idempotent\", \".stages[].lost_other\", \".stages[].stage\"]"][..], &stages].concat());
    }
}
