use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use core::time::Duration;
use std::collections::BTreeMap as Map;
use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::instance::{BootId, Instance, State};
use crate::limits::{CLAIM_TOLD_AFTER, PUBLISH_PACE, TOMBSTONE_TTL, TOMBSTONES_MAX};
use crate::registry::{Entry, ErrorClass, RegistryError};
use crate::table::assert_table;

const A: &str = "10.0.0.1:80";
const B: &str = "10.0.0.2:80";

fn life(boot: u128) -> Incarnation {
    Incarnation::Life(Life::first(BootId::from_bits(boot)))
}

fn resumed(boot: u128) -> Life {
    Life::first(BootId::from_bits(boot)).resumed()
}

fn entry(id: i64, address: &str, incarnation: Incarnation) -> Entry {
    let instance = Instance::new(address.parse().expect("an address"), incarnation);
    Entry {
        id: EntryId(id),
        instance,
    }
}

fn closing(id: i64, address: &str, incarnation: Incarnation) -> Entry {
    let mut entry = entry(id, address, incarnation);
    entry.instance.state = State::Closing;
    entry
}

fn list(entries: Vec<Entry>) -> Input {
    Input::Update(Update::Reset {
        entries,
        revision: 0,
    })
}

fn change(changed: Vec<Entry>, removed: &[i64]) -> Input {
    let removed = removed.iter().map(|id| EntryId(*id)).collect();
    Input::Update(Update::Delta {
        changed,
        removed,
        revision: 0,
    })
}

fn skipped(what: &str) -> Input {
    let what = what.to_string();
    Input::Update(Update::Skipped { what })
}

fn mark(incarnation: Incarnation) -> Input {
    Input::Closing {
        incarnation,
        source: ClosingSource::Mark,
    }
}

fn up(id: u64) -> [Input; 2] {
    let endpoint = EndpointId(id);
    [
        Input::Health {
            endpoint,
            serving: true,
        },
        Input::Link { endpoint, up: true },
    ]
}

fn down(id: u64) -> Input {
    Input::Link {
        endpoint: EndpointId(id),
        up: false,
    }
}

fn sick(id: u64) -> Input {
    Input::Health {
        endpoint: EndpointId(id),
        serving: false,
    }
}

fn ended(id: u64) -> Input {
    Input::PeerEnded {
        endpoint: EndpointId(id),
    }
}

fn says(id: u64, life: Life) -> Input {
    Input::Identified {
        endpoint: EndpointId(id),
        life,
        right_service: true,
    }
}

fn directory() -> Directory {
    Directory::new(None, Tombstones::new())
}

fn feed(directory: &mut Directory, now: Timestamp, inputs: impl IntoIterator<Item = Input>) {
    for input in inputs {
        directory.handle(now, input);
    }
}

fn drain(directory: &mut Directory) -> Vec<Output> {
    std::iter::from_fn(|| directory.poll()).collect()
}

fn show(output: &Output) -> Option<String> {
    Some(match output {
        Output::Add {
            endpoint, address, ..
        } => format!("add {} {address}", endpoint.0),
        Output::Dialling { endpoint, allowed } => format!("dial {} {allowed}", endpoint.0),
        Output::Became {
            endpoint,
            incarnation,
        } => {
            format!("became {} {}", endpoint.0, short(*incarnation))
        }
        Output::Remove { endpoint } => format!("remove {}", endpoint.0),
        Output::Publish(_) => return None,
        Output::Event(Event::TierChanged {
            incarnation, tier, ..
        }) => {
            format!("{} is {tier:?}", short(*incarnation))
        }
        Output::Event(Event::Closing {
            incarnation,
            source,
            ..
        }) => {
            format!("{} closing by {source:?}", short(*incarnation))
        }
        Output::Event(Event::ClosingLifted { incarnation, .. }) => {
            format!("{} lifted", short(*incarnation))
        }
        Output::Event(Event::DirectoryStale { .. }) => "stale".to_string(),
        Output::Event(Event::DirectoryLive { after, .. }) => format!("live after {after:?}"),
        Output::Event(Event::RecordSkipped { what, .. }) => format!("skipped {what}"),
        Output::Event(Event::AddressClaimed { address, lives, .. }) => {
            let [one, other] = lives.map(short);
            format!("{address} is claimed by {one} and {other}")
        }
        Output::Event(other) => format!("{other:?}"),
    })
}

