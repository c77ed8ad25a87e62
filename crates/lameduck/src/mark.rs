//! The marks on answers: who answers, that it is closing, that it did not process.
//!
//! They are hop by hop: a server strips those that come in, a caller strips those it reads, and
//! nobody believes a mark that does not name the life that it dialled.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use lameduck_core::instance::Life;
use lameduck_core::limits::MARK_BYTES_MAX;
use lameduck_core::name::percent;

/// How the names of all marks begin.
const PREFIX: &str = "lameduck-";
/// `lameduck-life: <life>; s=<service>[,…]`: who answers.
pub const LIFE: HeaderName = HeaderName::from_static("lameduck-life");
/// `lameduck-closing: <life>`: this life is leaving.
pub const CLOSING: HeaderName = HeaderName::from_static("lameduck-closing");
/// `lameduck-refused: <life>`: this request was not processed.
pub const REFUSED: HeaderName = HeaderName::from_static("lameduck-refused");

/// `lameduck-ask: life` in a request: from here on the answers of this connection say who answers, where
/// the server shows that to those who ask ([`ShowLife::Asked`]).
pub const ASK: HeaderName = HeaderName::from_static("lameduck-ask");
/// Its value.
pub(crate) const ASK_LIFE: HeaderValue = HeaderValue::from_static("life");

/// To whom a server shows the `lameduck-life` mark. The other two marks, which are there only while it
/// leaves, name the life too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ShowLife {
    /// In each connection's first answer.
    #[default]
    Always,
    /// In the next answer of a connection on which a request [asked](ASK); callers of lameduck's ask.
    Asked,
    /// To nobody. Callers learn of lives from the registry alone; a caller with fixed addresses does
    /// not see that another service answers, or another life.
    Never,
}

/// Whether a request asks who answers.
pub(crate) fn asks_life(headers: &HeaderMap) -> bool {
    headers.get(&ASK) == Some(&ASK_LIFE)
}

/// What a `lameduck-life` mark says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Which life answers.
    pub life: Life,
    /// Which services it serves.
    pub services: Vec<String>,
}

impl Identity {
    /// The header value: services percent-encoded. Services that would make it longer than 1 KiB
    /// are left out from the end.
    #[must_use]
    pub fn to_value(&self) -> HeaderValue {
        let mut text = format!("{}; s=", self.life);
        for (position, service) in self.services.iter().enumerate() {
            let separator = if position == 0 { "" } else { "," };
            let encoded = percent::encode(service);
            if text.len() + separator.len() + encoded.len() > MARK_BYTES_MAX {
                break;
            }
            text.push_str(separator);
            text.push_str(&encoded);
        }
        HeaderValue::try_from(text)
            .expect("hex digits, dots and percent-encoded text are visible ASCII")
    }

    /// Reads a header value. `None` where it is malformed; unknown parameters are ignored.
    #[must_use]
    pub fn from_value(value: &HeaderValue) -> Option<Self> {
        if value.len() > MARK_BYTES_MAX {
            return None;
        }
        let mut parts = value.to_str().ok()?.split(';');
        let life = parts.next()?.trim().parse().ok()?;
        let list = parts
            .find_map(|part| part.trim().strip_prefix("s="))
            .unwrap_or_default();
        let names = list.split(',').filter(|name| !name.is_empty());
        let services = names
            .map(|name| percent::decode(name.trim()))
            .collect::<Option<Vec<_>>>()?;
        Some(Self { life, services })
    }
}

/// The value of a closing or refused mark.
#[must_use]
pub fn life_value(life: Life) -> HeaderValue {
    HeaderValue::try_from(life.to_string()).expect("hex digits and dots are visible ASCII")
}

/// The life that a closing or refused mark names; `None` where the mark is absent or malformed.
#[must_use]
pub fn life(headers: &HeaderMap, name: &HeaderName) -> Option<Life> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// Whether there may be a mark: a glance at the names, for the many heads that carry none.
#[must_use]
pub fn is_marked(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with(PREFIX))
}

/// Takes all three marks away, and the question for one. True where there was one.
pub fn strip(headers: &mut HeaderMap) -> bool {
    let mut any = false;
    if !is_marked(headers) {
        return any;
    }
    for name in [&LIFE, &CLOSING, &REFUSED, &ASK] {
        any |= headers.remove(name).is_some();
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;
    use lameduck_core::instance::BootId;
    use proptest::prelude::*;

    fn a_life() -> Life {
        Life::first(BootId::from_bits(0xfeed))
    }

    #[test]
    fn golden_bytes() {
        let services = vec!["greeter.v1".to_owned(), "a/b c".to_owned()];
        let value = Identity {
            life: a_life(),
            services,
        }
        .to_value();
        assert_eq!(
            value,
            "0000000000000000000000000000feed.0; s=greeter.v1,a%2Fb%20c"
        );
        assert_eq!(life_value(a_life()), "0000000000000000000000000000feed.0");
    }

    #[test]
    fn malformed_marks_are_no_marks() {
        for text in [
            "",
            "x",
            "0000000000000000000000000000feed.0; s=%z1",
            "feed.0; s=a",
        ] {
            let value = HeaderValue::from_static(text);
            assert_eq!(Identity::from_value(&value), None, "{text:?}");
        }
        let long = HeaderValue::try_from("a".repeat(MARK_BYTES_MAX + 1)).expect("ASCII");
        assert_eq!(Identity::from_value(&long), None);
    }

    #[test]
    fn every_mark_is_seen_at_a_glance() {
        for name in [LIFE, CLOSING, REFUSED] {
            let mut headers = HeaderMap::new();
            headers.insert("content-type", HeaderValue::from_static("application/grpc"));
            assert!(!is_marked(&headers));
            headers.insert(name, life_value(a_life()));
            assert!(is_marked(&headers));
        }
    }

    #[test]
    fn strip_takes_all_three() {
        let mut headers = HeaderMap::new();
        assert!(!strip(&mut headers));
        for name in [LIFE, CLOSING, REFUSED] {
            headers.append(&name, life_value(a_life()));
            headers.append(&name, HeaderValue::from_static("again"));
        }
        assert_eq!(life(&headers, &CLOSING), Some(a_life()));
        assert!(strip(&mut headers));
        assert!(headers.is_empty());
    }

    proptest! {
        #[test]
        fn identities_come_back(names in prop::collection::vec("[ -~é]{1,20}", 0..5)) {
            let identity = Identity { life: a_life(), services: names };
            let value = identity.to_value();
            prop_assert!(value.len() <= MARK_BYTES_MAX);
            prop_assert_eq!(Identity::from_value(&value), Some(identity));
        }
    }
}
