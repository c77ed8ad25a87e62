//! Names: parsed once, canonical from then on.

mod login;
pub mod percent;
mod target;

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

pub use login::{Login, redacted};
pub use target::Target;

/// Why a name was refused. Says what was typed, what is wrong with it and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameError {
    /// An address that is not `host:port`.
    Address {
        /// What was typed.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A service name that cannot be one.
    Service {
        /// What was typed.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A target that names no instances.
    Target {
        /// What was typed.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { text, why } => write!(f, "address {text:?}: {why}"),
            Self::Service { text, why } => write!(f, "service name {text:?}: {why}"),
            Self::Target { text, why } => write!(f, "target {text:?}: {why}"),
        }
    }
}

impl core::error::Error for NameError {}

/// The host part of an [`Address`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// An IP address. An IPv4 address written as IPv6 (`::ffff:10.0.0.1`) is the IPv4 address.
    Ip(IpAddr),
    /// A host name in lower case, without a dot at its end. Looked up at each dial.
    Name(String),
}

/// Where an instance can be reached: host and port. Two spellings of one address are equal.
///
/// ```
/// use lameduck_core::name::Address;
/// let plain: Address = "[::0:1]:80".parse().unwrap();
/// assert_eq!(plain, "::1:80".parse().unwrap());
/// assert_eq!(plain.to_string(), "[::1]:80");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    host: Host,
    port: u16,
}

impl Address {
    /// The host.
    #[must_use]
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The socket address, where the host is an IP address.
    #[must_use]
    pub const fn socket(&self) -> Option<SocketAddr> {
        match self.host {
            Host::Ip(ip) => Some(SocketAddr::new(ip, self.port)),
            Host::Name(_) => None,
        }
    }

    /// Whether it only reaches this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        match &self.host {
            Host::Ip(ip) => ip.is_loopback(),
            Host::Name(name) => name == "localhost",
        }
    }

    /// Whether it is a wildcard (`0.0.0.0`, `::`), which nobody can dial.
    #[must_use]
    pub const fn is_unspecified(&self) -> bool {
        match &self.host {
            Host::Ip(ip) => ip.is_unspecified(),
            Host::Name(_) => false,
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(socket: SocketAddr) -> Self {
        Self {
            host: Host::Ip(socket.ip().to_canonical()),
            port: socket.port(),
        }
    }
}

impl FromStr for Address {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let refuse = |why| NameError::Address {
            text: text.to_owned(),
            why,
        };
        if text.starts_with('[') && text.ends_with(']') {
            return Err(refuse(
                "brackets are for IPv6 addresses alone; write host:port, or [addr]:port",
            ));
        }
        let (host, port) = text
            .rsplit_once(':')
            .ok_or_else(|| refuse("no port; write host:port"))?;
        let port = parse_port(port).ok_or_else(|| refuse("the port is no number in 0..=65535"))?;
        let bracketed = host.strip_prefix('[').map(|rest| rest.strip_suffix(']'));
        let host = match bracketed {
            Some(None) => {
                return Err(refuse(
                    "'[' without ']'; brackets are for IPv6 addresses alone, write other hosts without",
                ));
            }
            Some(Some(inner)) => inner
                .parse::<Ipv6Addr>()
                .map(|ip| Host::Ip(IpAddr::V6(ip).to_canonical()))
                .map_err(|_| refuse(no_ipv6(inner)))?,
            None => parse_host(host).map_err(refuse)?,
        };
        Ok(Self { host, port })
    }
}

fn parse_port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

fn no_ipv6(text: &str) -> &'static str {
    if text.contains('%') {
        return "an IPv6 zone (%eth0) names an interface of one machine; write a global address";
    }
    "brackets are for IPv6 addresses alone, and no IPv6 address is between them; write other hosts \
     without"
}

fn parse_host(text: &str) -> Result<Host, &'static str> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(Host::Ip(ip.to_canonical()));
    }
    if text.contains(':') && text.contains('%') {
        return Err(no_ipv6(text));
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.is_empty() {
        return Err("no host");
    }
    if name.len() > 253 {
        return Err("a host name has at most 253 characters");
    }
    if name
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        return Err("no IPv4 address");
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !name.bytes().all(allowed) || name.split('.').any(str::is_empty) {
        return Err("no host name (letters, digits, '-', '_', '.'); write IPv6 as [addr]:port");
    }
    Ok(Host::Name(name.to_ascii_lowercase()))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(ip) => SocketAddr::new(*ip, self.port).fmt(f),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

/// What a set of instances is called.
///
/// One to 255 bytes, no blanks, no control characters, no `/` at its end, and never below
/// `_lameduck`, where our own records live. It may begin with `/`, as some of go-zero's keys do; that
/// is another name than the one without.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceName(String);

impl ServiceName {
    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ServiceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let refuse = |why| {
            Err(NameError::Service {
                text: text.to_owned(),
                why,
            })
        };
        if text.is_empty() || text.len() > 255 {
            return refuse("must have 1 to 255 bytes");
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return refuse("must not hold blanks or control characters");
        }
        if text.ends_with('/') {
            return refuse("must not end with '/'");
        }
        if text.starts_with("_lameduck") {
            return refuse("names that begin with _lameduck are lameduck's own");
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn check_address(text: &str, expected: Result<&str, &str>) {
        let got = text.parse::<Address>();
        match (got, expected) {
            (Ok(address), Ok(canonical)) => {
                assert_eq!(address.to_string(), canonical, "{text}");
                assert_eq!(
                    canonical.parse::<Address>().as_ref(),
                    Ok(&address),
                    "{text}"
                );
            }
            (Err(error), Err(part)) => {
                assert!(error.to_string().contains(part), "{text}: {error}");
            }
            (got, _) => panic!("{text}: {got:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn addresses_have_one_spelling() {
        check_address("127.0.0.1:80", Ok("127.0.0.1:80"));
        check_address("[::1]:80", Ok("[::1]:80"));
        check_address("[0:0::1]:80", Ok("[::1]:80"));
        check_address("::1:80", Ok("[::1]:80"));
        check_address("2001:DB8::7:443", Ok("[2001:db8::7]:443"));
        check_address("[::ffff:10.0.0.1]:5", Ok("10.0.0.1:5"));
        check_address("LocalHost.:8080", Ok("localhost:8080"));
        check_address(
            "orders_1.svc.cluster.local:1",
            Ok("orders_1.svc.cluster.local:1"),
        );
    }

    #[test]
    fn bad_addresses_say_what_to_do() {
        check_address("localhost", Err("no port"));
        check_address("localhost:", Err("the port"));
        check_address("localhost:+1", Err("the port"));
        check_address("h:65536", Err("the port"));
        check_address(":80", Err("no host"));
        check_address("[::1:80", Err("'[' without ']'"));
        check_address("[10.0.0.1]:80", Err("brackets are for IPv6"));
        check_address("10.0.0.256:80", Err("no IPv4 address"));
        check_address("a b:80", Err("no host name"));
        check_address("a..b:80", Err("no host name"));
    }
}