fn short(incarnation: Incarnation) -> String {
    match incarnation {
        Incarnation::Life(life) => format!("life {}", life.to_string().trim_start_matches('0')),
        other => other.to_string(),
    }
}

fn outputs(directory: &mut Directory) -> Vec<String> {
    drain(directory).iter().filter_map(show).collect()
}

/// Feeds `before` silently, then compares what `then` brings about.
fn check(before: Vec<Input>, then: Vec<Input>, expected: &[&str]) {
    let mut directory = directory();
    feed(&mut directory, Timestamp::ZERO, before);
    drain(&mut directory);
    feed(&mut directory, Timestamp::from_millis(1), then);
    assert_eq!(outputs(&mut directory), expected);
}

fn two_up() -> Vec<Input> {
    let mut inputs = vec![list(vec![entry(1, A, life(1)), entry(2, B, life(2))])];
    inputs.extend(up(0));
    inputs.extend(up(1));
    inputs
}

fn after(mut before: Vec<Input>, then: impl IntoIterator<Item = Input>) -> Vec<Input> {
    before.extend(then);
    before
}

#[test]
fn an_endpoint_is_ready_once_it_is_connected() {
    check(
        vec![],
        vec![list(vec![entry(1, A, life(1))])],
        &["add 0 10.0.0.1:80"],
    );
    let one = vec![list(vec![entry(1, A, life(1))])];
    check(one, up(0).to_vec(), &["life 1.0 is Ready"]);
}

#[test]
fn an_error_is_never_an_empty_list() {
    let error = RegistryError {
        class: ErrorClass::Retry,
        message: "away".to_string(),
    };
    let stale = Input::Update(Update::Stale(error));
    let mut directory = directory();
    feed(
        &mut directory,
        Timestamp::ZERO,
        after(two_up(), [stale.clone(), stale]),
    );
    let snapshot = directory.published.clone().expect("published");
    assert!(snapshot.stale.is_some() && !snapshot.known_empty);
    assert_eq!(snapshot.members.len(), 2);
    assert_eq!(
        outputs(&mut directory)
            .iter()
            .filter(|out| *out == "stale")
            .count(),
        1
    );
    feed(
        &mut directory,
        Timestamp::ZERO,
        [Input::Update(Update::Live)],
    );
    let published = directory.published.as_ref().expect("published");
    assert!(published.stale.is_none());
}

#[test]
fn each_outage_of_the_registry_has_one_beginning_and_one_end() {
    let error = RegistryError {
        class: ErrorClass::Retry,
        message: "away".to_string(),
    };
    let stale = || Input::Update(Update::Stale(error.clone()));
    let live = || Input::Update(Update::Live);
    let outage = || vec![stale(), stale(), live(), live()];
    let said = ["stale", "live after 0ns"];
    check(vec![], outage(), &said);
    check(two_up(), outage(), &said);
    let since = || after(two_up(), [stale()]);
    let said = "live after 1ms";
    check(since(), vec![live(), live()], &[said]);
    // Changes may come from the part that can be read.
    check(since(), vec![change(vec![], &[])], &[]);
    let listed = vec![entry(1, A, life(1)), entry(2, B, life(2))];
    check(since(), vec![list(listed), live()], &[said]);
}

#[test]
fn a_skipped_value_is_said_and_changes_nothing() {
    let said = ["skipped one", "skipped two"];
    let inputs = || vec![skipped("one"), skipped("two")];
    check(two_up(), inputs(), &said);
    // It says nothing of the rest, either: what was not known is not, what is stale stays so.
    let error = RegistryError {
        class: ErrorClass::Retry,
        message: "away".to_string(),
    };
    let stale = Input::Update(Update::Stale(error));
    for before in [vec![], two_up(), after(two_up(), [stale])] {
        let mut directory = directory();
        feed(&mut directory, Timestamp::ZERO, before);
        let published = directory.published.clone().unwrap_or_default();
        drain(&mut directory);
        feed(&mut directory, Timestamp::ZERO, inputs());
        assert_eq!(outputs(&mut directory), said);
        assert_eq!(directory.published, Some(published));
    }
}

