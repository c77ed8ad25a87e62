//! What all connections of the development server share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lameduck_core::limits;
use lameduck_core::store::{Bounds, Interest, KeyRange, Store};
use lameduck_core::time::Timestamp;
use lameduck_etcd_proto::etcdserverpb as pb;
use tokio::sync::Notify;

use crate::driver::Clock;

/// Names this server as a member. Any number would do; this one is the same in every run.
pub(super) const MEMBER_ID: u64 = 0x6c61_6d65_6475_636b;
const CLUSTER_ID: u64 = 0x6465_7665_6c6f_7021;
/// etcd's first term after its first election is 2.
pub(super) const TERM: u64 = 2;

/// The store, the time, and who waits for either.
#[derive(Debug)]
pub(super) struct State {
    clock: Clock,
    inner: Mutex<Inner>,
    leases_changed: Notify,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    watchers: usize,
    /// Who hears of a key: the number of an inbox, and a watch of its stream.
    interest: Interest<(u64, i64)>,
    inboxes: BTreeMap<u64, Arc<Marks>>,
    next_inbox: u64,
}

/// What one stream of watches has to look at. It holds one mark for each watch at most, so a client
/// that does not read costs nothing.
#[derive(Debug, Default)]
struct Marks {
    new: Mutex<News>,
    posted: Notify,
}

/// Which watches have something to read.
#[derive(Debug, Default)]
pub(super) struct News {
    /// The first revision that concerns the watch.
    pub(super) watches: BTreeMap<i64, i64>,
    /// The first revision of which it is not known any more whom it concerns.
    pub(super) all: Option<i64>,
}

/// Where one stream of watches hears of changes.
#[derive(Debug)]
pub(super) struct Inbox {
    state: Arc<State>,
    number: u64,
    marks: Arc<Marks>,
}

/// The right to one more watcher, and its place in the index; both are given back on drop.
#[derive(Debug)]
pub(super) struct WatcherPermit {
    state: Arc<State>,
    name: (u64, i64),
    range: KeyRange,
}

impl State {
    pub(super) fn new(seed: u64, revision: i64) -> Self {
        let store = Store::new(Bounds::default(), seed).beginning_at(revision);
        Self {
            clock: Clock::start(),
            inner: Mutex::new(Inner {
                store,
                watchers: 0,
                interest: Interest::default(),
                inboxes: BTreeMap::new(),
                next_inbox: 0,
            }),
            leases_changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the store as it is now; marks the watchers of all keys that have changed.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Store, Timestamp) -> T) -> T {
        let mut inner = self.lock();
        let now = self.clock.now();
        let revision = inner.store.revision();
        inner.store.expire(now);
        inner.mark(revision);
        let revision = inner.store.revision();
        let before = inner.store.deadline();
        let done = work(&mut inner.store, now);
        if inner.store.deadline() != before {
            self.leases_changed.notify_one();
        }
        inner.mark(revision);
        done
    }

    /// Where a new stream of watches hears of changes.
    pub(super) fn inbox(self: &Arc<Self>) -> Inbox {
        let mut inner = self.lock();
        let number = inner.next_inbox;
        inner.next_inbox += 1;
        let marks = Arc::<Marks>::default();
        inner.inboxes.insert(number, Arc::clone(&marks));
        Inbox {
            state: Arc::clone(self),
            number,
            marks,
        }
    }

    /// Ends leases on time; never returns.
    pub(super) async fn keep_time(&self) {
        loop {
            let deadline = self.with(|store, _| store.deadline());
            let wake = self.clock.instant(deadline.unwrap_or(Timestamp::MAX));
            tokio::select! {
                () = tokio::time::sleep_until(wake) => {}
                () = self.leases_changed.notified() => {}
            }
        }
    }
}

impl Inner {
    /// Marks the watchers of what has changed after `revision`.
    fn mark(&self, revision: i64) {
        if self.store.revision() == revision {
            return;
        }
        let Ok(changes) = self.store.changes_after(revision) else {
            // So much at once that some of it is forgotten already.
            for marks in self.inboxes.values() {
                marks.post(|news| news.all = news.all.or(Some(revision + 1)));
            }
            return;
        };
        for kv in changes.map(|change| &change.kv) {
            for (number, watch) in self.interest.find(&kv.key) {
                if let Some(marks) = self.inboxes.get(number) {
                    marks.post(|news| {
                        let first = news.watches.entry(*watch).or_insert(kv.mod_revision);
                        *first = kv.mod_revision.min(*first);
                    });
                }
            }
        }
    }
}

