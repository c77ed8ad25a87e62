//! What has changed lately, and readers of it.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{Bounds, KeyRange, KeyValue};
use crate::limits;
use crate::mutant;

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// It was made or changed.
    Put,
    /// It was deleted, by a request or with its lease.
    Delete,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// The key as it is from then on; for a deletion, its name and the revision.
    pub kv: KeyValue,
    /// The key as it was before, where it existed.
    pub prev: Option<KeyValue>,
}

impl Change {
    fn weight(&self) -> usize {
        let before = self.prev.as_ref().map_or(0, KeyValue::weight);
        size_of::<Self>() + self.kv.weight() + before
    }
}

/// All changes of one revision, in order.
#[derive(Clone, Debug)]
struct Commit {
    revision: i64,
    changes: Box<[Change]>,
}

/// The changes that are still remembered, without a gap up to the present.
#[derive(Clone, Debug)]
pub(super) struct History {
    commits: VecDeque<Commit>,
    count: usize,
    bytes: usize,
    compacted: i64,
}

impl Default for History {
    fn default() -> Self {
        Self {
            commits: VecDeque::new(),
            count: 0,
            bytes: 0,
            // As in etcd: even revision 0 can be compacted, once.
            compacted: -1,
        }
    }
}

impl History {
    /// The oldest revision that can still be asked for.
    pub(super) const fn compacted(&self) -> i64 {
        self.compacted
    }

    pub(super) fn push(&mut self, revision: i64, changes: Vec<Change>, bounds: &Bounds) {
        self.count += changes.len();
        self.bytes += changes.iter().map(Change::weight).sum::<usize>();
        let changes = changes.into_boxed_slice();
        self.commits.push_back(Commit { revision, changes });
        while self.commits.len() > 1
            && (self.count > bounds.history || self.bytes > bounds.history_bytes)
        {
            self.forget_oldest();
            self.compacted = self.commits.front().map_or(revision, |kept| kept.revision);
        }
    }

    /// Forgets what happened before `revision`; what happened in it can still be read.
    pub(super) fn compact(&mut self, revision: i64) {
        while self
            .commits
            .front()
            .is_some_and(|oldest| oldest.revision < revision)
        {
            self.forget_oldest();
        }
        self.compacted = revision;
    }

    fn forget_oldest(&mut self) {
        if let Some(commit) = self.commits.pop_front() {
            self.count -= commit.changes.len();
            self.bytes -= commit.changes.iter().map(Change::weight).sum::<usize>();
        }
    }

    /// All changes after `revision`, the latest first.
    pub(super) fn back_to(&self, revision: i64) -> impl Iterator<Item = &Change> {
        let later = self.commits.iter().rev();
        later
            .take_while(move |commit| commit.revision > revision)
            .flat_map(|c| c.changes.iter().rev())
    }

    /// What `cursor` has not seen yet, at least one revision, whole revisions only.
    pub(super) fn read(&self, cursor: &mut Cursor, most: usize) -> Result<Vec<Change>, Compacted> {
        if cursor.next < self.compacted && !mutant!("store/compaction-is-told") {
            return Err(Compacted {
                revision: self.compacted,
            });
        }
        let (mut found, mut bytes) = (Vec::new(), 0);
        let oldest = self
            .commits
            .front()
            .map_or(i64::MAX, |commit| commit.revision);
        let skipped = usize::try_from(cursor.next.saturating_sub(oldest)).unwrap_or(0);
        for commit in self.commits.iter().skip(skipped) {
            if found.len() >= most || bytes >= limits::STORE_READ_BYTES_MAX {
                break;
            }
            let before = found.len();
            let wanted = commit.changes.iter().filter(|change| cursor.wants(change));
            if mutant!("store/revisions-stay-whole") {
                found.extend(wanted.take(1).cloned());
            } else {
                found.extend(wanted.cloned());
            }
            bytes += found[before..].iter().map(Change::weight).sum::<usize>();
            cursor.next = commit.revision + 1;
        }
        Ok(found)
    }
}

/// Asked for a past that is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// The oldest revision that can still be asked for.
    pub revision: i64,
}

/// Which changes a reader wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kinds {
    /// All of them.
    #[default]
    All,
    /// Only keys that are put.
    Puts,
    /// Only keys that are deleted.
    Deletes,
    /// None: a reader that only wants to hear how far the store has come.
    Neither,
}

/// One reader of changes: a watcher's place in the history.
///
/// It queues nothing. A reader that is too slow falls out of the history and is told so, which is
/// the bound of what a store keeps for its watchers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    range: KeyRange,
    kinds: Kinds,
    pub(super) next: i64,
}

impl Cursor {
    /// Reads the changes of `range` from the revision `next` on, which may lie in the future.
    #[must_use]
    pub const fn new(range: KeyRange, kinds: Kinds, next: i64) -> Self {
        Self { range, kinds, next }
    }

    /// The first revision that it has not seen.
    #[must_use]
    pub const fn next_revision(&self) -> i64 {
        self.next
    }

    /// Which keys it reads.
    #[must_use]
    pub const fn range(&self) -> &KeyRange {
        &self.range
    }

    /// Goes on to `revision`, where the reader knows that nothing it wants lies before. Never goes
    /// back.
    pub fn skip_to(&mut self, revision: i64) {
        self.next = self.next.max(revision);
    }

    fn wants(&self, change: &Change) -> bool {
        let kind = match self.kinds {
            Kinds::All => true,
            Kinds::Puts => change.kind == ChangeKind::Put,
            Kinds::Deletes => change.kind == ChangeKind::Delete,
            Kinds::Neither => false,
        };
        kind && change.kv.mod_revision >= self.next && self.range.contains(&change.kv.key)
    }
}
