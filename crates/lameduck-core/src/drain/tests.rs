use alloc::borrow::ToOwned;
use alloc::format;
use alloc::vec;
use std::panic;

use proptest::prelude::*;

use super::*;
use crate::instance::BootId;

fn plan() -> Plan {
    Plan {
        budget: Duration::from_secs(10),
        cap: Duration::from_secs(4),
        hooks: vec![HookPlan {
            name: "db".to_owned(),
            max: limits::HOOK_MAX,
        }],
        ..Plan::default()
    }
}

/// Plays the edge: keeps the gate's counters, remembers what was asked for, writes a trace.
struct World {
    drain: Drain,
    now: Timestamp,
    admitted: u64,
    returning: u64,
    in_flight: u64,
    asked: Ticket,
    want: Ticket,
    trace: Vec<String>,
}

impl World {
    fn new(plan: Plan) -> Self {
        Self {
            drain: Drain::new(plan, Life::first(BootId::from_bits(1))),
            now: Timestamp::ZERO,
            admitted: 0,
            returning: 0,
            in_flight: 0,
            asked: Ticket::default(),
            want: Ticket::default(),
            trace: Vec::new(),
        }
    }

    fn input(&mut self, input: Input) {
        self.drain.handle(self.now, input);
        self.collect();
    }

    fn collect(&mut self) {
        let mut line = Vec::new();
        while let Some(output) = self.drain.poll() {
            match &output {
                Output::Want(_, ticket) => self.want = *ticket,
                Output::CloseListener(ticket)
                | Output::GoAwayAll(ticket)
                | Output::AwaitInFlight(ticket)
                | Output::RunHook(_, ticket) => self.asked = *ticket,
                _ => {}
            }
            if output == Output::Sample {
                let sampled = Input::Sampled {
                    admitted: self.admitted,
                    returning: self.returning,
                    in_flight: self.in_flight,
                };
                self.drain.handle(self.now, sampled);
            } else {
                line.push(short(&output));
            }
        }
        if !line.is_empty() {
            let at = self.now.as_nanos() / 1_000_000;
            self.trace.push(format!("{at}: {}", line.join(", ")));
        }
    }

    /// Lets time pass, waking the machine whenever it asks.
    fn until(&mut self, millis: u64) {
        let end = Timestamp::from_millis(millis);
        let mut idle = 0;
        while let Some((at, why)) = self.drain.deadline().filter(|(at, _)| *at <= end) {
            idle = if at > self.now { 0 } else { idle + 1 };
            assert!(idle < 100, "woken again and again for {why}");
            self.now = self.now.max(at);
            self.drain.handle_timeout(self.now);
            self.collect();
        }
        self.now = self.now.max(end);
    }

    /// Nothing runs for a time; then all that is due is.
    fn freeze(&mut self, millis: u64) {
        self.now = Timestamp::from_millis(millis);
        while self.drain.deadline().is_some_and(|(at, _)| at <= self.now) {
            self.drain.handle_timeout(self.now);
        }
        self.collect();
    }

    fn step(&mut self, word: &str) {
        let (verb, rest) = word.split_once(' ').unwrap_or((word, ""));
        let (asked, want) = (self.asked, self.want);
        match verb {
            "start" => self.input(Input::Started),
            "term" => self.input(Input::Begin(Command(1), Reason::Sigterm)),
            "ctrl-c" => self.input(Input::Begin(Command(1), Reason::Terminal)),
            "hold" => self.input(Input::Hold(Command(2))),
            "resume" => self.input(Input::Resume(Command(3))),
            "ready" => self.input(Input::Ready(true)),
            "unready" => self.input(Input::Ready(false)),
            "abort" => self.input(Input::Abort),
            "admit" => {
                self.admitted += 1;
                self.in_flight += 1;
            }
            "return" => {
                self.admitted += 1;
                self.returning += 1;
            }
            "until" => self.until(rest.parse().expect("milliseconds")),
            "asleep" => self.now = Timestamp::from_millis(rest.parse().expect("milliseconds")),
            "freeze" => self.freeze(rest.parse().expect("milliseconds")),
            "registry" => self.input(Input::Deregistered(want, Ok(()))),
            "registry-fails" => self.input(Input::Deregistered(want, Err("denied".to_owned()))),
            "listener" => self.input(Input::ListenerClosed(asked)),
            "told" => self.input(Input::FinalGoAways(asked)),
            "idle" => self.input(Input::InFlightZero(asked)),
            "flushed" => self.input(Input::ConnectionsGone),
            "cut" => self.input(Input::WasCut {
                abandoned: rest.parse().expect("a count"),
            }),
            "hook" => self.input(Input::HookDone(asked, Ok(()))),
            "hook-fails" => self.input(Input::HookDone(asked, Err("oh".to_owned()))),
            other => panic!("no such step: {other}"),
        }
    }
}

