//! Reading a ledger file while it is being written.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads what was appended since it looked last.
#[derive(Debug)]
pub struct Tail {
    file: File,
    /// What was read and not yet taken; may end in the beginning of a line.
    pending: Vec<u8>,
}

impl Tail {
    /// Follows `path` from its beginning.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (file, pending) = (File::open(path)?, Vec::new());
        Ok(Self { file, pending })
    }

    /// Reads up to the present end of the file.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn pull(&mut self) -> io::Result<()> {
        self.file.read_to_end(&mut self.pending).map(|_| ())
    }

    /// The whole lines that were pulled and not yet taken.
    ///
    /// # Errors
    ///
    /// Where they are no text.
    pub fn take(&mut self) -> io::Result<String> {
        let end = self.pending.iter().rposition(|byte| *byte == b'\n');
        let rest = self.pending.split_off(end.map_or(0, |end| end + 1));
        let whole = std::mem::replace(&mut self.pending, rest);
        String::from_utf8(whole).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Whether a line without an end is left over.
    #[must_use]
    pub fn has_partial_line(&self) -> bool {
        !self.pending.is_empty()
    }
}
