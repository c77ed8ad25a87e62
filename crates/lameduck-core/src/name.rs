//! Names: parsed once, canonical from then on.

pub mod percent;

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::str::FromStr;

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
        let (host, port) = text
            .rsplit_once(':')
            .ok_or_else(|| refuse("no port; write host:port"))?;
        let port = parse_port(port).ok_or_else(|| refuse("the port is no number in 0..=65535"))?;
        let bracketed = host.strip_prefix('[').map(|rest| rest.strip_suffix(']'));
        let host = match bracketed {
            Some(None) => return Err(refuse("'[' without ']'")),
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
    "no IPv6 address between the brackets"
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

/// Which instances a caller wants, or which registry a server publishes to.
///
/// | typed | means |
/// |---|---|
/// | `etcd:///h1:2379,h2:2379?key=orders` | service `orders` in that etcd (go-zero 1.10.2 and later) |
/// | `etcd://h1:2379,h2:2379/orders` | the same (go-zero 1.4 to 1.10.1) |
/// | `discov://h1:2379/orders` | the same (go-zero 1.3.5) |
/// | `etcd://h1:2379` | a registry, without a service |
/// | `memory:///name?key=orders` | a registry inside this process |
/// | `direct:///h1:80,h2:80` | just these addresses |
/// | `h:80`, `http://h:80`, `localhost:80` | just this address |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    scheme: String,
    hosts: Vec<String>,
    service: Option<ServiceName>,
    parameters: BTreeMap<String, String>,
}

impl Target {
    /// The scheme in lower case: which registry.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The hosts as they were typed, empty ones dropped.
    #[must_use]
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The hosts as addresses.
    ///
    /// # Errors
    ///
    /// The first host that is no `host:port`.
    pub fn addresses(&self) -> Result<Vec<Address>, NameError> {
        self.hosts.iter().map(|host| host.parse()).collect()
    }

    /// The service, where the target names one.
    #[must_use]
    pub const fn service(&self) -> Option<&ServiceName> {
        self.service.as_ref()
    }

    /// The query parameters other than `key`.
    #[must_use]
    pub const fn parameters(&self) -> &BTreeMap<String, String> {
        &self.parameters
    }

    /// The same registry with another service.
    #[must_use]
    pub fn with_service(&self, service: ServiceName) -> Self {
        Self {
            service: Some(service),
            ..self.clone()
        }
    }
}

impl FromStr for Target {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let refuse = |why| NameError::Target {
            text: text.to_owned(),
            why,
        };
        let Some((scheme, rest)) = text.split_once("://") else {
            let address: Address = text.parse()?;
            return Ok(direct(address.to_string()));
        };
        let scheme = scheme.to_ascii_lowercase();
        let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        if scheme.is_empty() || !scheme.bytes().all(letters) {
            return Err(refuse("no scheme before '://'"));
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let parameters = parse_query(query).ok_or_else(|| refuse("a broken %XX in the query"))?;
        match scheme.as_str() {
            "http" => {
                let authority = rest.split('/').next().unwrap_or_default();
                let address: Address = authority.parse()?;
                Ok(direct(address.to_string()))
            }
            "https" => Err(refuse("TLS is not supported; write http:// or host:port")),
            "direct" => parse_direct(rest, parameters).map_err(refuse),
            _ => parse_registry(scheme, rest, parameters).map_err(|why| why.on(text)),
        }
    }
}

fn direct(host: String) -> Target {
    let hosts = Vec::from([host]);
    Target {
        scheme: "direct".to_owned(),
        hosts,
        service: None,
        parameters: BTreeMap::new(),
    }
}

fn parse_direct(rest: &str, parameters: BTreeMap<String, String>) -> Result<Target, &'static str> {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let list = if authority.is_empty() {
        path.trim_matches('/')
    } else {
        authority
    };
    let hosts = split_hosts(list);
    if hosts.is_empty() {
        return Err("no address; write direct:///host:port,host:port");
    }
    Ok(Target {
        scheme: "direct".to_owned(),
        hosts,
        service: None,
        parameters,
    })
}

