//! Leases: keys that vanish unless somebody keeps them alive.

use alloc::collections::{BTreeMap, BTreeSet};
use core::time::Duration;

use super::{Blob, LeaseId};
use crate::mutant;
use crate::time::Timestamp;

/// A lease as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView<'a> {
    /// How long it lasts from each renewal.
    pub ttl: Duration,
    /// How long it lasts from now.
    pub remaining: Duration,
    /// The keys that go with it.
    pub keys: &'a BTreeSet<Blob>,
}

#[derive(Clone, Debug)]
struct Lease {
    ttl: Duration,
    expires: Timestamp,
    keys: BTreeSet<Blob>,
}

/// All leases of a store, by name and by end.
#[derive(Clone, Debug, Default)]
pub(super) struct Leases {
    table: BTreeMap<LeaseId, Lease>,
    ends: BTreeSet<(Timestamp, LeaseId)>,
}

impl Leases {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn contains(&self, id: LeaseId) -> bool {
        self.table.contains_key(&id)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = LeaseId> {
        self.table.keys().copied()
    }

    pub(super) fn insert(&mut self, now: Timestamp, id: LeaseId, ttl: Duration) {
        let expires = now + ttl;
        let lease = Lease {
            ttl,
            expires,
            keys: BTreeSet::new(),
        };
        self.table.insert(id, lease);
        self.ends.insert((expires, id));
    }

    /// Gives the lease its whole time again; `None` where there is none or its time is over.
    pub(super) fn renew(&mut self, now: Timestamp, id: LeaseId) -> Option<Duration> {
        let lease = self
            .table
            .get_mut(&id)
            .filter(|lease| now < lease.expires)?;
        self.ends.remove(&(lease.expires, id));
        lease.expires = now + lease.ttl;
        self.ends.insert((lease.expires, id));
        Some(lease.ttl)
    }

    pub(super) fn remove(&mut self, id: LeaseId) -> Option<BTreeSet<Blob>> {
        let lease = self.table.remove(&id)?;
        self.ends.remove(&(lease.expires, id));
        Some(lease.keys)
    }

    pub(super) fn view(&self, now: Timestamp, id: LeaseId) -> Option<LeaseView<'_>> {
        let lease = self.table.get(&id).filter(|lease| now < lease.expires)?;
        let remaining = lease.expires.saturating_since(now);
        Some(LeaseView {
            ttl: lease.ttl,
            remaining,
            keys: &lease.keys,
        })
    }

    /// When the next one ends.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// One whose time is over.
    pub(super) fn over(&self, now: Timestamp) -> Option<LeaseId> {
        let due = self
            .ends
            .first()
            .filter(|(at, _)| *at <= now && !mutant!("store/leases-end"));
        due.map(|(_, id)| *id)
    }

    /// Moves `key` from one lease to another.
    pub(super) fn attach(&mut self, key: &Blob, from: Option<LeaseId>, to: Option<LeaseId>) {
        if let Some(lease) = from
            .filter(|from| Some(*from) != to && !mutant!("store/a-key-has-one-lease"))
            .and_then(|id| self.table.get_mut(&id))
        {
            lease.keys.remove(key);
        }
        if let Some(lease) = to.and_then(|id| self.table.get_mut(&id)) {
            lease.keys.insert(key.clone());
        }
    }
}
