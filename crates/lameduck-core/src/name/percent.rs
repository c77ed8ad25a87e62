//! Percent-encoding (RFC 3986, 2.1): names between separators that could be part of a name.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

/// `text`, every byte but ASCII letters, digits, `-`, `_` and `.` as `%` and two upper-case hex
/// digits. Different texts stay different.
#[must_use]
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("a String takes everything");
        }
    }
    encoded
}

/// What was encoded; bytes that need not have been encoded stand for themselves. `None` where a `%`
/// is not followed by two hex digits, or the bytes are no UTF-8.
#[must_use]
pub fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let high = char::from(rest.next()?).to_digit(16)?;
            let low = char::from(rest.next()?).to_digit(16)?;
            u8::try_from(high * 16 + low).ok()?
        } else {
            byte
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        assert_eq!(encode("a.B_c-9"), "a.B_c-9");
        assert_eq!(encode("a/b c%~ä"), "a%2Fb%20c%25%7E%C3%A4");
        assert_eq!(decode("a%2fb~"), Some("a/b~".into()));
        for broken in ["%", "%2", "%z1", "%+1", "%ff"] {
            assert_eq!(decode(broken), None, "{broken}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_comes_back(text in ".{0,40}") {
            prop_assert_eq!(decode(&encode(&text)), Some(text));
        }
    }
}