fn short(output: &Output) -> String {
    match output {
        Output::Enter(phase) => format!("[{}]", phase.as_str()),
        Output::Answer(Command(number), granted) => format!("answer {number} {granted}"),
        Output::Want(Want::Present { life, ready }, _) => {
            format!("want present {} {ready}", life.epoch)
        }
        Output::Want(want, _) => format!("want {want:?}").to_lowercase(),
        Output::Unmark(life) => format!("unmark {}", life.epoch),
        Output::GoAwayExisting { pace } => format!("go-away-existing {}", pace.as_millis()),
        Output::RunHook(index, _) => format!("hook {index}"),
        Output::Done(report) => format!("done {}: {report}", report.exit_code()),
        other => format!("{other:?}")
            .split('(')
            .next()
            .unwrap_or_default()
            .to_lowercase(),
    }
}

/// Plays a scenario (steps, separated by `;`) and compares the trace of outputs.
fn check(scenario: &str, expected: &[&str]) {
    let mut world = World::new(plan());
    for word in scenario.split(';') {
        world.step(word.trim());
    }
    assert_eq!(world.trace, expected, "{scenario}");
}

const SERVING: &str = "0: [serving], ready, want present 0 true";

#[test]
fn the_whole_order_with_nobody_there() {
    check(
        "start; term; until 20; registry; until 600; listener; told; idle; registry; flushed; hook",
        &[
            SERVING,
            "0: answer 1 true, stopping, [closing], unready, want closing, announce",
            "100: go-away-existing 125",
            "500: [draining], closelistener",
            "600: goawayall",
            "600: closegate, endwatches, awaitinflight",
            "600: want gone",
            "600: hook 0",
            "600: [stopped], done 0: stopped (sigterm) in 600 ms: closing 500 ms, in flight at the \
             start 0, abandoned 0",
        ],
    );
}

#[test]
fn s9_readiness_is_that_of_the_program_and_of_serving() {
    check(
        "unready; unready; start; unready; ready; ready; unready",
        &[
            "0: [serving], unready, want present 0 false",
            "0: ready, want present 0 true",
            "0: unready, want present 0 false",
        ],
    );
    check(
        "start; hold; unready; ready; unready; resume; ready",
        &[
            SERVING,
            "0: answer 2 true, [closing], unready, want closing, announce",
            "0: answer 3 true, [serving], unmark 1, unready, want present 1 false",
            "0: ready, want present 1 true",
        ],
    );
    // Whatever is said in a stop, nothing is published any more.
    check(
        "start; unready; term; ready; until 20; unready; ready",
        &[
            SERVING,
            "0: unready, want present 0 false",
            "0: answer 1 true, stopping, [closing], unready, want closing, announce",
        ],
    );
}

#[test]
fn requests_that_keep_coming_prolong_closing_up_to_the_cap() {
    let mut world = World::new(plan());
    ["start", "term"].iter().for_each(|word| world.step(word));
    for tick in 1..200 {
        world.until(tick * 30);
        world.step("admit");
    }
    assert_eq!(world.drain.phase(), Phase::Draining);
    assert_eq!(world.trace[3], "4000: [draining], closelistener");
}

