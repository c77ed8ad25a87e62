//! Reading the memory registry.

use std::collections::BTreeMap;
use std::task::{Context, Poll};

use lameduck_core::limits;
use lameduck_core::name::ServiceName;
use lameduck_core::registry::{Entry, EntryId, Subscription, Update};
use lameduck_core::store::{Change, ChangeKind, Cursor, Kinds};

use super::{Inner, Memory, record};

/// A reader's place. It queues nothing: the store's history is the queue.
pub(super) struct Reader {
    memory: Memory,
    service: ServiceName,
    number: u64,
    place: Place,
}

enum Place {
    /// The whole list is due.
    Start,
    /// All before the cursor was told.
    Reading(Cursor),
    /// It was told that the registry is away; what came before the cursor, earlier.
    Stale(Option<Cursor>),
}

impl Reader {
    pub(super) fn new(memory: Memory, service: ServiceName) -> Self {
        let number = memory.shared.lock().0.number();
        Self {
            memory,
            service,
            number,
            place: Place::Start,
        }
    }
}

impl Subscription for Reader {
    fn poll_update(&mut self, context: &mut Context<'_>) -> Poll<Option<Update>> {
        let (mut inner, _) = self.memory.shared.lock();
        match self.place.next(&inner, &self.service) {
            Some(update) => Poll::Ready(Some(update)),
            None => {
                inner.waiting.insert(self.number, context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let (mut inner, _) = self.memory.shared.lock();
        inner.waiting.remove(&self.number);
    }
}

impl Place {
    fn next(&mut self, inner: &Inner, service: &ServiceName) -> Option<Update> {
        match (&inner.failure, std::mem::replace(self, Self::Start)) {
            (Some(_), stale @ Self::Stale(_)) => {
                *self = stale;
                None
            }
            (Some(failure), Self::Start) => {
                *self = Self::Stale(None);
                Some(Update::Stale(failure.clone()))
            }
            (Some(failure), Self::Reading(cursor)) => {
                *self = Self::Stale(Some(cursor));
                Some(Update::Stale(failure.clone()))
            }
            (None, Self::Reading(cursor)) => self.go_on(inner, service, cursor),
            (None, Self::Stale(Some(cursor))) => {
                // Either nothing has happened, or the whole list is told: never half of a past.
                let update = self.go_on(inner, service, cursor);
                let told = update.map_or(Update::Live, |_| self.list(inner, service));
                Some(told)
            }
            (None, Self::Start | Self::Stale(None)) => Some(self.list(inner, service)),
        }
    }

    fn list(&mut self, inner: &Inner, service: &ServiceName) -> Update {
        let revision = inner.store.revision();
        let range = record::range_of(service);
        *self = Self::Reading(Cursor::new(range, Kinds::All, revision + 1));
        Update::Reset {
            entries: inner.entries(service),
            revision: revision.unsigned_abs(),
        }
    }

    fn go_on(
        &mut self,
        inner: &Inner,
        service: &ServiceName,
        mut cursor: Cursor,
    ) -> Option<Update> {
        let Ok(changes) = inner.store.read(&mut cursor, limits::STORE_READ_MAX) else {
            return Some(self.list(inner, service));
        };
        let revision = (cursor.next_revision() - 1).unsigned_abs();
        *self = Self::Reading(cursor);
        (!changes.is_empty()).then(|| delta(&changes, revision))
    }
}

fn delta(changes: &[Change], revision: u64) -> Update {
    let mut latest: BTreeMap<EntryId, Option<Entry>> = BTreeMap::new();
    for Change { kind, kv, .. } in changes {
        let Some(id) = record::id_of(&kv.key) else {
            continue;
        };
        match kind {
            ChangeKind::Put => latest.insert(id, record::decode(&kv.key, &kv.value)),
            ChangeKind::Delete => latest.insert(id, None),
        };
    }
    let removed = latest
        .iter()
        .filter(|(_, entry)| entry.is_none())
        .map(|(id, _)| *id)
        .collect();
    let changed = latest.into_values().flatten().collect();
    Update::Delta {
        changed,
        removed,
        revision,
    }
}
