//! Publishing into the memory registry.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lameduck_core::instance::{Incarnation, Instance, Life, State};
use lameduck_core::limits;
use lameduck_core::registry::{EntryId, Publication, PublicationStatus, Registration, Want};
use lameduck_core::store::{Assign, KeyRange, LeaseId, Op, Put, Query, StoreError, Txn};
use lameduck_core::time::Timestamp;

use super::{Inner, Memory, record, refusal};

/// One publication as the registry knows it.
pub(super) struct Published {
    registration: Registration,
    want: Option<Want>,
    held: Option<Held>,
    status: PublicationStatus,
    told: bool,
    waker: Option<Waker>,
}

/// The lease that the registration hangs on, and the life that it was made for.
#[derive(Clone, Copy)]
struct Held {
    lease: LeaseId,
    life: Life,
    ready: bool,
    renew: Timestamp,
}

/// What its owner holds.
pub(super) struct Handle {
    memory: Memory,
    number: u64,
}

impl Handle {
    pub(super) fn new(memory: Memory, registration: Registration) -> Self {
        let published = Published {
            registration,
            want: None,
            held: None,
            status: PublicationStatus {
                reached: None,
                registered: false,
                metadata: true,
                error: None,
            },
            told: false,
            waker: None,
        };
        let (mut inner, _) = memory.shared.lock();
        let number = inner.number();
        inner.published.insert(number, published);
        drop(inner);
        Self { memory, number }
    }
}

impl Publication for Handle {
    fn want(&mut self, want: Want) {
        let (mut inner, now) = self.memory.shared.lock();
        let published = inner.published.get_mut(&self.number);
        let published = published.expect("a publication is known until its handle is dropped");
        if published.want != Some(Want::Gone) {
            published.want = Some(want);
        }
        inner.settle(now, self.number);
        drop(inner);
        self.memory.shared.changed.notify_one();
    }

    fn poll_status(&mut self, context: &mut Context<'_>) -> Poll<PublicationStatus> {
        let (mut inner, _) = self.memory.shared.lock();
        let published = inner.published.get_mut(&self.number);
        let published = published.expect("a publication is known until its handle is dropped");
        if published.told {
            published.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        published.told = true;
        Poll::Ready(published.status.clone())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let (mut inner, _) = self.memory.shared.lock();
        inner.published.remove(&self.number);
    }
}

impl Published {
    fn tell(&mut self, status: PublicationStatus) {
        if self.status != status {
            self.status = status;
            self.told = false;
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
    }

    fn instance(&self, life: Life, state: State, ready: bool) -> Instance {
        Instance {
            incarnation: Incarnation::Life(life),
            state,
            ready,
            ..self.registration.instance.clone()
        }
    }
}

impl Inner {
    pub(super) fn settle_all(&mut self, now: Timestamp) {
        let numbers: Vec<u64> = self.published.keys().copied().collect();
        for number in numbers {
            self.settle(now, number);
        }
    }

    /// Makes what is published what is wanted, as far as that is possible now, and tells.
    pub(super) fn settle(&mut self, now: Timestamp, number: u64) {
        // Taken out for the time being, so that the store can be changed beside it.
        let Some(mut published) = self.published.remove(&number) else {
            return;
        };
        let before = self.store.revision();
        let done = match (&self.failure, published.want) {
            (_, None) => Ok(()),
            (Some(failure), Some(_)) => Err(failure.clone()),
            (None, Some(want)) => self.reach(now, &mut published, want).map_err(refusal),
        };
        let mut status = published.status.clone();
        status.error = done.err();
        if status.error.is_none() {
            status.reached = published.want;
            status.registered = matches!(published.want, Some(Want::Present { .. }));
        }
        published.tell(status);
        self.published.insert(number, published);
        if self.store.revision() != before {
            self.wake_readers();
        }
    }

    fn reach(
        &mut self,
        now: Timestamp,
        published: &mut Published,
        want: Want,
    ) -> Result<(), StoreError> {
        let held = published
            .held
            .filter(|held| self.store.lease(now, held.lease).is_some());
        match want {
            Want::Present { life, ready } => {
                let same = held.filter(|held| held.life == life);
                let fresh = match same {
                    Some(held) => Held { ready, ..held },
                    None => self.acquire(now, life, ready)?,
                };
                let instance = published.instance(life, State::Serving, ready);
                let done = self.write(&published.registration, fresh.lease, &instance);
                if done.is_err() && same.is_none() {
                    self.store.revoke(fresh.lease)?;
                }
                done?;
                published.held = Some(fresh);
                match held.filter(|held| held.lease != fresh.lease) {
                    Some(old) => self.store.revoke(old.lease),
                    None => Ok(()),
                }
            }
            Want::Closing => match held {
                Some(held) => {
                    let instance = published.instance(held.life, State::Closing, held.ready);
                    self.write(&published.registration, held.lease, &instance)
                }
                None => Ok(()),
            },
            Want::Gone => {
                published.held = None;
                held.map_or(Ok(()), |held| self.store.revoke(held.lease))
            }
        }
    }

    fn acquire(&mut self, now: Timestamp, life: Life, ready: bool) -> Result<Held, StoreError> {
        let lease = self.store.grant(now, None, limits::LEASE_TTL)?;
        Ok(Held {
            lease,
            life,
            ready,
            renew: now + renewal(),
        })
    }

    /// Writes what differs, in one revision for each so many services.
    fn write(
        &mut self,
        registration: &Registration,
        lease: LeaseId,
        instance: &Instance,
    ) -> Result<(), StoreError> {
        let value = record::encode(instance);
        for services in registration.services.chunks(limits::STORE_TXN_OPS_MAX) {
            let mut txn = Txn::default();
            for service in services {
                let key = record::key_of(service, EntryId(lease.0));
                let found = self.store.range(&Query::new(KeyRange::One(key.clone())))?;
                if found.kvs.first().is_none_or(|kv| kv.value != value) {
                    let (value, lease) = (Assign::To(value.clone()), Assign::To(Some(lease)));
                    txn.success.push(Op::Put(Put { key, value, lease }));
                }
            }
            self.store.txn(txn)?;
        }
        Ok(())
    }

    /// Renews what is due, repairs what is lost, tries again what failed. Gives the time of the next
    /// look.
    pub(super) fn tend(&mut self, now: Timestamp) -> Timestamp {
        let mut next = Timestamp::MAX;
        if self.failure.is_none() {
            for published in self.published.values_mut() {
                if let Some(held) = published.held.as_mut().filter(|held| held.renew <= now) {
                    // A lease that is lost is replaced when the publication is settled.
                    let _ = self.store.renew(now, held.lease);
                    held.renew = now + renewal();
                }
            }
            self.settle_all(now);
            let renewals = self
                .published
                .values()
                .filter_map(|published| published.held);
            next = renewals.map(|held| held.renew).min().unwrap_or(next);
            if self
                .published
                .values()
                .any(|published| published.status.error.is_some())
            {
                next = next.min(now + renewal());
            }
        }
        next.min(self.store.deadline().unwrap_or(Timestamp::MAX))
    }
}

fn renewal() -> Duration {
    limits::LEASE_TTL / limits::LEASE_RENEW_DIVISOR
}
