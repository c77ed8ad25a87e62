//! `grpc-timeout`: how much time a call has left, as gRPC writes it.
//!
//! At most eight digits and a unit (gRPC over HTTP/2, "Timeout").

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// The header's name.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

const DIGITS_MAX: usize = 8;
const VALUE_MAX: u128 = 99_999_999;

/// Nanoseconds in each unit, finest first.
const UNITS: [(u128, char); 6] = [
    (1, 'n'),
    (1_000, 'u'),
    (1_000_000, 'm'),
    (1_000_000_000, 'S'),
    (60_000_000_000, 'M'),
    (3_600_000_000_000, 'H'),
];

/// The time that `headers` grant; `None` where they say nothing or nothing that can be read.
#[must_use]
pub fn parse(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(&GRPC_TIMEOUT)?.to_str().ok()?;
    let unit = text.chars().next_back()?;
    let digits = &text[..text.len() - unit.len_utf8()];
    if digits.len() > DIGITS_MAX || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        'n' => Some(Duration::from_nanos(value)),
        'u' => Some(Duration::from_micros(value)),
        'm' => Some(Duration::from_millis(value)),
        'S' => Some(Duration::from_secs(value)),
        'M' => Some(Duration::from_secs(value * 60)),
        'H' => Some(Duration::from_secs(value * 3_600)),
        _ => None,
    }
}

/// `remaining` in the finest unit that holds it, rounded up, and never zero: a peer that rounds
/// down must not end a call before its caller does.
#[must_use]
pub fn format(remaining: Duration) -> HeaderValue {
    let nanos = remaining.as_nanos().max(1);
    let (value, unit) = UNITS
        .iter()
        .map(|(size, unit)| (nanos.div_ceil(*size), *unit))
        .find(|(value, _)| *value <= VALUE_MAX)
        .unwrap_or((VALUE_MAX, 'H'));
    HeaderValue::try_from(std::format!("{value}{unit}")).expect("digits and a letter are ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse_text(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(GRPC_TIMEOUT, HeaderValue::from_str(text).expect("visible"));
        parse(&headers)
    }

    #[test]
    fn every_unit() {
        let cases = [
            ("1H", Some(3_600_000)),
            ("2M", Some(120_000)),
            ("3S", Some(3_000)),
            ("4m", Some(4)),
            ("100000u", Some(100)),
            ("5000000n", Some(5)),
            ("99999999H", Some(359_999_996_400_000)),
            ("0m", Some(0)),
            ("123456789n", None),
            ("S", None),
            ("1", None),
            ("-1S", None),
            ("+1S", None),
            ("1 S", None),
            ("1x", None),
            ("", None),
        ];
        for (text, millis) in cases {
            assert_eq!(
                parse_text(text),
                millis.map(Duration::from_millis),
                "{text:?}"
            );
        }
        assert_eq!(parse(&HeaderMap::new()), None);
    }

    #[test]
    fn finest_unit_that_holds_it() {
        for (duration, text) in [
            (Duration::ZERO, "1n"),
            (Duration::from_millis(99), "99000000n"),
            (Duration::from_millis(100), "100000u"),
            (Duration::from_secs(100), "100000m"),
            (Duration::MAX, "99999999H"),
        ] {
            assert_eq!(format(duration), text);
        }
    }

    proptest! {
        #[test]
        fn comes_back_no_shorter(nanos in 1_u64..) {
            let duration = Duration::from_nanos(nanos);
            let text = format(duration);
            let back = parse_text(text.to_str().expect("ASCII")).expect("our own");
            prop_assert!(back >= duration);
            prop_assert!(back.as_nanos() <= duration.as_nanos() * 11 / 10 + 1);
        }
    }
}
