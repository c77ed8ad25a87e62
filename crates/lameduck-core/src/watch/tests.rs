use core::time::Duration;
use std::format;
use std::string::String;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const ONE: Ticket = Ticket::START.next();
const TWO: Ticket = ONE.next();
const THREE: Ticket = TWO.next();

/// A Check that tells nothing.
const fn checked(ticket: Ticket) -> Input {
    let status = None;
    Input::Checked { ticket, status }
}

const fn checked_as(ticket: Ticket, status: Status) -> Input {
    let status = Some(status);
    Input::Checked { ticket, status }
}

fn text(output: Output) -> String {
    match output {
        Output::Watch { ticket, name } => format!("watch {} {name:?}", ticket.number()),
        Output::Cancel { ticket } => format!("cancel {}", ticket.number()),
        Output::Check { ticket, name } => format!("check {} {name:?}", ticket.number()),
        Output::Health { serving: true } => "serving".into(),
        Output::Health { serving: false } => "not serving".into(),
        Output::PeerEnded => "peer ended".into(),
    }
}

fn drain(watch: &mut Watch) -> String {
    let outputs: Vec<String> = core::iter::from_fn(|| watch.poll().map(text)).collect();
    outputs.join(", ")
}

#[test]
fn r1_a_check_that_says_serving_contradicts_the_watch() {
    let steps = [
        In(0, NOT_SERVING),
        In(1, checked_as(TWO, Status::Serving)),
        // The Watch says it again, of another server: asked again.
        In(2, SERVING),
        In(3, NOT_SERVING),
        In(4, checked_as(THREE, Status::NotServing)),
        In(5, SERVING),
    ];
    let expected = [
        "watch 1 Service",
        "not serving, check 2 Service",
        "serving",
        "",
        "not serving, check 3 Service",
        "",
        "serving",
    ];
    check(&steps, &expected);
}

#[test]
fn r1_behind_a_bare_address_it_is_asked_until_another_server_answers() {
    let mut watch = Watch::new(Timestamp::ZERO, 1).with_shared_address(true);
    let mut now = Timestamp::ZERO;
    drain(&mut watch);
    watch.handle(now, NOT_SERVING);
    assert_eq!(drain(&mut watch), "not serving, check 2 Service");
    let mut ticket = TWO;
    for _ in 0..4 {
        watch.handle(now, checked_as(ticket, Status::NotServing));
        assert_eq!(drain(&mut watch), "");
        let (at, why) = watch.deadline().expect("another Check");
        assert_eq!(why, "another server?");
        now = at;
        watch.handle_timeout(now);
        ticket = ticket.next();
        let check = format!("check {} Service", ticket.number());
        assert_eq!(drain(&mut watch), check);
    }
    watch.handle(now, checked_as(ticket, Status::Serving));
    assert_eq!(drain(&mut watch), "serving");
    assert_eq!(watch.deadline(), None);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    In(u64, Input),
    Wait,
}
use Step::{In, Wait};

fn run(steps: &[Step]) -> (Watch, Timestamp, Vec<String>) {
    let mut now = Timestamp::ZERO;
    let mut watch = Watch::new(now, 1);
    let mut seen = Vec::from([drain(&mut watch)]);
    for step in steps {
        match *step {
            In(at, input) => {
                now = now.max(Timestamp::from_millis(at));
                watch.handle(now, input);
            }
            Wait => {
                now = watch.deadline().expect("something to wait for").0;
                watch.handle_timeout(now);
            }
        }
        seen.push(drain(&mut watch));
    }
    (watch, now, seen)
}

fn check(steps: &[Step], expected: &[&str]) {
    assert_eq!(run(steps).2, expected, "{steps:?}");
}

const fn status(ticket: Ticket, status: Status) -> Input {
    Input::Status { ticket, status }
}

const fn ended(ticket: Ticket, how: Ended) -> Input {
    Input::Ended { ticket, how }
}

const SERVING: Input = status(ONE, Status::Serving);
const NOT_SERVING: Input = status(ONE, Status::NotServing);

#[test]
fn not_serving_asks_once_for_the_marks() {
    check(
        &[
            In(0, SERVING),
            In(1, NOT_SERVING),
            In(2, NOT_SERVING),
            In(3, checked(TWO)),
            In(4, SERVING),
        ],
        &[
            "watch 1 Service",
            "serving",
            "not serving, check 2 Service",
            "",
            "",
            "serving",
        ],
    );
}

