use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use proptest::prelude::*;

use super::*;

fn blob(text: &str) -> Blob {
    text.as_bytes().into()
}

fn one(key: &str) -> KeyRange {
    KeyRange::One(blob(key))
}

fn put(key: &str, value: &str) -> Put {
    Put {
        key: blob(key),
        value: Assign::To(blob(value)),
        lease: Assign::To(None),
    }
}

fn put_leased(key: &str, lease: LeaseId) -> Put {
    Put {
        lease: Assign::To(Some(lease)),
        ..put(key, "leased")
    }
}

fn store() -> Store {
    Store::new(Bounds::default(), 7)
}

fn names(kvs: &[KeyValue]) -> Vec<&str> {
    kvs.iter()
        .map(|kv| core::str::from_utf8(&kv.key).unwrap())
        .collect()
}

fn everything() -> KeyRange {
    KeyRange::From(blob("\0"))
}

/// Each change as `revision key`, with a `-` before the key of a deletion.
fn told(changes: &[Change]) -> Vec<alloc::string::String> {
    let sign = |change: &Change| {
        if change.kind == ChangeKind::Put {
            ""
        } else {
            "-"
        }
    };
    let name = |change: &Change| alloc::string::String::from_utf8(change.kv.key.to_vec()).unwrap();
    changes
        .iter()
        .map(|change| {
            alloc::format!(
                "{} {}{}",
                change.kv.mod_revision,
                sign(change),
                name(change)
            )
        })
        .collect()
}

#[test]
fn a_key_knows_its_revisions() {
    let mut store = store();
    assert_eq!(store.put(put("a", "1")), Ok(None));
    assert_eq!(store.put(put("b", "1")), Ok(None));
    let before = store.put(put("a", "2")).unwrap().unwrap();
    assert_eq!(
        (before.create_revision, before.mod_revision, before.version),
        (2, 2, 1)
    );
    let found = store.range(&Query::new(one("a"))).unwrap();
    let kv = &found.kvs[0];
    assert_eq!((kv.create_revision, kv.mod_revision, kv.version), (2, 4, 2));
    assert_eq!(store.delete(&one("a")).unwrap(), found.kvs);
    assert_eq!(store.delete(&one("a")), Ok(vec![]));
    assert_eq!(store.revision(), 5);
    let then = Query {
        revision: Some(4),
        ..Query::new(one("a"))
    };
    assert_eq!(store.range(&then).unwrap().kvs, found.kvs);
    store.put(put("a", "3")).unwrap();
    let kv = &store.range(&Query::new(one("a"))).unwrap().kvs[0];
    assert_eq!((kv.create_revision, kv.mod_revision, kv.version), (6, 6, 1));
}

#[test]
fn ranges_hold_what_etcd_means() {
    let mut store = store();
    for key in ["a", "ab", "b", "c"] {
        store.put(put(key, key)).unwrap();
    }
    let check = |range: KeyRange, expected: &[&str]| {
        let found = store.range(&Query::new(range.clone())).unwrap();
        assert_eq!(names(&found.kvs), expected, "{range:?}");
        let held: Vec<_> = ["a", "ab", "b", "c"]
            .into_iter()
            .filter(|key| range.contains(key.as_bytes()))
            .collect();
        assert_eq!(held, expected, "{range:?}");
    };
    check(KeyRange::from_wire(blob("a"), blob("")), &["a"]);
    check(KeyRange::from_wire(blob("a"), blob("c")), &["a", "ab", "b"]);
    check(
        KeyRange::from_wire(blob("ab"), blob("\0")),
        &["ab", "b", "c"],
    );
    check(
        KeyRange::from_wire(blob("\0"), blob("\0")),
        &["a", "ab", "b", "c"],
    );
    check(KeyRange::from_wire(blob("c"), blob("a")), &[]);
    check(KeyRange::prefix(b"a"), &["a", "ab"]);
}

#[test]
fn a_prefix_of_the_last_byte_has_no_end() {
    assert_eq!(
        KeyRange::prefix(&[255, 255]),
        KeyRange::From([255, 255].as_slice().into())
    );
    assert!(KeyRange::prefix(&[1, 255]).contains(&[1, 255, 255]));
    assert!(!KeyRange::prefix(&[1, 255]).contains(&[2]));
}

