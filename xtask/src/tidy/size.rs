//! No file and no function may grow beyond what one can hold in mind.

use super::Finding;
use super::source::{Source, is_word};

/// Lines of a file that are not tests.
const FILE_LINES_MAX: usize = 600;

/// Lines of a function, from `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;

pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = source.lines_outside_tests();
    if lines > FILE_LINES_MAX {
        let wrong = format!("{lines} lines without tests, at most {FILE_LINES_MAX} are allowed");
        findings.push(Finding::new(&source.path, 1, wrong, "split the module"));
    }
    for start in source.find("fn").filter(|start| !source.is_test(*start)) {
        let Some(name) = function_name(&source.code[start + 2..]) else {
            continue;
        };
        let first = source.line_of(start);
        let lines = source.line_of(source.item_end(start)) - first + 1;
        if lines > FUNCTION_LINES_MAX {
            let wrong =
                format!("fn {name} has {lines} lines, at most {FUNCTION_LINES_MAX} are allowed");
            let mend = "push the loop's body or a branch down into a function of its own";
            findings.push(Finding::new(&source.path, first, wrong, mend));
        }
    }
    findings
}

/// The name after `fn`; none for a function pointer's type.
fn function_name(after: &str) -> Option<&str> {
    let name = after.strip_prefix(' ')?;
    let end = name.bytes().position(|b| !is_word(b)).unwrap_or(name.len());
    (end > 0).then_some(&name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_text(path: &str, text: &str) -> Vec<String> {
        check(&Source::new(path, text))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    a();\n".repeat(lines - 2))
    }

    #[test]
    fn long_function_fires_and_one_at_the_limit_does_not() {
        let found = check_text("crates/x/src/a.rs", &format!("\n{}", function(71)));
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("crates/x/src/a.rs:2: fn long has 71 lines"),
            "{found:?}"
        );
        assert_eq!(
            check_text("crates/x/src/a.rs", &function(70)),
            Vec::<String>::new()
        );
    }

    #[test]
    fn long_function_in_tests_is_silent() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(200));
        assert_eq!(
            check_text("crates/x/src/a.rs", &tests),
            Vec::<String>::new()
        );
        assert_eq!(
            check_text("crates/x/tests/a.rs", &function(200)),
            Vec::<String>::new()
        );
    }

    #[test]
    fn braces_in_literals_end_no_function() {
        let text = format!(
            "fn a() {{ b(\"}}\"); c('}}') }}\n{}",
            "// line\n".repeat(100)
        );
        assert_eq!(check_text("crates/x/src/a.rs", &text), Vec::<String>::new());
    }

    #[test]
    fn long_file_fires_and_one_at_the_limit_does_not() {
        let found = check_text("crates/x/src/a.rs", &"use a;\n".repeat(601));
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("crates/x/src/a.rs:1: 601 lines"),
            "{found:?}"
        );
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "use a;\n".repeat(600));
        let text = "use a;\n".repeat(600) + &tests;
        assert_eq!(check_text("crates/x/src/a.rs", &text), Vec::<String>::new());
    }
}
