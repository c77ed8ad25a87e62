//! What is wrong with a target.

use std::fmt;

use lameduck_core::name::NameError;
use lameduck_core::registry::RegistryError;

/// Why a target cannot be followed. Its `Debug` is its `Display`: that is what a `main` prints which
/// returns it by `?`.
#[non_exhaustive]
pub enum TargetError {
    /// It cannot be read.
    Name(NameError),
    /// It names a registry that is not known here, or that refuses what it was given.
    Registry(RegistryError),
    /// It names a registry but no service.
    NoService {
        /// The target as it was typed.
        target: String,
        /// A query parameter of it that may have been meant for `key`.
        instead: Option<String>,
    },
    /// A method was declared idempotent by something that is no path of a method, and so would never
    /// match a call.
    Method {
        /// What was said.
        path: String,
    },
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(error) => error.fmt(f),
            Self::Registry(error) => error.fmt(f),
            Self::NoService { target, instead } => {
                write!(f, "target {target:?} names no service")?;
                if let Some(instead) = instead {
                    write!(f, ": its query says {instead:?}, not \"key\"")?;
                }
                write!(f, "; write {}", with_key(target))
            }
            Self::Method { path } => write!(
                f,
                "{path:?} is not the path of a method; write .idempotent(\"/package.Service/Method\")"
            ),
        }
    }
}

impl fmt::Debug for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for TargetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Name(error) => Some(error),
            Self::Registry(error) => Some(error),
            Self::NoService { .. } | Self::Method { .. } => None,
        }
    }
}

impl From<NameError> for TargetError {
    fn from(error: NameError) -> Self {
        Self::Name(error)
    }
}

impl From<RegistryError> for TargetError {
    fn from(error: RegistryError) -> Self {
        Self::Registry(error)
    }
}

/// The target with room for a service's name in its query.
pub(super) fn with_key(target: &str) -> String {
    let target = target.split('#').next().unwrap_or_default();
    let (rest, query) = target.split_once('?').unwrap_or((target, ""));
    let empty = |pair: &&str| !["", "key", "key="].contains(pair);
    let kept = query.split('&').filter(empty);
    let query: Vec<&str> = kept.chain(["key=SERVICE"]).collect();
    format!("{rest}?{}", query.join("&"))
}
