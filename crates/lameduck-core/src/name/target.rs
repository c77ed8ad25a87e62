//! What people type to say which instances they want, or where to publish.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::mutant;

use super::{Address, Login, NameError, ServiceName, percent, redacted};

/// Which instances a caller wants, or which registry a server publishes to.
///
/// | typed | means |
/// |---|---|
/// | `etcd:///h1:2379,h2:2379?key=orders` | service `orders` in that etcd (go-zero 1.10.2 and later) |
/// | `etcd://h1:2379,h2:2379/orders` | the same (go-zero 1.4 to 1.10.1) |
/// | `discov://h1:2379/orders` | the same (go-zero 1.3.5) |
/// | `etcd://h1:2379` | a registry, without a service |
/// | `etcd://user:password@h1:2379/orders` | the same as this user; percent-encoded |
/// | `etcd:///h1:2379?key=orders&user=u&pass=p` | the same |
/// | `memory:///name?key=orders` | a registry inside this process |
/// | `direct:///h1:80,h2:80` | just these addresses |
/// | `h:80`, `http://h:80`, `localhost:80` | just this address |
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    scheme: String,
    hosts: Vec<String>,
    service: Option<ServiceName>,
    login: Option<Login>,
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

    /// As whom the registry is to be used, where the target says so. No error and no form of the target
    /// that is printed shows it.
    #[must_use]
    pub const fn login(&self) -> Option<&Login> {
        self.login.as_ref()
    }

    /// The target with its login, to be handed to another process. Not to be printed.
    #[must_use]
    pub fn revealed(&self) -> String {
        let mut text = self.to_string();
        if let Some(login) = &self.login {
            text.push(if text.contains('?') { '&' } else { '?' });
            text.push_str("user=");
            text.push_str(&percent::encode(login.name()));
            text.push_str("&pass=");
            text.push_str(&percent::encode(login.password()));
        }
        text
    }

    /// The query parameters other than `key` and those of a login.
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
        parse(text.trim()).map_err(|refusal| refusal.on(text.trim()))
    }
}

/// Why a text is no target.
enum Refusal {
    Target(&'static str),
    Name(NameError),
}

impl From<&'static str> for Refusal {
    fn from(why: &'static str) -> Self {
        Self::Target(why)
    }
}

impl From<NameError> for Refusal {
    fn from(error: NameError) -> Self {
        Self::Name(error)
    }
}

impl Refusal {
    /// The error to show. A part of a target that has a login may be a part of the login.
    fn on(self, text: &str) -> NameError {
        let shown = redacted(text);
        match self {
            Self::Name(error) if shown == text => error,
            Self::Target(why)
            | Self::Name(
                NameError::Address { why, .. }
                | NameError::Service { why, .. }
                | NameError::Target { why, .. },
            ) => NameError::Target { text: shown, why },
        }
    }
}

fn parse(text: &str) -> Result<Target, Refusal> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return parse_address(text);
    };
    let scheme = scheme.to_ascii_lowercase();
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if scheme.is_empty() || !scheme.bytes().all(letters) {
        return Err("no scheme before '://'".into());
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let parameters = parse_query(query).ok_or("a broken %XX in the query")?;
    if fragment.contains('@') || parameters.keys().any(|name| name.contains('@')) {
        return Err(ENCODE.into());
    }
    match scheme.as_str() {
        "http" => {
            let authority = rest.split('/').next().unwrap_or_default();
            no_login(rest, &parameters)?;
            let address: Address = authority.parse()?;
            Ok(direct(address.to_string()))
        }
        "https" => Err("TLS is not supported; write http:// or host:port".into()),
        "direct" => {
            no_login(rest, &parameters)?;
            Ok(parse_direct(rest, parameters)?)
        }
        _ => parse_registry(scheme, rest, parameters),
    }
}

