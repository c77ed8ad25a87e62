//! The join on virtual time, and the outbox.

use std::collections::{BTreeMap, VecDeque};

use lameduck_core::instance::{BootId, Incarnation, Instance, Life, State};
use lameduck_core::limits;
use lameduck_core::mirror::News;
use lameduck_core::registry::{ErrorClass, RegistryError};
use proptest::prelude::*;

use super::*;

/// A join, its clock, and the list that its updates make.
struct World {
    join: Join,
    now: Timestamp,
    list: BTreeMap<EntryId, Instance>,
    trace: Vec<String>,
    skipped: Vec<String>,
}

fn instance(lease: i64, state: State) -> Instance {
    let boot = BootId::from_bits(lease.unsigned_abs().into());
    let address = "10.0.0.1:80".parse().expect("an address");
    Instance {
        state,
        ..Instance::new(address, Incarnation::Life(Life::first(boot)))
    }
}

fn shadow_of(lease: i64, address: &str) -> Shadow {
    Shadow {
        lease,
        created: 3,
        address: address.parse().map_err(|_| skip(lease, address)),
    }
}

/// What a key of this number ends with.
fn name(number: i64) -> Bytes {
    Bytes::from(number.to_string())
}

fn skip(key: i64, why: &str) -> Skip {
    Skip::new(key.to_string().as_bytes(), &why)
}

/// A record's instance, or that it has none.
fn read(lease: i64, instance: Option<Instance>) -> Record {
    let instance = instance.ok_or_else(|| skip(lease, "no record"));
    Record { instance }
}

fn show(list: &BTreeMap<EntryId, Instance>) -> String {
    let line = |instance: &Instance| {
        let who = match instance.incarnation {
            Incarnation::Life(_) => "ours",
            _ => "foreign",
        };
        let closing = instance.state == State::Closing;
        format!("{who}{}", if closing { " closing" } else { "" })
    };
    let lines: Vec<String> = list.values().map(line).collect();
    lines.join(", ")
}

