use core::time::Duration;
use std::collections::BTreeSet;
use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::instance::BootId;
use crate::limits::CONNECTIONS_PER_ENDPOINT_MAX;

fn ticket(number: u64) -> Ticket {
    (0..number).fold(Ticket::START, |ticket, _| ticket.next())
}

fn text(output: Output) -> String {
    match output {
        Output::Dial(ticket) => format!("dial {}", ticket.number()),
        Output::Watch(ticket) => format!("watch {}", ticket.number()),
        Output::Use(ticket) => format!("use {}", ticket.number()),
        Output::Retire(ticket) => format!("retire {}", ticket.number()),
        Output::Close(ticket) => format!("close {}", ticket.number()),
        Output::Cut(ticket) => format!("cut {}", ticket.number()),
        Output::Link { up: true } => "up".into(),
        Output::Link { up: false } => "down".into(),
        Output::Health {
            serving: true,
            refused: false,
        } => "serves".into(),
        Output::Health { serving, refused } => format!("serves {serving}, refused {refused}"),
        Output::Named { life, .. } => format!("is {life}"),
        Output::PeerEnded => "peer ended".into(),
        Output::Done => "done".into(),
    }
}

fn drain(endpoint: &mut Endpoint) -> String {
    let outputs: Vec<String> = core::iter::from_fn(|| endpoint.poll().map(text)).collect();
    outputs.join(", ")
}

/// One step of a scenario.
#[derive(Clone, Copy, Debug)]
enum Step {
    In(u64, Input),
    /// Waits for the next deadline.
    Wait,
}
use Step::{In, Wait};

fn run(steps: &[Step]) -> (Endpoint, Timestamp, Vec<String>) {
    let mut endpoint = Endpoint::new(1);
    let mut now = Timestamp::ZERO;
    let mut seen = Vec::from([drain(&mut endpoint)]);
    for step in steps {
        match *step {
            In(at, input) => {
                now = now.max(Timestamp::from_millis(at));
                endpoint.handle(now, input);
            }
            Wait => {
                now = endpoint.deadline().expect("something to wait for").0;
                endpoint.handle_timeout(now);
            }
        }
        seen.push(drain(&mut endpoint));
    }
    (endpoint, now, seen)
}

fn check(steps: &[Step], expected: &[&str]) {
    assert_eq!(run(steps).2, expected, "{steps:?}");
}

const UP: [Step; 2] = [In(0, Input::Dialled(FIRST)), In(0, Input::Answered(FIRST))];
const FIRST: Ticket = Ticket::START.next();
const SECOND: Ticket = FIRST.next();

fn up_then(steps: &[Step]) -> Vec<Step> {
    UP.iter().chain(steps).copied().collect()
}

#[test]
fn calls_only_after_the_first_health_answer() {
    check(&UP, &["dial 1", "watch 1", "use 1, up"]);
    let silent = [In(0, Input::Dialled(FIRST)), Wait, Wait];
    check(&silent, &["dial 1", "watch 1", "cut 1", "dial 2"]);
}

#[test]
fn a_failed_dial_is_tried_again_later_and_later() {
    let mut steps = Vec::new();
    for number in 1..=12 {
        steps.extend([In(0, Input::Failed(ticket(number))), Wait]);
    }
    let (endpoint, now, seen) = run(&steps);
    assert_eq!(seen.last().map(String::as_str), Some("dial 13"));
    assert!(now > Timestamp::from_millis(10_000), "{now}");
    assert!(endpoint.deadline().is_none());
}

#[test]
fn go_away_dials_another_at_once() {
    let steps = up_then(&[
        In(5_000, Input::GoAway(FIRST)),
        In(5_001, Input::Dialled(SECOND)),
        In(5_002, Input::Answered(SECOND)),
        In(5_003, Input::Ended(FIRST)),
    ]);
    let after = [
        "retire 1, peer ended, down, dial 2",
        "watch 2",
        "use 2, up",
        "",
    ];
    check(
        &steps,
        &[&["dial 1", "watch 1", "use 1, up"][..], &after].concat(),
    );
}

