//! The file of `--report`.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use lameduck_lab::real::compare::Compared;
use lameduck_lab::real::error::LabError;
use lameduck_lab::real::flavour::Flavour;
use lameduck_lab::real::html::{Column, page};

/// A file that is open before the run begins: one that cannot be written is told at once.
pub struct Page {
    path: PathBuf,
    file: File,
}

impl Page {
    pub fn open(path: &Path) -> Result<Self, LabError> {
        let path = path.to_owned();
        match File::create(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(source) => Err(LabError::Usage(format!(
                "--report {}: {source}",
                path.display()
            ))),
        }
    }

    pub fn write(mut self, made: &Compared) -> Result<(), LabError> {
        let own = (Flavour::Lameduck, &made.outcome);
        let others = made
            .others
            .iter()
            .map(|(flavour, outcome)| (*flavour, outcome));
        let columns: Vec<Column<'_>> = [own].into_iter().chain(others).collect();
        let text = page(&columns);
        self.file
            .write_all(text.as_bytes())
            .map_err(|source| LabError::Io {
                doing: format!("writing {}", self.path.display()),
                source,
            })
    }
}
