//! `cargo xtask lint`: everything that can be said about the code without running it.

use std::process::Command;

use crate::metadata::{Package, Workspace};
use crate::report::Report;
use crate::shell::{self, Failure, Outcome};
use crate::{codegen, tidy};

/// `cargo xtask lint`. All steps run, whatever the earlier ones say.
pub fn run(arguments: &[String]) -> Outcome {
    if !arguments.is_empty() {
        return Err(Failure("it takes no argument".to_owned()));
    }
    let mut report = Report::new("lint");
    report.step("format", format);
    report.step("tidy", || tidy::run(&[]));
    report.step("clippy", clippy);
    report.step("mutant switches compile", mutants);
    report.step("documentation", documentation);
    report.step("features", features);
    report.step("core without std", core_without_std);
    report.step("generated code", || codegen::run(&["--check".to_owned()]));
    report.finish()
}

fn format() -> Outcome {
    shell::run(&mut shell::cargo(["fmt", "--all", "--check"]))?;
    shell::run(&mut shell::cargo([
        "fmt",
        "--manifest-path",
        "tools/codegen/Cargo.toml",
        "--check",
    ]))
}

fn clippy() -> Outcome {
    let workspace = ["clippy", "--workspace", "--all-targets", "--locked"];
    shell::run(&mut shell::cargo(
        workspace.into_iter().chain(["--", "-D", "warnings"]),
    ))
}

/// The rules of core's machines can be switched off by a `cfg`; that code must compile too. Flags after
/// `--` reach this crate alone, so nothing else is built again.
fn mutants() -> Outcome {
    let core = ["clippy", "-p", "lameduck-core", "--lib", "--locked", "--"];
    let flags = ["-D", "warnings", "--cfg", "lameduck_mutants"];
    shell::run(&mut shell::cargo(core.into_iter().chain(flags)))
}

/// The command has the library's name, so its pages are written apart from the others.
fn documentation() -> Outcome {
    let others = [
        "doc",
        "--workspace",
        "--no-deps",
        "--locked",
        "--exclude",
        "lameduck-cli",
    ];
    let command = ["doc", "-p", "lameduck-cli", "--no-deps", "--locked"];
    for arguments in [&others[..], &command[..]] {
        let mut cargo = shell::cargo(arguments.iter().copied());
        shell::run(cargo.env("RUSTDOCFLAGS", "-D warnings"))?;
    }
    Ok(())
}

/// Each member alone (siblings lend it no features), without its features and with each one alone.
fn features() -> Outcome {
    let workspace = Workspace::load()?;
    for package in &workspace.packages {
        for mut command in feature_checks(package) {
            shell::run(&mut command)?;
        }
    }
    Ok(())
}

fn feature_checks(package: &Package) -> Vec<Command> {
    let base = [
        "check",
        "--locked",
        "-p",
        &package.name,
        "--no-default-features",
    ];
    let alone = package
        .features
        .iter()
        .map(|feature| shell::cargo(base.into_iter().chain(["--features", feature.as_str()])));
    std::iter::once(shell::cargo(base)).chain(alone).collect()
}

/// Builds core for every installed target that has no std. Where none is installed, `tidy` has already
/// proved as much: `#![no_std]`, no dependency, no word of std.
fn core_without_std() -> Outcome {
    let output = Command::new("rustup")
        .args(["target", "list", "--installed"])
        .output();
    let installed = output.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    let installed = installed.unwrap_or_default();
    let bare: Vec<&str> = installed
        .lines()
        .filter(|target| target.contains("-none"))
        .collect();
    if bare.is_empty() {
        eprintln!(
            "no target without std is installed, so this rests on tidy's rules (`#![no_std]`, no \
             dependency, no word of std); `rustup target add thumbv7em-none-eabi` adds one"
        );
    }
    for target in bare {
        let core = [
            "check",
            "--locked",
            "-p",
            "lameduck-core",
            "--lib",
            "--target",
            target,
        ];
        shell::run(&mut shell::cargo(core))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_of_the_manifest_are_checked_each_alone() {
        let package = Package {
            name: "lameduck-cli".to_owned(),
            manifest: String::new(),
            text: String::new(),
            dependencies: Vec::new(),
            features: vec!["etcd".to_owned(), "dns".to_owned()],
            targets: Vec::new(),
        };
        let shown: Vec<String> = feature_checks(&package).iter().map(shell::shown).collect();
        let base = "cargo check --locked -p lameduck-cli --no-default-features";
        let each = |feature: &str| format!("{base} --features {feature}");
        assert_eq!(shown, [base.to_owned(), each("etcd"), each("dns")]);
    }
}
