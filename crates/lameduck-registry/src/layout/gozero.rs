//! go-zero's layout: `<service>/<decimal number>` holds `host:port`, and nothing else is read.
//!
//! The number is the lease id, or an id that the operator chose. Readers take every value below
//! `<service>/` for an address, so nothing else may ever be put there.

use std::fmt;

use lameduck_core::name::{Address, ServiceName};

/// The key of an instance of `service` whose number is `number`.
#[must_use]
pub fn key(service: &ServiceName, number: i64) -> String {
    format!("{service}/{number}")
}

/// What every key of `service` begins with.
#[must_use]
pub fn prefix(service: &ServiceName) -> String {
    format!("{service}/")
}

/// The number in a key, where it is a key of `service`: neither `service/nested/7` nor anything
/// that go-zero would not write.
#[must_use]
pub fn number(service: &ServiceName, key: &[u8]) -> Option<i64> {
    let rest = key.strip_prefix(service.as_str().as_bytes())?;
    let digits = std::str::from_utf8(rest.strip_prefix(b"/")?).ok()?;
    decimal(digits)
}

/// A number as it is written, in its one spelling.
pub(super) fn decimal(digits: &str) -> Option<i64> {
    let number: i64 = digits.parse().ok()?;
    (number >= 0 && number.to_string() == digits).then_some(number)
}

/// Why a value is no address. Holds the beginning of it, escaped, for a line in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadValue {
    /// The value's first bytes, escaped.
    pub value: String,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "value \"{}\": {}", self.value, self.why)
    }
}

impl std::error::Error for BadValue {}

/// Bytes of a bad value that are shown.
const SHOWN_BYTES_MAX: usize = 64;
/// A host name has 253 bytes at most, a port 5; blanks around are forgiven.
const VALUE_BYTES_MAX: usize = 512;

/// The address that a value holds. Blanks around it are forgiven; what cannot be dialled is not.
///
/// # Errors
///
/// Where the value is not `host:port`, or is an address that nobody can dial.
pub fn address(value: &[u8]) -> Result<Address, BadValue> {
    let refuse = |why: String| BadValue {
        value: shorten(value),
        why,
    };
    if value.len() > VALUE_BYTES_MAX {
        return Err(refuse(format!("{} bytes are no host:port", value.len())));
    }
    let text = std::str::from_utf8(value).map_err(|_| refuse("no text".to_owned()))?;
    let address: Address = text
        .trim()
        .parse()
        .map_err(|error| refuse(format!("{error}")))?;
    match dialable(&address) {
        Ok(()) => Ok(address),
        Err(why) => Err(refuse(why.to_owned())),
    }
}

/// Whether anybody can dial `address`.
///
/// # Errors
///
/// A wildcard host, or port 0.
pub fn dialable(address: &Address) -> Result<(), &'static str> {
    if address.is_unspecified() {
        return Err("a wildcard is no address that can be dialled");
    }
    if address.port() == 0 {
        return Err("port 0 cannot be dialled");
    }
    Ok(())
}

pub(super) fn shorten(value: &[u8]) -> String {
    let shown = &value[..value.len().min(SHOWN_BYTES_MAX)];
    let mut text = shown.escape_ascii().to_string();
    if shown.len() < value.len() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(text: &str) -> ServiceName {
        text.parse().expect("a service name")
    }

    #[test]
    fn keys_are_go_zeros_to_the_byte() {
        let key = key(&service("t.rpc"), 9_041_998_973_430_833_157);
        assert_eq!(key, "t.rpc/9041998973430833157");
        assert_eq!(prefix(&service("t.rpc")), "t.rpc/");
    }

    #[track_caller]
    fn check_number(name: &str, key: &[u8], expected: Option<i64>) {
        assert_eq!(number(&service(name), key), expected, "{name} {key:?}");
    }

    #[test]
    fn only_keys_of_the_service_itself_are_its() {
        check_number("a", b"a/7", Some(7));
        check_number("a/b", b"a/b/7", Some(7));
        check_number("a", b"a/b/7", None);
        check_number("a", b"ab/7", None);
        check_number("a", b"a", None);
        check_number("a", b"a/", None);
        check_number("a", b"a/-7", None);
        check_number("a", b"a/+7", None);
        check_number("a", b"a/0x7", None);
        check_number("a", b"a/007", None);
        check_number("a", b"a/0", Some(0));
        check_number("a", b"a/9223372036854775808", None);
        check_number("a", b"a/\xff", None);
        check_number("a.", b"a./1", Some(1));
        check_number("a%2F", b"a%2F/1", Some(1));
    }

    #[track_caller]
    fn check_address(value: &[u8], expected: Result<&str, &str>) {
        match (address(value), expected) {
            (Ok(address), Ok(text)) => assert_eq!(address.to_string(), text),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (got, _) => panic!("{value:?}: {got:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn c21_odd_values() {
        check_address(b"192.0.2.2:18081", Ok("192.0.2.2:18081"));
        check_address(b" 192.0.2.2:18081\n", Ok("192.0.2.2:18081"));
        check_address(b"[2001:DB8::7]:443", Ok("[2001:db8::7]:443"));
        check_address(b"orders-0.orders:80", Ok("orders-0.orders:80"));
        check_address(b"127.0.0.1:9000", Ok("127.0.0.1:9000"));
        check_address(b"grpc://192.0.2.2:80", Err("no host name"));
        check_address(b"{\"Addr\":\"192.0.2.2:80\"}", Err("port"));
        check_address(b"192.0.2.2:0", Err("port 0"));
        check_address(b"192.0.2.2:70000", Err("port"));
        check_address(b"192.0.2.2", Err("no port"));
        check_address(b"", Err("no port"));
        check_address(b"0.0.0.0:9000", Err("wildcard"));
        check_address(b"[::]:9000", Err("wildcard"));
        check_address(b"\xff\xfe:1", Err("no text"));
        check_address(&vec![b'x'; 1 << 20], Err("1048576 bytes"));
        let error = address(&vec![b'\n'; 600]).expect_err("too long");
        assert!(error.value.len() < 200, "{error}");
    }
}