#[test]
fn answers_are_filtered_sorted_and_cut() {
    let mut store = store();
    for (key, value) in [("a", "3"), ("b", "2"), ("c", "1"), ("b", "9")] {
        store.put(put(key, value)).unwrap();
    }
    let all = Query::new(everything());
    let check = |query: Query, expected: &[&str], more: bool| {
        let found = store.range(&query).unwrap();
        assert_eq!(names(&found.kvs), expected, "{query:?}");
        assert_eq!((found.count, found.more), (3, more), "{query:?}");
    };
    check(
        Query {
            order: Order::Descending,
            ..all.clone()
        },
        &["c", "b", "a"],
        false,
    );
    check(
        Query {
            sort_by: SortBy::Value,
            ..all.clone()
        },
        &["c", "a", "b"],
        false,
    );
    let latest = Query {
        sort_by: SortBy::ModRevision,
        order: Order::Descending,
        ..all.clone()
    };
    check(
        Query {
            limit: Some(1),
            ..latest
        },
        &["b"],
        true,
    );
    check(
        Query {
            min_mod_revision: Some(4),
            limit: Some(2),
            ..all.clone()
        },
        &["b", "c"],
        false,
    );
    check(
        Query {
            max_create_revision: Some(2),
            ..all.clone()
        },
        &["a"],
        false,
    );
    check(
        Query {
            output: Output::Count,
            ..all.clone()
        },
        &[],
        false,
    );
    let keys = store
        .range(&Query {
            output: Output::Keys,
            ..all
        })
        .unwrap();
    assert!(keys.kvs.iter().all(|kv| kv.value.is_empty()));
}

#[test]
fn a_transaction_is_one_revision_or_nothing() {
    let mut store = store();
    let absent = |key: &str| Compare {
        range: one(key),
        relation: Relation::Equal,
        operand: Operand::CreateRevision(0),
    };
    let register = Txn {
        compares: vec![absent("a"), absent("b")],
        success: vec![Op::Put(put("a", "1")), Op::Put(put("b", "1"))],
        failure: vec![Op::Range(Query::new(everything()))],
    };
    let answer = store.txn(register.clone()).unwrap();
    assert!(answer.succeeded);
    assert_eq!(store.revision(), 2);
    let again = store.txn(register.clone()).unwrap();
    assert!(!again.succeeded);
    let [Answer::Range(found)] = &again.answers[..] else {
        panic!("{again:?}")
    };
    assert_eq!(names(&found.kvs), ["a", "b"]);
    let unknown = put_leased("c", LeaseId(9));
    let bad = Txn {
        success: vec![Op::Delete(one("a")), Op::Put(unknown)],
        ..Txn::default()
    };
    assert_eq!(store.txn(bad), Err(StoreError::LeaseNotFound));
    assert_eq!((store.revision(), store.len()), (2, 2));
}

#[test]
fn a_transaction_sees_its_own_writes_and_the_past() {
    let mut store = store();
    store.put(put("a", "1")).unwrap();
    let past = Query {
        revision: Some(2),
        ..Query::new(everything())
    };
    let txn = Txn {
        success: vec![
            Op::Delete(one("a")),
            Op::Txn(Txn {
                success: vec![Op::Put(put("b", "2"))],
                ..Txn::default()
            }),
            Op::Range(Query::new(everything())),
            Op::Range(past),
        ],
        ..Txn::default()
    };
    let answer = store.txn(txn).unwrap();
    let [_, _, Answer::Range(now), Answer::Range(then)] = &answer.answers[..] else {
        panic!("{answer:?}")
    };
    assert_eq!((names(&now.kvs), names(&then.kvs)), (vec!["b"], vec!["a"]));
}

