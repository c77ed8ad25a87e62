//! What a child process of a run does: serve, call, or be the registry.
//!
//! Everything here stands on lameduck as any other program would; what must not depend on it, the
//! ledger, is written beneath it.

mod broken;
mod caller;
mod forgetful;
mod line;
mod link;
mod observe;
mod plain;
mod proxy;
mod recorder;
mod registry;
mod server;
mod work;

use std::fmt;
use std::io;

use super::control;
use super::spec::{ChildSpec, Role};

/// A child that could not do its work.
#[derive(Debug)]
pub enum ChildError {
    /// The argument is no specification: a child is started by the lab alone.
    Spec(serde_json::Error),
    /// The operating system refused something.
    Io(io::Error),
    /// Lameduck refused something.
    Refused(String),
}

impl fmt::Display for ChildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spec(error) => write!(f, "only a lab starts this: {error}"),
            Self::Io(error) => error.fmt(f),
            Self::Refused(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for ChildError {}

impl From<io::Error> for ChildError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn refused(error: &dyn fmt::Display) -> ChildError {
    ChildError::Refused(error.to_string())
}

/// Is the child that `spec` says, until its end; gives its exit code.
///
/// # Errors
///
/// Where it cannot be.
pub fn run(spec: &str) -> Result<u8, ChildError> {
    let ChildSpec { role, home } = serde_json::from_str(spec).map_err(ChildError::Spec)?;
    let words = control::listen(home)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match role {
            Role::Server(spec) => server::run(spec, words).await,
            Role::Caller(spec) => caller::run(spec, words).await,
            Role::Registry(address) => registry::run(address, words).await,
            Role::Proxy { spec, directory } => proxy::run(spec, &directory, words).await,
            Role::Links(links) => link::run(&links, words).await,
        }
    })
}
