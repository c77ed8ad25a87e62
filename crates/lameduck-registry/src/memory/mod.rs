//! A registry inside this process, on the core's store.
//!
//! For tests, examples and programs that are their own callers. It behaves as a remote one does:
//! registrations hang on leases that are renewed, subscribers get a list and then changes, it can be
//! away ([`Memory::fail`]) and tell old news ([`Memory::replay`]).

mod publication;
mod record;
mod subscription;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use lameduck_core::limits;
use lameduck_core::name::ServiceName;
use lameduck_core::registry::{
    Connect, Entry, EntryId, ErrorClass, Publication, Registration, Registry, RegistryError,
    Subscription,
};
use lameduck_core::store::{Assign, Bounds, Put, Query, Store, StoreError};
use lameduck_core::time::Timestamp;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::driver::Clock;
use publication::Published;

/// A registry in this process. Clones are the same registry.
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    inner: Mutex<Inner>,
    /// Tells the keeper that leases have changed, or that this is gone.
    changed: Arc<Notify>,
}

struct Inner {
    store: Store,
    failure: Option<RegistryError>,
    published: BTreeMap<u64, Published>,
    /// Subscriptions that wait for the next change.
    waiting: BTreeMap<u64, Waker>,
    next: u64,
    keeper: Option<JoinHandle<()>>,
}

impl Memory {
    /// An empty registry. Its time begins now and follows tokio's, which tests can pause.
    #[must_use]
    pub fn new() -> Self {
        let inner = Inner {
            store: Store::new(Bounds::default(), 0),
            failure: None,
            published: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next: 0,
            keeper: None,
        };
        let shared = Shared {
            clock: Clock::start(),
            inner: Mutex::new(inner),
            changed: Arc::new(Notify::new()),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// What is registered under `service` now.
    #[must_use]
    pub fn entries(&self, service: &ServiceName) -> Vec<Entry> {
        let (inner, _) = self.shared.lock();
        inner.entries(service)
    }

    /// Registers `entry` as it is, on no lease: old news, as a registry tells that was restored, or
    /// an instance that leaked. It stays until it is withdrawn.
    ///
    /// # Errors
    ///
    /// Where the store is full.
    pub fn replay(&self, service: &ServiceName, entry: &Entry) -> Result<(), RegistryError> {
        let (mut inner, _) = self.shared.lock();
        let put = Put {
            key: record::key_of(service, entry.id),
            value: Assign::To(record::encode(&entry.instance)),
            lease: Assign::To(None),
        };
        inner.store.put(put).map_err(refusal)?;
        inner.wake_readers();
        Ok(())
    }

    /// Removes a registration behind its owner's back. An owner that still wants to be present puts
    /// it back at its next renewal.
    pub fn withdraw(&self, service: &ServiceName, id: EntryId) {
        let (mut inner, _) = self.shared.lock();
        let key = record::key_of(service, id);
        let deleted = inner
            .store
            .delete(&lameduck_core::store::KeyRange::One(key));
        debug_assert!(deleted.is_ok(), "the key is not empty");
        inner.wake_readers();
    }

    /// From now on the registry cannot be reached: subscribers are told, publications cannot change
    /// or renew anything, leases go on to their end.
    pub fn fail(&self, error: RegistryError) {
        let (mut inner, now) = self.shared.lock();
        inner.failure = Some(error);
        inner.settle_all(now);
        inner.wake_readers();
    }

    /// Ends what [`Memory::fail`] began.
    pub fn recover(&self) {
        let (mut inner, now) = self.shared.lock();
        inner.failure = None;
        inner.settle_all(now);
        inner.wake_readers();
        self.shared.changed.notify_one();
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory")
    }
}

impl Registry for Memory {
    fn propagation(&self) -> Duration {
        limits::FLOOR_PUSH
    }

    fn publish(&self, registration: Registration) -> Box<dyn Publication> {
        let (mut inner, _) = self.shared.lock();
        if inner.keeper.as_ref().is_none_or(JoinHandle::is_finished) {
            let changed = Arc::clone(&self.shared.changed);
            inner.keeper = Some(tokio::spawn(keep(Arc::downgrade(&self.shared), changed)));
        }
        drop(inner);
        Box::new(publication::Handle::new(self.clone(), registration))
    }

    fn subscribe(&self, service: &ServiceName) -> Box<dyn Subscription> {
        Box::new(subscription::Reader::new(self.clone(), service.clone()))
    }
}

/// Connects `memory:///name`: equal names are one registry, per table of schemes.
pub(crate) fn connector() -> Arc<Connect> {
    let table: Mutex<BTreeMap<String, Memory>> = Mutex::default();
    Arc::new(move |target| {
        if target.login().is_some() {
            return Err(RegistryError {
                class: ErrorClass::Refused,
                message: "a registry in memory takes no login".to_owned(),
            });
        }
        let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = table.entry(target.hosts().join(",")).or_default();
        Ok(Arc::new(memory.clone()) as Arc<dyn Registry>)
    })
}

impl Shared {
    /// The state as it is now: what had to end by now has ended.
    fn lock(&self) -> (MutexGuard<'_, Inner>, Timestamp) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        if !inner.store.expire(now).is_empty() {
            inner.wake_readers();
        }
        (inner, now)
    }

    /// Looks after all publications; gives the instant of the next look.
    fn tend(&self) -> Instant {
        let (mut inner, now) = self.lock();
        self.clock.instant(inner.tend(now))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

impl Inner {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn entries(&self, service: &ServiceName) -> Vec<Entry> {
        let query = Query::new(record::range_of(service));
        let found = self.store.range(&query).unwrap_or_default();
        found
            .kvs
            .iter()
            .filter_map(|kv| record::decode(&kv.key, &kv.value))
            .collect()
    }

    fn wake_readers(&mut self) {
        for waker in std::mem::take(&mut self.waiting).into_values() {
            waker.wake();
        }
    }
}

/// Renews and ends leases for as long as the registry exists.
async fn keep(shared: Weak<Shared>, changed: Arc<Notify>) {
    loop {
        let Some(wake) = shared.upgrade().map(|shared| shared.tend()) else {
            return;
        };
        tokio::select! {
            () = tokio::time::sleep_until(wake) => {}
            () = changed.notified() => {}
        }
    }
}

fn refusal(error: StoreError) -> RegistryError {
    let class = match error {
        StoreError::Full => ErrorClass::Full,
        _ => ErrorClass::Retry,
    };
    RegistryError {
        class,
        message: format!("memory registry: {error}"),
    }
}

#[cfg(test)]
mod tests;
