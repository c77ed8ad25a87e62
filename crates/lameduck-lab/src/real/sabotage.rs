//! Rules that a run can break on purpose, in its children alone, to show that the judge would see.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One broken rule. Each costs at least 20 calls a run, by construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sabotage {
    /// A server counts a request as done at the head of its answer: streams that outlive the time
    /// of closing are cut.
    PermitAtHead,
    /// A server's gate closes 300 ms before any GOAWAY, and refuses without proof.
    NoRefuseProof,
    /// A server tells nobody before it closes its connections.
    NoAnnounce,
    /// A server refuses from the signal on; its GOAWAY comes 300 ms later, all else 2 s late.
    NoClosing,
    /// Callers forget which life has closed, and the registry replays its registration.
    NoTombstone,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::PermitAtHead,
        Self::NoRefuseProof,
        Self::NoAnnounce,
        Self::NoClosing,
        Self::NoTombstone,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PermitAtHead => "permit-at-head",
            Self::NoRefuseProof => "no-refuse-proof",
            Self::NoAnnounce => "no-announce",
            Self::NoClosing => "no-closing",
            Self::NoTombstone => "no-tombstone",
        }
    }

    /// What the children do wrong, in half a sentence, for whoever reads only the outcome.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::PermitAtHead => "servers cut the streams that outlive their closing",
            Self::NoRefuseProof => "servers refuse without proof, and say nothing before",
            Self::NoAnnounce => "servers tell nobody before their connections end",
            Self::NoClosing => "servers refuse from the signal on, and say so late",
            Self::NoTombstone => "callers forget which life has closed",
        }
    }
}

impl fmt::Display for Sabotage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that is no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownRule;

impl fmt::Display for UnknownRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Sabotage::ALL.map(Sabotage::as_str);
        write!(f, "no such rule; known are {}", known.join(", "))
    }
}

impl std::error::Error for UnknownRule {}

impl FromStr for Sabotage {
    type Err = UnknownRule;

    fn from_str(text: &str) -> Result<Self, UnknownRule> {
        let mut all = Self::ALL.into_iter();
        all.find(|rule| rule.as_str() == text).ok_or(UnknownRule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_one_name_everywhere() {
        for rule in Sabotage::ALL {
            assert_eq!(rule.as_str().parse(), Ok(rule));
            let printed = serde_json::to_value(rule).unwrap();
            assert_eq!(printed, rule.as_str());
        }
    }
}