enum RegistryRefusal {
    Target(&'static str),
    Name(NameError),
}

impl RegistryRefusal {
    fn on(self, text: &str) -> NameError {
        match self {
            Self::Target(why) => NameError::Target {
                text: text.to_owned(),
                why,
            },
            Self::Name(error) => error,
        }
    }
}

/// go-zero's three forms: with an authority the path is the key, without one the path is the hosts
/// and the key a query parameter.
fn parse_registry(
    scheme: String,
    rest: &str,
    mut parameters: BTreeMap<String, String>,
) -> Result<Target, RegistryRefusal> {
    let broken = RegistryRefusal::Target("a broken %XX in the path");
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let Some(path) = percent::decode(path.trim_matches('/')) else {
        return Err(broken);
    };
    let key = parameters.remove("key");
    let (hosts, service) = if authority.is_empty() {
        (split_hosts(&path), key)
    } else {
        (
            split_hosts(authority),
            if path.is_empty() { key } else { Some(path) },
        )
    };
    if hosts.is_empty() {
        return Err(RegistryRefusal::Target(
            "no host; write scheme://host:port/service",
        ));
    }
    let service = service.filter(|name| !name.is_empty());
    let service = service
        .map(|name| name.parse())
        .transpose()
        .map_err(RegistryRefusal::Name)?;
    Ok(Target {
        scheme,
        hosts,
        service,
        parameters,
    })
}

fn split_hosts(list: &str) -> Vec<String> {
    list.split(',')
        .filter(|host| !host.is_empty())
        .map(str::to_owned)
        .collect()
}

fn parse_query(query: &str) -> Option<BTreeMap<String, String>> {
    // In queries alone a plus is a blank.
    let decode = |text: &str| percent::decode(&text.replace('+', " "));
    let pairs = query
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.contains(';'));
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode(name)?, decode(value)?))
        })
        .collect()
}

impl fmt::Display for Target {
    /// The form that every reader takes: hosts in the path, the service as `key`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:///{}", self.scheme, self.hosts.join(","))?;
        match &self.service {
            Some(service) => write!(f, "?key={}", percent::encode(service.as_str())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        check_address("[10.0.0.1]:80", Err("no IPv6 address"));
        check_address("10.0.0.256:80", Err("no IPv4 address"));
        check_address("a b:80", Err("no host name"));
        check_address("a..b:80", Err("no host name"));
    }

    fn check_target(text: &str, expected: Result<(&str, &[&str], Option<&str>), &str>) {
        match (text.parse::<Target>(), expected) {
            (Ok(target), Ok((scheme, hosts, service))) => {
                assert_eq!(target.scheme(), scheme, "{text}");
                assert_eq!(target.hosts(), hosts, "{text}");
                assert_eq!(target.service().map(ServiceName::as_str), service, "{text}");
                assert_eq!(
                    target.to_string().parse::<Target>().as_ref(),
                    Ok(&target),
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
    fn targets_of_go_zero_in_all_three_forms() {
        let etcd: &[&str] = &["h1:1", "h2:2"];
        check_target("etcd:///h1:1,h2:2?key=foo", Ok(("etcd", etcd, Some("foo"))));
        check_target(
            "etcd:///h1:1,,h2:2?key=a%2Fb",
            Ok(("etcd", etcd, Some("a/b"))),
        );
        check_target("etcd://h1:1,h2:2/a/b", Ok(("etcd", etcd, Some("a/b"))));
        check_target("discov://h1:1,h2:2/foo", Ok(("discov", etcd, Some("foo"))));
        check_target("ETCD://h1:1,h2:2", Ok(("etcd", etcd, None)));
        check_target(
            "etcd:///[::1]:2379?key=k",
            Ok(("etcd", &["[::1]:2379"], Some("k"))),
        );
        check_target("etcd:///?key=k", Err("no host"));
        check_target("etcd:///h:1?key=%zz", Err("broken %XX"));
        check_target("etcd://h:1/_lameduck/v1", Err("lameduck's own"));
    }

    #[test]
    fn targets_that_people_type() {
        check_target("direct:///a:1,b:2", Ok(("direct", &["a:1", "b:2"], None)));
        check_target("direct://a:1,b:2", Ok(("direct", &["a:1", "b:2"], None)));
        check_target("direct:///", Err("no address"));
        check_target(
            "localhost:50051",
            Ok(("direct", &["localhost:50051"], None)),
        );
        check_target("http://h:80/path", Ok(("direct", &["h:80"], None)));
        check_target("https://h:443", Err("TLS"));
        check_target("just-a-name", Err("no port"));
        check_target("://h:1", Err("no scheme"));
    }
}
