//! go-zero's layout: `<service>/<decimal number>` holds `host:port`, and nothing else is read.
//!
//! The number is the lease id, or an id that the operator chose. Readers take every value below
//! `<service>/` for an address, so nothing else may ever be put there; and so do we: whatever a key
//! ends with, its value counts. Values of other frameworks are read by [`foreign`](super::foreign).

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

/// What a key ends with, where it is a key of `service` itself and of none whose name goes on with
/// `/`: `node-a` of `orders/node-a`, nothing of `orders/admin/7`. No service's name ends with a slash,
/// so that `orders//7` is a key of `orders`, too.
#[must_use]
pub fn end<'a>(service: &ServiceName, key: &'a [u8]) -> Option<&'a [u8]> {
    let name = service.as_str().as_bytes();
    let end = key.strip_prefix(name)?.strip_prefix(b"/")?;
    let last = key.iter().rposition(|byte| *byte == b'/')?;
    let owner = key[..last].iter().rposition(|byte| *byte != b'/')?;
    (owner + 1 == name.len()).then_some(end)
}

/// The number that a key ends with, where it is one in its one spelling.
#[must_use]
pub fn number(end: &[u8]) -> Option<i64> {
    decimal(std::str::from_utf8(end).ok()?)
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

/// The address that a value holds. Blanks and a byte order mark around it are forgiven; what cannot
/// be dialled is not.
///
/// # Errors
///
/// Where the value is not `host:port`, or is an address that nobody can dial.
pub fn address(value: &[u8]) -> Result<Address, BadValue> {
    let refuse = |why: String| BadValue {
        value: shorten(value),
        why,
    };
    let text = text(value, VALUE_BYTES_MAX).map_err(refuse)?;
    plain(text).map_err(refuse)
}

/// A value without blanks and a byte order mark around it.
pub(super) fn text(value: &[u8], bytes_max: usize) -> Result<&str, String> {
    if value.len() > bytes_max {
        return Err(format!("{} bytes are no host:port", value.len()));
    }
    let text = std::str::from_utf8(value).map_err(|_| "no text".to_owned())?;
    Ok(text.trim_start_matches('\u{feff}').trim())
}

/// The address that is written so.
pub(super) fn plain(text: &str) -> Result<Address, String> {
    let address: Address = text.parse().map_err(|error| format!("{error}"))?;
    dialable(&address)?;
    Ok(address)
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
    fn check_end(name: &str, key: &[u8], expected: Option<&[u8]>) {
        assert_eq!(end(&service(name), key), expected, "{name} {key:?}");
    }

    #[test]
    fn d08_any_end_is_an_instances_and_only_keys_of_the_service_itself_are_its() {
        check_end("a", b"a/7", Some(b"7"));
        check_end("a/b", b"a/b/7", Some(b"7"));
        check_end("a", b"a/b/7", None);
        check_end("a", b"ab/7", None);
        check_end("a", b"a", None);
        for odd in [
            &b"-7"[..],
            b"+7",
            b"0x7",
            b"007",
            b"0",
            b"9223372036854775808",
            b"\xff",
            b"static-1",
            b"node a",
            b"127.0.0.1:8091",
            b"%2F",
            "\u{e4}".as_bytes(),
            b"",
        ] {
            check_end("a", &[b"a/", odd].concat(), Some(odd));
        }
        check_end("a.", b"a./1", Some(b"1"));
        check_end("a%2F", b"a%2F/1", Some(b"1"));
        // Slashes in a row: no service has a name that ends with one.
        check_end("a", b"a//7", Some(b"/7"));
        check_end("a", b"a//", Some(b"/"));
        check_end("a", b"a//b/7", None);
        check_end("a//b", b"a//b/7", Some(b"7"));
        check_end("/a/b", b"/a/b/7", Some(b"7"));
        check_end("a/b", b"/a/b/7", None);
        check_end("/a/b", b"a/b/7", None);
    }

    #[test]
    fn numbers_have_one_spelling() {
        let numbers = [
            "7",
            "0",
            "007",
            "-7",
            "9223372036854775807",
            "9223372036854775808",
        ];
        let read = numbers.map(|end| number(end.as_bytes()));
        assert_eq!(read, [Some(7), Some(0), None, None, Some(i64::MAX), None]);
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
        check_address(b"\xef\xbb\xbf192.0.2.2:18081\r\n", Ok("192.0.2.2:18081"));
        check_address(b"[fe80::1%eth0]:80", Err("zone"));
        check_address(b"fe80::1%25eth0:80", Err("zone"));
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