#[test]
fn known_empty_is_knowledge() {
    let mut directory = directory();
    feed(
        &mut directory,
        Timestamp::ZERO,
        [Input::Update(Update::Live)],
    );
    assert!(!directory.published.clone().expect("published").known_empty);
    feed(&mut directory, Timestamp::ZERO, [list(vec![])]);
    assert!(directory.published.expect("published").known_empty);
}

#[test]
fn a_mark_takes_the_life_out_and_it_stays_out() {
    check(
        two_up(),
        vec![mark(life(1))],
        &["life 1.0 closing by Mark", "life 1.0 is LastResort"],
    );
    // The registry follows: there is nothing to be found at that address any more.
    check(
        after(two_up(), [mark(life(1))]),
        vec![change(vec![closing(1, A, life(1))], &[])],
        &["dial 0 false"],
    );
    // Late data of the old life: the same registration anew, and once it is gone, again.
    let marked = after(two_up(), [mark(life(1))]);
    check(
        marked.clone(),
        vec![change(vec![entry(3, A, life(1))], &[1])],
        &[],
    );
    let gone = after(marked, [down(0), change(vec![], &[1])]);
    check(gone, vec![change(vec![entry(3, A, life(1))], &[])], &[]);
}

#[test]
fn r25_what_is_closing_is_dialled_while_nothing_is_ready() {
    let closes = |id: i64, address, boot| {
        [
            mark(life(boot)),
            change(vec![closing(id, address, life(boot))], &[]),
        ]
    };
    let one = after(two_up(), closes(1, A, 1));
    // The other one leaves too: the first is a last resort again, with its connection or without.
    check(
        one.clone(),
        closes(2, B, 2).to_vec(),
        &[
            "life 2.0 closing by Mark",
            "life 2.0 is LastResort",
            "dial 0 true",
        ],
    );
    let both = after(one, closes(2, B, 2));
    check(
        both.clone(),
        vec![down(0), down(1)],
        &["life 1.0 is Out", "life 2.0 is Out"],
    );
    // Somebody is ready: they are dialled no more, and those without a connection are forgotten.
    let mut next = vec![change(vec![entry(3, "10.0.0.3:80", life(3))], &[])];
    next.extend(up(2));
    check(
        after(both, [down(0)]),
        next,
        &[
            "add 2 10.0.0.3:80",
            "life 3.0 is Ready",
            "dial 0 false",
            "dial 1 false",
            "remove 0",
        ],
    );
}

#[test]
fn c32_a_new_life_at_the_address_is_used_at_its_first_event() {
    let gone = after(two_up(), [mark(life(1)), down(0)]);
    check(
        gone.clone(),
        vec![change(vec![entry(3, A, life(7))], &[])],
        &["add 2 10.0.0.1:80"],
    );
    let mut again = vec![change(vec![entry(3, A, life(7))], &[])];
    again.extend(up(2));
    check(gone, again, &["add 2 10.0.0.1:80", "life 7.0 is Ready"]);
}

#[test]
fn c32_resume_lifts_the_mark() {
    let marked = after(two_up(), [mark(life(1))]);
    check(
        marked.clone(),
        vec![says(0, resumed(1))],
        &["became 0 life 1.1", "life 1.1 lifted", "life 1.1 is Ready"],
    );
    let listed = entry(3, A, Incarnation::Life(resumed(1)));
    check(
        marked.clone(),
        vec![change(vec![listed], &[])],
        &["became 0 life 1.1", "life 1.1 lifted", "life 1.1 is Ready"],
    );
    // A late statement of the past takes nothing back.
    let resumed = after(marked, [says(0, resumed(1))]);
    check(resumed, vec![mark(life(1))], &[]);
}

#[test]
fn the_registrys_closing_is_a_statement() {
    check(
        two_up(),
        vec![change(vec![closing(1, A, life(1))], &[])],
        &[
            "life 1.0 closing by Registry",
            "life 1.0 is LastResort",
            "dial 0 false",
        ],
    );
    // A caller that starts only now may still use it where nothing else is there.
    let listed = vec![list(vec![closing(1, A, life(1))])];
    check(
        vec![],
        listed.clone(),
        &["add 0 10.0.0.1:80", "life 1.0 closing by Registry"],
    );
    check(listed, up(0).to_vec(), &["life 1.0 is LastResort"]);
}