#[test]
fn quiet_counts_from_the_last_request() {
    check(
        "start; term; until 210; admit; until 760",
        &[
            SERVING,
            "0: answer 1 true, stopping, [closing], unready, want closing, announce",
            "100: go-away-existing 125",
            // Seen at 225, so that quiet ends at 725.
            "725: [draining], closelistener",
        ],
    );
}

#[test]
fn s6_peers_that_were_told_and_came_back_do_not_prolong_closing() {
    // Every 10 ms, from before the signal on.
    let ends = |plan: Plan| {
        let mut world = World::new(plan);
        ["start", "return", "term"]
            .iter()
            .for_each(|word| world.step(word));
        for tick in 1..1_100 {
            world.until(tick * 10);
            world.step("return");
        }
        world.trace[3].clone()
    };
    // All are told at 225 and seen last at 200: quiet for 500 ms from then on.
    assert_eq!(ends(plan()), "700: [draining], closelistener");
    let floor = Duration::from_secs(2);
    let long = ends(Plan { floor, ..plan() });
    assert_eq!(long, "2000: [draining], closelistener");
    // The GOAWAYs are out at 125 ms at the earliest.
    let short = Plan {
        floor: Duration::from_millis(100),
        quiet: Duration::from_millis(20),
        ..plan()
    };
    assert_eq!(ends(short), "125: [draining], closelistener");
}

#[test]
fn s6_who_learns_counts_beside_those_who_came_back() {
    check(
        "start; return; term; until 300; return; until 410; return; admit; until 900; return; until 1000",
        &[
            SERVING,
            "0: answer 1 true, stopping, [closing], unready, want closing, announce",
            "100: go-away-existing 125",
            // Seen at 425.
            "925: [draining], closelistener",
        ],
    );
}

#[test]
fn s6_counters_that_wrap_are_no_traffic() {
    let mut world = World::new(plan());
    world.admitted = u64::from(u32::MAX);
    world.returning = u64::from(u32::MAX) - 5;
    ["start", "term"].iter().for_each(|word| world.step(word));
    world.until(300);
    // As a gate whose counter is 32 bits wide says it.
    world.admitted = 3;
    world.returning += 4;
    world.until(600);
    assert_eq!(
        world.trace.last().map(String::as_str),
        Some("500: [draining], closelistener")
    );
}

#[test]
fn the_floor_holds_where_it_is_longer_than_quiet() {
    let floor = Duration::from_secs(2);
    let mut world = World::new(Plan { floor, ..plan() });
    ["start", "term", "until 2100"]
        .iter()
        .for_each(|word| world.step(word));
    assert_eq!(
        world.trace.last().map(String::as_str),
        Some("2000: [draining], closelistener")
    );
}

#[test]
fn a_registry_that_is_away_never_prolongs() {
    check(
        "start; term; until 500; registry-fails; listener; told; idle; flushed; until 1600; \
         registry-fails; hook",
        &[
            SERVING,
            "0: answer 1 true, stopping, [closing], unready, want closing, announce",
            "100: go-away-existing 125",
            "500: [draining], closelistener",
            "500: goawayall",
            "500: closegate, endwatches, awaitinflight",
            "500: want gone",
            "1600: hook 0",
            "1600: [stopped], done 10: stopped (sigterm) in 1600 ms: closing 500 ms, in flight at \
             the start 0, abandoned 0; a registration may be left until its lease ends: denied",
        ],
    );
}

