//! Why a provider could not be built, and what to do about it.

use std::fmt;
use std::io;
use std::time::Duration;

use lameduck_core::name::{Address, NameError};
use lameduck_core::registry::RegistryError;

use crate::serve::LimitsError;

/// Why a provider could not be built.
///
/// Its `Debug` is its `Display`: that is what a `main` prints which returns it by `?`. Such a process
/// ends with 1; for [`exit_code`](Self::exit_code) the program has to ask.
#[non_exhaustive]
pub enum BuildError {
    /// A service name that is none.
    Service(NameError),
    /// No address to listen on, or one that is none.
    Listen(String),
    /// The port could not be opened.
    Bind {
        /// The address.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// A registry's target is no target, or its scheme is not known.
    Registry {
        /// As it was typed.
        target: String,
        /// What is wrong with it.
        why: String,
    },
    /// A registry that is a fixed list of addresses, where nothing can be published.
    FixedList(String),
    /// No address under which others reach this process.
    Advertise {
        /// For which registry.
        registry: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// Times that do not fit into each other.
    Times {
        /// Which one.
        what: &'static str,
        /// How long it is.
        is: Duration,
        /// How long it may be.
        at_most: Duration,
    },
    /// A bound of the server that cannot work.
    Limits(LimitsError),
    /// The operating system gave no random boot id.
    Random(getrandom::Error),
    /// Signals could not be caught.
    Signals(io::Error),
    /// A name to listen on could not be looked up: the name service may be late, at boot.
    Lookup {
        /// As it was typed.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// Routes that are in each other's way, in the words of the router.
    Routes(String),
    /// A path that no request has.
    Unobserved(String),
    /// The runtime was built without what this names, "IO" or "time".
    NoDriver(&'static str),
    /// `build` was called outside a tokio runtime.
    NoRuntime,
}

impl BuildError {
    /// The exit code of a process that ends for this: 2 for what its configuration says, 12 for
    /// what the system refuses.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Bind { .. } | Self::Lookup { .. } | Self::Random(_) | Self::Signals(_) => 12,
            _ => 2,
        }
    }

    pub(super) fn registry(target: &str, error: &RegistryError) -> Self {
        Self::Registry {
            target: target.to_owned(),
            why: error.to_string(),
        }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(error) => error.fmt(f),
            Self::Listen(why) => write!(f, "{why}; say .listen(\"127.0.0.1:8080\")"),
            Self::Bind { address, source } => {
                write!(f, "cannot listen on {address}: {source}{}", advice(source))
            }
            Self::Registry { target, why } => write!(f, "registry {target:?}: {why}"),
            Self::FixedList(registry) => {
                // What lacks nothing but the scheme is shown with it.
                let hosts = registry
                    .parse::<Address>()
                    .map(|address| address.to_string());
                let hosts = hosts.as_deref().unwrap_or("host:port");
                write!(
                    f,
                    "registry {registry:?} is a list of addresses, in which nobody can be published; \
                     write one that takes registrations, like \"etcd://{hosts}\", or leave .registry \
                     out where callers have fixed addresses"
                )
            }
            Self::Advertise { registry, why } => {
                write!(f, "no address to publish in {registry}: {why}")
            }
            Self::Times { what, is, at_most } => write!(
                f,
                "a {what} of {is:?} does not fit: at most {at_most:?}; shorten it or raise the budget"
            ),
            Self::Limits(error) => error.fmt(f),
            Self::Random(error) => write!(f, "no random boot id: {error}"),
            Self::Signals(error) => write!(f, "cannot catch signals: {error}; say .signals(false)"),
            Self::Lookup { address, source } => write!(
                f,
                "{address} cannot be looked up: {source}; start again when the name is known, or \
                 listen on an IP address, as 0.0.0.0 for all of this machine's"
            ),
            Self::Routes(why) => write!(
                f,
                "the routes do not go together: {why}; give each path to one of them, and say \
                 .health(false) where they bring a grpc.health.v1 of their own"
            ),
            Self::Unobserved(path) => write!(
                f,
                "no request has the path {path:?}: say .unobserved(\"/healthz\"), with a slash first and \
                 without a query"
            ),
            Self::NoDriver(what) => write!(
                f,
                "the tokio runtime has no {what}: say .enable_all() where it is built"
            ),
            Self::NoRuntime => f.write_str("build() must be called within a tokio runtime"),
        }
    }
}

impl fmt::Debug for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bind { source, .. } | Self::Lookup { source, .. } => Some(source),
            Self::Signals(source) => Some(source),
            Self::Random(source) => Some(source),
            Self::Limits(source) => Some(source),
            _ => None,
        }
    }
}

impl From<NameError> for BuildError {
    fn from(error: NameError) -> Self {
        Self::Service(error)
    }
}

impl From<LimitsError> for BuildError {
    fn from(error: LimitsError) -> Self {
        Self::Limits(error)
    }
}

/// What to do where a port cannot be opened for this.
fn advice(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::AddrInUse => "; choose another port, or stop who holds it",
        io::ErrorKind::AddrNotAvailable => {
            "; listen on an address of this machine, or on 0.0.0.0 for all that it has"
        }
        io::ErrorKind::PermissionDenied => {
            "; choose a port from 1024 on, or give the process CAP_NET_BIND_SERVICE"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_helps_depends_on_what_the_system_refuses() {
        let told = |kind: io::ErrorKind| {
            let (address, source) = ("192.0.2.1:80".to_owned(), kind.into());
            BuildError::Bind { address, source }.to_string()
        };
        for (kind, says) in [
            (io::ErrorKind::AddrInUse, "choose another port, or stop"),
            (
                io::ErrorKind::AddrNotAvailable,
                "an address of this machine",
            ),
            (io::ErrorKind::PermissionDenied, "a port from 1024 on"),
        ] {
            let text = told(kind);
            assert!(
                text.starts_with("cannot listen on 192.0.2.1:80: "),
                "{text}"
            );
            assert!(text.contains(says), "{text}");
            assert_eq!(
                text.contains("another port"),
                kind == io::ErrorKind::AddrInUse
            );
        }
        assert!(!told(io::ErrorKind::OutOfMemory).contains(';'));
    }
}
