//! What all connections of the development server share.

use std::sync::{Arc, Mutex, PoisonError};

use lameduck_core::limits;
use lameduck_core::store::{Bounds, Store};
use lameduck_core::time::Timestamp;
use lameduck_etcd_proto::etcdserverpb as pb;
use tokio::sync::{Notify, watch};

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
    revision: watch::Sender<i64>,
    leases_changed: Notify,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    watchers: usize,
}

/// The right to one more watcher; given back on drop.
#[derive(Debug)]
pub(super) struct WatcherPermit(Arc<State>);

impl State {
    pub(super) fn new(seed: u64, revision: i64) -> Self {
        let store = Store::new(Bounds::default(), seed).beginning_at(revision);
        Self {
            clock: Clock::start(),
            revision: watch::Sender::new(store.revision()),
            inner: Mutex::new(Inner { store, watchers: 0 }),
            leases_changed: Notify::new(),
        }
    }

    /// Does something with the store as it is now; tells watchers where it made a revision.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Store, Timestamp) -> T) -> T {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        inner.store.expire(now);
        let before = inner.store.deadline();
        let done = work(&mut inner.store, now);
        if inner.store.deadline() != before {
            self.leases_changed.notify_one();
        }
        let revision = inner.store.revision();
        // Still locked: revisions are told in their order.
        self.revision
            .send_if_modified(|told| std::mem::replace(told, revision) != revision);
        done
    }

    pub(super) fn revision(&self) -> watch::Receiver<i64> {
        self.revision.subscribe()
    }

    /// `None` where there are too many.
    pub(super) fn watcher(self: &Arc<Self>) -> Option<WatcherPermit> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.watchers >= limits::STORE_ITEMS_MAX {
            return None;
        }
        inner.watchers += 1;
        Some(WatcherPermit(Arc::clone(self)))
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

impl Drop for WatcherPermit {
    fn drop(&mut self) {
        let mut inner = self.0.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.watchers -= 1;
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