impl World {
    fn new() -> Self {
        Self {
            join: Join::default(),
            now: Timestamp::ZERO,
            list: BTreeMap::new(),
            trace: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// One whose two ranges are listed and empty.
    fn begun() -> Self {
        let mut world = Self::new();
        world.list_shadows(5, vec![]);
        world.list_records(5, vec![]);
        assert_eq!(world.trace, ["reset: "]);
        world.trace.clear();
        world
    }

    fn drain(&mut self) {
        while let Some(update) = self.join.poll() {
            let word = match update {
                Update::Reset { entries, .. } => {
                    let entries = entries.into_iter();
                    self.list = entries.map(|entry| (entry.id, entry.instance)).collect();
                    "reset: "
                }
                Update::Delta {
                    changed, removed, ..
                } => {
                    for id in removed {
                        assert!(self.list.remove(&id).is_some(), "told before");
                    }
                    let changed = changed.into_iter();
                    self.list
                        .extend(changed.map(|entry| (entry.id, entry.instance)));
                    ""
                }
                Update::Stale(_) => "stale: ",
                Update::Live => "live: ",
                Update::Skipped { what } => {
                    self.skipped.push(what);
                    continue;
                }
            };
            self.trace.push(format!("{word}{}", show(&self.list)));
        }
    }

    fn list_shadows(&mut self, revision: u64, items: Vec<(i64, u64, Shadow)>) {
        let items = items.into_iter().map(|(number, modified, value)| Item {
            key: name(number),
            modified,
            value,
        });
        let items = items.collect();
        self.join.shadows(self.now, News::Reset { items, revision });
        self.drain();
    }

    fn list_records(&mut self, revision: u64, items: Vec<(i64, Option<Instance>)>) {
        let items = items.into_iter().map(|(key, instance)| Item {
            key,
            modified: revision,
            value: read(key, instance),
        });
        let items = items.collect();
        self.join.records(self.now, News::Reset { items, revision });
        self.drain();
    }

    fn shadow(&mut self, number: i64, revision: u64, value: Option<Shadow>) {
        let change = Change {
            key: name(number),
            modified: revision,
            value,
        };
        let changes = Vec::from([change]);
        self.join
            .shadows(self.now, News::Delta { changes, revision });
        self.drain();
    }

    fn record(&mut self, lease: i64, revision: u64, value: Option<Option<Instance>>) {
        let change = Change {
            key: lease,
            modified: revision,
            value: value.map(|instance| read(lease, instance)),
        };
        let changes = Vec::from([change]);
        self.join
            .records(self.now, News::Delta { changes, revision });
        self.drain();
    }

    fn pass(&mut self, time: std::time::Duration) {
        let until = self.now + time;
        while let Some(due) = self.join.deadline().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.join.handle_timeout(self.now);
            self.drain();
        }
        self.now = until;
    }
}

#[test]
fn a_shadow_waits_for_its_record() {
    let mut world = World::begun();
    world.shadow(7, 6, Some(shadow_of(7, "10.0.0.1:80")));
    assert!(world.trace.is_empty());
    world.record(7, 6, Some(Some(instance(7, State::Serving))));
    world.pass(limits::FOREIGN_AFTER);
    assert_eq!(world.trace, ["ours"]);
}

#[test]
fn a_record_alone_is_a_whole_instance() {
    let mut world = World::begun();
    world.record(7, 6, Some(Some(instance(7, State::Serving))));
    world.shadow(7, 6, Some(shadow_of(7, "10.0.0.1:80")));
    world.shadow(7, 7, None);
    world.record(7, 8, Some(Some(instance(7, State::Closing))));
    world.record(7, 9, None);
    assert_eq!(world.trace, ["ours", "ours closing", ""]);
}

#[test]
fn a_key_is_foreign_after_its_time_or_once_the_records_have_passed_it() {
    let mut world = World::begun();
    world.shadow(7, 6, Some(shadow_of(7, "10.0.0.1:80")));
    world.pass(limits::FOREIGN_AFTER - std::time::Duration::from_millis(1));
    assert!(world.trace.is_empty());
    world.pass(std::time::Duration::from_millis(1));
    assert_eq!(world.trace, ["foreign"]);
    world.shadow(8, 7, Some(shadow_of(8, "10.0.0.2:80")));
    world.record(9, 8, Some(Some(instance(9, State::Serving))));
    assert_eq!(world.trace[1..], ["foreign, foreign, ours"]);
}

#[test]
fn a_shadow_stays_one_where_its_record_is_seen_to_go_first() {
    let mut world = World::begun();
    world.record(7, 6, Some(Some(instance(7, State::Serving))));
    world.shadow(7, 6, Some(shadow_of(7, "10.0.0.1:80")));
    world.record(7, 9, None);
    world.pass(limits::FOREIGN_AFTER * 2);
    world.shadow(7, 9, None);
    assert_eq!(world.trace, ["ours", ""]);
}

#[test]
fn a_malformed_record_makes_a_foreign_instance() {
    let mut world = World::begun();
    world.shadow(7, 6, Some(shadow_of(7, "10.0.0.1:80")));
    world.record(7, 6, Some(None));
    assert_eq!(world.trace, ["foreign"]);
    assert_eq!(world.join.malformed(), 1);
    world.record(7, 7, Some(Some(instance(7, State::Serving))));
    world.record(7, 8, Some(None));
    assert_eq!(world.trace[1..], ["ours", "foreign"]);
}

#[test]
fn the_first_list_is_whole() {
    let mut world = World::new();
    let shadow = shadow_of(7, "10.0.0.1:80");
    world.list_shadows(6, vec![(7, 6, shadow)]);
    // The records were listed a moment earlier: the key may still turn out to be ours.
    world.list_records(5, vec![]);
    assert!(world.trace.is_empty());
    world.pass(limits::FOREIGN_AFTER);
    assert_eq!(world.trace, ["reset: foreign"]);
}

fn error(class: ErrorClass) -> RegistryError {
    RegistryError {
        class,
        message: "no".to_owned(),
    }
}

#[test]
fn records_that_may_not_be_read_are_done_without() {
    let mut world = World::new();
    let refused = News::Stale(error(ErrorClass::Refused));
    world.join.records(world.now, refused);
    world.drain();
    let shadow = shadow_of(7, "10.0.0.1:80");
    world.list_shadows(6, vec![(7, 6, shadow)]);
    world.shadow(8, 7, Some(shadow_of(8, "10.0.0.2:80")));
    assert_eq!(world.trace, ["reset: foreign", "foreign, foreign"]);
}

#[test]
fn an_error_makes_the_list_stale_and_nothing_else() {
    let mut world = World::begun();
    world.record(7, 6, Some(Some(instance(7, State::Serving))));
    let now = world.now;
    world
        .join
        .shadows(now, News::Stale(error(ErrorClass::Retry)));
    world
        .join
        .records(now, News::Stale(error(ErrorClass::Retry)));
    world.join.shadows(now, News::Live);
    world.join.records(now, News::Live);
    world.drain();
    assert_eq!(world.trace, ["ours", "stale: ours", "live: ours"]);
}

#[test]
fn a_list_of_one_side_is_not_the_whole_while_the_other_cannot_be_read() {
    let mut world = World::begun();
    let away = || error(ErrorClass::Retry);
    let now = world.now;
    world.join.shadows(now, News::Stale(away()));
    world.join.records(now, News::Stale(away()));
    world.drain();
    let ours = || vec![(7, Some(instance(7, State::Serving)))];
    // What it changes is told all the same; an end of the outage it is not.
    world.list_records(6, ours());
    world.list_shadows(6, vec![]);
    assert_eq!(world.trace, ["stale: ", "ours", "reset: ours"]);
    // The same where the other side goes on from where it was.
    world.trace.clear();
    world.join.shadows(now, News::Stale(away()));
    world.join.records(now, News::Stale(away()));
    world.list_records(7, vec![]);
    world.join.shadows(now, News::Live);
    world.drain();
    assert_eq!(world.trace, ["stale: ours", "", "reset: "]);
}

#[test]
fn keys_that_share_a_lease_or_have_none_are_told_apart() {
    let mut world = World::begun();
    for (number, lease) in [(1, 7), (2, 7), (3, 0), (4, 0), (7, 7)] {
        let address = format!("10.0.0.{number}:80");
        world.shadow(number, 6, Some(shadow_of(lease, &address)));
    }
    world.pass(limits::FOREIGN_AFTER);
    assert_eq!(world.list.len(), 5);
    let named: Vec<&EntryId> = world.list.keys().filter(|id| id.0 > 0).collect();
    assert_eq!(named, [&EntryId(7)]);
    world.shadow(2, 8, None);
    world.shadow(3, 9, None);
    assert_eq!(world.list.len(), 3);
}

#[test]
fn a_value_that_is_no_address_is_skipped_and_its_deletion_works() {
    let mut world = World::begun();
    world.shadow(1, 6, Some(shadow_of(0, "nonsense")));
    world.pass(limits::FOREIGN_AFTER);
    assert!(world.trace.is_empty());
    world.shadow(1, 7, Some(shadow_of(0, "10.0.0.1:80")));
    world.shadow(1, 8, Some(shadow_of(0, "nonsense")));
    world.shadow(1, 9, None);
    assert_eq!(world.trace, ["foreign", ""]);
    assert_eq!(world.join.malformed(), 2);
}

#[test]
fn a_skipped_value_is_said_once_for_each_that_it_takes() {
    let mut world = World::new();
    let nonsense = |why: &str| shadow_of(0, why);
    let listed = vec![
        (1, 6, nonsense("nonsense")),
        (2, 6, shadow_of(0, "10.0.0.2:80")),
    ];
    world.list_shadows(6, listed.clone());
    world.list_records(6, vec![(9, None)]);
    let said = ["key \"0\": nonsense", "key \"9\": no record"];
    assert_eq!(world.skipped, said);
    assert_eq!(world.trace, ["reset: foreign"]);
    // Listed again, written again with a new revision, in another history: the same value.
    world.list_shadows(6, listed.clone());
    world.list_records(7, vec![(9, None)]);
    world.shadow(1, 8, Some(nonsense("nonsense")));
    world.shadow(1, 9, None);
    world.list_shadows(3, listed);
    assert_eq!(world.skipped, said);
    world.shadow(1, 10, Some(nonsense("rubbish")));
    assert_eq!(world.skipped[2..], ["key \"0\": rubbish"]);
    assert_eq!(world.join.malformed(), 7);
}

#[test]
fn no_more_is_said_of_skipped_values_than_their_bound() {
    let mut world = World::begun();
    let most = limits::SKIPPED_TOLD_MAX;
    for (number, revision) in (1..).zip(6..).take(3 * most) {
        world.record(number, revision, Some(None));
    }
    assert_eq!(world.skipped.len(), most);
    let (last, others) = world.skipped.split_last().expect("some were said");
    assert!(last.ends_with("further ones are only counted"), "{last}");
    assert!(others.iter().all(|what| what.ends_with("no record")));
    assert_eq!(world.join.malformed(), 3 * most as u64);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Register(i64),
    Close(i64),
    End(i64),
    Foreign(i64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let lease = 1..5_i64;
    prop_oneof![
        lease.clone().prop_map(Step::Register),
        lease.clone().prop_map(Step::Close),
        lease.clone().prop_map(Step::End),
        lease.prop_map(|lease| Step::Foreign(lease + 100)),
    ]
}

type Events<V> = VecDeque<(i64, u64, Option<V>)>;

/// What the two watches tell of some steps, and what stands there in the end.
fn history(steps: &[Step]) -> (Events<Shadow>, Events<Option<Instance>>, Vec<String>) {
    let (mut shadows, mut records) = (Events::new(), Events::new());
    let mut truth = BTreeMap::new();
    let mut ended = Vec::new();
    for (revision, step) in (6..).zip(steps) {
        match *step {
            // No lease ever comes back.
            Step::Register(lease) if !truth.contains_key(&lease) && !ended.contains(&lease) => {
                let serving = instance(lease, State::Serving);
                shadows.push_back((lease, revision, Some(shadow_of(lease, "10.0.0.1:80"))));
                records.push_back((lease, revision, Some(Some(serving))));
                truth.insert(lease, "ours".to_owned());
            }
            Step::Close(lease) if truth.contains_key(&lease) => {
                let closing = instance(lease, State::Closing);
                shadows.push_back((lease, revision, None));
                records.push_back((lease, revision, Some(Some(closing))));
                truth.insert(lease, "ours closing".to_owned());
            }
            Step::End(lease) if truth.remove(&lease).is_some() => {
                ended.push(lease);
                shadows.push_back((lease, revision, None));
                records.push_back((lease, revision, None));
            }
            Step::Foreign(lease) => {
                let shadow = shadow_of(lease, "10.0.0.9:80");
                shadows.push_back((lease, revision, Some(shadow)));
                truth.insert(lease, "foreign".to_owned());
            }
            _ => {}
        }
    }
    (shadows, records, truth.into_values().collect())
}

proptest! {
    #[test]
    fn in_whatever_order_the_two_ranges_are_seen(
        steps in prop::collection::vec(any_step(), 0..20),
        order in prop::collection::vec(any::<bool>(), 80),
    ) {
        let (mut shadows, mut records, truth) = history(&steps);
        let mut world = World::begun();
        for first in order {
            if first && let Some((number, revision, value)) = shadows.pop_front() {
                world.shadow(number, revision, value);
            } else if let Some((lease, revision, value)) = records.pop_front() {
                world.record(lease, revision, value);
            }
            let mistaken = world.list.iter().any(|(id, instance)| {
                id.0 < 100 && matches!(instance.incarnation, Incarnation::Lease(_))
            });
            prop_assert!(!mistaken, "a shadow was taken for an instance: {:?}", world.trace);
        }
        while let Some((number, revision, value)) = shadows.pop_front() {
            world.shadow(number, revision, value);
        }
        while let Some((lease, revision, value)) = records.pop_front() {
            world.record(lease, revision, value);
        }
        world.pass(limits::FOREIGN_AFTER);
        prop_assert_eq!(show(&world.list), truth.join(", "));
    }
}

#[test]
fn an_owner_who_does_not_look_gets_the_sum() {
    let outbox = Outbox::default();
    let entry = |id: i64| Entry {
        id: EntryId(id),
        instance: instance(id, State::Serving),
    };
    let delta = |changed: Vec<i64>, removed: Vec<i64>, revision| Update::Delta {
        changed: changed.into_iter().map(entry).collect(),
        removed: removed.into_iter().map(EntryId).collect(),
        revision,
    };
    let mut context = Context::from_waker(Waker::noop());
    let mut next = || match outbox.poll(&mut context) {
        Poll::Ready(update) => update,
        Poll::Pending => None,
    };
    assert_eq!(next(), None);
    outbox.push(delta(vec![1, 2], vec![], 6));
    outbox.push(delta(vec![3], vec![1], 7));
    outbox.push(Update::Stale(error(ErrorClass::Retry)));
    outbox.push(Update::Live);
    assert_eq!(next(), Some(delta(vec![2, 3], vec![1], 7)));
    assert_eq!(next(), Some(Update::Live));
    assert_eq!(next(), None);
    outbox.push(delta(vec![1], vec![], 8));
    let reset = Update::Reset {
        entries: vec![entry(9)],
        revision: 9,
    };
    outbox.push(reset.clone());
    outbox.push(delta(vec![], vec![9], 10));
    assert_eq!(next(), Some(reset.clone()));
    assert_eq!(next(), Some(delta(vec![], vec![9], 10)));
    assert_eq!(next(), None);
    // What is said of skipped values is said whatever comes after it, behind the list.
    let skipped = |what: &str| Update::Skipped {
        what: what.to_owned(),
    };
    outbox.push(skipped("one"));
    outbox.push(Update::Stale(error(ErrorClass::Retry)));
    outbox.push(skipped("two"));
    outbox.push(reset.clone());
    outbox.push(Update::Stale(error(ErrorClass::Retry)));
    assert_eq!(next(), Some(reset));
    assert_eq!(next(), Some(skipped("one")));
    assert_eq!(next(), Some(skipped("two")));
    assert_eq!(next(), Some(Update::Stale(error(ErrorClass::Retry))));
    assert_eq!(next(), None);
}
