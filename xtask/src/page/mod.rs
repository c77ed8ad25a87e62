//! `cargo xtask page`: opens a lab's report in a headless Chromium and looks at it as its readers do.

mod browser;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::metadata::Workspace;
use crate::shell::{Failure, Outcome};
use browser::{Browser, Said};

/// Runs in the page: what it must hold, by the run's JSON, and how it must look.
const CHECKS: &str = include_str!("checks.js");
/// A page in which everything is wrong: whoever finds nothing there, finds nothing.
const BROKEN: &str = include_str!("broken.html");
/// What is wrong there, each by a part of the sentence that must name it.
const BROKEN_FAULTS: &[&str] = &[
    "asks for",
    "not defined",
    "columns of 3",
    "is not drawn",
    "wider than the window",
    "contrast",
    "lie over each other",
    "leaves its drawing",
];

/// A way to look at the page: name, size of the window, colour scheme, medium.
type View = (&'static str, (u32, u32), &'static str, &'static str);

const VIEWS: &[View] = &[
    ("light", (1200, 1710), "light", "screen"),
    ("dark", (1200, 1710), "dark", "screen"),
    ("narrow", (400, 1500), "light", "screen"),
    ("narrow-dark", (400, 1500), "dark", "screen"),
    // What a sheet of A4 leaves between its margins. The scheme is the reader's, and paper ignores it.
    ("paper", (718, 1047), "dark", "print"),
];
/// A report of three columns on paper. Fewer hide something, more are not read by anybody.
const SHEETS: std::ops::RangeInclusive<usize> = 4..=24;

/// `cargo xtask page [FILE.html FILE.json]`: by default what the last whole comparison wrote.
pub fn run(arguments: &[String]) -> Outcome {
    let files = Files::load()?;
    let (html, json) = match arguments {
        [] => (files.html.clone(), files.json.clone()),
        [html, json] => (PathBuf::from(html), PathBuf::from(json)),
        _ => return Err(Failure("it takes a report and its JSON, or none".into())),
    };
    let run = fs::read_to_string(&json).map_err(|error| at(&json, &error))?;
    let run: Value = serde_json::from_str(&run).map_err(|error| at(&json, &error))?;
    let mut browser = Browser::start(&files.directory)?;
    control(&mut browser, &files, &run)?;
    let faults = look(&mut browser, &files.directory, &html, &run)?;
    if faults.is_empty() {
        let (views, directory) = (VIEWS.len(), files.directory.display());
        println!("{views} views and paper hold; pictures are in {directory}");
        return Ok(());
    }
    Err(Failure(faults.join("\n  ")))
}

/// Where a whole comparison and its pictures are left.
pub struct Files {
    /// All of them.
    pub directory: PathBuf,
    /// Its report.
    pub html: PathBuf,
    /// What it printed.
    pub json: PathBuf,
}

impl Files {
    fn load() -> Result<Self, Failure> {
        Self::below(&Workspace::load()?.target_directory)
    }

    /// Below cargo's target directory.
    pub fn below(target: &Path) -> Result<Self, Failure> {
        let directory = target.join("report");
        fs::create_dir_all(&directory)?;
        Ok(Self {
            html: directory.join("comparison.html"),
            json: directory.join("comparison.json"),
            directory,
        })
    }
}

/// Every fault of the broken page must be found.
fn control(browser: &mut Browser, files: &Files, run: &Value) -> Outcome {
    let page = files.directory.join("broken.html");
    fs::write(&page, BROKEN)?;
    let said = browser.open(&page)?;
    let mut found = complaints(&said);
    found.extend(checked(browser, run, &VIEWS[0])?);
    let missed: Vec<&str> = BROKEN_FAULTS
        .iter()
        .copied()
        .filter(|fault| !found.iter().any(|found| found.contains(fault)))
        .collect();
    if missed.is_empty() {
        return Ok(());
    }
    Err(Failure(format!(
        "the page in which everything is wrong passes as to: {}; found: {found:#?}",
        missed.join(", ")
    )))
}

/// Opens the page once, looks at it in every way, leaves a picture of each, and says what is wrong.
fn look(
    browser: &mut Browser,
    directory: &Path,
    html: &Path,
    run: &Value,
) -> Result<Vec<String>, Failure> {
    let said = browser.open(html)?;
    let mut faults = complaints(&said);
    for (position, view) in VIEWS.iter().enumerate() {
        let run = if position == 0 { run } else { &Value::Null };
        let found = checked(browser, run, view)?;
        faults.extend(found.iter().map(|fault| format!("{}: {fault}", view.0)));
        let picture = browser.picture()?;
        fs::write(directory.join(format!("{}.png", view.0)), picture)?;
    }
    let paper = browser.paper()?;
    let sheets = sheets(&paper);
    if !paper.starts_with(b"%PDF-") || !SHEETS.contains(&sheets) {
        faults.push(format!("paper: {sheets} sheets, expected {SHEETS:?}"));
    }
    fs::write(directory.join("paper.pdf"), paper)?;
    Ok(faults)
}

fn complaints(said: &Said) -> Vec<String> {
    let requests = said.requests.iter().map(|url| format!("it asks for {url}"));
    said.complaints.iter().cloned().chain(requests).collect()
}

/// What the checks in the page find in one view.
fn checked(
    browser: &mut Browser,
    run: &Value,
    (_, size, scheme, medium): &View,
) -> Result<Vec<String>, Failure> {
    browser.view(*size, scheme, medium)?;
    let found = browser.evaluate(&format!("({CHECKS})({run})"))?;
    let found = found
        .as_array()
        .ok_or_else(|| Failure(format!("the checks say {found}")))?;
    let found = found.iter().filter_map(Value::as_str);
    Ok(found.map(str::to_owned).collect())
}

/// How many sheets a PDF has: each is an object of its own type.
fn sheets(pdf: &[u8]) -> usize {
    let sheet = b"/Type /Page\n";
    pdf.windows(sheet.len())
        .filter(|part| part == sheet)
        .count()
}

fn at(file: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure(format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sheets_are_counted_and_their_tree_is_not() {
        let pdf = b"%PDF-1.4\n<</Type /Pages\n/Count 2>>\n<</Type /Page\n>>\n<</Type /Page\n>>";
        assert_eq!(sheets(pdf), 2);
        assert_eq!(sheets(b""), 0);
    }

    #[test]
    fn every_view_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<&str> = VIEWS.iter().map(|view| view.0).collect();
        assert_eq!(names.len(), VIEWS.len());
    }
}