#[test]
fn transactions_are_refused_by_their_looks() {
    let check = |success: Vec<Op>, expected: Result<bool, StoreError>| {
        let done = store().txn(Txn {
            success,
            ..Txn::default()
        });
        assert_eq!(done.map(|answer| answer.succeeded), expected);
    };
    let put_a = || Op::Put(put("a", "1"));
    let within = |success, failure| {
        Op::Txn(Txn {
            success,
            failure,
            ..Txn::default()
        })
    };
    check(vec![put_a(), put_a()], Err(StoreError::DuplicateKey));
    check(
        vec![put_a(), Op::Delete(KeyRange::prefix(b"a"))],
        Err(StoreError::DuplicateKey),
    );
    check(vec![Op::Delete(one("a")), Op::Delete(one("a"))], Ok(true));
    check(vec![within(vec![put_a()], vec![put_a()])], Ok(true));
    check(
        vec![within(vec![put_a()], vec![]), put_a()],
        Err(StoreError::DuplicateKey),
    );
    check(
        vec![within(vec![Op::Delete(one("a"))], vec![]), put_a()],
        Err(StoreError::DuplicateKey),
    );
    check(vec![Op::Put(put("", "1"))], Err(StoreError::EmptyKey));
    check(
        (0..129).map(|_| Op::Delete(one("a"))).collect(),
        Err(StoreError::TooManyOps),
    );
    let many = || (0..128).map(|_| Op::Delete(one("a"))).collect::<Vec<_>>();
    check(
        (0..8).map(|_| within(many(), vec![])).collect(),
        Err(StoreError::TooManyOps),
    );
}

#[test]
fn conditions_compare_as_etcd_does() {
    let mut store = store();
    let lease = store
        .grant(Timestamp::ZERO, None, Duration::from_secs(5))
        .unwrap();
    store.put(put_leased("a", lease)).unwrap();
    store.put(put("b", "x")).unwrap();
    let mut check = |key: &str, relation, operand: Operand, expected| {
        let compare = Compare {
            range: KeyRange::prefix(key.as_bytes()),
            relation,
            operand,
        };
        let txn = Txn {
            compares: vec![compare.clone()],
            ..Txn::default()
        };
        assert_eq!(store.txn(txn).unwrap().succeeded, expected, "{compare:?}");
    };
    check("a", Relation::Equal, Operand::Lease(Some(lease)), true);
    check("b", Relation::Equal, Operand::Lease(None), true);
    check("none", Relation::Equal, Operand::Lease(None), true);
    check("none", Relation::Equal, Operand::Version(0), true);
    check("none", Relation::NotEqual, Operand::Value(blob("x")), false);
    check("b", Relation::Equal, Operand::Value(blob("x")), true);
    check("b", Relation::Less, Operand::Value(blob("y")), true);
    check("a", Relation::Greater, Operand::ModRevision(1), true);
    check("b", Relation::Greater, Operand::ModRevision(3), false);
}

#[test]
fn puts_keep_what_they_are_told_to() {
    let mut store = store();
    let lease = store
        .grant(Timestamp::ZERO, None, Duration::from_secs(5))
        .unwrap();
    let keep = |value, lease| Put {
        key: blob("a"),
        value,
        lease,
    };
    let refused = store.put(keep(Assign::Keep, Assign::To(None)));
    assert_eq!(refused, Err(StoreError::KeyNotFound));
    store.put(put_leased("a", lease)).unwrap();
    store
        .put(keep(Assign::To(blob("new")), Assign::Keep))
        .unwrap();
    let now = store
        .put(keep(Assign::Keep, Assign::To(None)))
        .unwrap()
        .unwrap();
    assert_eq!((&*now.value, now.lease), (&b"new"[..], Some(lease)));
    store.revoke(lease).unwrap();
    assert_eq!(store.len(), 1, "the key is on no lease any more");
}