#[test]
fn s30_a_registry_that_answers_late_is_waited_for_while_there_is_budget() {
    check(
        "start; term; until 500; listener; told; idle; flushed; until 4400; registry; hook",
        &[
            SERVING,
            "0: answer 1 true, stopping, [closing], unready, want closing, announce",
            "100: go-away-existing 125",
            "500: [draining], closelistener",
            "500: goawayall",
            "500: closegate, endwatches, awaitinflight",
            "500: want gone",
            "4400: hook 0",
            "4400: [stopped], done 0: stopped (sigterm) in 4400 ms: closing 500 ms, in flight at \
             the start 0, abandoned 0",
        ],
    );
    let mut silent = World::new(plan());
    "start; term; until 500; listener; told; idle; flushed; until 4600"
        .split("; ")
        .for_each(|word| silent.step(word));
    assert_eq!(
        silent.trace.last().map(String::as_str),
        Some("4500: hook 0")
    );
}

#[test]
fn s30_b_a_late_registry_takes_no_time_of_the_hooks() {
    let mut world = World::new(Plan {
        budget: Duration::from_secs(5),
        ..plan()
    });
    "start; term; until 500; listener; told; idle; flushed; until 3000"
        .split("; ")
        .for_each(|word| world.step(word));
    // 4,500 ms are left, half of them for hooks.
    let hook = Some("2750: hook 0");
    assert_eq!(world.trace.last().map(String::as_str), hook);
}

#[test]
fn s08_a_hook_may_take_as_long_as_was_said_for_it() {
    for (max, ends) in [(200, 700), (8_000, 7_400)] {
        let mut plan = plan();
        plan.hooks[0].max = Duration::from_millis(max);
        plan.budget = Duration::from_millis(7_400);
        let mut world = World::new(plan);
        "start; term; until 500; listener; told; idle; registry; flushed; until 7400"
            .split("; ")
            .for_each(|word| world.step(word));
        let last = world.trace.last().cloned().unwrap_or_default();
        assert!(
            last.starts_with(&format!("{ends}: [stopped], done 10")),
            "{last}"
        );
    }
}

#[test]
fn s29_whoever_asks_for_the_same_hears_the_same() {
    check(
        "start; hold; hold; term; ctrl-c; hold; abort; cut 0; registry; flushed; term",
        &[
            SERVING,
            "0: answer 2 true, [closing], unready, want closing, announce",
            "0: answer 2 true",
            "0: answer 1 true, stopping",
            "0: answer 1 true",
            "0: answer 2 false",
            "0: [draining], closegate, cut, want gone",
            "0: [stopped], done 11: was forced to stop (sigterm) in 0 ms: closing 0 ms, in flight \
             at the start 0, abandoned 0",
            "0: answer 1 false",
        ],
    );
}

#[test]
fn what_does_not_end_is_cut_in_time() {
    check(
        "start; admit; term; until 500; listener; told; until 9000; cut 1; until 10000",
        &[
            SERVING,
            "0: answer 1 true, stopping, [closing], unready, want closing, announce",
            "100: go-away-existing 125",
            "500: [draining], closelistener",
            "500: goawayall",
            "500: closegate, endwatches, awaitinflight",
            "9000: cut, want gone",
            "9500: hook 0",
            "10000: [stopped], done 10: stopped (sigterm) in 10000 ms: closing 500 ms, in flight \
             at the start 1, abandoned 1; connections had to be cut; a registration may be left \
             until its lease ends: no answer in time; hook db took too long and was left behind",
        ],
    );
}

#[test]
fn what_was_frozen_past_its_budget_still_says_goodbye() {
    check(
        "start; admit; term; freeze 30000; cut 1; registry; flushed; hook",
        &[
            SERVING,
            "0: answer 1 true, stopping, [closing], unready, want closing, announce",
            "30000: go-away-existing 125, [draining], closelistener, goawayall, closegate, \
             endwatches, awaitinflight, cut, want gone",
            "30000: hook 0",
            "30000: [stopped], done 10: stopped (sigterm) in 30000 ms: closing 30000 ms (ended by \
             its cap), in flight at the start 1, abandoned 1; closing the listener took too long; not every connection confirmed its final GOAWAY; connections had to be cut",
        ],
    );
}

