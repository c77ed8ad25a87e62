//! `cargo xtask bench [NAME]`: runs the benches and holds their ratios against `xtask/limits.txt`.
//!
//! A bench (`crates/*/benches`, `harness = false`) prints lines
//! `bench <name> <figure> <unit>` and `ratio <name> <compared with> <ratio> <low> <high>`, the latter
//! by the crate `lameduck-pairs`. A limit is broken only where the whole 95 % interval lies beyond it.

mod instructions;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::process::Stdio;

use crate::metadata::Workspace;
use crate::shell::{self, Failure, Outcome};

/// Where the limits are, relative to the root.
const LIMITS: &str = "xtask/limits.txt";

/// `cargo xtask bench [NAME]`: all benches, or the one of that name.
pub fn run(arguments: &[String]) -> Outcome {
    let only = match arguments {
        [] => None,
        [name] => Some(name.as_str()),
        _ => {
            return Err(Failure(
                "it takes the name of one bench, or nothing".to_owned(),
            ));
        }
    };
    let limits = Limit::parse(&fs::read_to_string(shell::root().join(LIMITS))?)?;
    let mut found = Measured::default();
    for (package, bench) in benches(&Workspace::load()?, only)? {
        found.read(&output_of(&package, &bench)?);
    }
    let rows = judge(&found, &limits, only.is_none());
    println!("\n{HEAD}");
    for row in &rows {
        println!("{row}");
    }
    if only.is_none_or(|name| name == instructions::BENCH) {
        instructions::show()?;
    }
    match rows.iter().filter(|row| row.holds == Holds::No).count() {
        0 => Ok(()),
        n => Err(Failure(format!("{n} limits of {LIMITS} do not hold"))),
    }
}

/// Package and name of each bench.
fn benches(workspace: &Workspace, only: Option<&str>) -> Result<Vec<(String, String)>, Failure> {
    let mut found = Vec::new();
    for package in &workspace.packages {
        let targets = package
            .targets
            .iter()
            .filter(|target| target.kind == "bench");
        let wanted = targets.filter(|target| only.is_none_or(|name| name == target.name));
        found.extend(wanted.map(|target| (package.name.clone(), target.name.clone())));
    }
    match only {
        Some(name) if found.is_empty() => Err(Failure(format!("there is no bench `{name}`"))),
        _ => Ok(found),
    }
}

fn output_of(package: &str, bench: &str) -> Result<String, Failure> {
    let mut command = shell::cargo(["bench", "--locked", "-p", package, "--bench", bench]);
    eprintln!("+ {}", shell::shown(&command));
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{text}");
    if output.status.success() {
        Ok(text)
    } else {
        Err(Failure(format!(
            "bench {bench} of {package} failed ({})",
            output.status
        )))
    }
}

/// The two things that a ratio compares.
type Pair = (String, String);

/// What the benches printed.
#[derive(Default)]
struct Measured {
    figures: BTreeMap<String, String>,
    /// Ratio, and the ends of its 95 % interval.
    ratios: BTreeMap<Pair, [f64; 3]>,
}

impl Measured {
    /// Reads a bench's output; other lines are for people.
    fn read(&mut self, output: &str) {
        for line in output.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["bench", name, figure, unit] => {
                    self.figures
                        .insert((*name).to_owned(), format!("{figure} {unit}"));
                }
                ["ratio", name, with, ratio, low, high] => {
                    let numbers = [ratio, low, high].map(|word| word.parse().unwrap_or(f64::NAN));
                    self.ratios
                        .insert(((*name).to_owned(), (*with).to_owned()), numbers);
                }
                _ => {}
            }
        }
    }
}

/// One line of the limits: the largest ratio allowed.
#[derive(Debug, PartialEq)]
struct Limit {
    pair: Pair,
    ratio_max: f64,
}

impl Limit {
    fn parse(text: &str) -> Result<Vec<Self>, Failure> {
        let mut limits = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [] => {}
                [name, with, ratio] if ratio.parse::<f64>().is_ok_and(|ratio| ratio > 0.0) => {
                    let pair = ((*name).to_owned(), (*with).to_owned());
                    limits.push(Self {
                        pair,
                        ratio_max: ratio.parse().unwrap_or(f64::NAN),
                    });
                }
                _ => {
                    let wrong = "no limit: write `<name> <compared with> <largest ratio>`";
                    return Err(Failure(format!("{LIMITS}:{}: {wrong}", index + 1)));
                }
            }
        }
        Ok(limits)
    }
}

