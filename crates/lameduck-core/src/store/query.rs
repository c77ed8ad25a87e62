//! Reading: ranges, filters, order and limits, as etcd takes them.

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::{KeyRange, KeyValue};

/// In which direction an answer is sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// The smallest first.
    #[default]
    Ascending,
    /// The largest first.
    Descending,
    /// As etcd takes a request that names no direction: ascending, but where there is a limit and no
    /// filter, only the first keys are sorted, one more than the limit.
    Unsaid,
}

/// By what an answer is sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SortBy {
    /// The key.
    #[default]
    Key,
    /// How often it was put.
    Version,
    /// When it was made.
    CreateRevision,
    /// When it was changed last.
    ModRevision,
    /// The value.
    Value,
}

/// What is asked for. [`Query::new`] asks for everything in a range as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Which keys.
    pub range: KeyRange,
    /// As of which revision; `None` is now.
    pub revision: Option<i64>,
    /// At most so many keys, after filters and order.
    pub limit: Option<usize>,
    /// By what the answer is sorted.
    pub sort_by: SortBy,
    /// In which direction.
    pub order: Order,
    /// Only keys changed last in this revision or later.
    pub min_mod_revision: Option<i64>,
    /// Only keys changed last in this revision or earlier.
    pub max_mod_revision: Option<i64>,
    /// Only keys made in this revision or later.
    pub min_create_revision: Option<i64>,
    /// Only keys made in this revision or earlier.
    pub max_create_revision: Option<i64>,
    /// Whether keys are wanted, or only their number.
    pub output: Output,
}

/// How much of what is found is given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Output {
    /// Keys and values.
    #[default]
    All,
    /// Keys with empty values.
    Keys,
    /// Nothing but the count.
    Count,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The keys, in the order asked for.
    pub kvs: Vec<KeyValue>,
    /// How many there are in the range, whatever filters and limit say.
    pub count: usize,
    /// Whether the limit cut some off.
    pub more: bool,
}

impl Query {
    /// All keys of `range` as they are now, by key.
    #[must_use]
    pub const fn new(range: KeyRange) -> Self {
        Self {
            range,
            revision: None,
            limit: None,
            sort_by: SortBy::Key,
            order: Order::Ascending,
            min_mod_revision: None,
            max_mod_revision: None,
            min_create_revision: None,
            max_create_revision: None,
            output: Output::All,
        }
    }

    /// The answer from `kvs`, which are all keys of the range, by key.
    pub(super) fn answer(&self, mut kvs: Vec<&KeyValue>) -> Found {
        let count = kvs.len();
        if self.output == Output::Count {
            return Found {
                count,
                ..Found::default()
            };
        }
        kvs.retain(|kv| self.passes(kv));
        let limit = self.limit.unwrap_or(usize::MAX);
        if self.order == Order::Unsaid && !self.is_filtered() {
            kvs.truncate(limit.saturating_add(1));
        }
        match self.order {
            // Stable: equal ones stay in the order of their keys, as etcd has them for few keys.
            Order::Ascending | Order::Unsaid => kvs.sort_by(|a, b| self.compare(a, b)),
            Order::Descending => kvs.sort_by(|a, b| self.compare(b, a)),
        }
        let more = kvs.len() > limit;
        let kvs = kvs
            .into_iter()
            .take(limit)
            .map(|kv| self.shown(kv))
            .collect();
        Found { kvs, count, more }
    }

    const fn is_filtered(&self) -> bool {
        self.min_mod_revision.is_some()
            || self.max_mod_revision.is_some()
            || self.min_create_revision.is_some()
            || self.max_create_revision.is_some()
    }

    fn passes(&self, kv: &KeyValue) -> bool {
        self.min_mod_revision
            .is_none_or(|least| kv.mod_revision >= least)
            && self
                .max_mod_revision
                .is_none_or(|most| kv.mod_revision <= most)
            && self
                .min_create_revision
                .is_none_or(|least| kv.create_revision >= least)
            && self
                .max_create_revision
                .is_none_or(|most| kv.create_revision <= most)
    }

    fn compare(&self, left: &KeyValue, right: &KeyValue) -> Ordering {
        match self.sort_by {
            SortBy::Key => left.key.cmp(&right.key),
            SortBy::Version => left.version.cmp(&right.version),
            SortBy::CreateRevision => left.create_revision.cmp(&right.create_revision),
            SortBy::ModRevision => left.mod_revision.cmp(&right.mod_revision),
            SortBy::Value => left.value.cmp(&right.value),
        }
    }

    fn shown(&self, kv: &KeyValue) -> KeyValue {
        let mut kv = kv.clone();
        if self.output == Output::Keys {
            kv.value = [].into();
        }
        kv
    }
}
