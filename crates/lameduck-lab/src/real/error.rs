//! Why there is no outcome at all.

use std::fmt;
use std::io;

/// A run that could not be made, or was broken off.
#[derive(Debug)]
pub enum LabError {
    /// An option makes no sense.
    Usage(String),
    /// The operating system refused something.
    Io {
        /// What was being done.
        doing: String,
        /// What it said.
        source: io::Error,
    },
    /// A child did not do what it must; with the last words of its stderr.
    Child {
        /// Which child, and what it did not do.
        what: String,
        /// What it said.
        stderr: String,
    },
    /// A ledger file that cannot be read.
    Ledger(String),
    /// Something outside that the run needs is not there.
    Missing(String),
    /// Something that must happen has not, in all the time that it had.
    Stuck(String),
    /// Somebody ended it.
    Interrupted,
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(what) | Self::Ledger(what) | Self::Missing(what) | Self::Stuck(what) => {
                f.write_str(what)
            }
            Self::Io { doing, source } => write!(f, "{doing}: {source}"),
            Self::Child { what, stderr } if stderr.is_empty() => f.write_str(what),
            Self::Child { what, stderr } => write!(f, "{what}; it said:\n{stderr}"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for LabError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Says what was being done when an IO error came.
pub(super) fn doing<T>(result: io::Result<T>, what: impl Into<String>) -> Result<T, LabError> {
    result.map_err(|source| LabError::Io {
        doing: what.into(),
        source,
    })
}