#[test]
fn a_peer_that_says_go_away_at_once_is_not_dialled_in_a_loop() {
    let steps = up_then(&[In(3, Input::GoAway(FIRST)), Wait]);
    let (_, now, seen) = run(&steps);
    assert_eq!(seen[3..], ["retire 1, peer ended, down", "dial 2"]);
    assert!(now >= Timestamp::from_millis(25), "{now}");
}

/// One connection after the other, each of which does this at its number's millisecond and is gone.
fn one_after_the_other(each: impl Fn(u64, Ticket) -> Vec<Step>) -> Vec<String> {
    let mut steps = Vec::new();
    for number in 1..=40 {
        let one = ticket(number);
        steps.push(In(number, Input::Dialled(one)));
        steps.push(In(number, Input::Answered(one)));
        steps.extend(each(number, one));
    }
    run(&steps).2
}

#[test]
fn d01_a_connection_that_has_answered_is_replaced_at_once() {
    type Each = fn(u64, Ticket) -> Vec<Step>;
    let ways: [(&str, Each); 4] = [
        ("GOAWAY after answers", |at, one| {
            Vec::from([In(at, Input::Served(one)), In(at, Input::GoAway(one))])
        }),
        ("two GOAWAYs, then the end", |at, one| {
            let goaway = In(at, Input::GoAway(one));
            let ended = In(at, Input::Ended(one));
            Vec::from([In(at, Input::Served(one)), goaway, goaway, ended])
        }),
        ("closed without a word after an answer", |at, one| {
            Vec::from([In(at, Input::Served(one)), In(at, Input::Ended(one))])
        }),
        ("GOAWAY with the answer behind it", |at, one| {
            Vec::from([In(at, Input::GoAway(one)), In(at, Input::Served(one))])
        }),
    ];
    for (way, each) in ways {
        let seen = one_after_the_other(each);
        let dials = seen.iter().filter(|line| line.contains("dial")).count();
        assert_eq!(dials, 41, "{way}: {seen:?}");
    }
}

#[test]
fn d01_an_answer_read_after_the_end_ends_the_pause() {
    let steps = up_then(&[
        In(3, Input::Ended(FIRST)),
        In(4, Input::Served(FIRST)),
        In(5, Input::Dialled(SECOND)),
        In(5, Input::Answered(SECOND)),
        // One that belongs to the first says nothing of the second.
        In(6, Input::Ended(SECOND)),
        In(7, Input::Served(FIRST)),
    ]);
    assert_eq!(
        run(&steps).2[3..],
        ["down", "dial 2", "watch 2", "use 2, up", "down", ""]
    );
}

#[test]
fn d01_only_what_ended_without_an_answer_is_paused_after() {
    // Three that answered, then a peer that has broken: the pauses begin small and grow again.
    let mut steps = Vec::new();
    for number in 1..=3 {
        let one = ticket(number);
        steps.extend([
            In(number, Input::Dialled(one)),
            In(number, Input::Answered(one)),
        ]);
        steps.extend([
            In(number, Input::Served(one)),
            In(number, Input::GoAway(one)),
        ]);
    }
    steps.push(In(4, Input::Dialled(ticket(4))));
    steps.push(In(4, Input::Answered(ticket(4))));
    steps.push(In(4, Input::GoAway(ticket(4))));
    let (endpoint, now, seen) = run(&steps);
    assert_eq!(
        seen.last().map(String::as_str),
        Some("retire 4, peer ended, down")
    );
    let (until, why) = endpoint.deadline().expect("a pause");
    assert_eq!(why, "redial");
    assert!(
        until.saturating_since(now) <= DIAL_BACKOFF.0,
        "the first pause"
    );
}

