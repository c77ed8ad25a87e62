//! What a run is asked to do.

use std::fmt;
use std::path::PathBuf;

use lameduck_core::name::redacted;
use serde::Serialize;

use super::error::LabError;
use super::flavour::Flavour;
use super::limits::{
    KEEPALIVE_REQUESTS, LARGE, LARGE_EVERY, LINK_RATE, LINK_SHARE_MAX, RATE, RATE_MAX,
};
use super::proxy::Proxy;
use super::sabotage::Sabotage;

/// The options of a run. [`Options::default`] is the run of at most 40 s that nobody needs to tune.
#[derive(Clone, Debug)]
pub struct Options {
    /// Calls a second, of all callers together.
    pub rate: u32,
    /// Server processes.
    pub servers: u16,
    /// Caller processes.
    pub callers: u16,
    /// How often each server is rolled.
    pub rolls: u32,
    /// Which calls, and which order of rolls.
    pub seed: u64,
    /// Where servers are found.
    pub registry: Registry,
    /// A rule to be broken on purpose.
    pub sabotage: Option<Sabotage>,
    /// Whether callers may place a call more than once.
    pub failover: bool,
    /// What the children are made of.
    pub flavour: Flavour,
    /// Whether, after the kill, a server is frozen for a while, and one is rolled while the registry
    /// is.
    pub ordeals: bool,
    /// Whether every connection goes over a slow link, and some answers are large.
    pub slow_link: bool,
    /// A proxy of others between callers and servers.
    pub proxy: Option<Proxy>,
    /// Requests after which nginx ends a connection, of either side; [`KEEPALIVE_REQUESTS`] where none.
    pub keepalive_requests: Option<u32>,
    /// Whether the outcome comes with a [`Chart`](super::chart::Chart).
    pub chart: bool,
    /// A directory for all files of the run, which stays.
    pub keep: Option<PathBuf>,
}

/// Where servers are found.
#[derive(Clone, PartialEq, Eq)]
pub enum Registry {
    /// A development server that the run starts for itself.
    Development,
    /// A real etcd that the run starts for itself; it must be installed.
    Etcd,
    /// This one: `etcd://host:port`.
    At(String),
    /// Nowhere: callers know the servers' addresses.
    None,
}

impl Registry {
    /// An error where callers and servers could not find each other there.
    fn checked(&self) -> Result<(), LabError> {
        let Self::At(text) = self else {
            return Ok(());
        };
        let known = text.split_once("://").is_some_and(|(scheme, _)| {
            SCHEMES
                .iter()
                .any(|known| scheme.eq_ignore_ascii_case(known))
        });
        if known {
            return Ok(());
        }
        Err(LabError::Usage(format!(
            "--registry {self}: no such registry; write etcd://HOST:PORT, dev, etcd or none"
        )))
    }
}

/// Registries in which a lab's servers can be published.
const SCHEMES: [&str; 2] = ["etcd", "discov"];

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As it is written on the command line, without a login.
impl fmt::Display for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Development => "dev",
            Self::Etcd => "etcd",
            Self::At(target) => return f.write_str(&redacted(target)),
            Self::None => "none",
        })
    }
}

/// What a run was asked to do, as its outcome tells it: an outcome that is passed on without its
/// options accuses, or acquits, the wrong one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Calls a second, of all callers together.
    pub rate: u32,
    /// Server processes.
    pub servers: u16,
    /// Caller processes.
    pub callers: u16,
    /// How often each server was rolled.
    pub rolls: u32,
    /// Which calls, and which order of rolls.
    pub seed: u64,
    /// `dev`, `etcd`, `none`, or a target.
    pub registry: String,
    /// The rule that was broken on purpose; null where none was.
    pub sabotage: Option<Sabotage>,
    /// Whether callers might place a call more than once.
    pub failover: bool,
    /// Whether a server was frozen and the registry held back.
    pub ordeals: bool,
    /// Whether every connection went over a slow link, and some answers were large.
    pub slow_link: bool,
    /// The proxy between callers and servers; null where there was none.
    pub proxy: Option<Proxy>,
    /// Requests after which it ended a connection; null where it was not nginx.
    pub keepalive_requests: Option<u32>,
}

impl From<&Options> for Settings {
    fn from(options: &Options) -> Self {
        Self {
            rate: options.rate,
            servers: options.servers,
            callers: options.callers,
            rolls: options.rolls,
            seed: options.seed,
            registry: options.registry.to_string(),
            sabotage: options.sabotage,
            failover: options.failover,
            ordeals: options.ordeals,
            slow_link: options.slow_link,
            proxy: options.proxy,
            keepalive_requests: (options.proxy == Some(Proxy::Nginx))
                .then(|| options.requests_of_a_connection()),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rate: RATE,
            servers: 4,
            callers: 2,
            rolls: 2,
            seed: 1,
            registry: Registry::Development,
            sabotage: None,
            failover: true,
            flavour: Flavour::Lameduck,
            ordeals: false,
            slow_link: false,
            proxy: None,
            keepalive_requests: None,
            chart: false,
            keep: None,
        }
    }
}

