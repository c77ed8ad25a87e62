//! The directory of one run: ledgers, and what the children said on stderr.
//!
//! It lies in memory where there is room: a server that waits in write(2) for a disk that others keep
//! busy would be measured as a server that is late.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use super::clock;
use super::control::{HOME_PREFIX, remove_home};

/// A directory that goes with its value, unless it is to be kept.
#[derive(Debug)]
pub struct Home {
    path: PathBuf,
    is_kept: bool,
}

impl Home {
    /// A new directory: `keep`, which stays, or one among the temporary files, for about `bytes`.
    ///
    /// # Errors
    ///
    /// What the file system says; a directory to keep must be empty or not there.
    pub fn make(keep: Option<&Path>, bytes: u64) -> io::Result<Self> {
        if let Some(path) = keep {
            fs::create_dir_all(path).map_err(|error| of(path, &error))?;
            if fs::read_dir(path)
                .map_err(|error| of(path, &error))?
                .next()
                .is_some()
            {
                let message = format!("{}: it is not empty; name another", path.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
            }
            let (path, is_kept) = (fs::canonicalize(path)?, true);
            return Ok(Self { path, is_kept });
        }
        let unique = format!("{}-{}", std::process::id(), clock::now().as_nanos());
        let make = |parent: PathBuf| {
            let path = parent.join(format!("{HOME_PREFIX}{unique}"));
            fs::create_dir(&path).map(|()| path)
        };
        let in_memory = memory(bytes).and_then(|parent| make(parent).ok());
        let path = in_memory.map_or_else(|| make(std::env::temp_dir()), Ok)?;
        let is_kept = false;
        Ok(Self { path, is_kept })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it is, for those who remove it when the lab is gone.
    #[must_use]
    pub fn to_remove(&self) -> Option<PathBuf> {
        (!self.is_kept).then(|| self.path.clone())
    }
}

/// A file system in memory, on Linux.
const MEMORY: &str = "/dev/shm";

/// Where files lie in memory, if twice `bytes` are free there and TMPDIR does not say otherwise.
fn memory(bytes: u64) -> Option<PathBuf> {
    let is_told = std::env::var_os("TMPDIR").is_some();
    let found = statvfs(MEMORY).ok()?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    (!is_told && free / 2 > bytes).then(|| PathBuf::from(MEMORY))
}

impl Drop for Home {
    fn drop(&mut self) {
        if !self.is_kept {
            remove_home(&self.path);
        }
    }
}

/// The error, with the path that it is about.
fn of(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
