//! The core stays pure: `#![no_std]` and no dependency, so that it *cannot* reach a clock, a lock or a
//! socket. Together with the bans on its words this proves it even where no target without std is
//! installed to build it for.

use super::{Finding, ProjectFile};
use crate::metadata::{Package, Workspace};

/// The pure crate.
const CORE: &str = "lameduck-core";

/// Its root.
const CORE_ROOT: &str = "crates/lameduck-core/src/lib.rs";

/// What it may depend on; tests may use more.
const ALLOWED: &[&str] = &[];

pub fn check(workspace: &Workspace, files: &[ProjectFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in workspace
        .packages
        .iter()
        .filter(|package| package.name == CORE)
    {
        findings.extend(check_dependencies(package));
    }
    for file in files.iter().filter(|file| file.path == CORE_ROOT) {
        findings.extend(check_root(&file.text));
    }
    findings
}

fn check_dependencies(package: &Package) -> Vec<Finding> {
    let mut findings = Vec::new();
    for dependency in package
        .dependencies
        .iter()
        .filter(|dependency| !dependency.dev)
    {
        if ALLOWED.contains(&dependency.name.as_str()) {
            continue;
        }
        let line = package.line_of(&dependency.name);
        let wrong = format!("{CORE} depends on {}", dependency.name);
        let mend = "pass what it gives as an argument, or do it at the edge";
        findings.push(Finding::new(&package.manifest, line, wrong, mend));
    }
    findings
}

fn check_root(text: &str) -> Vec<Finding> {
    if text.lines().any(|line| line.trim() == "#![no_std]") {
        return Vec::new();
    }
    vec![Finding::new(
        CORE_ROOT,
        1,
        "the core links std",
        "add `#![no_std]`",
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn check_dependency(name: &str, dev: bool) -> usize {
        let package = Package {
            name: CORE.to_owned(),
            manifest: "crates/lameduck-core/Cargo.toml".to_owned(),
            text: String::new(),
            dependencies: vec![Dependency {
                name: name.to_owned(),
                dev,
            }],
            features: Vec::new(),
            targets: Vec::new(),
        };
        check_dependencies(&package).len()
    }

    #[test]
    fn dependency_fires_and_one_of_tests_does_not() {
        assert_eq!(check_dependency("rand", false), 1);
        assert_eq!(check_dependency("proptest", true), 0);
    }

    #[test]
    fn core_with_std_fires_and_without_does_not() {
        assert_eq!(check_root("//! Core.\n").len(), 1);
        assert_eq!(check_root("//! Core.\n#![no_std]\n"), Vec::new());
    }
}