#[test]
fn not_serving_alone_is_no_statement() {
    check(two_up(), vec![sick(0)], &["life 1.0 is Out"]);
    check(two_up(), vec![ended(0)], &[]);
    check(
        after(two_up(), [sick(0)]),
        up(0).to_vec(),
        &["life 1.0 is Ready"],
    );
}

#[test]
fn not_serving_and_the_peers_end_is_one_that_serving_lifts() {
    let ended = after(two_up(), [sick(0), ended(0)]);
    check(ended.clone(), vec![down(0)], &["life 1.0 is Out"]);
    let redialled = after(ended, [down(0)]);
    check(
        redialled,
        up(0).to_vec(),
        &["life 1.0 lifted", "life 1.0 is Ready"],
    );
}

#[test]
fn a_lone_removal_uses_the_rest_and_keeps_the_last() {
    check(
        two_up(),
        vec![change(vec![], &[1])],
        &[
            "life 1.0 is LastResort",
            "dial 0 false",
            "life 1.0 is Out",
            "remove 0",
        ],
    );
    let one_left = after(two_up(), [change(vec![], &[1])]);
    check(
        one_left.clone(),
        vec![change(vec![], &[2])],
        &["life 2.0 is LastResort", "dial 1 false"],
    );
    check(
        after(one_left, [change(vec![], &[2])]),
        vec![down(1)],
        &["life 2.0 is Out", "remove 1"],
    );
}

#[test]
fn a_restart_that_the_registry_does_not_know_of() {
    let next = Life::first(BootId::from_bits(9));
    check(
        after(two_up(), [down(0)]),
        after(vec![says(0, next)], up(0)),
        &["became 0 life 9.0", "life 9.0 is Ready"],
    );
    // The registry learns of it too: the old registration's endpoint is the new one's twin.
    let both = after(
        two_up(),
        [
            down(0),
            change(vec![entry(3, A, Incarnation::Life(next))], &[]),
        ],
    );
    check(both.clone(), vec![says(0, next)], &["remove 0"]);
    check(
        after(both, [says(0, next)]),
        vec![change(vec![], &[1])],
        &[],
    );
}

#[test]
fn everybody_restarts_in_place_while_the_registry_is_dead() {
    let next = Life::first(BootId::from_bits(9));
    let gone = after(two_up(), [mark(life(1)), down(0)]);
    check(
        gone,
        after(vec![says(0, next)], up(0)),
        &["became 0 life 9.0", "life 9.0 is Ready"],
    );
}

#[test]
fn somebody_else_lives_there() {
    let stranger = Life::first(BootId::from_bits(9));
    let wrong = Input::Identified {
        endpoint: EndpointId(0),
        life: stranger,
        right_service: false,
    };
    check(two_up(), vec![wrong.clone()], &["life 1.0 is Out"]);
    check(
        after(two_up(), [wrong]),
        vec![says(0, resumed(1))],
        &["became 0 life 1.1", "life 1.1 is Ready"],
    );
}

#[test]
fn a_bare_address_is_dialled_whoever_is_there() {
    let bare = vec![list(vec![entry(1, A, Incarnation::Unknown)])];
    let first = Life::first(BootId::from_bits(1));
    let known = after(after(bare, [says(0, first)]), up(0));
    check(
        known.clone(),
        vec![mark(life(1))],
        &["life 1.0 closing by Mark", "life 1.0 is LastResort"],
    );
    let gone = after(known, [mark(life(1)), down(0)]);
    let next = Life::first(BootId::from_bits(2));
    check(
        gone,
        after(vec![says(0, next)], up(0)),
        &["became 0 life 2.0", "life 2.0 is Ready"],
    );
}

#[test]
fn leaked_foreign_registrations_close_together() {
    let lease = Incarnation::Lease;
    let listed = vec![list(vec![
        entry(1, A, lease(1)),
        entry(2, A, lease(2)),
        entry(3, B, lease(3)),
    ])];
    let all = after(after(listed, up(0)), up(1));
    check(
        all,
        vec![sick(0), ended(0)],
        &[
            "lease 1 is Out",
            "lease 1 closing by Health",
            "lease 2 closing by Health",
            "lease 1 is LastResort",
            "lease 2 is LastResort",
        ],
    );
}

