//! Keys, values and ranges of keys.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;

/// The bytes of a key or a value. Shared: copies cost nothing.
pub type Blob = Arc<[u8]>;

/// Names a lease. Never 0 in a store: that means "no lease" on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

/// One key as it was after one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Blob,
    /// What it holds; empty in a deletion.
    pub value: Blob,
    /// The revision that made the key, 0 in a deletion.
    pub create_revision: i64,
    /// The revision that last changed it; in a deletion the one that deleted it.
    pub mod_revision: i64,
    /// How often it was put since it was made, 0 in a deletion.
    pub version: i64,
    /// The lease that it goes with.
    pub lease: Option<LeaseId>,
}

impl KeyValue {
    /// Bytes of key and value.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.key.len().saturating_add(self.value.len())
    }
}

/// Which keys are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRange {
    /// This key.
    One(Blob),
    /// This key and all that sort after it.
    From(Blob),
    /// The first key and all that sort after it and before the second.
    Between(Blob, Blob),
}

impl KeyRange {
    /// The range that etcd's API means by `key` and `range_end`: no end is one key, an end of one
    /// zero byte is no end at all.
    #[must_use]
    pub fn from_wire(key: Blob, range_end: Blob) -> Self {
        match &*range_end {
            [] => Self::One(key),
            [0] => Self::From(key),
            _ => Self::Between(key, range_end),
        }
    }

    /// All keys that begin with `prefix`.
    #[must_use]
    pub fn prefix(prefix: &[u8]) -> Self {
        let mut end = Vec::from(prefix);
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                return Self::Between(prefix.into(), end.into());
            }
        }
        Self::From(prefix.into())
    }

    /// Where it begins.
    #[must_use]
    pub const fn start(&self) -> &Blob {
        match self {
            Self::One(key) | Self::From(key) | Self::Between(key, _) => key,
        }
    }

    /// Whether `key` is meant.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::One(one) => **one == *key,
            Self::From(start) => **start <= *key,
            Self::Between(start, end) => **start <= *key && *key < **end,
        }
    }

    /// Whether no key can be meant.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Between(start, end) if end <= start)
    }

    /// The part of `map` that is meant.
    pub(super) fn of<'a, T>(&self, map: &'a BTreeMap<Blob, T>) -> btree_map::Range<'a, Blob, T> {
        let start = Bound::Included(&**self.start());
        let end = match self {
            Self::One(key) => Bound::Included(&**key),
            Self::From(_) => Bound::Unbounded,
            // An empty range would panic where its end lies before its start.
            Self::Between(start, end) => Bound::Excluded(&**end.max(start)),
        };
        map.range::<[u8], _>((start, end))
    }
}
