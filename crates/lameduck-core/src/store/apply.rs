//! How a request is refused or done: first everything that may be wrong, then what cannot fail.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem;

use super::{
    Answer, Assign, Change, ChangeKind, Compacted, Compare, Found, KeyRange, KeyValue, LeaseId, Op,
    Put, Query, Store, StoreError, Txn, TxnAnswer, txn,
};

/// The branch of a transaction that is taken, those within included.
pub(super) struct Path {
    succeeded: bool,
    steps: Vec<Step>,
}

enum Step {
    Range(Query),
    Put(Put),
    Delete(KeyRange),
    Txn(Path),
}

impl Path {
    pub(super) fn collect_puts<'a>(&'a self, puts: &mut Vec<&'a Put>) {
        for step in &self.steps {
            match step {
                Step::Put(put) => puts.push(put),
                Step::Txn(path) => path.collect_puts(puts),
                Step::Range(_) | Step::Delete(_) => {}
            }
        }
    }
}

// What is refused.
impl Store {
    pub(super) fn admit_query(&self, query: &Query) -> Result<(), StoreError> {
        txn::non_empty(query.range.start())?;
        match query.revision {
            Some(revision) if revision > self.revision => Err(StoreError::FutureRevision),
            Some(revision) if revision < self.compacted() => {
                let revision = self.compacted();
                Err(StoreError::Compacted(Compacted { revision }))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn admit_kept(&self, put: &Put) -> Result<(), StoreError> {
        let keeps = put.value == Assign::Keep || put.lease == Assign::Keep;
        if keeps && !self.keys.contains_key(&put.key) {
            return Err(StoreError::KeyNotFound);
        }
        Ok(())
    }

    pub(super) fn admit_lease(&self, put: &Put) -> Result<(), StoreError> {
        match put.lease {
            Assign::To(Some(lease)) if !self.leases.contains(lease) => {
                Err(StoreError::LeaseNotFound)
            }
            _ => Ok(()),
        }
    }

    /// Counts as if nothing were replaced: a full store takes no put, as etcd's does not.
    pub(super) fn admit_growth<'a>(
        &self,
        puts: impl Iterator<Item = &'a Put>,
    ) -> Result<(), StoreError> {
        let (mut keys, mut bytes) = (self.keys.len(), self.bytes);
        let mut any = false;
        for put in puts {
            any = true;
            keys += usize::from(!self.keys.contains_key(&put.key));
            let value = match &put.value {
                Assign::To(value) => value.len(),
                Assign::Keep => 0,
            };
            bytes = bytes.saturating_add(put.key.len()).saturating_add(value);
        }
        if any && (keys > self.bounds.items || bytes > self.bounds.bytes) {
            return Err(StoreError::Full);
        }
        Ok(())
    }

    /// First all puts, then all reads: which error is told is seen by clients of etcd.
    pub(super) fn admit_path(&self, path: &Path) -> Result<(), StoreError> {
        self.admit_puts(path)?;
        self.admit_queries(path)
    }

    fn admit_puts(&self, path: &Path) -> Result<(), StoreError> {
        path.steps.iter().try_for_each(|step| match step {
            Step::Put(put) => self.admit_kept(put).and_then(|()| self.admit_lease(put)),
            Step::Txn(path) => self.admit_puts(path),
            Step::Range(_) | Step::Delete(_) => Ok(()),
        })
    }

    fn admit_queries(&self, path: &Path) -> Result<(), StoreError> {
        path.steps.iter().try_for_each(|step| match step {
            Step::Range(query) => self.admit_query(query),
            Step::Txn(path) => self.admit_queries(path),
            Step::Put(_) | Step::Delete(_) => Ok(()),
        })
    }
}

// What is done; nothing here can fail any more.
impl Store {
    pub(super) fn choose(&self, txn: Txn) -> Path {
        let holds = |compare: &Compare| {
            let kvs = compare.range.of(&self.keys).map(|(_, kv)| kv);
            compare.holds(kvs)
        };
        let succeeded = txn.compares.iter().all(holds);
        let ops = if succeeded { txn.success } else { txn.failure };
        let step = |op| match op {
            Op::Range(query) => Step::Range(query),
            Op::Put(put) => Step::Put(put),
            Op::Delete(range) => Step::Delete(range),
            Op::Txn(txn) => Step::Txn(self.choose(txn)),
        };
        Path {
            succeeded,
            steps: ops.into_iter().map(step).collect(),
        }
    }

    pub(super) fn walk(&mut self, path: Path) -> TxnAnswer {
        let mut answers = Vec::with_capacity(path.steps.len());
        for step in path.steps {
            answers.push(match step {
                Step::Range(query) => Answer::Range(self.find(&query)),
                Step::Put(put) => Answer::Put(self.write(put)),
                Step::Delete(range) => Answer::Delete(self.erase(&range)),
                Step::Txn(path) => Answer::Txn(self.walk(path)),
            });
        }
        TxnAnswer {
            succeeded: path.succeeded,
            answers,
        }
    }

    pub(super) fn find(&self, query: &Query) -> Found {
        let now = query.range.of(&self.keys);
        let Some(revision) = query.revision.filter(|revision| *revision <= self.revision) else {
            return query.answer(now.map(|(_, kv)| kv).collect());
        };
        let mut then: BTreeMap<&[u8], &KeyValue> = now.map(|(key, kv)| (&**key, kv)).collect();
        let undone = self
            .draft
            .iter()
            .rev()
            .chain(self.history.back_to(revision));
        for change in undone.filter(|change| query.range.contains(&change.kv.key)) {
            match &change.prev {
                Some(prev) => then.insert(&prev.key, prev),
                None => then.remove(&*change.kv.key),
            };
        }
        query.answer(then.into_values().collect())
    }

    pub(super) fn write(&mut self, put: Put) -> Option<KeyValue> {
        let revision = self.revision + 1;
        let prev = self.keys.get(&put.key).cloned();
        let before = prev.as_ref();
        let lease = match put.lease {
            Assign::To(lease) => lease,
            Assign::Keep => before.and_then(|kv| kv.lease),
        };
        let value = match put.value {
            Assign::To(value) => value,
            Assign::Keep => before.map_or_else(|| [].into(), |kv| kv.value.clone()),
        };
        let kv = KeyValue {
            key: put.key,
            value,
            create_revision: before.map_or(revision, |kv| kv.create_revision),
            mod_revision: revision,
            version: before.map_or(1, |kv| kv.version + 1),
            lease,
        };
        self.leases
            .attach(&kv.key, before.and_then(|kv| kv.lease), lease);
        self.bytes = self.bytes + kv.weight() - before.map_or(0, KeyValue::weight);
        self.keys.insert(kv.key.clone(), kv.clone());
        self.draft.push(Change {
            kind: ChangeKind::Put,
            kv,
            prev: prev.clone(),
        });
        prev
    }

    pub(super) fn erase(&mut self, range: &KeyRange) -> Vec<KeyValue> {
        let deleted: Vec<KeyValue> = range.of(&self.keys).map(|(_, kv)| kv.clone()).collect();
        for prev in &deleted {
            self.keys.remove(&prev.key);
            self.bytes -= prev.weight();
            self.leases.attach(&prev.key, prev.lease, None);
            let kv = KeyValue {
                key: prev.key.clone(),
                value: [].into(),
                create_revision: 0,
                mod_revision: self.revision + 1,
                version: 0,
                lease: None,
            };
            self.draft.push(Change {
                kind: ChangeKind::Delete,
                kv,
                prev: Some(prev.clone()),
            });
        }
        deleted
    }

    pub(super) fn commit(&mut self) {
        if !self.draft.is_empty() {
            self.revision += 1;
            let changes = mem::take(&mut self.draft);
            self.history.push(self.revision, changes, &self.bounds);
        }
    }

    pub(super) fn new_lease_id(&mut self) -> LeaseId {
        loop {
            let bits = (self.rng.next_u64() >> 1).cast_signed();
            let id = LeaseId(bits);
            if bits != 0 && !self.leases.contains(id) {
                return id;
            }
        }
    }
}
