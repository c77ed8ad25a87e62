//! A revisioned map with leases and watches: etcd's data model, without clock and without IO.
//!
//! The memory registry, the development server and the simulated registry are this one thing.
//!
//! Every write makes one revision, whatever number of keys it changes; the first is 2, as in etcd.
//! The last changes are remembered, so that readers can ask for the recent past ([`Query::revision`])
//! and watchers can begin or fall behind there ([`Cursor`]). The past is bounded: whoever asks for
//! more is told [`Compacted`]. Leases end at their deadline, in [`Store::expire`], which the holder
//! calls before everything else that it does at a time, and at [`Store::deadline`].

mod apply;
mod history;
mod interest;
mod key;
mod lease;
mod query;
#[cfg(test)]
mod tests;
mod txn;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

pub use history::{Change, ChangeKind, Compacted, Cursor, Kinds};
pub use interest::Interest;
pub use key::{Blob, KeyRange, KeyValue, LeaseId};
pub use lease::LeaseView;
pub use query::{Found, Order, Output, Query, SortBy};
pub use txn::{Answer, Assign, Compare, Op, Operand, Put, Relation, Txn, TxnAnswer};

use crate::limits;
use crate::mutant;
use crate::rng::Rng;
use crate::time::Timestamp;
use history::History;
use lease::Leases;

/// Why a request was refused. Nothing was done then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// A revision that is forgotten by now: list anew.
    Compacted(Compacted),
    /// A revision that has not been yet.
    FutureRevision,
    /// A put that keeps a part of a key that does not exist.
    KeyNotFound,
    /// No key at all.
    EmptyKey,
    /// A transaction that writes one key twice.
    DuplicateKey,
    /// A transaction of too many steps.
    TooManyOps,
    /// No such lease, or it is over.
    LeaseNotFound,
    /// The name is taken.
    LeaseExists,
    /// It would last for longer than anybody can mean.
    LeaseTooLong,
    /// A bound is reached: delete something first.
    Full,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compacted(_) => "that revision is forgotten; list anew",
            Self::FutureRevision => "that revision has not been yet",
            Self::KeyNotFound => "a put that keeps something needs an existing key",
            Self::EmptyKey => "a key is missing",
            Self::DuplicateKey => "the transaction writes a key twice",
            Self::TooManyOps => "the transaction has too many steps",
            Self::LeaseNotFound => "no such lease, or it is over",
            Self::LeaseExists => "a lease of that name exists",
            Self::LeaseTooLong => "the lease would last too long",
            Self::Full => "the store is full; delete something",
        })
    }
}

impl core::error::Error for StoreError {}

/// How much a store takes. [`Bounds::default`] is what `limits` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Keys, and leases likewise.
    pub items: usize,
    /// Bytes of all keys and values.
    pub bytes: usize,
    /// Changes remembered.
    pub history: usize,
    /// Bytes of them.
    pub history_bytes: usize,
    /// Conditions or steps of one branch of a transaction.
    pub txn_ops: usize,
    /// Conditions and steps of a transaction with all those within.
    pub txn_ops_total: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            items: limits::STORE_ITEMS_MAX,
            bytes: limits::STORE_BYTES_MAX,
            history: limits::STORE_HISTORY_MAX,
            history_bytes: limits::STORE_HISTORY_BYTES_MAX,
            txn_ops: limits::STORE_TXN_OPS_MAX,
            txn_ops_total: limits::STORE_TXN_OPS_TOTAL_MAX,
        }
    }
}

/// The store.
#[derive(Clone, Debug)]
pub struct Store {
    bounds: Bounds,
    rng: Rng,
    revision: i64,
    keys: BTreeMap<Blob, KeyValue>,
    bytes: usize,
    /// Changes of the write that is being done; empty between requests.
    draft: Vec<Change>,
    history: History,
    leases: Leases,
}

impl Store {
    /// An empty store at revision 1. `seed` decides the names of leases.
    #[must_use]
    pub fn new(bounds: Bounds, seed: u64) -> Self {
        Self {
            bounds,
            rng: Rng::from_seed(seed),
            revision: 1,
            keys: BTreeMap::new(),
            bytes: 0,
            draft: Vec::new(),
            history: History::default(),
            leases: Leases::default(),
        }
    }

    /// The same at `revision` (at least 1, at most half of what the type holds), which counts as
    /// compacted: readers that come from an earlier store with lower revisions hear [`Compacted`]
    /// and list anew, where they would otherwise wait for this store to overtake that one. At 1 or
    /// below nothing changes.
    ///
    /// For an empty store only, before the first write.
    #[must_use]
    pub fn beginning_at(mut self, revision: i64) -> Self {
        debug_assert_eq!(self.revision, 1, "the store is new");
        let revision = revision.min(i64::MAX / 2);
        if revision > 1 {
            self.revision = revision;
            if !mutant!("store/a-start-is-compacted") {
                self.history.compact(revision);
            }
        }
        self
    }

    /// The latest revision.
    #[must_use]
    pub const fn revision(&self) -> i64 {
        self.revision
    }

