//! Makes one list of instances of two ranges: our records, and the keys that go-zero reads.
//!
//! They are joined by the lease that both hang on, and nothing is assumed about which is seen
//! first. A record alone is a whole instance and the foreign key its shadow. A key without a record
//! is a foreign instance, but only once the watch of the records has passed the key's revision, or
//! after [`limits::FOREIGN_AFTER`]: until then its record may be on the way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use lameduck_core::instance::{Incarnation, Instance};
use lameduck_core::limits;
use lameduck_core::mirror::{Change, Item, News};
use lameduck_core::mutant;
use lameduck_core::name::Address;
use lameduck_core::registry::{Entry, EntryId, ErrorClass, RegistryError, Update};
use lameduck_core::time::Timestamp;

use super::skipped::{Skip, Skips};
use crate::layout::gozero;

/// One of go-zero's keys, by what it ends with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shadow {
    pub(super) lease: i64,
    pub(super) created: i64,
    /// What is wrong where the value is no address that can be dialled.
    pub(super) address: Result<Address, Skip>,
}

/// One of our records, by the lease in its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// What is wrong where the value is malformed or hangs on another lease than its key says.
    pub(super) instance: Result<Instance, Skip>,
}

/// How one of the two ranges stands.
#[derive(Debug, Default)]
struct Side {
    /// The revision of its copy, once it has been listed.
    revision: Option<u64>,
    stale: Option<RegistryError>,
}

impl Side {
    fn take<K, V>(&mut self, news: &News<K, V>) {
        match news {
            News::Reset { revision, .. } => {
                self.revision = Some(*revision);
                self.stale = None;
            }
            News::Delta { revision, .. } => self.revision = Some(*revision),
            News::Stale(error) => self.stale = Some(error.clone()),
            News::Live => self.stale = None,
        }
    }

    fn is_denied(&self) -> bool {
        let class = self.stale.as_ref().map(|error| error.class);
        class == Some(ErrorClass::Refused)
    }
}

/// A shadow as it stands in the join.
#[derive(Debug)]
struct Seen {
    shadow: Shadow,
    modified: u64,
    /// Whether it is known by now whether a record belongs to it.
    decided: bool,
}

#[derive(Debug, Default)]
pub(super) struct Join {
    shadows: BTreeMap<Bytes, Seen>,
    by_lease: BTreeMap<i64, BTreeSet<Bytes>>,
    records: BTreeMap<i64, Record>,
    /// Leases that have had a good record: their keys are shadows, even where the record is seen
    /// to go first.
    ours: BTreeSet<i64>,
    /// Leases of which nothing is left, and the revision that the keys' watch must reach before
    /// none of their keys can still be on the way.
    departed: VecDeque<(u64, i64)>,
    /// Undecided keys in the order in which their time comes.
    pending: VecDeque<(Timestamp, Bytes)>,
    shadow_side: Side,
    record_side: Side,
    /// What has been told.
    entries: BTreeMap<EntryId, Instance>,
    /// Which key each foreign entry stands for: two keys never share one.
    names: BTreeMap<EntryId, Bytes>,
    /// The entries of a lease, as told.
    told: BTreeMap<i64, Vec<EntryId>>,
    begun: bool,
    reset_due: bool,
    told_stale: bool,
    malformed: u64,
    skips: Skips,
    out: VecDeque<Update>,
}

impl Join {
    /// Values that were no instances, since the beginning.
    pub(super) const fn malformed(&self) -> u64 {
        self.malformed
    }

    pub(super) fn poll(&mut self) -> Option<Update> {
        self.out.pop_front()
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.pending.front().map(|(due, _)| *due)
    }