/// What has to be written otherwise in a login, and in a key that stands in the path.
const ENCODE: &str = "'/', '?', '#', ',' and '@' in a login are written %2F, %3F, %23, %2C and %40; a service \
     whose name has an '@' goes into ?key=";

fn no_login(rest: &str, parameters: &BTreeMap<String, String>) -> Result<(), &'static str> {
    let named = ["user", "username", "pass", "password"];
    if rest.contains('@') || named.iter().any(|name| parameters.contains_key(*name)) {
        return Err("fixed addresses take no login; write host:port");
    }
    Ok(())
}

/// Schemes that gRPC's own clients write without slashes.
const WITHOUT_SLASHES: [&str; 8] = [
    "dns",
    "ipv4",
    "ipv6",
    "passthrough",
    "unix",
    "unix-abstract",
    "vsock",
    "xds",
];
/// Schemes of lameduck's own, which need theirs.
const WITH_SLASHES: [&str; 5] = ["direct", "discov", "etcd", "http", "memory"];

/// A target without `://`: an address, or a form that means a scheme all the same.
fn parse_address(text: &str) -> Result<Target, Refusal> {
    if text.contains('@') {
        return Err(
            "an address takes no login; write host:port, or scheme://user:password@host:port"
                .into(),
        );
    }
    let error = match text.parse::<Address>() {
        Ok(address) => return Ok(direct(address.to_string())),
        Err(error) => error,
    };
    let Some((scheme, rest)) = text.split_once(':') else {
        return Err(error.into());
    };
    let scheme = scheme.to_ascii_lowercase();
    if WITHOUT_SLASHES.contains(&scheme.as_str()) && !rest.is_empty() {
        // Whoever holds the scheme answers; where nobody does, the known ones are named.
        return Ok(Target {
            hosts: Vec::from([rest.to_owned()]),
            scheme,
            service: None,
            login: None,
            parameters: BTreeMap::new(),
        });
    }
    if WITH_SLASHES.contains(&scheme.as_str()) && !rest.is_empty() {
        return Err("write the scheme with \"://\"".into());
    }
    Err(error.into())
}

fn direct(host: String) -> Target {
    let hosts = Vec::from([host]);
    Target {
        scheme: "direct".to_owned(),
        hosts,
        service: None,
        login: None,
        parameters: BTreeMap::new(),
    }
}

fn parse_direct(rest: &str, parameters: BTreeMap<String, String>) -> Result<Target, &'static str> {
    no_scheme_within(rest)?;
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
        login: None,
        parameters,
    })
}

/// go-zero's three forms: with an authority the path is the key, without one the path is the hosts
/// and the key a query parameter.
fn parse_registry(
    scheme: String,
    rest: &str,
    mut parameters: BTreeMap<String, String>,
) -> Result<Target, Refusal> {
    no_scheme_within(rest)?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let key = parameters.remove("key");
    let (list, service) = if authority.is_empty() {
        (path.trim_matches('/'), key)
    } else {
        if path.contains('@') {
            return Err(ENCODE.into());
        }
        (authority, in_path(path)?.or(key))
    };
    let (written, hosts) = split_logins(list)?;
    let login = one_login(written, &mut parameters)?;
    if hosts.is_empty() {
        return Err("no host; write scheme://host:port/service".into());
    }
    let may_be_secret = login.is_some() || list.contains('@');
    if may_be_secret && hosts.iter().any(|host| host.parse::<Address>().is_err()) {
        return Err(ENCODE.into());
    }
    let service = service.filter(|name| !name.is_empty());
    let service = service.map(|name| name.parse()).transpose()?;
    Ok(Target {
        scheme,
        hosts,
        service,
        login,
        parameters,
    })
}