    /// The oldest revision that can still be asked for; -1 where nothing is forgotten.
    #[must_use]
    pub const fn compacted(&self) -> i64 {
        self.history.compacted()
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Bytes of all keys and values.
    #[must_use]
    pub const fn weight(&self) -> usize {
        self.bytes
    }

    /// Reads.
    ///
    /// # Errors
    ///
    /// An empty key; a revision that is forgotten or has not been yet.
    pub fn range(&self, query: &Query) -> Result<Found, StoreError> {
        self.admit_query(query)?;
        Ok(self.find(query))
    }

    /// Makes or changes a key; gives it as it was before.
    ///
    /// # Errors
    ///
    /// An empty key, an unknown lease, something to keep of a key that does not exist, a full store.
    pub fn put(&mut self, put: Put) -> Result<Option<KeyValue>, StoreError> {
        txn::non_empty(&put.key)?;
        // In this order, and in a transaction in the other: etcd's clients see which comes first.
        self.admit_lease(&put)?;
        self.admit_kept(&put)?;
        self.admit_growth(core::iter::once(&put))?;
        let prev = self.write(put);
        self.commit();
        Ok(prev)
    }

    /// Deletes all keys of `range`; gives them as they were before.
    ///
    /// # Errors
    ///
    /// An empty key.
    pub fn delete(&mut self, range: &KeyRange) -> Result<Vec<KeyValue>, StoreError> {
        txn::non_empty(range.start())?;
        let deleted = self.erase(range);
        self.commit();
        Ok(deleted)
    }

    /// Does a transaction, in one revision. Conditions are looked at before any step.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with any step of the branches taken, or with the looks of any branch.
    pub fn txn(&mut self, txn: Txn) -> Result<TxnAnswer, StoreError> {
        txn.inspect(&self.bounds)?;
        let path = self.choose(txn);
        self.admit_path(&path)?;
        let mut puts = Vec::new();
        path.collect_puts(&mut puts);
        self.admit_growth(puts.into_iter())?;
        let answer = self.walk(path);
        self.commit();
        Ok(answer)
    }

    /// Forgets what happened before `revision`.
    ///
    /// # Errors
    ///
    /// Forgotten already, or has not been yet.
    pub fn compact(&mut self, revision: i64) -> Result<(), StoreError> {
        if revision <= self.compacted() {
            let revision = self.compacted();
            return Err(StoreError::Compacted(Compacted { revision }));
        }
        if revision > self.revision {
            return Err(StoreError::FutureRevision);
        }
        self.history.compact(revision);
        Ok(())
    }

    /// What `cursor` has not seen yet: at least `most` changes, or
    /// [`limits::STORE_READ_BYTES_MAX`], where there are so many, but never a part of a revision.
    /// Nothing where the cursor has seen all or waits for the future.
    ///
    /// # Errors
    ///
    /// Where the cursor has fallen out of the history; it will not get any further.
    pub fn read(&self, cursor: &mut Cursor, most: usize) -> Result<Vec<Change>, Compacted> {
        if cursor.next > self.revision {
            return Ok(Vec::new());
        }
        self.history.read(cursor, most)
    }

    /// All changes after `revision`, the latest first.
    ///
    /// # Errors
    ///
    /// Where some of them are forgotten.
    pub fn changes_after(&self, revision: i64) -> Result<impl Iterator<Item = &Change>, Compacted> {
        let compacted = self.compacted();
        if revision.saturating_add(1) < compacted {
            return Err(Compacted {
                revision: compacted,
            });
        }
        Ok(self.history.back_to(revision))
    }

    /// Makes a lease of the given name, or of a new one.
    ///
    /// # Errors
    ///
    /// The name is taken, the time is too long, or there are too many leases.
    pub fn grant(
        &mut self,
        now: Timestamp,
        id: Option<LeaseId>,
        ttl: Duration,
    ) -> Result<LeaseId, StoreError> {
        if ttl > limits::STORE_LEASE_TTL_MAX {
            return Err(StoreError::LeaseTooLong);
        }
        if self.leases.len() >= self.bounds.items {
            return Err(StoreError::Full);
        }
        let id = id.unwrap_or_else(|| self.new_lease_id());
        if self.leases.contains(id) {
            return Err(StoreError::LeaseExists);
        }
        self.leases.insert(now, id, ttl);
        Ok(id)
    }

    /// Gives a lease its whole time again, and says how long that is.
    ///
    /// # Errors
    ///
    /// No such lease, or its time is over.
    pub fn renew(&mut self, now: Timestamp, id: LeaseId) -> Result<Duration, StoreError> {
        self.leases.renew(now, id).ok_or(StoreError::LeaseNotFound)
    }

    /// Ends a lease and deletes its keys, in one revision.
    ///
    /// # Errors
    ///
    /// No such lease.
    pub fn revoke(&mut self, id: LeaseId) -> Result<(), StoreError> {
        let keys = self.leases.remove(id).ok_or(StoreError::LeaseNotFound)?;
        for key in keys {
            self.erase(&KeyRange::One(key));
        }
        self.commit();
        Ok(())
    }

    /// A lease as it is at `now`.
    #[must_use]
    pub fn lease(&self, now: Timestamp, id: LeaseId) -> Option<LeaseView<'_>> {
        self.leases.view(now, id)
    }

    /// The names of all leases, in order.
    pub fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.leases.ids()
    }

    /// When the next lease ends: [`Store::expire`] is to be called then.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        self.leases.deadline()
    }

    /// Ends all leases whose time is over, each in a revision of its own. Gives their names.
    pub fn expire(&mut self, now: Timestamp) -> Vec<LeaseId> {
        let mut ended = Vec::new();
        while let Some(id) = self.leases.over(now) {
            let revoked = self.revoke(id);
            debug_assert_eq!(revoked, Ok(()), "a lease that ends exists");
            ended.push(id);
        }
        ended
    }
}