impl Options {
    /// The same, once it is known that it can be run at all.
    ///
    /// # Errors
    ///
    /// Says which option makes no sense, and why.
    pub fn checked(self) -> Result<Self, LabError> {
        let refuse = |what: &str| Err(LabError::Usage(what.to_owned()));
        match () {
            () if self.servers < 2 => {
                refuse("--servers: at least 2, or nobody is left while one is away")
            }
            () if self.callers == 0 || self.rate == 0 => {
                refuse("--callers and --rate: at least 1, or there is nothing to lose")
            }
            () if self.rolls == 0 => {
                refuse("--rolls: at least 1, or nothing is shown of servers that leave")
            }
            () if self.rate > RATE_MAX => refuse(&format!(
                "--rate: at most {RATE_MAX} calls a second on one machine"
            )),
            () if self.servers > 64 || self.callers > 64 => {
                refuse("--servers and --callers: at most 64 processes each on one machine")
            }
            () if self.sabotage == Some(Sabotage::NoTombstone)
                && self.registry == Registry::None =>
            {
                refuse(
                    "--sabotage no-tombstone: it is the registry that brings a registration back; leave out \
                 --registry none",
                )
            }
            () if self.proxy.is_some() && (self.slow_link || self.ordeals) => refuse(
                "--proxy: what a proxy makes of slow links, freezes and a late registry is its own",
            ),
            () if self.proxy.is_some() && self.sabotage.is_some() => refuse(
                "--proxy: a control needs callers that know its servers; leave out --sabotage",
            ),
            () if self.keepalive_requests.is_some() && self.proxy != Some(Proxy::Nginx) => {
                refuse("--keepalive-requests: a setting of nginx; add --proxy nginx")
            }
            () if self.keepalive_requests == Some(0) => {
                refuse("--keepalive-requests: at least 1, or no connection carries any")
            }
            () if self.slow_link && !self.fits_links() => refuse(
                "--slow-link: the large answers of so many calls need more than the links carry while a \
                 server is away; lower --rate, or raise --servers or --callers",
            ),
            () => self.registry.checked().map(|()| self),
        }
    }

    /// Requests after which nginx ends a connection.
    #[must_use]
    pub fn requests_of_a_connection(&self) -> u32 {
        self.keepalive_requests.unwrap_or(KEEPALIVE_REQUESTS)
    }

    /// Whether the links carry the large answers while one server is away.
    fn fits_links(&self) -> bool {
        let (low, high) = LARGE;
        let needed = u64::from(self.rate) * u64::from(low + high) / 2 / LARGE_EVERY;
        let links = u64::from(self.callers) * u64::from(self.servers - 1);
        needed * 100 <= links * u64::from(LINK_RATE) * LINK_SHARE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::RATE_SLOW;
    use super::*;

    #[test]
    fn slow_links_take_their_own_rate_and_no_higher_one() {
        let slow = |rate| Options {
            rate,
            slow_link: true,
            ..Options::default()
        };
        assert!(slow(RATE_SLOW).checked().is_ok());
        let refused = slow(RATE).checked().expect_err("too much");
        let says = "--slow-link: the large answers of so many calls need more than";
        assert!(refused.to_string().contains(says), "{refused}");
        assert!(Options::default().checked().is_ok());
    }

    #[test]
    fn requests_of_a_connection_are_nginxs() {
        let with = |proxy, keepalive_requests| Options {
            proxy,
            keepalive_requests,
            ..Options::default()
        };
        let nginx = with(Some(Proxy::Nginx), Some(100));
        assert_eq!(Settings::from(&nginx).keepalive_requests, Some(100));
        assert!(nginx.checked().is_ok());
        let usual = with(Some(Proxy::Nginx), None);
        assert_eq!(Settings::from(&usual).keepalive_requests, Some(500));
        let other = with(Some(Proxy::Haproxy), None);
        assert_eq!(Settings::from(&other).keepalive_requests, None);
        for refused in [
            with(None, Some(100)),
            with(Some(Proxy::Envoy), Some(100)),
            with(Some(Proxy::Nginx), Some(0)),
        ] {
            let why = refused.checked().expect_err("it makes no sense");
            assert!(
                why.to_string().starts_with("--keepalive-requests: "),
                "{why}"
            );
        }
    }
}