/// The service that the path of a target with an authority names.
fn in_path(path: &str) -> Result<Option<String>, &'static str> {
    let name = path.trim_matches('/');
    if name.is_empty() {
        return Ok(None);
    }
    // go-zero takes the slash away in this form, and keeps it in the other.
    if path.starts_with('/') && !mutant!("target/leading-slash-is-no-other-name") {
        return Err(
            "a key that begins with '/' goes into ?key=, as in etcd:///h:2379?key=/service/orders",
        );
    }
    let decoded = percent::decode(name).ok_or("a broken %XX in the path")?;
    Ok(Some(decoded))
}

fn no_scheme_within(rest: &str) -> Result<(), &'static str> {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let hosts = if authority.is_empty() { path } else { rest };
    let authority_is_scheme = authority.ends_with(':') && path.starts_with('/');
    let listed = hosts.split(',').any(|host| {
        let host = host.trim_start();
        host.starts_with("http://") || host.starts_with("https://")
    });
    if authority_is_scheme || listed {
        return Err("write hosts without http://, as in etcd:///h1:2379,h2:2379?key=orders");
    }
    Ok(())
}

/// The logins before hosts, and the hosts without them.
fn split_logins(list: &str) -> Result<(Vec<Login>, Vec<String>), &'static str> {
    let (mut logins, mut hosts) = (Vec::new(), Vec::new());
    for part in split_hosts(list) {
        let host = match part.rsplit_once('@') {
            Some((login, host)) => {
                logins.push(Login::parse(login)?);
                host.to_owned()
            }
            None => part,
        };
        hosts.push(percent::decode(&host).ok_or("a broken %XX in the path")?);
    }
    Ok((logins, hosts))
}

/// The one login that the hosts and the parameters name together.
fn one_login(
    mut logins: Vec<Login>,
    parameters: &mut BTreeMap<String, String>,
) -> Result<Option<Login>, &'static str> {
    let mut take = |names: [&str; 2]| {
        let mut taken = names.iter().filter_map(|name| parameters.remove(*name));
        taken.next().filter(|text| !text.is_empty())
    };
    match (take(["user", "username"]), take(["pass", "password"])) {
        (Some(name), Some(password)) => logins.push(Login::new(&name, &password)),
        (None, None) => {}
        _ => return Err("a login needs both: ?user=…&pass=…"),
    }
    let first = logins.pop();
    if logins.iter().any(|other| Some(other) != first.as_ref()) {
        return Err("it names several logins; one registry has one");
    }
    Ok(first)
}

/// The hosts of a list; blanks around them and empty ones are forgiven.
fn split_hosts(list: &str) -> Vec<String> {
    list.split(',')
        .map(str::trim)
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

impl fmt::Debug for Target {
    /// With the names of its parameters alone: a value may be a secret of somebody's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.parameters.keys().collect();
        f.debug_struct("Target")
            .field("scheme", &self.scheme)
            .field("hosts", &self.hosts)
            .field("service", &self.service)
            .field("login", &self.login)
            .field("parameters", &names)
            .finish()
    }
}

impl fmt::Display for Target {
    /// The form that every reader takes: hosts in the path, the service as `key`. A login is left out.
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

    /// Reads a target with a login; nothing that is shown of it, good or bad, has the password.
    #[track_caller]
    fn check_login(text: &str, secrets: &[&str], expected: Result<(&str, &str, &[&str]), &str>) {
        let shown = match (text.parse::<Target>(), expected) {
            (Ok(target), Ok((name, password, hosts))) => {
                let login = target.login().expect("a login");
                assert_eq!((login.name(), login.password()), (name, password), "{text}");
                assert_eq!(target.hosts(), hosts, "{text}");
                assert_eq!(target.revealed().parse::<Target>(), Ok(target.clone()));
                assert!(target.parameters().is_empty());
                alloc::format!("{target} {target:?} {:?}", target.addresses())
            }
            (Err(error), Err(part)) => {
                let shown = alloc::format!("{error} {error:?}");
                assert!(shown.contains(part), "{text}: {shown}");
                shown
            }
            (got, _) => panic!("{text}: {got:?} instead of {expected:?}"),
        };
        let all = alloc::format!("{shown} {}", redacted(text));
        for secret in secrets {
            assert!(!all.contains(secret), "{text}: {all}");
        }
    }