/// What is said of claims after `steps`, each of which comes so many milliseconds after the last one.
fn claims(steps: Vec<(u64, Input)>) -> Vec<String> {
    let (mut directory, mut now) = (directory(), Timestamp::ZERO);
    for (later, input) in steps {
        now += Duration::from_millis(later);
        directory.handle_timeout(now);
        directory.handle(now, input);
    }
    while let Some((at, _)) = directory.deadline() {
        now = now.max(at);
        directory.handle_timeout(now);
    }
    let mut said = outputs(&mut directory);
    said.retain(|one| one.contains("claimed"));
    said
}

#[test]
fn r28_two_lives_that_claim_one_address_are_said_once() {
    let both = || list(vec![entry(1, A, life(1)), entry(2, A, life(2))]);
    let said = ["10.0.0.1:80 is claimed by life 1.0 and life 2.0"];
    assert_eq!(claims(vec![(0, both())]), said);
    // Whatever else happens there, and whoever answers.
    let identity = says(0, Life::first(BootId::from_bits(2)));
    let late = 2 * CLAIM_TOLD_AFTER.as_millis() as u64;
    let busy = vec![(0, both()), (1, identity), (late, both()), (1, down(1))];
    assert_eq!(claims(busy), said);
    // Foreign registrations, with a life or alone.
    for (one, other) in [
        (Incarnation::Lease(7), Incarnation::Lease(9)),
        (Incarnation::Lease(7), life(1)),
        (Incarnation::Revision(7), life(1)),
    ] {
        let both = list(vec![entry(1, A, one), entry(2, A, other)]);
        assert_eq!(claims(vec![(0, both)]).len(), 1, "{one} {other}");
    }
    // Each address for itself.
    let two = vec![
        entry(1, A, life(1)),
        entry(2, A, life(2)),
        entry(3, B, life(1)),
        entry(4, B, life(3)),
    ];
    assert_eq!(claims(vec![(0, list(two))]).len(), 2);
    // A third one that comes in place of the first is another claim.
    let third = change(vec![entry(3, A, life(3))], &[1]);
    let third = claims(vec![(0, both()), (late, third)]);
    assert_eq!(
        third[1], "10.0.0.1:80 is claimed by life 2.0 and life 3.0",
        "{third:?}"
    );
}

#[test]
fn r28_a_restart_at_its_address_is_no_claim() {
    let lease = CLAIM_TOLD_AFTER.as_millis() as u64 / 3;
    let one = || list(vec![entry(1, A, life(1))]);
    let next = |id: i64| change(vec![entry(id, A, life(id as u128))], &[]);
    let gone = |id: i64| change(vec![], &[id]);
    // Killed and started again: the old registration stays until its lease ends.
    let killed = vec![(0, one()), (1, next(2)), (lease, gone(1))];
    assert_eq!(claims(killed), [""; 0]);
    // Again and again: at no time has one pair had its time.
    let mut again = vec![(0, one())];
    for id in 1..20 {
        again.extend([(1, next(id + 1)), (lease, gone(id))]);
    }
    assert_eq!(claims(again), [""; 0]);
    let closes = vec![
        (0, one()),
        (1, next(2)),
        (1, change(vec![closing(1, A, life(1))], &[])),
    ];
    assert_eq!(claims(closes), [""; 0]);
    for other in [
        entry(2, A, Incarnation::Life(resumed(1))),
        entry(2, A, life(1)),
        entry(2, A, Incarnation::Unknown),
        entry(2, B, life(2)),
    ] {
        let name = format!("{other:?}");
        let both = vec![(0, one()), (1, change(vec![other], &[]))];
        assert_eq!(claims(both), [""; 0], "{name}");
    }
}

#[test]
fn r28_nothing_is_kept_of_a_claim_whose_registrations_are_gone() {
    let both = list(vec![entry(1, A, life(1)), entry(2, A, life(2))]);
    let mut directory = directory();
    feed(&mut directory, Timestamp::ZERO, [both, list(vec![])]);
    assert_eq!(directory.claims, Claims::new());
    assert_eq!(directory.deadline(), None);
}

#[test]
fn not_ready_in_the_registry_gets_no_calls() {
    let mut unready = entry(1, A, life(1));
    unready.instance.ready = false;
    check(
        two_up(),
        vec![change(vec![unready], &[])],
        &["life 1.0 is Out"],
    );
}

