//! Transactions: what they are, and which are refused before anything is done.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::cmp::Ordering;

use super::{Blob, Bounds, Found, KeyRange, KeyValue, LeaseId, Query, StoreError};

/// What a put does with one part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assign<T> {
    /// Sets it.
    To(T),
    /// Leaves it as it is; the key must exist.
    Keep,
}

/// Makes or changes one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// Which key.
    pub key: Blob,
    /// Its value.
    pub value: Assign<Blob>,
    /// Its lease; a put without one takes the key off its lease.
    pub lease: Assign<Option<LeaseId>>,
}

/// How two things must stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
    /// The key's is greater.
    Greater,
    /// The key's is less.
    Less,
}

/// What of a key is compared, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    /// How often it was put; 0 where it does not exist.
    Version(i64),
    /// When it was made; 0 where it does not exist.
    CreateRevision(i64),
    /// When it was changed last; 0 where it does not exist.
    ModRevision(i64),
    /// Its value; never true where it does not exist.
    Value(Blob),
    /// Its lease; `None` where it has none or does not exist.
    Lease(Option<LeaseId>),
}

/// One condition: it must hold for every key of the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// Which keys.
    pub range: KeyRange,
    /// How the key's must stand to the operand.
    pub relation: Relation,
    /// What is compared.
    pub operand: Operand,
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads.
    Range(Query),
    /// Writes one key.
    Put(Put),
    /// Deletes keys.
    Delete(KeyRange),
    /// A transaction within.
    Txn(Txn),
}

/// Steps that are done all together or not at all, depending on conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// All must hold; none holds trivially.
    pub compares: Vec<Compare>,
    /// What is done where they hold.
    pub success: Vec<Op>,
    /// What is done where not.
    pub failure: Vec<Op>,
}

/// What one step answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What was read.
    Range(Found),
    /// The key as it was before.
    Put(Option<KeyValue>),
    /// What was deleted, by key.
    Delete(Vec<KeyValue>),
    /// What the inner transaction answers.
    Txn(TxnAnswer),
}

/// What a transaction answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnAnswer {
    /// Whether the conditions held.
    pub succeeded: bool,
    /// One answer for each step done.
    pub answers: Vec<Answer>,
}

impl Compare {
    /// Whether it holds for `kvs`, which are all keys of the range.
    pub(super) fn holds<'a>(&self, kvs: impl Iterator<Item = &'a KeyValue>) -> bool {
        let mut kvs = kvs.peekable();
        if kvs.peek().is_none() {
            return self.relates(None);
        }
        kvs.all(|kv| self.relates(Some(kv)))
    }

    fn relates(&self, kv: Option<&KeyValue>) -> bool {
        let number = |of: fn(&KeyValue) -> i64, with: &i64| kv.map_or(0, of).cmp(with);
        let order = match &self.operand {
            Operand::Version(with) => number(|kv| kv.version, with),
            Operand::CreateRevision(with) => number(|kv| kv.create_revision, with),
            Operand::ModRevision(with) => number(|kv| kv.mod_revision, with),
            Operand::Lease(with) => kv.and_then(|kv| kv.lease).cmp(with),
            Operand::Value(with) => match kv {
                Some(kv) => kv.value.cmp(with),
                None => return false,
            },
        };
        match self.relation {
            Relation::Equal => order == Ordering::Equal,
            Relation::NotEqual => order != Ordering::Equal,
            Relation::Greater => order == Ordering::Greater,
            Relation::Less => order == Ordering::Less,
        }
    }
}

impl Txn {
    /// Refuses what can be refused by its looks: too many steps, empty keys, a key that is written
    /// twice.
    pub(super) fn inspect(&self, bounds: &Bounds) -> Result<(), StoreError> {
        let mut total = 0;
        self.inspect_sizes(bounds, &mut total)?;
        written_by(&self.success)?;
        written_by(&self.failure)?;
        Ok(())
    }

    fn inspect_sizes(&self, bounds: &Bounds, total: &mut usize) -> Result<(), StoreError> {
        let lists = [self.compares.len(), self.success.len(), self.failure.len()];
        *total += lists.iter().sum::<usize>();
        if lists.iter().any(|len| *len > bounds.txn_ops) || *total > bounds.txn_ops_total {
            return Err(StoreError::TooManyOps);
        }
        if self
            .compares
            .iter()
            .any(|compare| compare.range.start().is_empty())
        {
            return Err(StoreError::EmptyKey);
        }
        for op in self.success.iter().chain(&self.failure) {
            match op {
                Op::Range(query) => non_empty(query.range.start())?,
                Op::Put(put) => non_empty(&put.key)?,
                Op::Delete(range) => non_empty(range.start())?,
                Op::Txn(txn) => txn.inspect_sizes(bounds, total)?,
            }
        }
        Ok(())
    }
}

pub(super) fn non_empty(key: &Blob) -> Result<(), StoreError> {
    if key.is_empty() {
        Err(StoreError::EmptyKey)
    } else {
        Ok(())
    }
}

#[derive(Default)]
struct Written<'a> {
    puts: BTreeSet<&'a [u8]>,
    deletes: Vec<&'a KeyRange>,
}

impl<'a> Written<'a> {
    fn put(&mut self, key: &'a [u8]) -> Result<(), StoreError> {
        let deleted = self.deletes.iter().any(|range| range.contains(key));
        if deleted || !self.puts.insert(key) {
            return Err(StoreError::DuplicateKey);
        }
        Ok(())
    }
}

/// What a list of steps writes, in whichever branch. A key may be put once only, and not be both put
/// and deleted: the revision could not tell which came last.
fn written_by(ops: &[Op]) -> Result<Written<'_>, StoreError> {
    let mut written = Written::default();
    for op in ops {
        if let Op::Delete(range) = op {
            written.deletes.push(range);
        }
    }
    for op in ops {
        if let Op::Txn(txn) = op {
            let (then, other) = (written_by(&txn.success)?, written_by(&txn.failure)?);
            // Only one of the branches is taken: both may put the same key.
            for key in then.puts.union(&other.puts) {
                written.put(key)?;
            }
            written.deletes.extend(then.deletes);
            written.deletes.extend(other.deletes);
        }
    }
    for op in ops {
        if let Op::Put(put) = op {
            written.put(&put.key)?;
        }
    }
    Ok(written)
}