    pub(super) fn shadows(&mut self, now: Timestamp, news: News<Bytes, Shadow>) {
        self.shadow_side.take(&news);
        let mut touched = BTreeSet::new();
        match news {
            News::Reset { items, .. } => {
                let ends: BTreeSet<Bytes> = items.iter().map(|item| item.key.clone()).collect();
                let known: Vec<Bytes> = self.shadows.keys().cloned().collect();
                for gone in known.iter().filter(|end| !ends.contains(*end)) {
                    self.drop_shadow(gone, &mut touched);
                }
                for Item {
                    key,
                    modified,
                    value,
                } in items
                {
                    self.put_shadow(now, key, modified, value, &mut touched);
                }
                self.reset_due = true;
            }
            News::Delta { changes, .. } => {
                for Change {
                    key,
                    modified,
                    value,
                } in changes
                {
                    match value {
                        Some(shadow) => self.put_shadow(now, key, modified, shadow, &mut touched),
                        None => self.drop_shadow(&key, &mut touched),
                    }
                }
            }
            News::Stale(_) | News::Live => {}
        }
        self.settle(now, touched);
    }

    pub(super) fn records(&mut self, now: Timestamp, news: News<i64, Record>) {
        self.record_side.take(&news);
        let mut touched = BTreeSet::new();
        match news {
            News::Reset { items, .. } => {
                touched.extend(self.records.keys().copied());
                self.records.clear();
                for item in items {
                    self.put_record(item.key, item.value, &mut touched);
                }
                self.reset_due = true;
            }
            News::Delta { changes, .. } => {
                for change in changes {
                    match change.value {
                        Some(record) => self.put_record(change.key, record, &mut touched),
                        None => {
                            self.records.remove(&change.key);
                            touched.insert(change.key);
                        }
                    }
                }
            }
            News::Stale(_) | News::Live => {}
        }
        self.settle(now, touched);
    }

    pub(super) fn handle_timeout(&mut self, now: Timestamp) {
        self.settle(now, BTreeSet::new());
    }

    fn put_shadow(
        &mut self,
        now: Timestamp,
        end: Bytes,
        modified: u64,
        shadow: Shadow,
        touched: &mut BTreeSet<i64>,
    ) {
        if let Err(skip) = &shadow.address {
            self.skip(skip);
        }
        let old = self.shadows.get(&end);
        let decided = old.is_some_and(|seen| seen.decided && seen.shadow.lease == shadow.lease);
        self.drop_shadow(&end, touched);
        touched.insert(shadow.lease);
        self.by_lease
            .entry(shadow.lease)
            .or_default()
            .insert(end.clone());
        if !decided {
            self.pending
                .push_back((now + limits::FOREIGN_AFTER, end.clone()));
        }
        self.shadows.insert(
            end,
            Seen {
                shadow,
                modified,
                decided,
            },
        );
    }

    fn drop_shadow(&mut self, end: &Bytes, touched: &mut BTreeSet<i64>) {
        let Some(seen) = self.shadows.remove(end) else {
            return;
        };
        let lease = seen.shadow.lease;
        touched.insert(lease);
        if let Some(ends) = self.by_lease.get_mut(&lease) {
            ends.remove(end);
            if ends.is_empty() {
                self.by_lease.remove(&lease);
            }
        }
    }

    fn put_record(&mut self, lease: i64, record: Record, touched: &mut BTreeSet<i64>) {
        touched.insert(lease);
        match &record.instance {
            Ok(_) => {
                self.ours.insert(lease);
            }
            Err(skip) => {
                self.skip(skip);
                self.ours.remove(&lease);
            }
        }
        self.records.insert(lease, record);
    }

    /// A value that is no instance.
    pub(super) fn skip(&mut self, skip: &Skip) {
        self.malformed += 1;
        self.out.extend(self.skips.tell(skip));
    }

    // --- what is told --------------------------------------------------------------------------

    fn settle(&mut self, now: Timestamp, mut touched: BTreeSet<i64>) {
        self.decide(now, &mut touched);
        self.forget_departed();
        let mut changed = Vec::new();
        let mut removed = Vec::new();
        for lease in touched {
            self.retell(lease, &mut changed, &mut removed);
        }
        self.tell(changed, removed);
    }