const HEAD: &str = "name                          figure       compared with                 \
                    ratio (95 %)               limit  holds";

/// One row of the table.
struct Row {
    pair: Pair,
    figure: String,
    ratio: Option<[f64; 3]>,
    ratio_max: Option<f64>,
    holds: Holds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    Yes,
    No,
    /// For information: there is no limit.
    Unlimited,
}

/// Every ratio with its limit, and, where `all` benches ran, every limit without a ratio.
fn judge(found: &Measured, limits: &[Limit], all: bool) -> Vec<Row> {
    let limit_of = |pair: &Pair| limits.iter().find(|limit| limit.pair == *pair);
    let mut rows = Vec::new();
    for (pair, ratio) in &found.ratios {
        let ratio_max = limit_of(pair).map(|limit| limit.ratio_max);
        let holds = match ratio_max {
            None => Holds::Unlimited,
            Some(max) if ratio[1] <= max => Holds::Yes,
            Some(_) => Holds::No,
        };
        rows.push(found.row(pair, Some(*ratio), ratio_max, holds));
    }
    let missing = limits
        .iter()
        .filter(|limit| all && !found.ratios.contains_key(&limit.pair));
    for limit in missing {
        rows.push(found.row(&limit.pair, None, Some(limit.ratio_max), Holds::No));
    }
    rows
}

impl Measured {
    fn row(
        &self,
        pair: &Pair,
        ratio: Option<[f64; 3]>,
        ratio_max: Option<f64>,
        holds: Holds,
    ) -> Row {
        let figure = self.figures.get(&pair.0).cloned().unwrap_or_default();
        Row {
            pair: pair.clone(),
            figure,
            ratio,
            ratio_max,
            holds,
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ratio = self
            .ratio
            .map_or("not measured".to_owned(), |[ratio, low, high]| {
                format!("{ratio:.3} ({low:.3} to {high:.3})")
            });
        let limit = self.ratio_max.map_or("-".to_owned(), |max| max.to_string());
        let holds = match self.holds {
            Holds::Yes => "yes",
            Holds::No => "NO",
            Holds::Unlimited => "-",
        };
        let (name, with) = &self.pair;
        let figure = &self.figure;
        write!(
            f,
            "{name:<29} {figure:<12} {with:<29} {ratio:<26} {limit:<6} {holds}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: &str = "# name, compared with, limit\na b 2.0 # because\n\n";

    fn check(output: &str, all: bool) -> Vec<Holds> {
        let mut found = Measured::default();
        found.read(output);
        let limits = Limit::parse(LIMIT).expect("it is well formed");
        judge(&found, &limits, all)
            .iter()
            .map(|row| row.holds)
            .collect()
    }

    #[test]
    fn limit_is_broken_only_by_the_whole_interval() {
        assert_eq!(check("ratio a b 1.5 1.4 1.6\n", true), [Holds::Yes]);
        assert_eq!(check("ratio a b 2.1 1.9 2.3\n", true), [Holds::Yes]);
        assert_eq!(check("ratio a b 2.3 2.1 2.5\n", true), [Holds::No]);
    }

    #[test]
    fn limit_that_nothing_measures_is_broken() {
        assert_eq!(check("", true), [Holds::No]);
        assert_eq!(check("", false), []);
        assert_eq!(check("ratio a b x y z\n", true), [Holds::No]);
    }

    #[test]
    fn ratio_without_limit_is_for_information() {
        assert_eq!(check("ratio a c 9 8 10\n", false), [Holds::Unlimited]);
    }

    #[test]
    fn rows_show_figure_ratio_and_limit() {
        let mut found = Measured::default();
        found.read("noise\nbench a 12.5 ns\nratio a b 1.5 1.4 1.6\n");
        let limits = Limit::parse(LIMIT).expect("it is well formed");
        let shown = judge(&found, &limits, true)[0].to_string();
        let words: Vec<&str> = shown.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "a", "12.5", "ns", "b", "1.500", "(1.400", "to", "1.600)", "2", "yes"
            ]
        );
    }

    #[test]
    fn malformed_limit_names_its_line() {
        let why = Limit::parse("a b 2\na b\n").expect_err("the second line lacks a ratio");
        assert!(why.to_string().starts_with("xtask/limits.txt:2: "), "{why}");
        assert!(Limit::parse("a b -1\n").is_err());
    }
}