#[test]
fn r20_a_call_that_finds_nothing_is_a_reason_to_dial() {
    let mut steps = Vec::new();
    for number in 1..=12 {
        steps.extend([In(0, Input::Failed(ticket(number))), Wait]);
    }
    steps.push(In(0, Input::Failed(ticket(13))));
    let (endpoint, failed, _) = run(&steps);
    let late = endpoint.deadline().expect("a long pause").0;
    assert!(late > failed + Duration::from_secs(2), "{late}");
    // Not at once, which were a loop of dials; but as soon as the floor has passed.
    let mut endpoint = endpoint;
    endpoint.handle(failed, Input::Wanted);
    assert_eq!(drain(&mut endpoint), "");
    let due = endpoint.deadline().expect("a pause").0;
    assert_eq!(due, failed + DIAL_WANTED_AFTER);
    endpoint.handle_timeout(due);
    assert_eq!(drain(&mut endpoint), "dial 14");
    // Where it has passed already, it is dialled at once, and once.
    endpoint.handle(due, Input::Failed(ticket(14)));
    let later = due + DIAL_WANTED_AFTER;
    endpoint.handle(later, Input::Wanted);
    endpoint.handle(later, Input::Wanted);
    assert_eq!(drain(&mut endpoint), "dial 15");
    // One who must not be dialled is not.
    endpoint.handle(later, Input::Failed(ticket(15)));
    endpoint.handle(later, Input::Dialling { allowed: false });
    endpoint.handle(later + DIAL_WANTED_AFTER, Input::Wanted);
    assert_eq!(drain(&mut endpoint), "");
}

#[test]
fn r6_as_many_connections_as_are_allowed() {
    let mut endpoint = Endpoint::new(1).with_connections_max(2);
    let mut seen = Vec::new();
    for number in 1..=3 {
        let one = ticket(number);
        for input in [Input::Dialled(one), Input::Answered(one), Input::Full] {
            endpoint.handle(Timestamp::ZERO, input);
        }
        seen.push(drain(&mut endpoint));
    }
    let first = "dial 1, watch 1, use 1, up, dial 2";
    assert_eq!(seen, [first, "watch 2, use 2", "close 3"]);
}

#[test]
fn not_dialled_where_that_is_not_allowed() {
    let forbid = Input::Dialling { allowed: false };
    let permit = Input::Dialling { allowed: true };
    let steps = up_then(&[
        In(2_000, forbid),
        In(2_001, Input::GoAway(FIRST)),
        In(2_002, Input::Ended(FIRST)),
        In(2_003, permit),
    ]);
    check(
        &steps,
        &[
            "dial 1",
            "watch 1",
            "use 1, up",
            "",
            "retire 1, peer ended, down",
            "",
            "dial 2",
        ],
    );
    // A dial that was under way is not taken.
    let late = [In(0, forbid), In(1, Input::Dialled(FIRST))];
    check(&late, &["dial 1", "", "close 1"]);
}

#[test]
fn one_more_connection_where_streams_run_out_and_not_without_end() {
    let mut steps = Vec::from(UP);
    let mut expected = Vec::from(["dial 1".into(), "watch 1".into(), String::from("use 1, up")]);
    for number in 2..=CONNECTIONS_PER_ENDPOINT_MAX as u64 {
        let next = ticket(number);
        steps.extend([In(0, Input::Full), In(0, Input::Full)]);
        steps.extend([In(0, Input::Dialled(next)), In(0, Input::Answered(next))]);
        let dial = format!("dial {number}");
        expected.extend([
            dial,
            String::new(),
            format!("watch {number}"),
            format!("use {number}"),
        ]);
    }
    steps.push(In(0, Input::Full));
    expected.push(String::new());
    assert_eq!(run(&steps).2, expected);
}

#[test]
fn removed_calls_finish_idle_closes_and_nothing_is_dialled() {
    let steps = up_then(&[In(10, Input::Remove), In(20, Input::Ended(FIRST))]);
    check(
        &steps,
        &["dial 1", "watch 1", "use 1, up", "retire 1", "done"],
    );
    let endless = up_then(&[In(10, Input::Remove), Wait]);
    check(
        &endless,
        &["dial 1", "watch 1", "use 1, up", "retire 1", "cut 1, done"],
    );
    assert_eq!(run(&endless).1, Timestamp::from_millis(10) + LINGER_REMOVED);
    let unreached = [In(0, Input::Failed(FIRST)), In(1, Input::Remove)];
    check(&unreached, &["dial 1", "", "done"]);
    let under_way = [In(0, Input::Remove), In(1, Input::Dialled(FIRST))];
    check(&under_way, &["dial 1", "done", "close 1"]);
}