    /// Decides the keys whose record cannot be on the way any more.
    fn decide(&mut self, now: Timestamp, touched: &mut BTreeSet<i64>) {
        let passed = self.record_side.revision.unwrap_or_default();
        let denied = self.record_side.is_denied();
        let hasty = mutant!("join/waits-for-the-record");
        let shadows = &mut self.shadows;
        self.pending.retain(|(due, end)| {
            let Some(seen) = shadows.get_mut(end) else {
                return false;
            };
            if seen.decided {
                return false;
            }
            seen.decided = *due <= now || seen.modified <= passed || denied || hasty;
            if seen.decided {
                touched.insert(seen.shadow.lease);
            }
            !seen.decided
        });
    }

    /// Works out anew what there is to tell about one lease.
    fn retell(&mut self, lease: i64, changed: &mut Vec<Entry>, removed: &mut Vec<EntryId>) {
        let new = self.entries_of(lease);
        let ids: Vec<EntryId> = new.iter().map(|entry| entry.id).collect();
        for id in self.told.remove(&lease).unwrap_or_default() {
            if !ids.contains(&id) && self.entries.remove(&id).is_some() {
                self.names.remove(&id);
                removed.push(id);
            }
        }
        for entry in new {
            let old = self.entries.insert(entry.id, entry.instance.clone());
            if old.as_ref() != Some(&entry.instance) {
                changed.push(entry);
            }
        }
        if !ids.is_empty() {
            self.told.insert(lease, ids);
        }
        if self.has_left(lease) {
            let until = self.record_side.revision.unwrap_or_default();
            self.departed.push_back((until, lease));
            self.forget_departed();
        }
    }

    /// Whether nothing is left of a lease that was ours.
    fn has_left(&self, lease: i64) -> bool {
        let listed = self.by_lease.contains_key(&lease) || self.records.contains_key(&lease);
        self.ours.contains(&lease) && !listed
    }

    fn forget_departed(&mut self) {
        let passed = self.shadow_side.revision.unwrap_or_default();
        while let Some((until, lease)) = self.departed.front().copied() {
            if until > passed && !mutant!("join/departed-stay-known") {
                return;
            }
            self.departed.pop_front();
            if self.has_left(lease) {
                self.ours.remove(&lease);
            }
        }
    }

    fn entries_of(&mut self, lease: i64) -> Vec<Entry> {
        let record = self.records.get(&lease);
        if let Some(instance) = record.and_then(|record| record.instance.as_ref().ok()) {
            let (id, instance) = (EntryId(lease), instance.clone());
            return Vec::from([Entry { id, instance }]);
        }
        if self.ours.contains(&lease) && !mutant!("join/shadows-stay-shadows") {
            return Vec::new();
        }
        let ends = self.by_lease.get(&lease).into_iter().flatten();
        let seen = ends.filter_map(|end| Some((end, self.shadows.get(end)?)));
        let decided = seen.filter(|(_, seen)| seen.decided);
        let instances = decided.filter_map(|(end, seen)| {
            let instance = foreign(&seen.shadow)?;
            Some((end.clone(), instance))
        });
        let instances: Vec<(Bytes, Instance)> = instances.collect();
        instances
            .into_iter()
            .map(|(end, instance)| Entry {
                id: self.id_of(&end, lease),
                instance,
            })
            .collect()
    }

    /// Names the key that ends with `end`: always the same while it is there, and never as another.
    fn id_of(&mut self, end: &Bytes, lease: i64) -> EntryId {
        // A key named after its lease is alone with it. Others may share a lease or have none, and
        // lease ids are never negative.
        if lease != 0 && gozero::number(end) == Some(lease) {
            return EntryId(lease);
        }
        let mut bits = mixed(end, lease);
        loop {
            let id = EntryId(!(bits & i64::MAX));
            let holder = self.names.entry(id).or_insert_with(|| end.clone());
            if holder == end || mutant!("join/ends-stay-apart") {
                return id;
            }
            bits = bits.wrapping_add(1);
        }
    }

