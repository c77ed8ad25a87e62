//! Instances and their lives.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;
use core::str::FromStr;

use crate::name::Address;

/// What tells one start of a process from the next: 128 random bits, drawn once at start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId(u128);

impl BootId {
    /// A boot id of these bits. The edge draws them from the operating system.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no boot id or no life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifeError {
    text: String,
}

impl fmt::Display for LifeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no life: 32 hex digits, '.', a decimal epoch",
            self.text
        )
    }
}

impl core::error::Error for LifeError {}

impl FromStr for BootId {
    type Err = LifeError;

    fn from_str(text: &str) -> Result<Self, LifeError> {
        let refuse = || LifeError {
            text: text.to_owned(),
        };
        let digits = text.len() == 32
            && text
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if !digits {
            return Err(refuse());
        }
        u128::from_str_radix(text, 16)
            .map(Self)
            .map_err(|_| refuse())
    }
}

/// One life of an instance: a start of its process, and which Resume since then.
///
/// Lives of one boot are ordered by epoch; lives of different boots have no order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Life {
    /// Which start of the process.
    pub boot: BootId,
    /// 0 at start, one more at each Resume.
    pub epoch: u32,
}

impl Life {
    /// The first life of a boot.
    #[must_use]
    pub const fn first(boot: BootId) -> Self {
        Self { boot, epoch: 0 }
    }

    /// The life after a Resume.
    #[must_use]
    pub const fn resumed(self) -> Self {
        Self {
            boot: self.boot,
            epoch: self.epoch.saturating_add(1),
        }
    }

    /// How this life stands to `other`: `None` for different boots, which have no order.
    #[must_use]
    pub fn order(self, other: Self) -> Option<Ordering> {
        (self.boot == other.boot).then(|| self.epoch.cmp(&other.epoch))
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.boot, self.epoch)
    }
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Life {
    type Err = LifeError;

    fn from_str(text: &str) -> Result<Self, LifeError> {
        let refuse = || LifeError {
            text: text.to_owned(),
        };
        let (boot, epoch) = text.split_once('.').ok_or_else(refuse)?;
        if epoch.is_empty() || !epoch.bytes().all(|b| b.is_ascii_digit()) {
            return Err(refuse());
        }
        let epoch = epoch.parse().map_err(|_| refuse())?;
        let boot = boot.parse().map_err(|_| refuse())?;
        Ok(Self { boot, epoch })
    }
}

/// The identity of an instance, as well as it is known. Never its address alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Incarnation {
    /// An instance that runs lameduck says which life it is.
    Life(Life),
    /// A foreign instance in etcd: the lease that its key hangs on.
    Lease(i64),
    /// A foreign instance without a lease: the revision at which its key was created.
    Revision(i64),
    /// Nothing but an address is known, until a connection tells more.
    Unknown,
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Life(life) => life.fmt(f),
            Self::Lease(lease) => write!(f, "lease {lease:x}"),
            Self::Revision(revision) => write!(f, "revision {revision}"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// What an instance says of itself in its registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// It wants calls. Unknown words in a record count as this.
    #[default]
    Serving,
    /// It is leaving: a closing statement by that life.
    Closing,
}

/// One process serving a service, as a registry shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Where it is reached.
    pub address: Address,
    /// Which life it is.
    pub incarnation: Incarnation,
    /// Serving or closing.
    pub state: State,
    /// Whether it wants new calls now; a judgement about itself, not a closing statement.
    pub ready: bool,
    /// Share of calls relative to others; 100 is usual.
    pub weight: u32,
    /// Where it runs; empty where unknown.
    pub zone: String,
    /// Which release it is; empty where unknown.
    pub version: String,
    /// Free metadata.
    pub labels: BTreeMap<String, String>,
    /// What it speaks: `grpc`, `http`.
    pub protocols: Vec<String>,
}

impl Instance {
    /// A serving, ready instance of usual weight and without metadata.
    #[must_use]
    pub fn new(address: Address, incarnation: Incarnation) -> Self {
        Self {
            address,
            incarnation,
            state: State::Serving,
            ready: true,
            weight: 100,
            zone: String::new(),
            version: String::new(),
            labels: BTreeMap::new(),
            protocols: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn lives_are_read_as_they_are_written() {
        let life = Life {
            boot: BootId::from_bits(0xab),
            epoch: 7,
        };
        let text = "000000000000000000000000000000ab.7";
        assert_eq!(life.to_string(), text);
        assert_eq!(text.parse(), Ok(life));
        for bad in [
            "",
            "ab.7",
            "000000000000000000000000000000ab",
            "000000000000000000000000000000ab.",
            "000000000000000000000000000000AB.7",
            "000000000000000000000000000000ab.+7",
            "000000000000000000000000000000ab.4294967296",
        ] {
            assert!(bad.parse::<Life>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_lives_of_one_boot_are_ordered() {
        let life = Life::first(BootId::from_bits(1));
        assert_eq!(life.order(life.resumed()), Some(Ordering::Less));
        assert_eq!(life.order(life), Some(Ordering::Equal));
        assert_eq!(life.order(Life::first(BootId::from_bits(2))), None);
    }
}