#[test]
fn a_lease_takes_its_keys_along() {
    let mut store = store();
    let second = Duration::from_secs(1);
    let start = Timestamp::ZERO;
    let lease = store.grant(start, Some(LeaseId(5)), second * 5).unwrap();
    assert_eq!(
        store.grant(start, Some(LeaseId(5)), second),
        Err(StoreError::LeaseExists)
    );
    assert_eq!(
        store.grant(start, None, second * u32::MAX * 3),
        Err(StoreError::LeaseTooLong)
    );
    for key in ["b", "a"] {
        store.put(put_leased(key, lease)).unwrap();
    }
    assert_eq!(store.renew(start + second * 3, lease), Ok(second * 5));
    assert_eq!(store.deadline(), Some(start + second * 8));
    assert_eq!(store.expire(start + second * 7), []);
    let view = store.lease(start + second * 7, lease).unwrap();
    assert_eq!((view.remaining, view.keys.len()), (second, 2));
    let over = start + second * 8;
    assert_eq!(store.renew(over, lease), Err(StoreError::LeaseNotFound));
    assert_eq!(store.lease(over, lease), None);
    let mut cursor = Cursor::new(everything(), Kinds::All, store.revision() + 1);
    assert_eq!(store.expire(over), [lease]);
    assert_eq!(told(&store.read(&mut cursor, 1).unwrap()), ["4 -a", "4 -b"]);
    assert_eq!((store.leases().count(), store.deadline()), (0, None));
    assert_eq!(store.revoke(lease), Err(StoreError::LeaseNotFound));
}

#[test]
fn watchers_read_from_the_past_and_revisions_stay_whole() {
    let mut store = store();
    store.put(put("a", "1")).unwrap();
    let both = vec![Op::Put(put("b", "1")), Op::Put(put("c", "1"))];
    store
        .txn(Txn {
            success: both,
            ..Txn::default()
        })
        .unwrap();
    store.delete(&everything()).unwrap();
    let mut all = Cursor::new(everything(), Kinds::All, 1);
    assert_eq!(told(&store.read(&mut all, 1).unwrap()), ["2 a"]);
    assert_eq!(told(&store.read(&mut all, 1).unwrap()), ["3 b", "3 c"]);
    let last = store.read(&mut all, 1).unwrap();
    assert_eq!(told(&last), ["4 -a", "4 -b", "4 -c"]);
    assert_eq!(last[0].prev.as_ref().map(|kv| kv.mod_revision), Some(2));
    assert_eq!(
        (store.read(&mut all, 1).unwrap().len(), all.next_revision()),
        (0, 5)
    );
    let mut deletes = Cursor::new(one("b"), Kinds::Deletes, 1);
    assert_eq!(told(&store.read(&mut deletes, 9).unwrap()), ["4 -b"]);
    let mut future = Cursor::new(everything(), Kinds::All, 6);
    store.put(put("d", "1")).unwrap();
    assert!(store.read(&mut future, 9).unwrap().is_empty());
    store.put(put("e", "1")).unwrap();
    assert_eq!(told(&store.read(&mut future, 9).unwrap()), ["6 e"]);
}

#[test]
fn the_past_ends_where_it_is_compacted() {
    let mut store = store();
    for value in ["1", "2", "3"] {
        store.put(put("a", value)).unwrap();
    }
    assert_eq!(store.compact(5), Err(StoreError::FutureRevision));
    store.compact(3).unwrap();
    let gone = Compacted { revision: 3 };
    assert_eq!(store.compact(3), Err(StoreError::Compacted(gone)));
    let at = |revision| Query {
        revision: Some(revision),
        ..Query::new(one("a"))
    };
    assert_eq!(store.range(&at(2)), Err(StoreError::Compacted(gone)));
    assert_eq!(&*store.range(&at(3)).unwrap().kvs[0].value, b"2");
    assert_eq!(store.range(&at(5)), Err(StoreError::FutureRevision));
    let mut early = Cursor::new(one("a"), Kinds::All, 2);
    assert_eq!(store.read(&mut early, 9), Err(gone));
    let mut exact = Cursor::new(one("a"), Kinds::All, 3);
    assert_eq!(told(&store.read(&mut exact, 9).unwrap()), ["3 a", "4 a"]);
}

