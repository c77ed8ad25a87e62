//! Writing a ledger file: one write(2) a line, so that a killed process loses nothing that it wrote.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use super::clock;
use super::record::{Line, Record};

/// An open ledger file. Lines may be written from any thread: each is one append.
#[derive(Debug)]
pub struct Writer {
    file: File,
}

impl Writer {
    /// Opens `path` for appending, and makes it where it is not there.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file })
    }

    /// Writes `record` with the present time, before it returns.
    ///
    /// # Errors
    ///
    /// What the file system says; a line that was written in part is an error too.
    pub fn write(&self, record: Record) -> io::Result<()> {
        let at = clock::now();
        let text = format!("{}\n", Line { at, record });
        let written = (&self.file).write(text.as_bytes())?;
        if written == text.len() {
            Ok(())
        } else {
            Err(io::Error::from(io::ErrorKind::WriteZero))
        }
    }
}
