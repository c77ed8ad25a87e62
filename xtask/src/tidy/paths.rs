//! Project files name no place of one machine.

use super::{Finding, ProjectFile};

/// Directories at whose mention a path is somebody's own.
const PRIVATE: &[&str] = &["/home", "/root", "/work", "/Users", "C:\\Users"];

pub fn check(files: &[ProjectFile]) -> Vec<Finding> {
    files.iter().flat_map(check_file).collect()
}

fn check_file(file: &ProjectFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for directory in PRIVATE.iter().filter(|directory| mentions(line, directory)) {
            let wrong = format!("a path below {directory} exists on one machine only");
            let mend = "say it relative to the project's root, or take a temporary directory";
            findings.push(Finding::new(&file.path, index + 1, wrong, mend));
        }
    }
    findings
}

/// Whether an absolute path in `line` goes through `directory`.
fn mentions(line: &str, directory: &str) -> bool {
    line.match_indices(directory).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let absolute = before.is_none_or(|c| !(c.is_alphanumeric() || "._-~/}>".contains(c)));
        absolute && line[at + directory.len()..].starts_with(['/', '\\'])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_line(line: &str) -> usize {
        check(&[ProjectFile {
            path: "README.md".to_owned(),
            text: format!("\n{line}\n"),
        }])
        .len()
    }

    #[test]
    fn path_of_a_machine_fires() {
        for directory in PRIVATE {
            assert_eq!(
                check_line(&format!("see `{directory}/me/notes`")),
                1,
                "{directory}"
            );
        }
    }

    #[test]
    fn other_paths_are_silent() {
        for line in [
            "a/home/b",
            "/etc/hosts",
            "service/root/x",
            "/homely/x",
            "h:1/work/x",
        ] {
            assert_eq!(check_line(line), 0, "{line}");
        }
    }
}
