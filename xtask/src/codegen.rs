//! The committed protobuf code: written, or checked, by the crate `tools/codegen`, which is no member
//! of the workspace because what it needs is nobody else's business.

use crate::shell::{self, Failure, Outcome};

/// `cargo xtask codegen [--check]`.
pub fn run(arguments: &[String]) -> Outcome {
    match arguments {
        [] => call(None),
        [flag] if flag == "--check" => call(Some("--check")),
        _ => Err(Failure("it takes no argument but --check".to_owned())),
    }
}

fn call(flag: Option<&str>) -> Outcome {
    let manifest = [
        "run",
        "--quiet",
        "--locked",
        "--manifest-path",
        "tools/codegen/Cargo.toml",
    ];
    let arguments = manifest.into_iter().chain(["--", "."]).chain(flag);
    shell::run(&mut shell::cargo(arguments))
}
