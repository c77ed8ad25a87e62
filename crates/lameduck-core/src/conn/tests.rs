use std::collections::BTreeSet;
use std::fmt::Write;
use std::format;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::table::assert_table;

const H1: Protocol = Protocol::Http1;
const H2: Protocol = Protocol::Http2;
const SECOND: Duration = Duration::from_secs(1);

/// Short times, and neither an age nor an idle time.
const BOUNDS: Bounds = Bounds {
    first_byte: Some(Duration::from_secs(10)),
    first_head: Some(Duration::from_secs(20)),
    http2_idle: None,
    age: None,
};
/// All times.
const ALL: Bounds = Bounds {
    http2_idle: Some(Duration::from_secs(25)),
    age: Some(Duration::from_secs(40)),
    ..BOUNDS
};
/// No bound at all.
const NONE: Bounds = Bounds {
    first_byte: None,
    first_head: None,
    http2_idle: None,
    age: None,
};

/// A machine, and what it gave out with the time of each.
struct World {
    conn: Conn,
    now: Timestamp,
    seen: Vec<(Timestamp, Output)>,
    // What the edge answers to a look.
    look: Look,
}

impl World {
    fn new(bounds: Bounds) -> Self {
        Self {
            conn: Conn::new(Timestamp::ZERO, bounds),
            now: Timestamp::ZERO,
            seen: Vec::new(),
            look: Look::Quiet,
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.conn.poll() {
            self.seen.push((self.now, output));
            if output == Output::Look {
                self.conn.handle(self.now, Input::Seen(self.look));
            }
        }
    }

    fn handle(&mut self, input: Input) {
        self.conn.handle(self.now, input);
        self.drain();
    }

    /// Lets time pass, with every deadline on the way.
    fn pass(&mut self, until: Timestamp) {
        while let Some((at, _)) = self.conn.deadline().filter(|(at, _)| *at <= until) {
            self.now = self.now.max(at);
            self.conn.handle_timeout(self.now);
            self.drain();
        }
        self.now = self.now.max(until);
    }

    fn first(&self, wanted: impl Fn(Output) -> bool) -> Option<Timestamp> {
        let of = |(at, output): &(Timestamp, Output)| wanted(*output).then_some(*at);
        self.seen.iter().find_map(of)
    }
}

/// Inputs at their milliseconds, deadlines in between and for a minute after; what came of it, as
/// `ms: outputs`.
fn check_bounds(bounds: Bounds, look: Look, scenario: &[(u64, Input)], expected: &[&str]) {
    let mut world = World::new(bounds);
    world.look = look;
    for (at, input) in scenario {
        world.pass(Timestamp::from_millis(*at));
        world.handle(*input);
    }
    world.pass(Timestamp::from_millis(60_000));
    let mut got: Vec<String> = Vec::new();
    let mut last = None;
    for (at, output) in world.seen {
        match got.last_mut().filter(|_| last == Some(at)) {
            Some(line) => write!(line, ", {output:?}").expect("a String"),
            None => got.push(format!("{}: {output:?}", at.as_nanos() / 1_000_000)),
        }
        last = Some(at);
    }
    assert_eq!(got, expected);
}

fn check_looking(look: Look, scenario: &[(u64, Input)], expected: &[&str]) {
    check_bounds(BOUNDS, look, scenario, expected);
}

fn check(scenario: &[(u64, Input)], expected: &[&str]) {
    check_looking(Look::Quiet, scenario, expected);
}

#[test]
fn a_connection_that_nobody_tells_anything_is_left_alone() {
    for protocol in [H1, H2] {
        check(&[(5, Input::Spoken(protocol))], &[]);
    }
}

#[test]
fn silence_is_bounded_and_more_so_in_draining() {
    check(&[], &["10000: Settled, Drop(Silent)"]);
    check(
        &[(20, Input::Leave(SECOND))],
        &["1020: Settled, Drop(Silent)"],
    );
    // The time that was left is not prolonged.
    check(
        &[(9_500, Input::Leave(SECOND))],
        &["10000: Settled, Drop(Silent)"],
    );
}

#[test]
fn s11_a_first_head_has_a_time_of_its_own() {
    check(
        &[(9_000, Input::Begun), (9_500, Input::Begun)],
        &["29000: Settled, Drop(Silent)"],
    );
    check(&[(9_000, Input::Begun), (28_000, Input::Spoken(H1))], &[]);
    // Draining: a byte does not prolong what was left.
    check(
        &[(20, Input::Leave(SECOND)), (900, Input::Begun)],
        &["1020: Settled, Drop(Silent)"],
    );
    check(
        &[(900, Input::Begun), (950, Input::Leave(SECOND))],
        &["1950: Settled, Drop(Silent)"],
    );
}

#[test]
fn s11_without_bounds_nothing_ends_by_itself_but_draining_does() {
    check_bounds(NONE, Look::Quiet, &[], &[]);
    check_bounds(NONE, Look::Quiet, &[(10, Input::Begun)], &[]);
    for input in [Input::Begun, Input::Hint(SECOND)] {
        check_bounds(
            NONE,
            Look::Quiet,
            &[(10, input), (20, Input::Leave(SECOND))],
            &["1020: Settled, Drop(Silent)"],
        );
    }
}

#[test]
fn s11_an_old_connection_takes_leave_as_in_closing() {
    let scenario = [
        (5, Input::Spoken(H2)),
        (40_001, Input::GoAwayOut),
        (40_030, Input::FinalOut),
        (40_100, Input::Leave(SECOND)),
    ];
    check_bounds(
        ALL,
        Look::Busy,
        &scenario,
        &["25005: Look", "40000: GoAway", "40030: Settled"],
    );
    // Without an answer to the PING it serves on: nothing forces it before the server leaves.
    check_bounds(
        ALL,
        Look::Busy,
        &[(5, Input::Spoken(H2)), (40_001, Input::GoAwayOut)],
        &["25005: Look", "40000: GoAway"],
    );
    // HTTP/1 says it in its next answer, and is not closed.
    check_bounds(
        ALL,
        Look::Quiet,
        &[(5, Input::Spoken(H1))],
        &["40000: LastAnswer"],
    );
    check_bounds(
        ALL,
        Look::Busy,
        &[(5, Input::Spoken(H1)), (6, Input::Upgraded)],
        &[],
    );
}

#[test]
fn s11_an_idle_http2_connection_takes_leave() {
    check_bounds(
        ALL,
        Look::Quiet,
        &[(5, Input::Spoken(H2))],
        &["25005: Look, GoAway"],
    );
    let patient = Bounds { age: None, ..ALL };
    check_bounds(
        patient,
        Look::Busy,
        &[(5, Input::Spoken(H2))],
        &["25005: Look", "50005: Look"],
    );
}

#[test]
fn http2_leaves_in_two_steps() {
    let scenario = [
        (5, Input::Spoken(H2)),
        (10, Input::Leave(SECOND)),
        (11, Input::GoAwayOut),
        (30, Input::FinalOut),
    ];
    check(&scenario, &["10: GoAway", "30: Settled"]);
}

#[test]
fn the_ping_is_answered_for_a_peer_that_does_not() {
    let scenario = [
        (5, Input::Spoken(H2)),
        (10, Input::Leave(SECOND)),
        (11, Input::GoAwayOut),
        (1_011, Input::FinalOut),
    ];
    check(
        &scenario,
        &["10: GoAway", "1010: InjectPong", "1011: Settled"],
    );
    check(
        &scenario[..3],
        &[
            "10: GoAway",
            "1010: InjectPong",
            "1110: Settled",
            "2110: Look, Drop(Silent)",
        ],
    );
}

#[test]
fn s19_half_a_frame_is_waited_for_only_while_something_is_in_flight() {
    let scenario = [
        (5, Input::Spoken(H2)),
        (10, Input::Leave(SECOND)),
        (11, Input::GoAwayOut),
        (1_900, Input::FinalOut),
    ];
    // The rest of it comes late.
    check(
        &scenario,
        &["10: GoAway", "1010: InjectPong", "1110: Settled"],
    );
    let mut cut = scenario[..3].to_vec();
    cut.push((3_500, Input::Force));
    check_looking(
        Look::Busy,
        &cut,
        &[
            "10: GoAway",
            "1010: InjectPong",
            "1110: Settled",
            "2110: Look",
            "3110: Look",
            "3500: EndStreams",
            "3550: ResetStreams",
            "3600: Drop(Cut)",
        ],
    );
}

#[test]
fn a_hint_waits_for_its_turn_and_does_not_force_the_peer() {
    let pause = Duration::from_millis(80);
    let scenario = [
        (5, Input::Spoken(H2)),
        (10, Input::Hint(pause)),
        (91, Input::GoAwayOut),
    ];
    check(&scenario, &["90: GoAway"]);
    let mut left = scenario.to_vec();
    left.push((500, Input::Leave(SECOND)));
    check(
        &left,
        &[
            "90: GoAway",
            "1500: InjectPong",
            "1600: Settled",
            "2600: Look, Drop(Silent)",
        ],
    );
    // Draining does not wait for a turn, and the GOAWAY is not sent twice.
    let scenario = [
        (5, Input::Spoken(H2)),
        (10, Input::Hint(pause)),
        (20, Input::Leave(SECOND)),
        (21, Input::GoAwayOut),
        (22, Input::FinalOut),
    ];
    check(&scenario, &["20: GoAway", "22: Settled"]);
}

#[test]
fn the_ping_is_not_answered_before_it_was_asked() {
    // The peer does not read: the first GOAWAY leaves late, and the PONG follows it at once.
    let scenario = [
        (5, Input::Spoken(H2)),
        (10, Input::Leave(SECOND)),
        (3_000, Input::GoAwayOut),
    ];
    check(
        &scenario,
        &[
            "10: GoAway",
            "1010: Settled",
            "3000: InjectPong",
            "4100: Look, Drop(Silent)",
        ],
    );
}

#[test]
fn who_speaks_after_being_told_is_told_then() {
    let pause = Duration::ZERO;
    check(
        &[(1, Input::Hint(pause)), (5, Input::Spoken(H2))],
        &["5: GoAway"],
    );
    check(
        &[(1, Input::Leave(SECOND)), (5, Input::Spoken(H2))],
        &["5: GoAway", "1001: Settled"],
    );
    check_looking(
        Look::Busy,
        &[(1, Input::Leave(SECOND)), (5, Input::Spoken(H1))],
        &["5: Look, Close, Settled"],
    );
}

#[test]
fn an_idle_http1_connection_lingers_and_a_busy_one_finishes() {
    let scenario = [(5, Input::Spoken(H1)), (10, Input::Leave(SECOND))];
    check(
        &scenario,
        &[
            "10: Look",
            "260: Look, Close, Settled",
            // Half a head: the library would wait for its rest.
            "1260: Look, Drop(Silent)",
        ],
    );
    check_looking(Look::Busy, &scenario, &["10: Look, Close, Settled"]);
    check_looking(
        Look::Waiting,
        &scenario,
        &[
            "10: Look",
            "260: Look",
            "510: Look",
            "760: Look",
            // S18: the head that has begun may still be finished.
            "1010: Look, LastAnswer, Settled",
            "2010: Look, Drop(Silent)",
        ],
    );
    check_looking(
        Look::HalfHead,
        &scenario,
        &[
            "10: Look",
            "260: Look, LastAnswer, Settled",
            "1260: Look, Drop(Silent)",
        ],
    );
    // HTTP/1 is hinted by its answers.
    check(&[(5, Input::Spoken(H1)), (9, Input::Hint(SECOND))], &[]);
}

#[test]
fn a_cut_ends_answers_then_streams_then_the_connection() {
    // HTTP/1 too has an answer to end, or one to begin with.
    for protocol in [H1, H2] {
        let cut = [(5, Input::Spoken(protocol)), (10, Input::Force)];
        check(
            &cut,
            &[
                "10: EndStreams, Settled",
                "60: ResetStreams",
                "110: Drop(Cut)",
            ],
        );
    }
    check(&[(10, Input::Force)], &["10: Settled, Drop(Cut)"]);
}

#[test]
fn an_upgraded_connection_is_its_owners_until_the_cut() {
    let scenario = [
        (5, Input::Spoken(H1)),
        (6, Input::Upgraded),
        (10, Input::Leave(SECOND)),
        (20, Input::Force),
    ];
    check(&scenario, &["10: Settled", "20: Drop(Cut)"]);
}

fn inputs() -> Vec<Input> {
    let mut all = vec![
        Input::Begun,
        Input::Spoken(H1),
        Input::Spoken(H2),
        Input::Hint(Duration::ZERO),
        Input::Hint(Duration::from_millis(100)),
        Input::Leave(SECOND),
        Input::GoAwayOut,
        Input::FinalOut,
    ];
    let looks = [Look::Busy, Look::Waiting, Look::HalfHead, Look::Quiet];
    all.extend(looks.map(Input::Seen));
    all.extend([Input::Upgraded, Input::Force]);
    all
}

/// What of a machine matters to its next step, in words.
fn situation(conn: &Conn, now: Timestamp) -> String {
    let mut text = format!("{:?}", conn.state);
    for (flag, word) in [
        (conn.hint.is_some(), "hinted"),
        (conn.leave_by.is_some_and(|by| now < by), "leaving"),
        (conn.leave_by.is_some_and(|by| by <= now), "overdue"),
        (conn.settled, "settled"),
    ] {
        if flag {
            write!(text, " {word}").expect("a String");
        }
    }
    if let Some((at, why)) = conn.deadline {
        let left = at.saturating_since(now).as_millis();
        write!(text, ", {why} in {left} ms").expect("a String");
    }
    text
}

/// Every situation that can be reached, every input in it, and its deadline.
#[test]
fn the_whole_table() {
    let start = (Conn::new(Timestamp::ZERO, ALL), Timestamp::ZERO);
    let mut known = BTreeSet::from([situation(&start.0, start.1)]);
    let (mut queue, mut text) = (VecDeque::from([start]), String::new());
    while let Some((conn, now)) = queue.pop_front() {
        writeln!(text, "## {}", situation(&conn, now)).expect("a String");
        let due = conn.deadline().map(|(at, _)| (None, at));
        let steps = inputs()
            .into_iter()
            .map(|input| (Some(input), now))
            .chain(due);
        for (input, at) in steps {
            let mut next = conn.clone();
            let name = match input {
                Some(input) => {
                    next.handle(at, input);
                    format!("{input:?}")
                }
                None => {
                    next.handle_timeout(at);
                    "(deadline)".to_string()
                }
            };
            let outputs: Vec<_> = core::iter::from_fn(|| next.poll()).collect();
            let after = situation(&next, at);
            if outputs.is_empty() && after == situation(&conn, now) {
                continue;
            }
            writeln!(text, "{name}: {outputs:?} -> {after}").expect("a String");
            if known.insert(after) {
                queue.push_back((next, at));
            }
        }
    }
    assert_table("conn", &text);
}

fn any_step() -> impl Strategy<Value = (u64, Input, Look)> {
    let look = prop::sample::select(vec![Look::Busy, Look::Waiting, Look::HalfHead, Look::Quiet]);
    (0_u64..700, prop::sample::select(inputs()), look)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever happens: each wait is bounded, and each promise is kept once.
    #[test]
    fn every_wait_is_bounded(
        steps in prop::collection::vec(any_step(), 0..12),
        bounds in prop::sample::select(vec![BOUNDS, ALL, NONE]),
    ) {
        let mut world = World::new(bounds);
        let (mut left, mut forced, mut asked) = (None, None, None);
        for (pause, input, look) in steps {
            world.look = look;
            world.pass(world.now + Duration::from_millis(pause));
            match input {
                Input::Leave(_) => left = left.or(Some(world.now)),
                Input::Force => forced = forced.or(Some(world.now)),
                Input::GoAwayOut => asked = asked.or(Some(world.now)),
                _ => {}
            }
            // A look is answered by the edge alone.
            if !matches!(input, Input::Seen(_)) {
                world.handle(input);
            }
            prop_assert!(world.conn.deadline().is_none_or(|(at, _)| world.now <= at));
        }
        world.pass(world.now + Duration::from_secs(60));

        let settled = world.seen.iter().filter(|(_, o)| *o == Output::Settled).count();
        prop_assert!(settled <= 1);
        if let Some(left) = left {
            let at = world.first(|o| o == Output::Settled);
            prop_assert!(at.is_some_and(|at| at <= left + FINAL_GOAWAY_MAX + CUT_FLUSH));
        }
        if let Some(forced) = forced {
            let at = world.first(|o| matches!(o, Output::Drop(_)));
            prop_assert!(at.is_some_and(|at| at <= forced + CUT_FLUSH));
        }
        if let Some(pong) = world.first(|o| o == Output::InjectPong) {
            prop_assert!(asked.is_some_and(|asked| asked <= pong));
        }
        let dropped = world.seen.iter().position(|(_, o)| matches!(o, Output::Drop(_)));
        prop_assert!(dropped.is_none_or(|at| at + 1 == world.seen.len()));
        let goaways = world.seen.iter().filter(|(_, o)| *o == Output::GoAway).count();
        prop_assert!(goaways <= 1);
    }
}