#[test]
fn a_peer_without_health_service_serves() {
    check(
        &[In(0, ended(ONE, Ended::Unimplemented))],
        &["watch 1 Service", "serving"],
    );
}

#[test]
fn r7_a_peer_that_lets_nobody_ask_serves_unless_it_gave_a_status() {
    check(
        &[In(0, ended(ONE, Ended::Refused))],
        &["watch 1 Service", "serving"],
    );
    check(
        &[
            In(0, ended(ONE, Ended::NotFound)),
            In(1, ended(TWO, Ended::Refused)),
        ],
        &["watch 1 Service", "watch 2 Overall", "serving"],
    );
    check(
        &[In(0, NOT_SERVING), In(1, ended(ONE, Ended::Refused))],
        &[
            "watch 1 Service",
            "not serving, check 2 Service",
            "peer ended",
        ],
    );
}

#[test]
fn a_name_that_is_not_known_asks_for_the_whole_server() {
    let start = ["watch 1 Service", "watch 2 Overall"];
    let unknown = [
        In(0, ended(ONE, Ended::NotFound)),
        In(0, status(ONE, Status::Unknown)),
    ];
    for first in unknown {
        check(
            &[first, In(1, status(TWO, Status::NotServing))],
            &[start[0], start[1], "not serving, check 3 Overall"],
        );
        check(
            &[first, In(1, ended(TWO, Ended::NotFound))],
            &[start[0], start[1], "serving"],
        );
        check(
            &[first, In(1, status(TWO, Status::Unknown))],
            &[start[0], start[1], "serving"],
        );
    }
    // The name becomes known later: the whole is of no interest any more.
    check(
        &[
            unknown[1],
            In(1, status(TWO, Status::Serving)),
            In(2, NOT_SERVING),
        ],
        &[
            start[0],
            start[1],
            "serving",
            "cancel 2, not serving, check 3 Service",
        ],
    );
}

#[test]
fn the_peers_own_end_is_told_and_not_asked_in_a_loop() {
    let mut steps = Vec::from([In(0, NOT_SERVING), In(0, ended(ONE, Ended::ByPeer))]);
    let (_, _, seen) = run(&steps);
    assert_eq!(seen[1..], ["not serving, check 2 Service", "peer ended"]);
    for number in 3..15 {
        let again = (0..number).fold(Ticket::START, |ticket, _| ticket.next());
        steps.extend([
            Wait,
            In(0, status(again, Status::NotServing)),
            In(0, ended(again, Ended::ByPeer)),
        ]);
    }
    let (_, now, _) = run(&steps);
    assert!(
        now > Timestamp::from_millis(10_000),
        "asked in a loop: {now}"
    );
}

#[test]
fn lost_is_not_the_peers_end() {
    check(
        &[In(0, SERVING), In(5_000, ended(ONE, Ended::Lost)), Wait],
        &["watch 1 Service", "serving", "", "watch 2 Service"],
    );
}

#[test]
fn a_closing_peer_is_asked_whether_it_has_resumed() {
    let steps = [
        In(0, SERVING),
        In(10, Input::Closing(true)),
        Wait,
        In(6_000, checked(TWO)),
        Wait,
        In(11_500, checked(THREE)),
        In(11_600, Input::Closing(false)),
    ];
    let expected = [
        "watch 1 Service",
        "serving",
        "",
        "check 2 Service",
        "",
        "check 3 Service",
        "",
        "",
    ];
    check(&steps, &expected);
    let (watch, now, _) = run(&steps[..5]);
    assert_eq!(now, Timestamp::from_millis(6_000) + RESUME_CHECK);
    assert!(watch.deadline().is_none());
    assert!(run(&steps).0.deadline().is_none());
    // A change of mind is looked at without waiting.
    let resumed = [
        In(0, NOT_SERVING),
        In(1, checked(TWO)),
        In(1, Input::Closing(true)),
        In(2, SERVING),
    ];
    assert_eq!(run(&resumed).2[4], "check 3 Service, serving");
}