impl Marks {
    fn news(&self) -> MutexGuard<'_, News> {
        self.new.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, mark: impl FnOnce(&mut News)) {
        mark(&mut self.news());
        self.posted.notify_one();
    }
}

impl Inbox {
    /// Waits until there is news.
    pub(super) async fn posted(&self) {
        self.marks.posted.notified().await;
    }

    /// All that is new, and the revision up to which it is.
    pub(super) fn take(&self) -> (i64, News) {
        // Marks are made under the store's lock, so none of this revision is still under way.
        self.state
            .with(|store, _| (store.revision(), std::mem::take(&mut *self.marks.news())))
    }

    /// From now on the keys of `range` mark the watch of this number; `None` where there are too many
    /// watchers.
    pub(super) fn watch(&self, watch: i64, range: KeyRange) -> Option<WatcherPermit> {
        let mut inner = self.state.lock();
        if inner.watchers >= limits::STORE_ITEMS_MAX {
            return None;
        }
        inner.watchers += 1;
        let name = (self.number, watch);
        inner.interest.insert(&range, name);
        Some(WatcherPermit {
            state: Arc::clone(&self.state),
            name,
            range,
        })
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.state.lock().inboxes.remove(&self.number);
    }
}

impl Drop for WatcherPermit {
    fn drop(&mut self) {
        let mut inner = self.state.lock();
        inner.watchers -= 1;
        inner.interest.remove(&self.range, &self.name);
    }
}

/// The header of an answer given at `revision`.
pub(super) const fn header(revision: i64) -> pb::ResponseHeader {
    pb::ResponseHeader {
        cluster_id: CLUSTER_ID,
        member_id: MEMBER_ID,
        revision,
        raft_term: TERM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lameduck_core::store::{Assign, Put};

    fn put(state: &State, key: &str) -> i64 {
        let put = Put {
            key: key.as_bytes().into(),
            value: Assign::To([].into()),
            lease: Assign::To(None),
        };
        state.with(|store, _| {
            store.put(put).expect("room");
            store.revision()
        })
    }

    fn taken(inbox: &Inbox) -> Vec<(i64, i64)> {
        inbox.take().1.watches.into_iter().collect()
    }

    #[test]
    fn r24_a_put_marks_its_watchers_alone() {
        let state = Arc::new(State::new(1, 1));
        let (one, other) = (state.inbox(), state.inbox());
        let range = |key: &str| KeyRange::prefix(key.as_bytes());
        let first = one.watch(0, range("a/")).expect("room");
        let _second = one.watch(7, range("a/1")).expect("room");
        let _elsewhere = other.watch(0, range("b/")).expect("room");
        let revision = put(&state, "a/1");
        put(&state, "a/2");
        assert_eq!(taken(&one), [(0, revision), (7, revision)]);
        let told = other.take();
        assert_eq!((told.0, told.1.watches.len()), (revision + 1, 0));
        // Nothing is left of one that is gone.
        drop(first);
        let revision = put(&state, "a/1");
        assert_eq!(taken(&one), [(7, revision)]);
        drop((one, other));
        put(&state, "a/1");
        assert!(state.lock().inboxes.is_empty());
    }

    #[test]
    fn watchers_are_counted_and_given_back() {
        let state = Arc::new(State::new(1, 1));
        let inbox = state.inbox();
        let one = || inbox.watch(1, KeyRange::One(b"a"[..].into()));
        let all: Vec<_> = std::iter::from_fn(one).collect();
        assert_eq!(all.len(), limits::STORE_ITEMS_MAX);
        assert!(one().is_none());
        drop(all);
        assert!(one().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn r24_more_at_once_than_is_remembered_marks_all() {
        let state = Arc::new(State::new(1, 1));
        let inbox = state.inbox();
        let _elsewhere = inbox.watch(3, KeyRange::One(b"z"[..].into()));
        let ttl = std::time::Duration::from_secs(5);
        let count = limits::STORE_HISTORY_MAX + 2;
        for number in 0..count {
            state.with(|store, now| {
                let lease = store.grant(now, None, ttl).expect("room");
                let put = Put {
                    key: number.to_string().as_bytes().into(),
                    value: Assign::To([].into()),
                    lease: Assign::To(Some(lease)),
                };
                store.put(put).expect("room");
            });
        }
        let (before, news) = inbox.take();
        assert!(news.all.is_none() && news.watches.is_empty(), "{news:?}");
        tokio::time::advance(ttl * 2).await;
        let (after, news) = inbox.take();
        assert_eq!(after, before + i64::try_from(count).expect("small"));
        assert_eq!(news.all, Some(before + 1));
    }
}
