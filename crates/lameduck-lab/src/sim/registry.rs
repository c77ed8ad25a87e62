//! The registry of a simulated world: the production store, and who watches it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lameduck_core::machine::Ticket;
use lameduck_core::mirror;
use lameduck_core::store::{
    Assign, Blob, Bounds, ChangeKind, Cursor, KeyRange, KeyValue, Kinds, LeaseId, Put, Query, Store,
};
use lameduck_core::time::Timestamp;

use super::scenario::Back;
use super::wire::{Ask, Node, Record, Tell};

/// What leases are asked for, as in production: a lost renewal must not end one.
const TTL: Duration = lameduck_core::limits::LEASE_TTL;

/// The registry, whoever asks it.
pub(super) struct Registry {
    pub(super) store: Store,
    /// What the store's values stand for.
    records: Vec<Record>,
    pub(super) watchers: BTreeMap<Node, (Ticket, Cursor)>,
    pub(super) away: bool,
    pub(super) away_until: Timestamp,
    /// While it is away no lease ends: it is not running.
    pub(super) keeps: bool,
    /// Until when requests and answers take longer than anybody waits.
    pub(super) slow_until: Timestamp,
    seed: u64,
}

impl Registry {
    /// Comes back after it was away.
    pub(super) fn come_back(&mut self, now: Timestamp, back: Back) {
        self.away = false;
        match back {
            Back::AsItWas => {}
            Back::LeasesKept => {
                let all: Vec<LeaseId> = self.store.leases().collect();
                for lease in all {
                    let _over_already = self.store.renew(now, lease);
                }
            }
            Back::Compacted => self.compact(),
            Back::Anew => {
                self.seed = self.seed.wrapping_add(2);
                self.store = Store::new(Bounds::default(), self.seed);
            }
        }
    }

    /// Forgets its history, of which nobody has seen the end: another's key has come meanwhile.
    pub(super) fn compact(&mut self) {
        let noise = Put {
            key: Arc::from(&b"others/1"[..]),
            value: Assign::To(Arc::from(&b""[..])),
            lease: Assign::To(None),
        };
        for _ in 0..2 {
            let _full = self.store.put(noise.clone());
        }
        let revision = self.store.revision();
        let _was_compacted_already = self.store.compact(revision);
    }
    pub(super) fn new(seed: u64) -> Self {
        let store = Store::new(Bounds::default(), seed);
        Self {
            store,
            records: Vec::new(),
            watchers: BTreeMap::new(),
            away: false,
            away_until: Timestamp::ZERO,
            keeps: false,
            slow_until: Timestamp::ZERO,
            seed,
        }
    }

    /// Answers one request; a watch is answered by its opening.
    pub(super) fn ask(&mut self, now: Timestamp, from: Node, ticket: Ticket, ask: &Ask) -> Tell {
        match ask {
            Ask::Grant => match self.store.grant(now, None, TTL) {
                Ok(lease) => Tell::Granted {
                    lease: lease.0,
                    ttl: TTL,
                },
                Err(_) => Tell::Failed,
            },
            Ask::Put { lease, record } | Ask::PutClosing { lease, record } => {
                self.put(now, *lease, *record)
            }
            Ask::Renew { lease } => match self.store.renew(now, LeaseId(*lease)) {
                Ok(ttl) => Tell::Renewed { ttl },
                Err(_) => Tell::LeaseGone,
            },
            Ask::Check { lease } => match self.store.lease(now, LeaseId(*lease)) {
                Some(lease) => Tell::Checked {
                    intact: !lease.keys.is_empty(),
                },
                None => Tell::LeaseGone,
            },
            Ask::Revoke { lease } => {
                // A lease that is gone already is what was asked for.
                let _gone_either_way = self.store.revoke(LeaseId(*lease));
                Tell::Done
            }
            Ask::List => self.list(),
            Ask::Watch { from: revision } => self.watch(from, ticket, *revision),
        }
    }