    #[test]
    fn d12_a_login_in_a_target_is_taken() {
        let host: &[&str] = &["127.0.0.1:2379"];
        let two: &[&str] = &["h1:1", "h2:2"];
        let plain = Ok(("root", "s3cret", host));
        let s3cret = &["s3cret"];
        check_login("etcd://root:s3cret@127.0.0.1:2379", s3cret, plain);
        check_login("etcd://root:s3cret@127.0.0.1:2379/orders", s3cret, plain);
        check_login(
            "etcd:///root:s3cret@127.0.0.1:2379?key=orders",
            s3cret,
            plain,
        );
        check_login("discov://root:s3cret@127.0.0.1:2379/orders", s3cret, plain);
        check_login(
            "etcd:///127.0.0.1:2379?key=o&user=root&pass=s3cret",
            s3cret,
            plain,
        );
        check_login(
            "etcd://127.0.0.1:2379/o?username=root&password=s3cret",
            s3cret,
            plain,
        );
        check_login(
            "etcd://root:s3cret@127.0.0.1:2379?user=root&pass=s3cret",
            s3cret,
            plain,
        );
        check_login(
            "etcd://root:s3cret@h1:1,h2:2/o",
            s3cret,
            Ok(("root", "s3cret", two)),
        );
        check_login(
            "etcd://r:s3cret@h1:1, r:s3cret@h2:2/o",
            s3cret,
            Ok(("r", "s3cret", two)),
        );
        let odd = "etcd://a%40b:s%2F%3F%23%2C%40%3Acret@h1:1,h2:2/o";
        check_login(
            odd,
            &["cret", "a%40b", "a@b"],
            Ok(("a@b", "s/?#,@:cret", two)),
        );
        let plus = "etcd:///h1:1,h2:2?user=u&pass=s3%2Bcret%26";
        check_login(plus, &["s3", "cret"], Ok(("u", "s3+cret&", two)));
    }

    #[test]
    fn d12_a_login_that_cannot_be_taken_is_not_shown() {
        let s3cret = &["s3c", "ret"];
        for text in [
            "etcd://root:s3c/ret@h:2379/orders",
            "etcd://root:s3c?ret@h:2379/orders",
            "etcd://root:s3c#ret@h:2379/orders",
            "etcd://root:s3c,ret@h:2379/orders",
            "etcd://root:s3c/1:ret@h:2379",
            "etcd:///h1:s3cret,root:x@h:2379?key=orders",
        ] {
            check_login(text, s3cret, Err("%2F"));
        }
        check_login("etcd://root:s3cret%zz@h:1", s3cret, Err("broken %XX"));
        check_login("etcd://:s3cret@h:1", s3cret, Err("a user and a password"));
        check_login("etcd://s3cret@h:1", s3cret, Err("user:password@host"));
        check_login("etcd:///h:1?pass=s3cret&key=a", s3cret, Err("both"));
        check_login(
            "etcd:///h:1?key=a b&user=u&pass=s3c&ret",
            s3cret,
            Err("blanks"),
        );
        check_login(
            "etcd://a:s3cret@h:1,b:s3cret@h:2",
            s3cret,
            Err("several logins"),
        );
        check_login("etcd://root:s3cret@/orders", s3cret, Err("%2F"));
        check_login("direct:///root:s3cret@h:1", s3cret, Err("no login"));
        check_login(
            "direct:///h:1?user=a&password=s3cret",
            s3cret,
            Err("no login"),
        );
        check_login("http://root:s3cret@h:1", s3cret, Err("no login"));
        check_login("https://root:s3cret@h:1", s3cret, Err("TLS"));
        check_login("root:s3cret@h:1", s3cret, Err("no login"));
        check_login("root:s3cret@http://h:1", s3cret, Err("no scheme"));
    }

