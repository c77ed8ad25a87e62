//! A user's name and password in a target, and how neither is shown.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use core::fmt;

use super::percent;
use crate::mutant;

/// A user's name and password. No `Debug` and no `Display` shows either.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    name: String,
    password: String,
}

impl Login {
    /// The login of this user.
    #[must_use]
    pub fn new(name: &str, password: &str) -> Self {
        Self {
            name: name.to_owned(),
            password: password.to_owned(),
        }
    }

    /// The user's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The password.
    #[must_use]
    pub fn password(&self) -> &str {
        &self.password
    }

    /// What stands before the `@` of a host, percent-encoded.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (name, password) = text.split_once(':').ok_or(
            "a login is written user:password@host, ',', '@' and '/' in it as %2C, %40 and %2F",
        )?;
        let decode = |part| percent::decode(part).ok_or("a broken %XX in the login");
        let login = Self {
            name: decode(name)?,
            password: decode(password)?,
        };
        if login.name.is_empty() || login.password.is_empty() {
            return Err("a login needs a user and a password: user:password@host");
        }
        Ok(login)
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(…)")
    }
}

/// Parts of the names of parameters whose values are not shown.
const SECRET: [&str; 4] = ["pass", "pwd", "secret", "token"];

/// A target as it may be shown: without what stands before its last `@`, where a login is, and without
/// everything from a parameter on whose name means a secret. It is made for texts that cannot be read,
/// too, so it rather hides too much.
///
/// ```
/// use lameduck_core::name::redacted;
/// assert_eq!(redacted("etcd://root:pw@h:2379/orders"), "etcd://…@h:2379/orders");
/// assert_eq!(redacted("etcd:///h:2379?key=a&pass=pw"), "etcd:///h:2379?key=a&pass=…");
/// ```
#[must_use]
pub fn redacted(text: &str) -> String {
    if mutant!("target/logins-are-hidden") {
        return text.to_owned();
    }
    let (shown, cut) = before_secret(text);
    let (scheme, rest) = match shown.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('@') => (&shown[..scheme.len() + 3], rest),
        _ => ("", shown),
    };
    let mut line = scheme.to_string();
    match rest.rfind('@') {
        Some(at) => {
            line.push('…');
            line.push_str(&rest[at..]);
        }
        None => line.push_str(rest),
    }
    if cut {
        line.push('…');
    }
    line
}

/// Everything up to the value of the first parameter whose name means a secret.
fn before_secret(text: &str) -> (&str, bool) {
    for (at, _) in text.match_indices(['?', '&']) {
        let piece = &text[at + 1..];
        let name = piece.split(['=', '&', '?']).next().unwrap_or_default();
        let plain = percent::decode(name).unwrap_or_else(|| name.to_owned());
        let plain = plain.to_ascii_lowercase();
        if SECRET.iter().any(|secret| plain.contains(secret)) {
            return (&text[..(at + 2 + name.len()).min(text.len())], true);
        }
    }
    (text, false)
}
