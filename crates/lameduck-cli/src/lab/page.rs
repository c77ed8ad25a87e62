//! The file of `--report`.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use lameduck_lab::real::compare::Compared;
use lameduck_lab::real::error::LabError;
use lameduck_lab::real::flavour::Flavour;
use lameduck_lab::real::html::{Column, page};

use crate::say::say;

/// A file beside the wanted one, which takes its name once it is whole: what cannot be written is told
/// before the run, and a run without an outcome leaves what was there.
pub struct Page {
    path: PathBuf,
    /// Where it is written until then; none where the name is not a file's: a pipe, a terminal.
    draft: Option<PathBuf>,
    file: File,
}

impl Page {
    pub fn open(path: &Path) -> Result<Self, LabError> {
        let told = |source| LabError::Usage(format!("--report {}: {source}", path.display()));
        Self::begin(path).map_err(told)
    }

    fn begin(path: &Path) -> io::Result<Self> {
        // A link stays one: what it points to is replaced.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if path.exists() && !path.is_file() {
            let file = OpenOptions::new().write(true).open(&path)?;
            return Ok(Self {
                path,
                draft: None,
                file,
            });
        }
        let mut name = OsString::from(".");
        let missing = || io::Error::from(io::ErrorKind::IsADirectory);
        name.push(path.file_name().ok_or_else(missing)?);
        name.push(format!(".{}", std::process::id()));
        let draft = path.with_file_name(name);
        let file = File::create(&draft)?;
        Ok(Self {
            path,
            draft: Some(draft),
            file,
        })
    }

    pub fn write(mut self, made: &Compared) -> Result<(), LabError> {
        let own = (Flavour::Lameduck, &made.outcome);
        let others = made
            .others
            .iter()
            .map(|(flavour, outcome)| (*flavour, outcome));
        let columns: Vec<Column<'_>> = [own].into_iter().chain(others).collect();
        let written = self.replace(&page(&columns));
        written.map_err(|source| LabError::Io {
            doing: format!("writing {}", self.path.display()),
            source,
        })?;
        say(format_args!("the report is in {}", self.path.display()));
        Ok(())
    }

    fn replace(&mut self, text: &str) -> io::Result<()> {
        self.file.write_all(text.as_bytes())?;
        if let Some(draft) = &self.draft {
            fs::rename(draft, &self.path)?;
            self.draft = None;
        }
        Ok(())
    }
}

/// Nothing is left of a page that was never whole.
impl Drop for Page {
    fn drop(&mut self) {
        if let Some(draft) = &self.draft {
            let _ = fs::remove_file(draft);
        }
    }
}