#[test]
fn what_was_frozen_past_its_budget_waits_for_nobody() {
    check(
        "start; admit; term; until 500; listener; told; idle; freeze 30000; until 40000",
        &[
            SERVING,
            "0: answer 1 true, stopping, [closing], unready, want closing, announce",
            "100: go-away-existing 125",
            "500: [draining], closelistener",
            "500: goawayall",
            "500: closegate, endwatches, awaitinflight",
            "500: want gone",
            "30125: cut",
            "30187: hook 0",
            "30250: [stopped], done 10: stopped (sigterm) in 30250 ms: closing 500 ms, in flight \
             at the start 1, abandoned 0; a registration may be left until its lease ends: no \
             answer in time; connections had to be cut; hook db took too long and was left behind",
        ],
    );
}

#[test]
fn what_was_frozen_past_its_budget_hears_first_what_happened_meanwhile() {
    check(
        "start; admit; term; until 500; listener; told; asleep 30000; idle; registry; until 30100; \
         flushed; hook",
        &[
            SERVING,
            "0: answer 1 true, stopping, [closing], unready, want closing, announce",
            "100: go-away-existing 125",
            "500: [draining], closelistener",
            "500: goawayall",
            "500: closegate, endwatches, awaitinflight",
            "30000: want gone",
            "30100: hook 0",
            "30100: [stopped], done 0: stopped (sigterm) in 30100 ms: closing 500 ms, \
             in flight at the start 1, abandoned 0",
        ],
    );
}

#[test]
fn a_second_signal_changes_nothing() {
    check(
        "start; term; until 300; term; hold; resume; until 500",
        &[
            SERVING,
            "0: answer 1 true, stopping, [closing], unready, want closing, announce",
            "100: go-away-existing 125",
            "300: answer 1 true",
            "300: answer 2 false",
            "300: answer 3 false",
            "500: [draining], closelistener",
        ],
    );
}

#[test]
fn a_held_drain_waits_and_comes_back_as_a_new_life() {
    check(
        "start; hold; until 60000; resume; resume; term",
        &[
            SERVING,
            "0: answer 2 true, [closing], unready, want closing, announce",
            "100: go-away-existing 125",
            "60000: answer 3 true, [serving], unmark 1, ready, want present 1 true",
            "60000: answer 3 false",
            "60000: answer 1 true, stopping, [closing], unready, want closing, announce",
        ],
    );
}

#[test]
fn time_in_a_held_drain_counts() {
    check(
        "start; hold; until 2000; term",
        &[
            SERVING,
            "0: answer 2 true, [closing], unready, want closing, announce",
            "100: go-away-existing 125",
            "2000: answer 1 true, stopping, [draining], closelistener",
        ],
    );
}

#[test]
fn a_stop_before_the_start_registers_nothing() {
    check(
        "term; start; listener; told; idle; registry; flushed; hook",
        &[
            "0: answer 1 true, stopping, [draining], closelistener",
            "0: goawayall",
            "0: closegate, endwatches, awaitinflight",
            "0: want gone",
            "0: hook 0",
            "0: [stopped], done 0: stopped (sigterm) in 0 ms: closing 0 ms, in flight at the start \
             0, abandoned 0",
        ],
    );
}

#[test]
fn abort_ends_at_once_and_says_so() {
    check(
        "start; term; until 50; abort; cut 3; registry; until 1000; term",
        &[
            SERVING,
            "0: answer 1 true, stopping, [closing], unready, want closing, announce",
            "50: [draining], closegate, cut, want gone",
            "300: [stopped], done 11: was forced to stop (sigterm) in 300 ms: closing 50 ms, in \
             flight at the start 0, abandoned 3",
            "1000: answer 1 false",
        ],
    );
}

#[test]
fn late_completions_of_an_earlier_step_are_ignored() {
    let mut world = World::new(plan());
    for word in ["start", "hold"] {
        world.step(word);
    }
    let first = world.want;
    for word in ["resume", "term"] {
        world.step(word);
    }
    world.input(Input::Deregistered(first, Ok(())));
    world.step("until 500");
    let listener = world.asked;
    world.step("until 1500");
    world.input(Input::FinalGoAways(listener));
    assert_eq!(
        world.drain.state,
        State::Draining(Step::GoAways(Timestamp::from_millis(3500)))
    );
    assert_eq!(world.drain.report.deregistered, None);
}

