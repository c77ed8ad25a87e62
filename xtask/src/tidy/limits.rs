//! Every bound and default in `limits` is one that holds: a number that no code reads is a promise
//! that nobody keeps.

use super::Finding;
use super::source::{Source, is_word};

/// Where bounds and defaults stand.
const LIMITS: &str = "crates/lameduck-core/src/limits.rs";

/// What precedes each of them.
const BEGIN: &str = "pub const ";

pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for limits in sources.iter().filter(|source| source.path == LIMITS) {
        for start in limits.find(BEGIN) {
            let rest = &limits.code[start + BEGIN.len()..];
            let end = rest.bytes().position(|byte| !is_word(byte));
            let name = &rest[..end.unwrap_or(rest.len())];
            if !sources.iter().any(|source| reads(source, name)) {
                let wrong = format!("{name} is read by nobody");
                let mend = "hold something to it, or take it away";
                findings.push(Finding::new(LIMITS, limits.line_of(start), wrong, mend));
            }
        }
    }
    findings
}

/// Whether code that is no test reads `name`, in another way than by its definition.
fn reads(source: &Source, name: &str) -> bool {
    source
        .find(name)
        .filter(|at| !source.is_test(*at) && !source.code[..*at].ends_with(BEGIN))
        // What is only imported is not used yet.
        .any(|at| !is_imported(&source.code[..at]))
}

fn is_imported(before: &str) -> bool {
    let statement = before.rsplit(';').next().unwrap_or_default();
    let statement = statement.trim_start();
    statement.starts_with("use ") || statement.starts_with("pub use ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_reader(reader: &str) -> usize {
        let limits = Source::new(LIMITS, "/// One.\npub const ONE_MAX: u32 = 1;\n");
        check(&[limits, Source::new("crates/lameduck/src/a.rs", reader)]).len()
    }

    #[test]
    fn a_bound_that_nothing_is_held_to_fires() {
        assert_eq!(check_reader("fn a() {}"), 1);
        assert_eq!(
            check_reader("// ONE_MAX\nfn a() { b(\"ONE_MAX\", ONE_MAX_B) }"),
            1
        );
        assert_eq!(check_reader("use a::{ONE_MAX, b};\nfn a() {}"), 1);
        assert_eq!(
            check_reader("#[cfg(test)]\nmod tests { fn a() { ONE_MAX } }"),
            1
        );
    }

    #[test]
    fn one_that_is_read_does_not() {
        assert_eq!(check_reader("use a::ONE_MAX;\nfn a() { b(ONE_MAX) }"), 0);
        assert_eq!(check_reader("fn a() { limits::ONE_MAX }"), 0);
    }
}