    /// Writes a record without asking whose it is: late data of another member.
    pub(super) fn replay(&mut self, now: Timestamp, record: Record) {
        if let Ok(lease) = self.store.grant(now, None, TTL) {
            self.put(now, lease.0, record);
        }
    }

    fn put(&mut self, now: Timestamp, lease: i64, record: Record) -> Tell {
        if self.store.lease(now, LeaseId(lease)).is_none() {
            return Tell::LeaseGone;
        }
        self.records.push(record);
        let put = Put {
            key: key(lease),
            value: Assign::To(Arc::from((self.records.len() as u64 - 1).to_be_bytes())),
            lease: Assign::To(Some(LeaseId(lease))),
        };
        match self.store.put(put) {
            Ok(_) => Tell::Done,
            Err(_) => Tell::Failed,
        }
    }

    fn list(&self) -> Tell {
        let Ok(found) = self.store.range(&Query::new(all())) else {
            return Tell::Failed;
        };
        let items = found.kvs.iter().map(|kv| mirror::Item {
            key: lease_of(kv),
            modified: kv.mod_revision.unsigned_abs(),
            value: self.record(kv),
        });
        Tell::Listed {
            origin: self.origin(),
            items: items.collect(),
        }
    }

    fn watch(&mut self, from: Node, ticket: Ticket, revision: u64) -> Tell {
        let revision = i64::try_from(revision).unwrap_or(i64::MAX);
        let mut cursor = Cursor::new(all(), Kinds::All, revision);
        if self.store.read(&mut cursor.clone(), 1).is_err() {
            return Tell::Compacted;
        }
        cursor = Cursor::new(all(), Kinds::All, revision);
        self.watchers.insert(from, (ticket, cursor));
        Tell::Opened {
            origin: self.origin(),
        }
    }

    /// What each watcher has not been told yet.
    pub(super) fn news(&mut self) -> Vec<(Node, Ticket, Tell)> {
        let mut news = Vec::new();
        let mut lost = Vec::new();
        for (node, (ticket, cursor)) in &mut self.watchers {
            match self.store.read(cursor, usize::MAX) {
                Ok(changes) if changes.is_empty() => {}
                Ok(changes) => {
                    let revision = self.store.revision().unsigned_abs();
                    let changes = changes.iter().map(|change| mirror::Change {
                        key: lease_of(&change.kv),
                        modified: change.kv.mod_revision.unsigned_abs(),
                        value: (change.kind == ChangeKind::Put)
                            .then(|| record(&self.records, &change.kv)),
                    });
                    let changes = changes.collect();
                    news.push((*node, *ticket, Tell::Changed { revision, changes }));
                }
                Err(_) => lost.push((*node, *ticket)),
            }
        }
        for (node, ticket) in lost {
            self.watchers.remove(&node);
            news.push((node, ticket, Tell::Compacted));
        }
        news
    }

    /// Everything that is registered now, by lease.
    pub(super) fn registered(&self) -> Vec<(i64, Record)> {
        let found = self.store.range(&Query::new(all()));
        found.map_or_else(
            |_| Vec::new(),
            |found| {
                let all = found.kvs.iter();
                all.map(|kv| (lease_of(kv), self.record(kv))).collect()
            },
        )
    }

    fn record(&self, kv: &KeyValue) -> Record {
        record(&self.records, kv)
    }

    fn origin(&self) -> mirror::Origin {
        mirror::Origin {
            revision: self.store.revision().unsigned_abs(),
            cluster: self.seed,
        }
    }
}

fn record(records: &[Record], kv: &KeyValue) -> Record {
    let bytes = (&*kv.value).try_into().expect("eight bytes were written");
    records[usize::try_from(u64::from_be_bytes(bytes)).expect("an index")]
}

fn all() -> KeyRange {
    KeyRange::prefix(b"orders/")
}

fn key(lease: i64) -> Blob {
    [&b"orders/"[..], &lease.to_be_bytes()].concat().into()
}

fn lease_of(kv: &KeyValue) -> i64 {
    let bytes = kv.key[b"orders/".len()..]
        .try_into()
        .expect("a lease was written");
    i64::from_be_bytes(bytes)
}