#[test]
fn r13_a_reader_of_an_earlier_store_hears_that_its_past_is_gone() {
    let mut store = store().beginning_at(1_000);
    assert_eq!((store.revision(), store.compacted()), (1_000, 1_000));
    let gone = Compacted { revision: 1_000 };
    for from in [1, 52, 999] {
        let mut old = Cursor::new(everything(), Kinds::All, from);
        assert_eq!(store.read(&mut old, 9), Err(gone), "{from}");
        let query = Query {
            revision: Some(from),
            ..Query::new(everything())
        };
        assert_eq!(store.range(&query), Err(StoreError::Compacted(gone)));
    }
    let mut fresh = Cursor::new(everything(), Kinds::All, 1_001);
    store.put(put("a", "1")).unwrap();
    assert_eq!(told(&store.read(&mut fresh, 9).unwrap()), ["1001 a"]);
    assert_eq!(store.compact(1_000), Err(StoreError::Compacted(gone)));
    store.compact(1_001).unwrap();
    // What a clock may say besides.
    for (asked, revision, compacted) in [
        (i64::MIN, 1, -1),
        (0, 1, -1),
        (1, 1, -1),
        (2, 2, 2),
        (i64::MAX, i64::MAX / 2, i64::MAX / 2),
    ] {
        let store = Store::new(Bounds::default(), 7).beginning_at(asked);
        assert_eq!(
            (store.revision(), store.compacted()),
            (revision, compacted),
            "{asked}"
        );
    }
}

#[test]
fn everything_is_bounded() {
    let small = Bounds {
        items: 2,
        bytes: 40,
        history: 3,
        ..Bounds::default()
    };
    let mut store = Store::new(small, 1);
    let mut slow = Cursor::new(everything(), Kinds::All, 2);
    store.put(put("a", "1")).unwrap();
    store.put(put("b", "1")).unwrap();
    assert_eq!(store.put(put("c", "1")), Err(StoreError::Full));
    assert_eq!(store.put(put("b", &"x".repeat(40))), Err(StoreError::Full));
    for _ in 0..5 {
        store.put(put("a", "2")).unwrap();
    }
    assert_eq!(
        store.compacted(),
        6,
        "three changes are remembered: 6, 7, 8"
    );
    assert_eq!(store.read(&mut slow, 9), Err(Compacted { revision: 6 }));
    let time = Duration::from_secs(1);
    store.grant(Timestamp::ZERO, None, time).unwrap();
    store.grant(Timestamp::ZERO, None, time).unwrap();
    assert_eq!(
        store.grant(Timestamp::ZERO, None, time),
        Err(StoreError::Full)
    );
    store.delete(&one("b")).unwrap();
    store.put(put("c", "1")).unwrap();
    let light = Bounds {
        history_bytes: 1_000,
        ..Bounds::default()
    };
    let mut store = Store::new(light, 1);
    for _ in 0..20 {
        store.put(put("a", &"x".repeat(200))).unwrap();
    }
    assert!(store.compacted() > 15, "{}", store.compacted());
}