#[test]
fn ctrl_c_at_a_terminal_has_no_floor() {
    let mut world = World::new(Plan {
        quiet: Duration::ZERO,
        ..plan()
    });
    for word in ["start", "ctrl-c"] {
        world.step(word);
    }
    assert_eq!(world.drain.phase(), Phase::Draining);
}

#[test]
fn a_server_that_ends_by_itself_is_an_error() {
    let mut world = World::new(plan());
    for word in [
        "start",
        "flushed",
        "listener",
        "told",
        "idle",
        "registry",
        "hook-fails",
    ] {
        world.step(word);
    }
    let Some(last) = world.trace.last() else {
        panic!("no trace")
    };
    assert!(
        last.contains("done 1: stopped (the server ended)"),
        "{last}"
    );
    assert!(last.contains("hook db failed: oh"), "{last}");
}

// --- the whole table ----------------------------------------------------------------------------

const STATES: [(&str, &str); 13] = [
    ("starting", ""),
    ("serving", "start"),
    ("held", "start; hold; until 100"),
    ("closing", "start; term; until 100"),
    ("listener", "start; term; until 500"),
    ("final GOAWAYs", "start; term; until 500; listener"),
    ("in flight", "start; term; until 500; listener; told"),
    ("not ready", "unready; start"),
    ("held, not ready", "start; unready; hold"),
    ("leaving", "start; term; until 500; listener; told; idle"),
    (
        "cut",
        "start; admit; term; until 500; listener; told; until 9000",
    ),
    (
        "hook",
        "start; term; until 500; listener; told; idle; registry; flushed",
    ),
    (
        "stopped",
        "start; term; until 500; listener; told; idle; registry; flushed; hook",
    ),
];

const INPUTS: [&str; 20] = [
    "start",
    "term",
    "ctrl-c",
    "hold",
    "resume",
    "ready",
    "unready",
    "abort",
    "admit; until 125",
    "return; until 125",
    "registry",
    "registry-fails",
    "listener",
    "told",
    "idle",
    "flushed",
    "cut 2",
    "hook",
    "hook-fails",
    "until 20000",
];

#[test]
fn the_table_of_transitions() {
    let mut table = String::from("state | input | outputs | then\n");
    for (name, scenario) in STATES {
        for input in INPUTS {
            let mut world = World::new(plan());
            let words = scenario
                .split(';')
                .map(str::trim)
                .filter(|word| !word.is_empty());
            words.for_each(|word| world.step(word));
            world.trace.clear();
            input.split(';').for_each(|word| world.step(word.trim()));
            let (outputs, phase) = (world.trace.join(" / "), world.drain.phase().as_str());
            let why = world.drain.deadline().map_or("-", |(_, why)| why);
            table.push_str(&format!("{name} | {input} | {outputs} | {phase}, {why}\n"));
        }
    }
    crate::table::assert_table("drain", &table);
}

// --- properties ---------------------------------------------------------------------------------

/// Any step, or time: also completions that nobody asked for and that come late.
fn any_step() -> impl Strategy<Value = String> {
    prop_oneof![
        (0..INPUTS.len() - 1).prop_map(|index| INPUTS[index].to_owned()),
        (0u64..3000).prop_map(|millis| format!("+{millis}")),
        Just("admit".to_owned()),
        Just("return".to_owned()),
    ]
}

fn play(steps: &[String]) -> World {
    let mut world = World::new(plan());
    for step in steps.iter().flat_map(|step| step.split("; ")) {
        match step.strip_prefix('+') {
            Some(millis) => {
                let millis: u64 = millis.parse().expect("a number");
                world.until(world.now.as_nanos() / 1_000_000 + millis);
            }
            None if step.starts_with("until") => {}
            None => world.step(step),
        }
    }
    world
}