fn states() -> Vec<(&'static str, Vec<Step>)> {
    let unknown = In(0, status(ONE, Status::Unknown));
    let closing = In(0, Input::Closing(true));
    Vec::from([
        ("asking", Vec::new()),
        ("serving", Vec::from([In(0, SERVING)])),
        ("serving, closing", Vec::from([In(0, SERVING), closing])),
        ("not serving, checking", Vec::from([In(0, NOT_SERVING)])),
        (
            "not serving, checked",
            Vec::from([In(0, NOT_SERVING), In(0, checked(TWO))]),
        ),
        ("unknown, asking for the whole", Vec::from([unknown])),
        (
            "unknown, the whole serving",
            Vec::from([unknown, In(0, status(TWO, Status::Serving))]),
        ),
        (
            "no health service",
            Vec::from([In(0, ended(ONE, Ended::Unimplemented))]),
        ),
        (
            "pausing",
            Vec::from([In(0, SERVING), In(0, ended(ONE, Ended::ByPeer))]),
        ),
    ])
}

const INPUTS: [Input; 13] = [
    SERVING,
    NOT_SERVING,
    status(ONE, Status::Unknown),
    status(TWO, Status::NotServing),
    ended(ONE, Ended::Unimplemented),
    ended(ONE, Ended::NotFound),
    ended(ONE, Ended::ByPeer),
    ended(ONE, Ended::Lost),
    ended(TWO, Ended::NotFound),
    checked(TWO),
    checked_as(TWO, Status::Serving),
    Input::Closing(true),
    Input::Closing(false),
];

#[test]
fn the_whole_table() {
    let mut table = String::new();
    for (name, steps) in states() {
        table += &format!("## {name}\n");
        for input in INPUTS {
            let (mut watch, now, _) = run(&steps);
            watch.handle(now, input);
            let outputs = drain(&mut watch);
            let waits = watch.deadline().map_or("nothing", |(_, why)| why);
            table += &format!("{input:?}: [{outputs}] waits for {waits}\n");
        }
        let (mut watch, now, _) = run(&steps);
        if let Some((at, why)) = watch.deadline() {
            watch.handle_timeout(at.max(now));
            table += &format!("timeout ({why}): [{}]\n", drain(&mut watch));
        }
    }
    crate::table::assert_table("watch", &table);
}

fn inputs() -> impl Strategy<Value = Input> {
    let ticket =
        || (1_u64..9).prop_map(|number| (0..number).fold(Ticket::START, |ticket, _| ticket.next()));
    let said = prop_oneof![
        Just(Status::Serving),
        Just(Status::NotServing),
        Just(Status::Unknown)
    ];
    let how = prop_oneof![
        Just(Ended::Unimplemented),
        Just(Ended::NotFound),
        Just(Ended::Refused),
        Just(Ended::ByPeer),
        Just(Ended::Lost)
    ];
    prop_oneof![
        4 => (ticket(), said).prop_map(|(ticket, status)| Input::Status { ticket, status }),
        3 => (ticket(), how).prop_map(|(ticket, how)| Input::Ended { ticket, how }),
        2 => ticket().prop_map(checked),
        2 => any::<bool>().prop_map(Input::Closing),
    ]
}

proptest! {
    #[test]
    fn at_most_two_streams_and_one_check_and_never_asleep(
        steps in prop::collection::vec((0_u64..4_000, prop::option::weighted(0.8, inputs())), 0..120),
    ) {
        let mut now = Timestamp::ZERO;
        let mut watch = Watch::new(now, 5);
        let (mut open, mut checks) = (Vec::new(), Vec::new());
        let mut serving = None;
        for (pause, input) in steps {
            while let Some(output) = watch.poll() {
                match output {
                    Output::Watch { ticket, .. } => open.push(ticket),
                    Output::Cancel { ticket } => {
                        prop_assert!(open.contains(&ticket));
                        open.retain(|one| *one != ticket);
                    }
                    Output::Check { ticket, .. } => checks.push(ticket),
                    Output::Health { serving: is } => {
                        prop_assert_ne!(serving, Some(is));
                        serving = Some(is);
                    }
                    Output::PeerEnded => {}
                }
            }
            prop_assert!(open.len() <= 2 && checks.len() <= 1);
            prop_assert!(!open.is_empty() || watch.deadline().is_some() || watch.silent
                || (watch.service == Stream::Absent && watch.overall == Stream::Absent));
            now += Duration::from_millis(pause);
            match input {
                Some(input) => {
                    match input {
                        Input::Ended { ticket, .. } => open.retain(|one| *one != ticket),
                        Input::Checked { ticket, .. } => checks.retain(|one| *one != ticket),
                        _ => {}
                    }
                    watch.handle(now, input);
                }
                None => watch.handle_timeout(now),
            }
        }
    }
}