#[test]
fn a_tombstone_ends_with_its_time() {
    let mut directory = directory();
    feed(
        &mut directory,
        Timestamp::ZERO,
        after(two_up(), [mark(life(1))]),
    );
    let (at, _) = directory.deadline().expect("a tombstone");
    assert_eq!(at, Timestamp::ZERO + TOMBSTONE_TTL);
    drain(&mut directory);
    directory.handle_timeout(at - Duration::from_nanos(1));
    assert_eq!(outputs(&mut directory), [""; 0]);
    directory.handle_timeout(at);
    assert_eq!(outputs(&mut directory), ["life 1.0 is Ready"]);
    assert_eq!(directory.deadline(), None);
}

#[test]
fn what_a_tombstone_hid_is_dialled_once_it_hides_nothing() {
    let late = change(vec![entry(3, A, life(1))], &[]);
    let gone = [mark(life(1)), down(0), change(vec![], &[1]), late];
    let hidden = || {
        let mut directory = directory();
        feed(
            &mut directory,
            Timestamp::ZERO,
            after(two_up(), gone.clone()),
        );
        drain(&mut directory);
        directory
    };
    let mut expired = hidden();
    expired.handle_timeout(Timestamp::ZERO + TOMBSTONE_TTL);
    assert_eq!(outputs(&mut expired), ["add 2 10.0.0.1:80"]);
    let mut crowded_out = hidden();
    let others = (0..TOMBSTONES_MAX).map(|n| mark(Incarnation::Lease(n as i64)));
    feed(&mut crowded_out, Timestamp::from_millis(1), others);
    assert_eq!(outputs(&mut crowded_out), ["add 2 10.0.0.1:80"]);
}

#[test]
fn a_guess_of_another_directory_does_not_outweigh_what_is_heard_here() {
    let guess = Input::Closing {
        incarnation: life(1),
        source: ClosingSource::Health,
    };
    // Another service of the same life is not served, or what served again was guessed before.
    check(two_up(), vec![guess.clone()], &[]);
    let ended = after(two_up(), [sick(0), ended(0)]);
    check(
        ended,
        vec![down(0), up(0)[0].clone(), up(0)[1].clone(), guess.clone()],
        &["life 1.0 is Out", "life 1.0 lifted", "life 1.0 is Ready"],
    );
    // Where nothing is heard, it counts.
    check(
        after(two_up(), [down(0)]),
        vec![guess, up(0)[1].clone()],
        &["life 1.0 closing by Health", "life 1.0 is LastResort"],
    );
}

#[test]
fn a_guess_from_health_does_not_hide_from_the_dial_that_may_prove_it_wrong() {
    let guessed = after(two_up(), [sick(0), ended(0), down(0), change(vec![], &[1])]);
    let listed = change(vec![entry(3, A, life(1))], &[]);
    check(
        guessed.clone(),
        vec![listed.clone()],
        &["add 2 10.0.0.1:80"],
    );
    check(
        after(guessed, [listed]),
        up(2).to_vec(),
        &["life 1.0 lifted", "life 1.0 is Ready"],
    );
}

#[test]
fn a_new_directory_knows_what_the_hub_knows() {
    let mut stones = Tombstones::new();
    stones.insert(Timestamp::ZERO, life(1), ClosingSource::Mark);
    let mut directory = Directory::new(None, stones);
    feed(
        &mut directory,
        Timestamp::ZERO,
        [list(vec![entry(1, A, life(1)), entry(2, B, life(2))])],
    );
    assert_eq!(outputs(&mut directory), ["add 0 10.0.0.2:80"]);
}

#[test]
fn whole_table() {
    let mut text = String::new();
    for (state, before) in states() {
        for (input, then) in inputs() {
            let mut directory = directory();
            feed(&mut directory, Timestamp::ZERO, before.clone());
            drain(&mut directory);
            feed(&mut directory, Timestamp::from_millis(1), [then]);
            let outputs = outputs(&mut directory).join("; ");
            let outputs = if outputs.is_empty() { "-" } else { &outputs };
            writeln!(text, "{state:<12} | {input:<16} | {outputs}").expect("a String takes all");
        }
    }
    assert_table("directory", &text);
}