fn words(world: &World) -> Vec<(u64, String)> {
    let mut words = Vec::new();
    for line in &world.trace {
        let (at, rest) = line.split_once(": ").expect("a time");
        let at = at.parse().expect("a number");
        words.extend(rest.split(", ").map(|word| (at, word.to_owned())));
    }
    words
}

proptest! {
    #[test]
    fn a_stop_ends_within_its_budget(before in prop::collection::vec(any_step(), 0..12),
                                     after in prop::collection::vec(any_step(), 0..12)) {
        let mut world = play(&before);
        let stopped = world.drain.stop.is_some();
        world.step("term");
        let begun = world.now;
        for step in after {
            // Every timeout is taken, nothing else need ever happen.
            if let Some(millis) = step.strip_prefix('+') {
                let millis: u64 = millis.parse().expect("a number");
                world.until(world.now.as_nanos() / 1_000_000 + millis);
            } else if !step.contains("until") {
                world.step(&step);
            }
        }
        let end = begun + plan().budget;
        world.until(end.as_nanos() / 1_000_000);
        prop_assert_eq!(world.drain.phase(), Phase::Stopped);
        let done = words(&world).into_iter().filter(|(_, word)| word.starts_with("done")).count();
        prop_assert_eq!(done, 1);
        prop_assert!(stopped || world.drain.report.total <= plan().budget);
    }

    #[test]
    fn what_has_been_told_to_leave_stays_away(steps in prop::collection::vec(any_step(), 0..30)) {
        let world = play(&steps);
        let words = words(&world);
        let position = |word: &str| words.iter().position(|(_, w)| w.starts_with(word));
        let after = |mark: Option<usize>| mark.map_or(&[][..], |mark| &words[mark..]);
        for (_, word) in after(position("stopping")) {
            prop_assert!(!word.starts_with("want present") && word != "ready", "{word}");
            prop_assert!(!word.starts_with("unmark"), "{word}");
        }
        let gone = words.iter().filter(|(_, word)| word == "want gone").count();
        prop_assert!(gone <= 1);
        prop_assert!(after(position("want gone")).iter().all(|(_, word)| word != "want closing"));
    }

    #[test]
    fn announced_once_a_life_and_told_no_sooner_than_allowed(
        steps in prop::collection::vec(any_step(), 0..30)
    ) {
        let world = play(&steps);
        let (mut announced, mut unready) = (false, None);
        for (at, word) in words(&world) {
            match word.as_str() {
                "announce" => prop_assert!(!core::mem::replace(&mut announced, true)),
                "unready" => unready = Some(at),
                word if word.starts_with("unmark") => (announced, unready) = (false, None),
                word if word.starts_with("go-away-existing") => {
                    prop_assert!(unready.is_some_and(|since| at - since >= 100));
                }
                "closelistener" | "goawayall" | "closegate" => {
                    prop_assert!(world.drain.stop.is_some());
                }
                _ => {}
            }
        }
    }

    #[test]
    fn closing_lasts_the_floor_and_ends_at_the_cap(admissions in prop::collection::vec(0u64..400, 0..40)) {
        let mut world = World::new(plan());
        ["start", "term"].iter().for_each(|word| world.step(word));
        let mut last = 0;
        for gap in admissions {
            let at = world.now.as_nanos() / 1_000_000 + gap;
            world.until(at);
            if world.drain.phase() != Phase::Closing {
                break;
            }
            world.step("admit");
            last = at;
        }
        world.until(5000);
        let words = words(&world);
        let (left, _) = words.iter().find(|(_, word)| word == "[draining]").expect("it ends");
        let quiet = (last + 500..=last + 530).contains(left);
        prop_assert!((500..=4000).contains(left));
        prop_assert!(quiet || *left == 4000 || (last == 0 && *left == 500), "{last} {left}");
    }
}
