//! How an instance is written into the store. Private to this process: no other ever reads it.

use std::collections::BTreeMap;

use lameduck_core::instance::{Incarnation, Instance, State};
use lameduck_core::name::ServiceName;
use lameduck_core::registry::{Entry, EntryId};
use lameduck_core::store::{Blob, KeyRange};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Record {
    address: String,
    incarnation: Identity,
    closing: bool,
    ready: bool,
    weight: u32,
    zone: String,
    version: String,
    labels: BTreeMap<String, String>,
    protocols: Vec<String>,
}

#[derive(Serialize, Deserialize)]
enum Identity {
    Life(String),
    Lease(i64),
    Revision(i64),
    Unknown,
}

/// The value that stands for `instance`.
pub(super) fn encode(instance: &Instance) -> Blob {
    let record = Record {
        address: instance.address.to_string(),
        incarnation: match instance.incarnation {
            Incarnation::Life(life) => Identity::Life(life.to_string()),
            Incarnation::Lease(lease) => Identity::Lease(lease),
            Incarnation::Revision(revision) => Identity::Revision(revision),
            Incarnation::Unknown => Identity::Unknown,
        },
        closing: instance.state == State::Closing,
        ready: instance.ready,
        weight: instance.weight,
        zone: instance.zone.clone(),
        version: instance.version.clone(),
        labels: instance.labels.clone(),
        protocols: instance.protocols.clone(),
    };
    let bytes = serde_json::to_vec(&record).expect("strings and numbers are always JSON");
    bytes.into()
}

/// The entry that `key` and `value` stand for; `None` where they were not written by [`encode`].
pub(super) fn decode(key: &[u8], value: &[u8]) -> Option<Entry> {
    let record: Record = serde_json::from_slice(value).ok()?;
    let instance = Instance {
        address: record.address.parse().ok()?,
        incarnation: match record.incarnation {
            Identity::Life(life) => Incarnation::Life(life.parse().ok()?),
            Identity::Lease(lease) => Incarnation::Lease(lease),
            Identity::Revision(revision) => Incarnation::Revision(revision),
            Identity::Unknown => Incarnation::Unknown,
        },
        state: if record.closing {
            State::Closing
        } else {
            State::Serving
        },
        ready: record.ready,
        weight: record.weight,
        zone: record.zone,
        version: record.version,
        labels: record.labels,
        protocols: record.protocols,
    };
    Some(Entry {
        id: id_of(key)?,
        instance,
    })
}

/// The registration that `key` names.
pub(super) fn id_of(key: &[u8]) -> Option<EntryId> {
    let digits = key.last_chunk::<8>()?;
    Some(EntryId(i64::from_be_bytes(*digits)))
}

/// The key of a registration: name, zero byte (no name holds one), number.
pub(super) fn key_of(service: &ServiceName, id: EntryId) -> Blob {
    let mut key = prefix_of(service);
    key.extend(id.0.to_be_bytes());
    key.into()
}

/// All registrations of `service`.
pub(super) fn range_of(service: &ServiceName) -> KeyRange {
    KeyRange::prefix(&prefix_of(service))
}

fn prefix_of(service: &ServiceName) -> Vec<u8> {
    let mut prefix = service.as_str().as_bytes().to_vec();
    prefix.push(0);
    prefix
}