    #[test]
    fn d12_b_a_secret_of_another_registrys_is_not_shown_either() {
        let target: Target = "test:///h:1?key=k&token=s3cret".parse().expect("a target");
        assert!(!alloc::format!("{target} {target:?}").contains("s3cret"));
        assert_eq!(target.parameters()["token"], "s3cret");
        for text in [
            "nacos://u:s3cret@h:1",
            "a@b://s3cret@h",
            "u:s3cret@",
            "?PASSWORD=s3cret",
        ] {
            assert!(!redacted(text).contains("s3cret"), "{text}");
        }
        for text in [
            "",
            "h:1",
            "etcd:///h:1?key=a",
            "dns:h:1",
            "://",
            "?",
            "etcd:///h?compass",
        ] {
            let shown = redacted(text);
            assert!(shown == text || text.contains("pass"), "{text}: {shown}");
        }
    }

    #[test]
    fn d09_a_leading_slash_belongs_to_the_key() {
        let host: &[&str] = &["h:2379"];
        let name = "/service/hello.rpc";
        let query = "etcd:///h:2379?key=/service/hello.rpc";
        check_target(query, Ok(("etcd", host, Some(name))));
        check_target("etcd:///h:2379?key=//a", Ok(("etcd", host, Some("//a"))));
        check_target("etcd://h:2379?key=/a", Ok(("etcd", host, Some("/a"))));
        check_target("etcd://h:2379//service/hello.rpc", Err("?key="));
        check_target("etcd://h:2379//", Ok(("etcd", host, None)));
        check_target("etcd:///h:2379?key=/", Err("must not end"));
    }

    #[test]
    fn d11_lists_of_hosts_as_they_stand_in_environment_variables() {
        let two: &[&str] = &["h1:2379", "h2:2379"];
        let (one, key) = (&["h:2379"], Some("k"));
        check_target("etcd:///h1:2379, h2:2379?key=k", Ok(("etcd", two, key)));
        check_target("etcd:///h:2379\n?key=k", Ok(("etcd", one, key)));
        check_target(" etcd:///h:2379?key=k\n", Ok(("etcd", one, key)));
        check_target("direct:///h1:2379,\th2:2379,", Ok(("direct", two, None)));
        let without = Err("without http://");
        check_target("etcd://http://h:2379/k", without);
        check_target("etcd:///http://h:2379?key=k", without);
        check_target("etcd:///h1:2379,http://h2:2379?key=k", without);
        check_target("etcd:///h1:2379, https://h2:2379?key=k", without);
        check_target("direct:///http://h:1", without);
        let brackets: Target = "etcd:///[h:2379]?key=k".parse().expect("looked at later");
        let error = brackets.addresses().expect_err("no IPv6 address");
        assert!(
            error.to_string().contains("brackets are for IPv6"),
            "{error}"
        );
        let port: Target = "etcd:///h?key=k".parse().expect("looked at later");
        assert!(port.addresses().is_err());
    }

    #[test]
    fn d13_forms_without_slashes_are_answered_by_their_scheme() {
        for (text, scheme) in [
            ("dns:orders:8080", "dns"),
            ("ipv4:10.0.0.1:80,10.0.0.2:80", "ipv4"),
            ("ipv6:[::1]:80", "ipv6"),
            ("unix:/run/x.sock", "unix"),
            ("unix-abstract:x", "unix-abstract"),
            ("XDS:orders", "xds"),
        ] {
            let target: Target = text.parse().expect("its scheme answers");
            assert_eq!(target.scheme(), scheme, "{text}");
        }
        check_target("etcd:h:2379/orders", Err("with \"://\""));
        check_target("direct:h:1,h:2", Err("with \"://\""));
        // Hosts may be called so.
        check_target("dns:8080", Ok(("direct", &["dns:8080"], None)));
        check_target("dns:", Err("the port"));
    }
}
