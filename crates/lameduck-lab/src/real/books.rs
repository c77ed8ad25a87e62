//! All ledger files of a run, followed while they grow.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::error::{LabError, doing};
use super::ledger::{Ledger, Source};
use super::record::Line;
use super::tail::Tail;

/// The files, and the account that they add up to.
#[derive(Debug, Default)]
pub struct Books {
    /// The account as far as the files were read.
    pub ledger: Ledger,
    /// Every file, read to its end or not.
    pub paths: Vec<PathBuf>,
    open: Vec<(Source, PathBuf, Tail)>,
}

impl Books {
    /// Makes the file at `path`, and follows it from now on.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn follow(&mut self, source: Source, path: &Path) -> Result<(), LabError> {
        let tail = File::create_new(path).and_then(|_| Tail::open(path));
        let tail = doing(tail, format!("making {}", path.display()))?;
        self.paths.push(path.to_owned());
        self.open.push((source, path.to_owned(), tail));
        Ok(())
    }

    /// Reads what is new in all files.
    ///
    /// Callers' files are read first, and servers' lines are taken first: so every line of a caller
    /// finds the servers' lines that came before it.
    ///
    /// # Errors
    ///
    /// What the file system says, or a line that is none.
    pub fn refresh(&mut self) -> Result<(), LabError> {
        let is_caller = |source: &Source| matches!(source, Source::Caller(_));
        self.open.sort_by_key(|(source, ..)| !is_caller(source));
        for (_, path, tail) in &mut self.open {
            doing(tail.pull(), format!("reading {}", path.display()))?;
        }
        for (source, path, tail) in self.open.iter_mut().rev() {
            let lines = doing(tail.take(), format!("reading {}", path.display()))?;
            take_lines(&mut self.ledger, *source, path, &lines)?;
        }
        Ok(())
    }

    /// Reads what is new, and follows the file at `path` no longer: who wrote it is gone.
    ///
    /// # Errors
    ///
    /// As [`Books::refresh`].
    pub fn close(&mut self, path: &Path) -> Result<(), LabError> {
        self.refresh()?;
        self.open.retain(|(_, open, _)| open != path);
        Ok(())
    }
}

fn take_lines(
    ledger: &mut Ledger,
    source: Source,
    path: &Path,
    lines: &str,
) -> Result<(), LabError> {
    for text in lines.lines() {
        let line: Line = text
            .parse()
            .map_err(|error| LabError::Ledger(format!("{}: {error}", path.display())))?;
        ledger.take(source, line);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::home::Home;
    use super::super::record::Record;
    use super::super::writer::Writer;
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_are_taken_whole_and_once() {
        let home = Home::make(None, 0).unwrap();
        let path = home.path().join("caller-0");
        let mut books = Books::default();
        books.follow(Source::Caller(0), &path).unwrap();
        books.refresh().unwrap();
        let writer = Writer::open(&path).unwrap();
        writer.write(Record::Stopped { next: 3 }).unwrap();
        let mut raw = File::options().append(true).open(&path).unwrap();
        raw.write_all(b"5 E ").unwrap();
        books.refresh().unwrap();
        assert_eq!(books.ledger.stopped.get(&0), Some(&3));
        raw.write_all(b"4\n").unwrap();
        books.refresh().unwrap();
        assert_eq!(books.ledger.stopped.get(&0), Some(&4));
        raw.write_all(b"gibberish\n").unwrap();
        let error = books.refresh().unwrap_err().to_string();
        assert!(error.contains("gibberish"), "{error}");
    }
}