fn states() -> Vec<(&'static str, Vec<Input>)> {
    let listed = vec![list(vec![entry(1, A, life(1))])];
    let ready = after(listed.clone(), up(0));
    vec![
        ("nothing", vec![]),
        ("listed", listed),
        ("ready", ready.clone()),
        ("beside", two_up()),
        ("not-serving", after(ready.clone(), [sick(0)])),
        ("down", after(ready.clone(), [down(0)])),
        ("closing", after(ready.clone(), [mark(life(1))])),
        ("guessed", after(ready.clone(), [sick(0), ended(0)])),
        ("unlisted", after(ready, [change(vec![], &[1])])),
        (
            "hidden",
            vec![mark(life(1)), list(vec![entry(1, A, life(1))])],
        ),
    ]
}

fn inputs() -> Vec<(&'static str, Input)> {
    vec![
        ("listed again", change(vec![entry(9, A, life(1))], &[])),
        ("next life", change(vec![entry(9, A, life(9))], &[])),
        (
            "resumed",
            change(vec![entry(9, A, Incarnation::Life(resumed(1)))], &[]),
        ),
        (
            "bare address",
            change(vec![entry(9, A, Incarnation::Unknown)], &[]),
        ),
        ("says closing", change(vec![closing(1, A, life(1))], &[])),
        ("removed", change(vec![], &[1])),
        ("empty list", list(vec![])),
        ("skipped value", skipped("one")),
        ("mark", mark(life(1))),
        ("mark of other", mark(life(9))),
        (
            "up",
            Input::Link {
                endpoint: EndpointId(0),
                up: true,
            },
        ),
        ("down", down(0)),
        (
            "serving",
            Input::Health {
                endpoint: EndpointId(0),
                serving: true,
            },
        ),
        ("not serving", sick(0)),
        ("peer ended", ended(0)),
        ("identified", says(0, Life::first(BootId::from_bits(1)))),
        ("other identity", says(0, Life::first(BootId::from_bits(9)))),
        ("identity resumed", says(0, resumed(1))),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    List(Vec<(i64, u8, u128, bool)>),
    Change(i64, u8, u128, bool),
    Drop(i64),
    Mark(u128),
    Link(u64, bool),
    Health(u64, bool),
    Ended(u64),
    Says(u64, u128, u32, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let item = (0_i64..6, 0_u8..3, 1_u128..5, any::<bool>());
    let step = prop_oneof![
        1 => prop::collection::vec(item.clone(), 0..5).prop_map(Step::List),
        4 => item.prop_map(|(id, at, boot, closing)| Step::Change(id, at, boot, closing)),
        2 => (0_i64..6).prop_map(Step::Drop),
        1 => (1_u128..5).prop_map(Step::Mark),
        5 => (0_u64..8, any::<bool>()).prop_map(|(id, up)| Step::Link(id, up)),
        3 => (0_u64..8, any::<bool>()).prop_map(|(id, serving)| Step::Health(id, serving)),
        1 => (0_u64..8).prop_map(Step::Ended),
        2 => (0_u64..8, 1_u128..5, 0_u32..2, any::<bool>())
            .prop_map(|(id, boot, epoch, right)| Step::Says(id, boot, epoch, right)),
    ];
    prop::collection::vec(step, 0..60)
}

fn stepped(step: Step) -> Input {
    let item = |(id, at, boot, leaving): (i64, u8, u128, bool)| {
        let address = format!("10.0.0.{at}:80");
        if leaving {
            closing(id, &address, life(boot))
        } else {
            entry(id, &address, life(boot))
        }
    };
    match step {
        Step::List(items) => list(items.into_iter().map(item).collect()),
        Step::Change(id, at, boot, closing) => change(vec![item((id, at, boot, closing))], &[]),
        Step::Drop(id) => change(vec![], &[id]),
        Step::Mark(boot) => mark(life(boot)),
        Step::Link(id, up) => Input::Link {
            endpoint: EndpointId(id),
            up,
        },
        Step::Health(id, serving) => Input::Health {
            endpoint: EndpointId(id),
            serving,
        },
        Step::Ended(id) => ended(id),
        Step::Says(id, boot, epoch, right_service) => {
            let life = Life {
                boot: BootId::from_bits(boot),
                epoch,
            };
            Input::Identified {
                endpoint: EndpointId(id),
                life,
                right_service,
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever comes in whatever order: the edge can follow the outputs one by one, nobody who
    /// said that it is closing is in tier 1, and the published view is what the outputs tell.
    #[test]
    fn outputs_can_be_followed(steps in steps()) {
        let mut directory = directory();
        let mut followed: Map<EndpointId, Incarnation> = Map::new();
        let mut last = None;
        for (position, step) in steps.into_iter().enumerate() {
            directory.handle(Timestamp::from_millis(position as u64), stepped(step));
            while let Some(output) = directory.poll() {
                match output {
                    Output::Add { endpoint, incarnation, .. } => {
                        prop_assert!(followed.insert(endpoint, incarnation).is_none());
                    }
                    Output::Became { endpoint, incarnation } => {
                        prop_assert!(followed.insert(endpoint, incarnation).is_some());
                    }
                    Output::Remove { endpoint } => prop_assert!(followed.remove(&endpoint).is_some()),
                    Output::Dialling { endpoint, .. } => prop_assert!(followed.contains_key(&endpoint)),
                    Output::Publish(snapshot) => last = Some(snapshot),
                    Output::Event(_) => {}
                }
            }
            let snapshot = last.clone().expect("published after the first input");
            let members: Map<_, _> =
                snapshot.members.iter().map(|m| (m.endpoint, m.incarnation)).collect();
            prop_assert_eq!(&members, &followed);
            let mut addresses: Map<Address, BTreeSet<EndpointId>> = Map::new();
            for member in &snapshot.members {
                addresses.entry(member.address.clone()).or_default().insert(member.endpoint);
            }
            prop_assert_eq!(&directory.addresses, &addresses, "the index is what it indexes");
            for member in &snapshot.members {
                let hidden = directory.tombstones().hides(member.incarnation);
                prop_assert!(!(hidden && member.tier == Tier::Ready), "{:?}", member);
            }
        }
    }

    /// To look only at what was touched finds what a look at everything finds.
    #[test]
    fn nothing_that_changed_is_overlooked(steps in steps()) {
        let (mut one, mut all) = (directory(), directory());
        for (position, step) in steps.into_iter().enumerate() {
            let now = Timestamp::from_millis(position as u64 * 20_000);
            one.handle_timeout(now);
            all.handle_timeout(now);
            one.handle(now, stepped(step.clone()));
            all.touch_all();
            all.handle(now, stepped(step));
            let (all, all_deadline) = (drain(&mut all), all.deadline());
            prop_assert_eq!(drain(&mut one), all);
            prop_assert_eq!(one.deadline(), all_deadline);
        }
    }
}

fn long_list() -> Input {
    let entries = (0..3_000).map(|n| {
        entry(
            n,
            &format!("10.1.{}.{}:80", n / 250, n % 250),
            life(n as u128),
        )
    });
    list(entries.collect())
}

#[test]
fn a_long_view_does_not_wait_where_nothing_was_known_to_be_there() {
    let mut directory = directory();
    feed(&mut directory, Timestamp::ZERO, [list(vec![]), long_list()]);
    assert!(!directory.published.expect("published").known_empty);
}

#[test]
fn a_long_view_may_wait_for_more_and_never_for_less() {
    let (mut directory, mut now) = (directory(), Timestamp::ZERO);
    directory.handle(now, long_list());
    let views = |directory: &mut Directory| {
        let outputs = drain(directory).into_iter();
        let views = outputs.filter_map(|output| match output {
            Output::Publish(snapshot) => Some(snapshot),
            _ => None,
        });
        let ready = |view: Snapshot| {
            view.members
                .iter()
                .filter(|m| m.tier == Tier::Ready)
                .count()
        };
        views.map(ready).collect::<Vec<_>>()
    };
    assert_eq!(views(&mut directory), [0]);
    feed(&mut directory, now, up(0));
    assert_eq!(
        views(&mut directory),
        [1],
        "the first that is ready is not waited for"
    );
    feed(&mut directory, now, (1..100).flat_map(up));
    assert_eq!(views(&mut directory), [0; 0]);
    assert_eq!(
        directory.deadline(),
        Some((now + 3 * PUBLISH_PACE, "publish"))
    );
    feed(&mut directory, now, [mark(life(0))]);
    assert_eq!(
        views(&mut directory),
        [99],
        "one that is closing is out at once"
    );
    now += PUBLISH_PACE;
    feed(&mut directory, now, up(100));
    assert_eq!(views(&mut directory), [0; 0]);
    now += 2 * PUBLISH_PACE;
    directory.handle_timeout(now);
    assert_eq!(views(&mut directory), [100]);
}
