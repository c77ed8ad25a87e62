//! The rules of this house that neither rustc nor clippy knows.
//!
//! Each rule is a pure function from what it looks at to findings, so that its tests need no files. A
//! rule that is caught twice in review belongs here.

mod bans;
mod core;
mod floors;
mod limits;
mod paths;
mod size;
mod source;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::metadata::Workspace;
use crate::shell::{self, Failure, Outcome};
use source::Source;

/// One broken rule: where, what is wrong, and what to do about it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    path: String,
    line: usize,
    wrong: String,
    mend: String,
}

impl Finding {
    fn new(path: &str, line: usize, wrong: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            wrong: wrong.into(),
            mend: mend.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}: {}: {}",
            self.path, self.line, self.wrong, self.mend
        )
    }
}

/// `cargo xtask tidy`.
pub fn run(arguments: &[String]) -> Outcome {
    if !arguments.is_empty() {
        return Err(Failure("it takes no argument".to_owned()));
    }
    let root = shell::root();
    let files = project_files(&root)?;
    let mut findings = paths::check(&files);
    findings.extend(check_sources(&files));
    let workspace = Workspace::load()?;
    findings.extend(floors::check(&workspace));
    findings.extend(core::check(&workspace, &files));
    findings.sort();
    for finding in &findings {
        eprintln!("{finding}");
    }
    match findings.len() {
        0 => {
            eprintln!("tidy: {} files, no finding", files.len());
            Ok(())
        }
        n => Err(Failure(format!("{n} findings"))),
    }
}

/// The rules on Rust sources, but for those that generators write.
fn check_sources(files: &[ProjectFile]) -> Vec<Finding> {
    let sources: Vec<Source> = files
        .iter()
        .filter(|file| file.path.ends_with(".rs") && !file.path.contains("/generated/"))
        .map(|file| Source::new(&file.path, &file.text))
        .collect();
    let test_modules: BTreeSet<String> =
        sources.iter().flat_map(Source::test_module_files).collect();
    let mut findings = Vec::new();
    let mut checked = Vec::new();
    for mut source in sources {
        if source.lies_in(&test_modules) {
            source.mark_as_test();
        }
        findings.extend(size::check(&source));
        findings.extend(bans::check(&source));
        checked.push(source);
    }
    findings.extend(limits::check(&checked));
    findings
}

/// One text file of the project; its path is relative to the root, with `/`.
pub struct ProjectFile {
    path: String,
    text: String,
}

/// Every text file of the working tree but what builds leave behind.
fn project_files(root: &Path) -> Result<Vec<ProjectFile>, Failure> {
    let mut files = Vec::new();
    let mut waiting: Vec<PathBuf> = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let kind = entry.file_type()?;
            if kind.is_dir() && name != "target" && name != ".git" {
                waiting.push(entry.path());
            } else if kind.is_file() && name != ".git" {
                files.extend(read(root, &entry.path())?);
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn read(root: &Path, path: &Path) -> Result<Option<ProjectFile>, Failure> {
    let shown = path
        .strip_prefix(root)
        .unwrap_or(path)
        .display()
        .to_string();
    let bytes = fs::read(path)?;
    Ok(String::from_utf8(bytes)
        .ok()
        .map(|text| ProjectFile { path: shown, text }))
}