#[test]
fn connections_that_never_end_are_bounded() {
    let mut steps = Vec::new();
    for number in 1..=70 {
        let at = 2_000 * number;
        let one = ticket(number);
        steps.extend([In(at, Input::Dialled(one)), In(at, Input::Answered(one))]);
        steps.push(In(at + 1_500, Input::GoAway(one)));
    }
    let cuts = run(&steps).2;
    let cuts = cuts.iter().filter(|line| line.contains("cut")).count();
    assert_eq!(cuts, 70 - CONNECTIONS_LEAVING_MAX);
}

const MOVED: Input = Input::Found {
    ticket: FIRST,
    listed: false,
};

#[test]
fn a_name_that_moved_takes_its_calls_along_once_it_can() {
    let steps = up_then(&[
        In(30_000, MOVED),
        In(30_000, Input::Failed(SECOND)),
        Wait,
        In(31_000, Input::Dialled(ticket(3))),
        In(31_000, Input::Answered(ticket(3))),
        In(31_000, Input::Ended(FIRST)),
    ]);
    let expected = ["dial 2", "", "dial 3", "watch 3", "use 3, retire 1", ""];
    check(
        &steps,
        &[&["dial 1", "watch 1", "use 1, up"][..], &expected].concat(),
    );
    // Back at the old address: nothing was lost, and what was dialled meanwhile is one more.
    let back = Input::Found {
        ticket: FIRST,
        listed: true,
    };
    let steps = up_then(&[
        In(30_000, MOVED),
        In(30_000, Input::Failed(SECOND)),
        In(30_001, back),
        Wait,
    ]);
    let (endpoint, _, seen) = run(&steps);
    assert_eq!(seen[3..], ["dial 2", "", "", ""]);
    assert!(endpoint.is_up() && endpoint.deadline().is_none());
    // The last one of the old address ends by itself: the next is dialled already, or soon.
    let steps = up_then(&[In(30_000, MOVED), In(30_001, Input::Ended(FIRST))]);
    assert_eq!(run(&steps).2[3..], ["dial 2", "down"]);
}

/// Every state that matters, and how to get there.
fn states() -> Vec<(&'static str, Vec<Step>)> {
    let forbid = In(0, Input::Dialling { allowed: false });
    let settled = In(2_000, Input::Ended(ticket(9)));
    let leaving = up_then(&[settled, In(2_000, Input::GoAway(FIRST))]);
    let mut two = up_then(&[In(0, Input::Full), In(0, Input::Dialled(SECOND))]);
    two.push(In(0, Input::Answered(SECOND)));
    Vec::from([
        ("dialling", Vec::new()),
        ("forbidden", Vec::from([forbid])),
        ("pausing", Vec::from([In(0, Input::Failed(FIRST))])),
        ("fresh", Vec::from([UP[0]])),
        ("usable", UP.to_vec()),
        ("usable, settled", up_then(&[settled])),
        (
            "usable, has served",
            up_then(&[In(0, Input::Served(FIRST))]),
        ),
        (
            "ended without an answer",
            up_then(&[In(0, Input::Ended(FIRST))]),
        ),
        ("usable, forbidden", up_then(&[forbid])),
        ("usable, dialling one more", up_then(&[In(0, Input::Full)])),
        ("two usable", two),
        ("moved, dialling", up_then(&[settled, In(2_000, MOVED)])),
        ("leaving, dialling", leaving),
        ("removed, calls open", up_then(&[In(0, Input::Remove)])),
        ("done", Vec::from([In(0, Input::Remove)])),
    ])
}

const INPUTS: [Input; 21] = [
    Input::Dialling { allowed: true },
    Input::Dialling { allowed: false },
    Input::Dialled(FIRST),
    Input::Dialled(SECOND),
    Input::Failed(FIRST),
    Input::Failed(SECOND),
    Input::Answered(FIRST),
    Input::Served(FIRST),
    Input::GoAway(FIRST),
    Input::Ended(FIRST),
    Input::Ended(SECOND),
    Input::Full,
    Input::Wanted,
    Input::Remove,
    Input::GoAway(SECOND),
    MOVED,
    Input::Found {
        ticket: FIRST,
        listed: true,
    },
    serving(FIRST, true),
    serving(FIRST, false),
    NAMED,
    Input::Closing(FIRST),
];
const NAMED: Input = Input::Named {
    ticket: FIRST,
    life: Life::first(BootId::from_bits(1)),
    right_service: true,
};