    fn tell(&mut self, changed: Vec<Entry>, removed: Vec<EntryId>) {
        let listed = self.shadow_side.revision.is_some()
            && (self.record_side.revision.is_some() || self.record_side.is_denied());
        let revision = self
            .shadow_side
            .revision
            .max(self.record_side.revision)
            .unwrap_or_default();
        let all_decided = self.begun || self.pending.is_empty();
        let stale = self.stale().cloned();
        // A whole list says that the registry can be read. While that holds for one side alone, its
        // changes are told as such.
        let half = self.begun && stale.is_some() && !mutant!("join/half-is-not-whole");
        if listed && self.reset_due && all_decided && !half {
            self.begun = true;
            self.reset_due = false;
            self.told_stale = false;
            let entries = self.entries.iter().map(|(id, instance)| Entry {
                id: *id,
                instance: instance.clone(),
            });
            let entries = entries.collect();
            self.out.push_back(Update::Reset { entries, revision });
        } else if self.begun && !(changed.is_empty() && removed.is_empty()) {
            self.out.push_back(Update::Delta {
                changed,
                removed,
                revision,
            });
        }
        match stale {
            Some(error) if !self.told_stale => {
                self.told_stale = true;
                self.out.push_back(Update::Stale(error));
            }
            None if self.told_stale => {
                self.told_stale = false;
                self.out.push_back(Update::Live);
            }
            _ => {}
        }
    }

    /// What keeps the list from being read. Records that we may not read are no such thing: there
    /// are the foreign keys.
    fn stale(&self) -> Option<&RegistryError> {
        let records = self.record_side.stale.as_ref();
        let records = records.filter(|error| error.class != ErrorClass::Refused);
        self.shadow_side.stale.as_ref().or(records)
    }
}

/// An instance of somebody who knows nothing of us.
fn foreign(shadow: &Shadow) -> Option<Instance> {
    let address = shadow.address.clone().ok()?;
    let incarnation = match shadow.lease {
        0 => Incarnation::Revision(shadow.created),
        lease => Incarnation::Lease(lease),
    };
    Some(Instance::new(address, incarnation))
}

/// One number of a key's end and its lease, the same at each start.
fn mixed(end: &[u8], lease: i64) -> i64 {
    let length = u64::try_from(end.len()).unwrap_or(u64::MAX);
    let mut bits = lameduck_core::rng::mix(lease.cast_unsigned() ^ length.rotate_left(32));
    for chunk in end.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        bits = lameduck_core::rng::mix(bits ^ u64::from_le_bytes(word));
    }
    bits.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r14_b_two_ends_never_share_an_entry() {
        let mut join = Join::default();
        let all = [&b"node-a"[..], b"node-b", b"", b"/", b"7", b"07", b"\xff"];
        let ends = all.map(Bytes::from_static);
        let ids: BTreeSet<EntryId> = ends.iter().map(|end| join.id_of(end, 0)).collect();
        assert_eq!(ids.len(), ends.len());
        let again = ends.iter().map(|end| join.id_of(end, 0));
        assert_eq!(again.collect::<BTreeSet<_>>(), ids);
        // Another key that has the same hash is told apart all the same.
        let mut crowded = Join::default();
        let free = join.id_of(&ends[0], 0);
        crowded.names.insert(free, Bytes::from_static(b"another"));
        let other = crowded.id_of(&ends[0], 0);
        assert_ne!(other, free);
        assert_eq!(crowded.id_of(&ends[0], 0), other);
        // The lease's own number is its id.
        assert_eq!(join.id_of(&ends[4], 7), EntryId(7));
        assert_ne!(join.id_of(&ends[5], 7), EntryId(7));
    }
}
