//! What people type to say which instances they want, or where to publish.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use super::{Address, NameError, ServiceName, percent};

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