#[test]
fn the_whole_table() {
    let mut table = String::new();
    for (name, steps) in states() {
        table += &format!("## {name}\n");
        for input in INPUTS {
            let (mut endpoint, now, _) = run(&steps);
            endpoint.handle(now, input);
            let outputs = drain(&mut endpoint);
            let waits = endpoint.deadline().map_or("nothing", |(_, why)| why);
            table += &format!("{input:?}: [{outputs}] waits for {waits}\n");
        }
        let (mut endpoint, now, _) = run(&steps);
        if let Some((at, why)) = endpoint.deadline() {
            endpoint.handle_timeout(at.max(now));
            table += &format!("timeout ({why}): [{}]\n", drain(&mut endpoint));
        }
    }
    crate::table::assert_table("endpoint", &table);
}

fn inputs() -> impl Strategy<Value = Input> {
    let number = || (1_u64..8).prop_map(ticket);
    prop_oneof![
        any::<bool>().prop_map(|allowed| Input::Dialling { allowed }),
        number().prop_map(Input::Dialled),
        number().prop_map(Input::Failed),
        number().prop_map(Input::Answered),
        number().prop_map(Input::Served),
        number().prop_map(Input::GoAway),
        number().prop_map(Input::Ended),
        (number(), any::<bool>()).prop_map(|(ticket, listed)| Input::Found { ticket, listed }),
        (number(), any::<bool>()).prop_map(|(ticket, serves)| serving(ticket, serves)),
        number().prop_map(Input::Closing),
        (number(), 1_u128..4, any::<bool>()).prop_map(|(ticket, boot, right_service)| {
            let life = Life::first(BootId::from_bits(boot));
            Input::Named {
                ticket,
                life,
                right_service,
            }
        }),
        prop::sample::select(&[Input::Full, Input::Wanted, Input::Remove][..]),
    ]
}

proptest! {
    #[test]
    fn one_dial_at_a_time_and_none_where_it_is_not_wanted(
        steps in prop::collection::vec((0_u64..3_000, prop::option::weighted(0.9, inputs())), 0..120),
        shared in any::<bool>(),
    ) {
        let mut endpoint = Endpoint::new(7).with_shared_address(shared);
        let mut now = Timestamp::ZERO;
        let (mut allowed, mut removed, mut done, mut up) = (true, false, false, false);
        let mut pending: Option<Ticket> = Some(FIRST);
        let mut usable = BTreeSet::new();
        prop_assert_eq!(drain(&mut endpoint), "dial 1");
        for (pause, input) in steps {
            now += Duration::from_millis(pause);
            match input {
                Some(input) => {
                    match input {
                        Input::Dialling { allowed: now_allowed } if !removed => {
                            allowed = now_allowed;
                            if !allowed { pending = None; }
                        }
                        Input::Dialled(one) | Input::Failed(one) if pending == Some(one) => pending = None,
                        Input::Remove => { removed = true; pending = None; }
                        Input::Ended(one) => { usable.remove(&one); }
                        _ => {}
                    }
                    endpoint.handle(now, input);
                }
                None => endpoint.handle_timeout(now),
            }
            while let Some(output) = endpoint.poll() {
                prop_assert!(!done || matches!(output, Output::Close(_)), "after the end: {output:?}");
                match output {
                    Output::Dial(one) => {
                        prop_assert!(allowed && !removed && pending.is_none());
                        pending = Some(one);
                    }
                    Output::Link { up: is } => { prop_assert_ne!(up, is); up = is; }
                    Output::Use(one) => { usable.insert(one); }
                    Output::Retire(one) | Output::Cut(one) => { usable.remove(&one); }
                    Output::Done => done = true,
                    _ => {}
                }
            }
            let known = |one: &Ticket| endpoint.connections.contains_key(one);
            prop_assert!(endpoint.served.iter().all(known));
            prop_assert!(endpoint.voices.tickets().all(|one| known(&one)));
            prop_assert!(endpoint.connections.len() <= CONNECTIONS_LEAVING_MAX + CONNECTIONS_PER_ENDPOINT_MAX);
            // Liveness: wanted and not connected means that something is going to happen.
            let waits = endpoint.deadline().is_some() || pending.is_some();
            prop_assert!(endpoint.is_up() || !allowed || removed || waits);
            prop_assert!(!done || endpoint.deadline().is_none());
            // Up while there is one that takes calls, whatever became of its address.
            prop_assert!(removed || endpoint.is_up() != usable.is_empty());
        }
    }
}

