//! Values that are no instances: what is said of them, and how often.

use std::collections::BTreeSet;
use std::fmt;

use lameduck_core::limits;
use lameduck_core::mutant;
use lameduck_core::registry::Update;

/// Bytes of a key that are shown. Its end is: there is the number, and the service is known.
const KEY_BYTES_MAX: usize = 200;
/// Characters of a reason that are shown; it holds the value's beginning.
const WHY_CHARS_MAX: usize = 400;

/// Why a value is no instance: its key and what is wrong, in one line of bounded length.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Skip(String);

impl Skip {
    pub(super) fn new(key: &[u8], why: &impl fmt::Display) -> Self {
        let shown = &key[key.len().saturating_sub(KEY_BYTES_MAX)..];
        let cut = if shown.len() < key.len() { "…" } else { "" };
        let why = why.to_string();
        let plain = why.chars().map(|c| if c.is_control() { ' ' } else { c });
        let mut line = format!("key \"{cut}{}\": ", shown.escape_ascii());
        line.extend(plain.take(WHY_CHARS_MAX));
        if why.chars().nth(WHY_CHARS_MAX).is_some() {
            line.push('…');
        }
        Self(line)
    }
}

/// What one subscription has said of such values.
#[derive(Debug, Default)]
pub(super) struct Skips {
    said: BTreeSet<Skip>,
}

impl Skips {
    /// What to say of a value: nothing where it was said before, or too many were.
    pub(super) fn tell(&mut self, skip: &Skip) -> Option<Update> {
        let room = limits::SKIPPED_TOLD_MAX.saturating_sub(self.said.len());
        if room == 0 && !mutant!("skips/bounded") {
            return None;
        }
        if !self.said.insert(skip.clone()) && !mutant!("skips/said-once") {
            return None;
        }
        let mut what = skip.0.clone();
        if room == 1 {
            what.push_str("; further ones are only counted");
        }
        Some(Update::Skipped { what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(key: &[u8], why: &str) -> String {
        let Skip(line) = Skip::new(key, &why);
        line
    }

    #[test]
    fn a_line_is_plain_and_of_bounded_length() {
        assert_eq!(line(b"orders/7", "no port"), "key \"orders/7\": no port");
        assert_eq!(
            line(b"\xc3\xa4/7", "a\nb\x1b"),
            "key \"\\xc3\\xa4/7\": a b "
        );
        let long = line(&[b"x".repeat(1_000).as_slice(), b"/7"].concat(), "no port");
        assert!(long.starts_with("key \"…xxx") && long.ends_with("xx/7\": no port"));
        assert!(long.len() < 250, "{long}");
        let long = line(b"orders/7", &"ä".repeat(1_000));
        assert!(
            long.ends_with("ää…") && long.chars().count() < 450,
            "{long}"
        );
    }
}
