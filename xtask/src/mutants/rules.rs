//! The rules that have switches, as the sources name them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::shell::{self, Failure};

/// Where the crates lie, relative to the root.
const CRATES: &str = "crates";

/// One rule that can be switched off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// `machine/rule`.
    pub name: String,
    /// The crate that keeps it: a directory, relative to the root.
    pub home: String,
    /// Where it stands: path and line.
    pub place: String,
}

/// The rules of all crates, by name.
pub fn all() -> Result<Vec<Rule>, Failure> {
    let root = shell::root();
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join(CRATES))? {
        let directory = entry?.file_name().display().to_string();
        let home = format!("{CRATES}/{directory}");
        let sources = root.join(&home).join("src");
        if sources.is_dir() {
            read(&root, &home, &sources, &mut found)?;
        }
    }
    unique(found)
}

fn read(root: &Path, home: &str, directory: &Path, found: &mut Vec<Rule>) -> Result<(), Failure> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            read(root, home, &path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let shown = path.strip_prefix(root).unwrap_or(&path).display();
            let text = fs::read_to_string(&path)?;
            found.extend(rules_of(home, &shown.to_string(), &text)?);
        }
    }
    Ok(())
}

/// The rules that one file switches.
fn rules_of(home: &str, path: &str, text: &str) -> Result<Vec<Rule>, Failure> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        for rest in line.split("mutant!(").skip(1) {
            let place = format!("{path}:{}", index + 1);
            let name = rest.strip_prefix('"').and_then(|rest| rest.split_once('"'));
            let name = name.map_or("", |(name, _)| name);
            if !is_name(name) {
                return Err(Failure(format!(
                    "{place}: a switch is named \"machine/rule\", in one line, in lower case"
                )));
            }
            found.push(Rule {
                name: name.to_owned(),
                home: home.to_owned(),
                place,
            });
        }
    }
    Ok(found)
}

/// `machine/rule`, both of lower-case letters, digits and hyphens.
fn is_name(name: &str) -> bool {
    let word = |word: &str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !word.is_empty() && word.bytes().all(plain)
    };
    name.split_once('/')
        .is_some_and(|(machine, rule)| word(machine) && word(rule))
}

/// Sorted by name. One name at two places is two rules of which one can hide behind the other.
fn unique(rules: Vec<Rule>) -> Result<Vec<Rule>, Failure> {
    let mut by_name: BTreeMap<String, Rule> = BTreeMap::new();
    for rule in rules {
        if let Some(other) = by_name.insert(rule.name.clone(), rule.clone()) {
            return Err(Failure(format!(
                "{}: `{}` is also the switch at {}: give each place a name of its own",
                rule.place, rule.name, other.place
            )));
        }
    }
    Ok(by_name.into_values().collect())
}

/// The rules that were asked for by name; all where none was.
pub fn chosen(rules: Vec<Rule>, names: &[String]) -> Result<Vec<Rule>, Failure> {
    if names.is_empty() {
        return Ok(rules);
    }
    for name in names {
        if !rules.iter().any(|rule| rule.name == *name) {
            return Err(Failure(format!(
                "no source has a switch `{name}`; `cargo xtask mutants --list` names those that are there"
            )));
        }
    }
    let wanted = rules.into_iter().filter(|rule| names.contains(&rule.name));
    Ok(wanted.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Vec<(String, String)>, String> {
        let found = rules_of("crates/a", "x.rs", text).and_then(unique);
        let found = found.map_err(|failure| failure.to_string())?;
        Ok(found.into_iter().map(|r| (r.name, r.place)).collect())
    }

    fn rule(name: &str) -> (String, String) {
        (name.to_owned(), "x.rs:1".to_owned())
    }

    #[test]
    fn switches_are_found_but_not_in_comments() {
        let text = "if a && !mutant!(\"a/b\") || mutant!(\"a/c\") {\n/// mutant!(\"a/d\")\n";
        assert_eq!(check(text), Ok(vec![rule("a/b"), rule("a/c")]));
    }

    #[test]
    fn one_name_at_two_places_is_refused() {
        let why = check("mutant!(\"a/b\")\nmutant!(\"a/b\")").expect_err("it stands there twice");
        assert!(
            why.starts_with("x.rs:2: `a/b`") && why.contains("x.rs:1"),
            "{why}"
        );
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "mutant!(\"ab\")",
            "mutant!(\"A/b\")",
            "mutant!(\n",
            "mutant!(\"a/\")",
        ] {
            assert!(check(text).is_err(), "{text}");
        }
    }

    #[test]
    fn unknown_switch_is_refused_and_a_known_one_is_chosen() {
        let rules = || rules_of("crates/a", "x.rs", "mutant!(\"a/b\") mutant!(\"a/c\")");
        let chosen = |name: &str| chosen(rules().expect("two rules"), &[name.to_owned()]);
        let names: Vec<String> = chosen("a/c")
            .expect("it is there")
            .into_iter()
            .map(|rule| rule.name)
            .collect();
        assert_eq!(names, ["a/c"]);
        let why = chosen("a/x").expect_err("it is not there").to_string();
        assert!(why.contains("`a/x`"), "{why}");
    }

    #[test]
    fn rules_of_this_project_are_unique_and_named() {
        let rules = all().expect("every switch has a name of its own");
        assert!(rules.iter().any(|rule| rule.home == "crates/lameduck-core"));
    }
}