/// One connection of a bare address that takes calls, then these.
fn shared(inputs: &[Input]) -> Vec<String> {
    let mut endpoint = Endpoint::new(1).with_shared_address(true);
    let mut seen = Vec::from([drain(&mut endpoint)]);
    let up = [
        Input::Dialled(FIRST),
        serving(FIRST, true),
        Input::Answered(FIRST),
    ];
    for input in up.iter().chain(inputs) {
        endpoint.handle(Timestamp::ZERO, *input);
        seen.push(drain(&mut endpoint));
    }
    seen.split_off(4)
}

const fn serving(ticket: Ticket, serving: bool) -> Input {
    Input::Serving { ticket, serving }
}

#[test]
fn r1_where_a_server_behind_an_address_does_not_serve_another_is_looked_for() {
    let refuses = serving(FIRST, false);
    let said = "serves false, refused true, dial 2";
    // The next one serves: it is used, and the first one stays.
    let inputs = [
        refuses,
        Input::Dialled(SECOND),
        serving(SECOND, true),
        Input::Answered(SECOND),
    ];
    assert_eq!(shared(&inputs), [said, "watch 2", "serves", "use 2"]);
    // It does not either: it is given up, and tried again after a pause.
    let inputs = [
        refuses,
        Input::Dialled(SECOND),
        serving(SECOND, false),
        Input::Answered(SECOND),
        Input::Ended(SECOND),
    ];
    let refused = "serves false, refused true";
    let expected = [said, "watch 2", refused, "retire 2", ""];
    assert_eq!(shared(&inputs), expected);
    // Calls that wait for it do not make it sooner.
    let inputs = [&inputs[..], &[Input::Wanted, Input::Wanted]].concat();
    assert_eq!(shared(&inputs)[5..], ["", ""]);
    // Closing counts too.
    assert_eq!(shared(&[Input::Closing(FIRST)]), ["dial 2"]);
    // A registration stands for one process.
    let steps = up_then(&[In(0, refuses), In(0, Input::Closing(FIRST))]);
    assert_eq!(run(&steps).2[3..], ["serves false, refused true", ""]);
}

#[test]
fn r1_what_a_connection_said_ends_with_it() {
    let two = [
        In(0, serving(FIRST, true)),
        In(0, Input::Full),
        In(0, Input::Dialled(SECOND)),
        In(0, serving(SECOND, true)),
        In(0, Input::Answered(SECOND)),
        In(5_000, serving(FIRST, false)),
        In(5_001, Input::GoAway(FIRST)),
        In(5_002, Input::Ended(FIRST)),
        In(5_003, serving(SECOND, false)),
    ];
    let seen = run(&up_then(&two)).2;
    let expected = [
        "serves true, refused true",
        "retire 1, peer ended",
        "",
        "serves false, refused true",
    ];
    assert_eq!(seen[8..], expected);
}

#[test]
fn r1_a_server_that_wants_no_calls_is_tried_ever_more_seldom_however_many_calls_wait() {
    let mut endpoint = Endpoint::new(1).with_shared_address(true);
    let mut now = Timestamp::ZERO;
    let mut tries = 0;
    for step in 0_u64.. {
        now += Duration::from_millis(10);
        if step > 3_000 {
            break;
        }
        endpoint.handle_timeout(now);
        endpoint.handle(now, Input::Wanted);
        while let Some(output) = endpoint.poll() {
            match output {
                Output::Dial(one) => {
                    tries += 1;
                    for input in [
                        Input::Dialled(one),
                        serving(one, false),
                        Input::Answered(one),
                    ] {
                        endpoint.handle(now, input);
                    }
                }
                Output::Retire(one) => endpoint.handle(now, Input::Ended(one)),
                _ => {}
            }
        }
    }
    // In half a minute; pauses double up to 5 s.
    assert!((5..25).contains(&tries), "{tries}");
}