// --- against a model that keeps every state whole ---------------------------------------------------

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    states: Vec<BTreeMap<u8, ModelKey>>,
    leases: BTreeMap<i64, (u64, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ModelKey {
    value: u8,
    create: i64,
    modified: i64,
    version: i64,
    lease: Option<i64>,
}

impl Model {
    fn new() -> Self {
        // Revisions 0 and 1 are empty.
        Self {
            states: vec![BTreeMap::new(), BTreeMap::new()],
            ..Self::default()
        }
    }

    fn write(&mut self, puts: &[(u8, u8, Option<i64>)], deletes: &BTreeSet<u8>) {
        let mut next = self.states.last().unwrap().clone();
        let revision = i64::try_from(self.states.len()).unwrap();
        let before = next.len();
        next.retain(|key, _| !deletes.contains(key));
        if puts.is_empty() && next.len() == before {
            return;
        }
        for (key, value, lease) in puts {
            let old = next.get(key);
            let kv = ModelKey {
                value: *value,
                create: old.map_or(revision, |old| old.create),
                modified: revision,
                version: old.map_or(1, |old| old.version + 1),
                lease: *lease,
            };
            next.insert(*key, kv);
        }
        self.states.push(next);
    }

    fn end(&mut self, lease: i64) {
        if self.leases.remove(&lease).is_some() {
            let now = self.states.last().unwrap();
            let mine = now.iter().filter(|(_, kv)| kv.lease == Some(lease));
            let keys = mine.map(|(key, _)| *key).collect();
            self.write(&[], &keys);
        }
    }

    fn expire(&mut self, now: u64) {
        let due = self.leases.iter().filter(|(_, (at, _))| *at <= now);
        let mut due: Vec<_> = due.map(|(id, (at, _))| (*at, *id)).collect();
        due.sort_unstable();
        for (_, id) in due {
            self.end(id);
        }
    }

    /// What a watcher of everything hears of one revision.
    fn events(&self, revision: usize) -> Vec<(u8, Option<u8>)> {
        let (old, new) = (&self.states[revision - 1], &self.states[revision]);
        let mut events: Vec<_> = old
            .keys()
            .filter(|key| !new.contains_key(key))
            .map(|key| (*key, None))
            .collect();
        let fresh = |kv: &ModelKey| kv.modified == i64::try_from(revision).unwrap();
        events.extend(
            new.iter()
                .filter(|(_, kv)| fresh(kv))
                .map(|(key, kv)| (*key, Some(kv.value))),
        );
        events.sort_unstable();
        events
    }
}

#[derive(Clone, Debug)]
enum Act {
    Put(u8, u8, Option<i64>),
    Delete(u8, u8),
    Swap { put: u8, value: u8, delete: u8 },
    Guarded { key: u8, version: i64, value: u8 },
    Grant(i64, u64),
    Renew(i64),
    Revoke(i64),
    Pass(u64),
    Compact(i64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let key = || 1..8_u8;
    let lease = || 1..4_i64;
    let act = prop_oneof![
        4 => (key(), any::<u8>(), prop::option::of(lease())).prop_map(|(k, v, l)| Act::Put(k, v, l)),
        2 => (key(), key()).prop_map(|(from, to)| Act::Delete(from, to)),
        2 => (key(), any::<u8>(), key()).prop_map(|(put, value, delete)| Act::Swap { put, value, delete }),
        2 => (key(), 0..3_i64, any::<u8>()).prop_map(|(key, version, value)| Act::Guarded { key, version, value }),
        2 => (lease(), 1..9_u64).prop_map(|(id, ttl)| Act::Grant(id, ttl)),
        1 => lease().prop_map(Act::Renew),
        1 => lease().prop_map(Act::Revoke),
        2 => (1..5_u64).prop_map(Act::Pass),
        1 => (1..4_i64).prop_map(Act::Compact),
    ];
    prop::collection::vec(act, 0..60)
}

fn act_on(store: &mut Store, model: &mut Model, now: &mut u64, act: &Act) {
    let bytes = |byte: u8| -> Blob { [byte].as_slice().into() };
    let key = |byte: u8| KeyRange::One(bytes(byte));
    let time = Timestamp::from_millis;
    let simple = |k, v, lease: Option<i64>| Put {
        key: bytes(k),
        value: Assign::To(bytes(v)),
        lease: Assign::To(lease.map(LeaseId)),
    };
    match *act {
        Act::Put(k, v, lease) => {
            let known = lease.is_none_or(|id| model.leases.contains_key(&id));
            assert_eq!(store.put(simple(k, v, lease)).is_ok(), known);
            if known {
                model.write(&[(k, v, lease)], &BTreeSet::new());
            }
        }
        Act::Delete(from, to) => {
            store
                .delete(&KeyRange::Between(bytes(from), bytes(to)))
                .unwrap();
            model.write(&[], &(from..to).collect());
        }
        Act::Swap { put, value, delete } => {
            let success = vec![Op::Delete(key(delete)), Op::Put(simple(put, value, None))];
            let done = store.txn(Txn {
                success,
                ..Txn::default()
            });
            assert_eq!(done.is_ok(), put != delete);
            if put != delete {
                model.write(&[(put, value, None)], &BTreeSet::from([delete]));
            }
        }
        Act::Guarded {
            key: k,
            version,
            value,
        } => {
            let operand = Operand::Version(version);
            let compares = vec![Compare {
                range: key(k),
                relation: Relation::Equal,
                operand,
            }];
            let success = vec![Op::Put(simple(k, value, None))];
            let done = store
                .txn(Txn {
                    compares,
                    success,
                    ..Txn::default()
                })
                .unwrap();
            let held = model
                .states
                .last()
                .unwrap()
                .get(&k)
                .map_or(0, |kv| kv.version)
                == version;
            assert_eq!(done.succeeded, held);
            if held {
                model.write(&[(k, value, None)], &BTreeSet::new());
            }
        }
        Act::Grant(id, ttl) => {
            let granted = store.grant(time(*now), Some(LeaseId(id)), Duration::from_millis(ttl));
            assert_eq!(granted.is_ok(), !model.leases.contains_key(&id));
            model.leases.entry(id).or_insert((*now + ttl, ttl));
        }
        Act::Renew(id) => {
            let renewed = store.renew(time(*now), LeaseId(id));
            assert_eq!(renewed.is_ok(), model.leases.contains_key(&id));
            model
                .leases
                .entry(id)
                .and_modify(|(at, ttl)| *at = *now + *ttl);
        }
        Act::Revoke(id) => {
            let known = model.leases.contains_key(&id);
            assert_eq!(store.revoke(LeaseId(id)).is_ok(), known);
            model.end(id);
        }
        Act::Pass(millis) => {
            *now += millis;
            store.expire(time(*now));
            model.expire(*now);
        }
        Act::Compact(back) => {
            let revision = store.revision() - back;
            let later = revision > store.compacted();
            assert_eq!(store.compact(revision).is_ok(), later);
        }
    }
}

fn compare_state(store: &Store, model: &Model, revision: i64) {
    let query = Query {
        revision: Some(revision),
        ..Query::new(everything())
    };
    let found = store.range(&query);
    if revision < store.compacted() {
        assert!(found.is_err());
        return;
    }
    let expected = &model.states[usize::try_from(revision).unwrap()];
    let seen: BTreeMap<u8, ModelKey> = found
        .unwrap()
        .kvs
        .iter()
        .map(|kv| {
            let key = ModelKey {
                value: kv.value[0],
                create: kv.create_revision,
                modified: kv.mod_revision,
                version: kv.version,
                lease: kv.lease.map(|id| id.0),
            };
            (kv.key[0], key)
        })
        .collect();
    assert_eq!(&seen, expected, "revision {revision}");
}

/// Reads as a watcher of everything and compares with what the model says of each revision.
fn follow(store: &Store, model: &Model, cursor: &mut Cursor, most: usize) {
    while cursor.next_revision() <= store.revision() {
        let first = cursor.next_revision();
        let Ok(changes) = store.read(cursor, most) else {
            assert!(first < store.compacted());
            *cursor = Cursor::new(everything(), Kinds::All, store.compacted());
            continue;
        };
        for revision in first..cursor.next_revision() {
            let told = changes
                .iter()
                .filter(|change| change.kv.mod_revision == revision);
            let value =
                |change: &Change| (change.kind == ChangeKind::Put).then(|| change.kv.value[0]);
            let mut told: Vec<_> = told
                .map(|change| (change.kv.key[0], value(change)))
                .collect();
            told.sort_unstable();
            assert_eq!(
                told,
                model.events(usize::try_from(revision).unwrap()),
                "{revision}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn does_what_a_naive_model_does(acts in acts(), most in 1..4_usize, history in 5..30_usize) {
        let bounds = Bounds { history, ..Bounds::default() };
        let (mut store, mut model, mut now) = (Store::new(bounds, 1), Model::new(), 0);
        let mut quick = Cursor::new(everything(), Kinds::All, 2);
        let mut slow = quick.clone();
        for act in &acts {
            act_on(&mut store, &mut model, &mut now, act);
            prop_assert_eq!(store.revision() as usize + 1, model.states.len());
            follow(&store, &model, &mut quick, most);
        }
        follow(&store, &model, &mut slow, most);
        for revision in 1..=store.revision() {
            compare_state(&store, &model, revision);
        }
        let weight = model.states.last().map_or(0, |now| now.len() * 2);
        prop_assert_eq!(store.weight(), weight);
        let ids: Vec<_> = store.leases().map(|id| id.0).collect();
        prop_assert_eq!(ids, model.leases.keys().copied().collect::<Vec<_>>());
    }
}
