//! Development tasks of lameduck: `cargo xtask` lists them.

mod bench;
mod codegen;
mod h2spec;
mod lint;
mod metadata;
mod mutants;
mod page;
mod report;
mod shell;
mod stock;
mod test;
mod tidy;

use std::process::ExitCode;

use shell::Outcome;

/// One task: its name, what it does, and the function that does it.
struct Task {
    name: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Outcome,
}

const TASKS: &[Task] = &[
    Task {
        name: "lint",
        about: "format, tidy, clippy, documentation, features, core without std, generated code",
        run: lint::run,
    },
    Task {
        name: "tidy",
        about: "the rules that no compiler knows",
        run: tidy::run,
    },
    Task {
        name: "test",
        about: "all tests, examples and controls",
        run: test::run,
    },
    Task {
        name: "mutants",
        about: "switch each rule of the machines off and see that a test notices",
        run: mutants::run,
    },
    Task {
        name: "page",
        about: "open the last comparison's report, or another, in a headless Chromium and check how it looks",
        run: page::run,
    },
    Task {
        name: "h2spec",
        about: "run the conformance suite h2spec (built by Go, kept in the user's cache) against our port",
        run: h2spec::run,
    },
    Task {
        name: "stock",
        about: "roll our servers under stock go-zero, Kratos and grpcio, each of which knows several hosts",
        run: stock::run,
    },
    Task {
        name: "bench",
        about: "run the benches and hold their ratios against xtask/limits.txt",
        run: bench::run,
    },
    Task {
        name: "codegen",
        about: "write the committed protobuf code; --check only says what is out of date",
        run: codegen::run,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(name) = arguments.first() else {
        eprint!("{}", usage());
        return ExitCode::from(2);
    };
    if is_help(name) {
        print!("{}", usage());
        return ExitCode::SUCCESS;
    }
    let Some(task) = TASKS.iter().find(|task| task.name == name) else {
        eprint!("xtask: there is no task `{name}`\n{}", usage());
        return ExitCode::from(2);
    };
    match (task.run)(&arguments[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask {name}: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn is_help(name: &str) -> bool {
    ["--help", "-h", "help"].contains(&name)
}

fn usage() -> String {
    let lines = TASKS
        .iter()
        .map(|task| format!("  {:<8} {}\n", task.name, task.about));
    format!("usage: cargo xtask TASK\n{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_no_task_and_names_them_all() {
        for name in ["--help", "-h", "help"] {
            assert!(is_help(name) && TASKS.iter().all(|task| task.name != name));
        }
        let usage = usage();
        let named = |task: &Task| usage.contains(&format!("  {} ", task.name));
        assert!(TASKS.iter().all(named), "{usage}");
    }
}
