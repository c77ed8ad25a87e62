//! Scenarios are lines of text: one input each, or `at <ms>` to let time pass. What comes out is
//! text too. `#w` in an input is the ticket of the last work given out, `#r` of the last renewal.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::instance::BootId;
use crate::rng::Rng;

fn life(epoch: u32) -> Life {
    Life {
        boot: BootId::from_bits(1),
        epoch,
    }
}

fn ticket(number: u64) -> Ticket {
    (0..number).fold(Ticket::default(), |ticket, _| ticket.next())
}

struct World {
    session: Session,
    now: Timestamp,
    work: u64,
    renewal: u64,
    trace: Vec<String>,
}

impl World {
    fn new() -> Self {
        Self {
            session: Session::new(Rng::from_seed(1)),
            now: Timestamp::ZERO,
            work: 0,
            renewal: 0,
            trace: Vec::new(),
        }
    }

    fn run(&mut self, scenario: &str) {
        for line in scenario.lines().map(str::trim).filter(|l| !l.is_empty()) {
            match line.strip_prefix("at ") {
                Some(millis) => {
                    self.pass(Timestamp::from_millis(millis.parse().expect("a number")));
                }
                None => {
                    let input = self.input(line);
                    self.session.handle(self.now, input);
                    self.drain();
                }
            }
        }
    }

    fn pass(&mut self, until: Timestamp) {
        while let Some((due, _)) = self.session.deadline().filter(|(due, _)| *due <= until) {
            self.now = self.now.max(due);
            self.session.handle_timeout(self.now);
            self.drain();
            assert!(
                self.session
                    .deadline()
                    .is_none_or(|(next, _)| next > self.now),
                "a deadline must not stay due: {:?}",
                self.session
            );
        }
        self.now = until;
    }

    fn input(&self, line: &str) -> Input {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ticket = |word: &str| match word {
            "#w" => ticket(self.work),
            "#r" => ticket(self.renewal),
            word => ticket(word[1..].parse().expect("a ticket")),
        };
        let seconds = |word: &str| Duration::from_secs(word.parse().expect("seconds"));
        match words.as_slice() {
            ["present", epoch, ready] => Input::Want(Want::Present {
                life: life(epoch.parse().expect("an epoch")),
                ready: *ready == "ready",
            }),
            ["closing"] => Input::Want(Want::Closing),
            ["gone"] => Input::Want(Want::Gone),
            ["granted", t, lease, ttl] => Input::Granted {
                ticket: ticket(t),
                lease: LeaseId(lease.parse().expect("a lease")),
                ttl: seconds(ttl),
            },
            ["renewed", t, ttl] => Input::Renewed {
                ticket: ticket(t),
                ttl: seconds(ttl),
            },
            ["done", t] => Input::Done { ticket: ticket(t) },
            ["checked", t, how] => Input::Checked {
                ticket: ticket(t),
                intact: *how == "intact",
            },
            ["lost", t] => Input::LeaseGone { ticket: ticket(t) },
            ["failed", t, class] => Input::Failed {
                ticket: ticket(t),
                error: error(class),
            },
            _ => panic!("no input: {line}"),
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.session.poll() {
            let line = self.show(&output);
            self.trace
                .push(format!("@{} {line}", self.now.as_nanos() / 1_000_000));
        }
    }

    fn show(&mut self, output: &Output) -> String {
        match output {
            Output::Renew { ticket, .. } => self.renewal = ticket.number(),
            Output::Grant { ticket }
            | Output::Put { ticket, .. }
            | Output::PutClosing { ticket, .. }
            | Output::Check { ticket, .. }
            | Output::Revoke { ticket, .. } => self.work = ticket.number(),
            Output::Status(_) => {}
        }
        match output {
            Output::Grant { ticket } => format!("grant #{}", ticket.number()),
            Output::Put {
                ticket,
                lease,
                life,
                ready,
                records,
            } => format!(
                "put #{} lease {} epoch {}{}{}",
                ticket.number(),
                lease.0,
                life.epoch,
                if *ready { "" } else { " unready" },
                if *records { "" } else { " foreign-only" },
            ),
            Output::PutClosing { ticket, lease, .. } => {
                format!("close #{} lease {}", ticket.number(), lease.0)
            }
            Output::Renew { ticket, lease } => {
                format!("renew #{} lease {}", ticket.number(), lease.0)
            }
            Output::Check {
                ticket,
                lease,
                ready,
                ..
            } => {
                let unready = if *ready { "" } else { " unready" };
                format!("check #{} lease {}{unready}", ticket.number(), lease.0)
            }
            Output::Revoke { ticket, lease } => {
                format!("revoke #{} lease {}", ticket.number(), lease.0)
            }
            Output::Status(status) => show_status(status),
        }
    }

    fn state(&self) -> &'static str {
        match &self.session.state {
            State::Idle => "idle",
            State::Pausing { .. } => "pausing",
            State::Granting { .. } => "granting",
            State::Holding(held) => match (held.work, held.published) {
                (Work::Busy { job, .. }, _) => match job {
                    Job::Put(_) => "putting",
                    Job::Close(_) => "closing",
                    Job::Check => "checking",
                },
                (Work::Resting { .. }, _) => "resting",
                (Work::Free, None) => "holding",
                (Work::Free, Some(Published::Serving(_))) => "present",
                (Work::Free, Some(Published::Closing(_))) => "closed",
            },
            State::Revoking { .. } => "revoking",
            State::Gone => "gone",
        }
    }
}

fn error(class: &str) -> RegistryError {
    let class = match class {
        "retry" => ErrorClass::Retry,
        "refused" => ErrorClass::Refused,
        _ => ErrorClass::Full,
    };
    RegistryError {
        class,
        message: format!("{class:?}"),
    }
}

fn show_status(status: &PublicationStatus) -> String {
    let reached = match status.reached {
        None => "nothing".to_string(),
        Some(Want::Present { life, ready }) => format!(
            "present {}{}",
            life.epoch,
            if ready { "" } else { " unready" }
        ),
        Some(Want::Closing) => "closing".to_string(),
        Some(Want::Gone) => "gone".to_string(),
    };
    format!(
        "status {reached}{}{}{}",
        if status.registered { ", listed" } else { "" },
        if status.metadata { "" } else { ", denied" },
        match &status.error {
            Some(error) => format!(", {}", error.message),
            None => String::new(),
        }
    )
}

#[track_caller]
fn check(scenario: &str, expected: &str) {
    let mut world = World::new();
    world.run(scenario);
    let expected: Vec<&str> = expected
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    assert_eq!(world.trace, expected, "{scenario}");
}

const PRESENT: &str = "present 0 ready\ngranted #1 7 9\ndone #2\n";

#[test]
fn registers_renews_and_checks() {
    check(
        &format!("{PRESENT} at 3000\nrenewed #3 9\nchecked #4 intact\nat 6000"),
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 status present 0, listed
         @3000 renew #3 lease 7
         @3000 check #4 lease 7
         @6000 renew #5 lease 7",
    );
}

#[test]
fn a_deleted_key_is_put_back_under_the_same_lease() {
    check(
        &format!("{PRESENT} at 3000\nrenewed #3 9\nchecked #4 damaged\ndone #5"),
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 status present 0, listed
         @3000 renew #3 lease 7
         @3000 check #4 lease 7
         @3000 put #5 lease 7 epoch 0
         @3000 status present 0
         @3000 status present 0, listed",
    );
}

#[test]
fn leaves_in_two_steps() {
    check(
        &format!("{PRESENT} closing\ndone #3\nat 3000\nrenewed #4 9\ngone\ndone #5"),
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 status present 0, listed
         @0 close #3 lease 7
         @0 status closing
         @3000 renew #4 lease 7
         @3000 revoke #5 lease 7
         @3000 status gone",
    );
}

#[test]
fn closing_waits_for_the_write_under_way() {
    check(
        "present 0 ready\ngranted #1 7 9\nclosing\ndone #2\ndone #3",
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 close #3 lease 7
         @0 status present 0, listed
         @0 status closing",
    );
}

#[test]
fn a_late_lease_does_not_revive_a_leaver() {
    check(
        "present 0 ready\nclosing\ngranted #1 7 9\nat 9000",
        "@0 grant #1
         @0 status closing
         @0 revoke #2 lease 7",
    );
    check(
        "present 0 ready\ngone\ngranted #1 7 9\npresent 1 ready\nat 9000",
        "@0 grant #1
         @0 status gone
         @0 revoke #2 lease 7",
    );
}

#[test]
fn resume_publishes_the_next_life_before_the_old_lease_goes() {
    check(
        &format!("{PRESENT} closing\ndone #3\npresent 1 ready\ngranted #4 8 9\ndone #5"),
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 status present 0, listed
         @0 close #3 lease 7
         @0 status closing
         @0 grant #4
         @0 put #5 lease 8 epoch 1
         @0 revoke #6 lease 7
         @0 status present 1, listed",
    );
}

#[test]
fn a_closing_that_failed_may_have_been_written_all_the_same() {
    check(
        &format!("{PRESENT} closing\nfailed #3 retry\npresent 0 ready\ngranted #4 8 9\ndone #5"),
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 status present 0, listed
         @0 close #3 lease 7
         @0 status present 0, listed, Retry
         @0 grant #4
         @0 status present 0, Retry
         @0 put #5 lease 8 epoch 0
         @0 revoke #6 lease 7
         @0 status present 0, listed",
    );
}

#[test]
fn a_lease_that_may_have_been_renewed_late_is_not_taken_for_ended() {
    // By its own clock it ended at 9 s; the renewal may have been taken up to 6 s, for another 9 s.
    check(
        &format!("{PRESENT} at 10000\ngone\nat 14999\nat 15000"),
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 status present 0, listed
         @3000 renew #3 lease 7
         @9000 status present 0
         @10000 revoke #4 lease 7
         @15000 status gone",
    );
}

#[test]
fn a_refused_change_of_our_records_is_told() {
    check(
        &format!("{PRESENT} present 0 unready\nat 1000\nfailed #w refused\ndone #w"),
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 status present 0, listed
         @1000 put #3 lease 7 epoch 0 unready
         @1000 put #4 lease 7 epoch 0 unready foreign-only
         @1000 status present 0 unready, listed, denied",
    );
}

#[test]
fn s9_readiness_is_shown_where_our_records_are_denied_too() {
    check(
        "present 0 ready\ngranted #1 7 9\nfailed #w refused\ndone #w\npresent 0 unready\nat 2000\n\
         done #w\nat 3000\nrenewed #r 9",
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 put #3 lease 7 epoch 0 foreign-only
         @0 status present 0, listed, denied
         @1000 put #4 lease 7 epoch 0 unready foreign-only
         @2000 status present 0 unready, listed, denied
         @3000 renew #5 lease 7
         @3000 check #6 lease 7 unready",
    );
}

#[test]
fn resume_while_closing_is_being_written_takes_a_new_lease() {
    check(
        &format!("{PRESENT} closing\npresent 1 ready\ndone #3\ngranted #4 8 9\ndone #5"),
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 status present 0, listed
         @0 close #3 lease 7
         @0 grant #4
         @0 status present 0
         @0 put #5 lease 8 epoch 1
         @0 revoke #6 lease 7
         @0 status present 1, listed",
    );
}

#[test]
fn a_lease_that_outlived_an_outage_is_kept() {
    check(
        &format!(
            "{PRESENT} at 3000\nfailed #3 retry\nat 3200\nfailed #4 retry\nat 9000\n
             failed #5 retry\nat 9500\nrenewed #6 9\nat 9600"
        ),
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 status present 0, listed
         @3000 renew #3 lease 7
         @3000 status present 0, listed, Retry
         @3078 renew #4 lease 7
         @3374 renew #5 lease 7
         @9000 status present 0, Retry
         @9394 renew #6 lease 7
         @9500 check #7 lease 7
         @9500 status present 0, listed",
    );
}

#[test]
fn a_lost_lease_is_replaced_at_once() {
    check(
        &format!("{PRESENT} at 3000\nlost #3\ngranted #4 8 9\ndone #5"),
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 status present 0, listed
         @3000 renew #3 lease 7
         @3000 grant #4
         @3000 status present 0, the lease is gone
         @3000 put #5 lease 8 epoch 0
         @3000 status present 0, listed",
    );
}

#[test]
fn a_lease_lost_while_leaving_is_not_replaced() {
    check(
        &format!("{PRESENT} closing\ndone #3\nat 3000\nlost #4\nat 20000\ngone"),
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 status present 0, listed
         @0 close #3 lease 7
         @0 status closing
         @3000 renew #4 lease 7
         @20000 status gone",
    );
}

#[test]
fn metadata_denied_leaves_the_foreign_key_alone_and_closes_by_revoking() {
    check(
        "present 0 ready\ngranted #1 7 9\nfailed #2 refused\ndone #3\nat 2000\nclosing\ndone #4",
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 put #3 lease 7 epoch 0 foreign-only
         @0 status present 0, listed, denied
         @2000 revoke #4 lease 7
         @2000 status present 0, denied
         @2000 status closing, denied",
    );
}

#[test]
fn a_full_store_cannot_keep_anybody_from_leaving() {
    check(
        &format!("{PRESENT} closing\nfailed #3 full\ndone #4"),
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 status present 0, listed
         @0 close #3 lease 7
         @0 revoke #4 lease 7
         @0 status present 0, Full
         @0 status closing",
    );
}

#[test]
fn a_full_store_keeps_what_is_published() {
    check(
        &format!(
            "{PRESENT} present 0 unready\nat 1000\nfailed #3 full\nat 1050\npresent 0 ready\nat 2900"
        ),
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 status present 0, listed
         @1000 put #3 lease 7 epoch 0 unready
         @1000 status present 0, listed, Full",
    );
}

#[test]
fn a_registry_that_is_away_at_start_is_asked_again() {
    check(
        "present 0 ready\nfailed #1 retry\nat 100\nfailed #2 retry\nat 400\ngranted #3 7 9\ndone #4",
        "@0 grant #1
         @0 status nothing, Retry
         @78 grant #2
         @274 grant #3
         @400 put #4 lease 7 epoch 0
         @400 status present 0, listed",
    );
}

#[test]
fn changes_are_paced() {
    check(
        &format!(
            "{PRESENT} present 0 unready\nat 500\npresent 0 ready\npresent 0 unready\nat 1000"
        ),
        "@0 grant #1
         @0 put #2 lease 7 epoch 0
         @0 status present 0, listed
         @1000 put #3 lease 7 epoch 0 unready",
    );
}

/// Everything fails for a minute from `since` on: how many calls that makes.
fn calls_in_a_minute(scenario: &str, since: u64) -> usize {
    let mut world = World::new();
    world.run(scenario);
    let before = world.trace.len();
    let mut answered = 0;
    for tick in 0..6_000 {
        world.pass(Timestamp::from_millis(since + tick * 10));
        for ticket in answered + 1..=world.work.max(world.renewal) {
            let line = format!("failed #{ticket} retry");
            world.run(&line);
            answered = ticket;
        }
    }
    let calls = world.trace[before..].iter();
    calls.filter(|line| !line.contains("status")).count()
}

#[test]
fn c15_an_outage_makes_no_busy_loop() {
    let granting = calls_in_a_minute("present 0 ready", 0);
    assert!((6..20).contains(&granting), "{granting} grants");
    // A lease that may still live is asked for at least as often as it would be renewed.
    let renewing = calls_in_a_minute(PRESENT, 0);
    assert!((20..40).contains(&renewing), "{renewing} renewals");
    let closing = calls_in_a_minute(&format!("{PRESENT} closing"), 0);
    assert!((20..60).contains(&closing), "{closing} calls");
}

const SITUATIONS: &[(&str, &str)] = &[
    ("nothing wanted", ""),
    ("granting", "present 0 ready"),
    ("pausing", "present 0 ready\nfailed #1 retry"),
    ("putting", "present 0 ready\ngranted #1 7 9"),
    (
        "putting foreign key alone",
        "present 0 ready\ngranted #1 7 9\nfailed #2 refused",
    ),
    (
        "resting",
        "present 0 ready\ngranted #1 7 9\nfailed #2 retry",
    ),
    ("present", PRESENT),
    (
        "renewing",
        "present 0 ready\ngranted #1 7 9\ndone #2\nat 3000",
    ),
    (
        "checking",
        "present 0 ready\ngranted #1 7 9\ndone #2\nat 3000\nrenewed #3 9",
    ),
    (
        "outlived",
        "present 0 ready\ngranted #1 7 9\ndone #2\nat 9000",
    ),
    (
        "closing, write under way",
        "present 0 ready\ngranted #1 7 9\nclosing",
    ),
    (
        "closing",
        "present 0 ready\ngranted #1 7 9\ndone #2\nclosing",
    ),
    (
        "closed",
        "present 0 ready\ngranted #1 7 9\ndone #2\nclosing\ndone #3",
    ),
    (
        "resuming",
        "present 0 ready\ngranted #1 7 9\ndone #2\nclosing\ndone #3\npresent 1 ready",
    ),
    (
        "resumed, putting",
        "present 0 ready\ngranted #1 7 9\ndone #2\nclosing\ndone #3\npresent 1 ready\ngranted #4 8 9",
    ),
    (
        "closing by revoking",
        "present 0 ready\ngranted #1 7 9\ndone #2\nclosing\nfailed #3 full",
    ),
    ("leaving", "present 0 ready\ngranted #1 7 9\ndone #2\ngone"),
    ("gone", "gone"),
];

const INPUTS: &[&str] = &[
    "present 0 ready",
    "present 0 unready",
    "present 2 ready",
    "closing",
    "gone",
    "granted #w 9 9",
    "granted #0 9 9",
    "renewed #r 9",
    "done #w",
    "done #0",
    "checked #w intact",
    "checked #w damaged",
    "lost #w",
    "lost #r",
    "failed #w retry",
    "failed #w refused",
    "failed #w full",
    "failed #r retry",
    "failed #0 retry",
];

#[test]
fn the_whole_table() {
    let mut table = String::new();
    for (name, scenario) in SITUATIONS {
        table.push_str(&format!("{name}\n"));
        for input in INPUTS {
            let mut world = World::new();
            world.run(scenario);
            world.trace.clear();
            if input.contains("#w") && world.work == 0 || input.contains("#r") && world.renewal == 0
            {
                continue;
            }
            world.run(input);
            let outputs: Vec<&str> = world
                .trace
                .iter()
                .map(|l| l.split_once(' ').map_or("", |(_, l)| l))
                .collect();
            let deadline = world.session.deadline().map_or("never", |(_, why)| why);
            table.push_str(&format!(
                "  {input:18} -> {:9} [{}] until: {deadline}\n",
                world.state(),
                outputs.join(" | ")
            ));
        }
    }
    crate::table::assert_table("session", &table);
}

fn any_step() -> impl Strategy<Value = (u8, u8)> {
    (0..12_u8, any::<u8>())
}

/// A registry that keeps its word, seen through random delays and failures.
#[derive(Default)]
struct Model {
    leases: Vec<LeaseId>,
    serving: Vec<(LeaseId, Life)>,
    closing: Vec<LeaseId>,
    pending: Vec<Output>,
    next: i64,
}

impl Model {
    fn apply(&mut self, output: &Output) -> Option<Input> {
        Some(match *output {
            Output::Grant { ticket } => {
                self.next += 1;
                let lease = LeaseId(self.next);
                self.leases.push(lease);
                let ttl = Duration::from_secs(9);
                Input::Granted { ticket, lease, ttl }
            }
            Output::Put { ticket, lease, .. }
            | Output::PutClosing { ticket, lease, .. }
            | Output::Renew { ticket, lease }
            | Output::Check { ticket, lease, .. }
                if !self.leases.contains(&lease) =>
            {
                Input::LeaseGone { ticket }
            }
            Output::Put {
                ticket,
                lease,
                life,
                ..
            } => {
                assert!(!self.closing.contains(&lease), "closing is final");
                self.serving.retain(|(other, _)| *other != lease);
                self.serving.push((lease, life));
                Input::Done { ticket }
            }
            Output::PutClosing { ticket, lease, .. } => {
                self.serving.retain(|(other, _)| *other != lease);
                self.closing.push(lease);
                Input::Done { ticket }
            }
            Output::Renew { ticket, .. } => {
                let ttl = Duration::from_secs(9);
                Input::Renewed { ticket, ttl }
            }
            Output::Check { ticket, lease, .. } => {
                let intact = self.serving.iter().any(|(other, _)| *other == lease);
                Input::Checked { ticket, intact }
            }
            Output::Revoke { ticket, lease } => {
                self.end(lease);
                Input::Done { ticket }
            }
            Output::Status(_) => return None,
        })
    }

    fn end(&mut self, lease: LeaseId) {
        self.leases.retain(|other| *other != lease);
        self.serving.retain(|(other, _)| *other != lease);
    }
}

fn any_failure(draw: u8, output: &Output) -> Option<Input> {
    let class = ["retry", "retry", "refused", "full"][usize::from(draw % 4)];
    let ticket = match output {
        Output::Grant { ticket }
        | Output::Put { ticket, .. }
        | Output::PutClosing { ticket, .. }
        | Output::Renew { ticket, .. }
        | Output::Check { ticket, .. }
        | Output::Revoke { ticket, .. } => *ticket,
        Output::Status(_) => return None,
    };
    let error = error(class);
    Some(Input::Failed { ticket, error })
}

struct Run {
    session: Session,
    model: Model,
    now: Timestamp,
    epoch: u32,
}

impl Run {
    fn take(&mut self, input: Input) {
        self.session.handle(self.now, input);
        while let Some(output) = self.session.poll() {
            if !matches!(output, Output::Status(_)) {
                self.model.pending.push(output);
            }
        }
    }

    fn step(&mut self, kind: u8, draw: u8) {
        let pick = usize::from(draw) % self.model.pending.len().max(1);
        match kind {
            0..=4 if !self.model.pending.is_empty() => {
                let output = self.model.pending.remove(pick);
                if let Some(input) = self.model.apply(&output) {
                    self.take(input);
                }
            }
            5 if !self.model.pending.is_empty() => {
                let output = self.model.pending.remove(pick);
                // Half of what fails has happened all the same.
                if draw & 64 == 0 {
                    self.model.apply(&output);
                }
                if let Some(input) = any_failure(draw, &output) {
                    self.take(input);
                }
            }
            6 if !self.model.leases.is_empty() => {
                let lease = self.model.leases[usize::from(draw) % self.model.leases.len()];
                self.model.end(lease);
            }
            7 => {
                self.epoch += u32::from(draw & 1);
                let life = life(self.epoch);
                let ready = draw & 2 == 0;
                self.take(Input::Want(Want::Present { life, ready }));
            }
            8 => self.take(Input::Want(Want::Closing)),
            9 if draw > 200 => self.take(Input::Want(Want::Gone)),
            _ => self.wait(Duration::from_millis(u64::from(draw) * 20)),
        }
    }

    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some((due, _)) = self.session.deadline().filter(|(due, _)| *due <= until) {
            self.now = self.now.max(due);
            self.session.handle_timeout(self.now);
            while let Some(output) = self.session.poll() {
                if !matches!(output, Output::Status(_)) {
                    self.model.pending.push(output);
                }
            }
        }
        self.now = until;
    }

    /// From here on everything works: it must end as wanted.
    fn heal(&mut self) {
        for _ in 0..200 {
            while let Some(output) = self.model.pending.pop() {
                if let Some(input) = self.model.apply(&output) {
                    self.take(input);
                }
            }
            self.wait(Duration::from_millis(500));
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_it_ends_as_wanted(steps in prop::collection::vec(any_step(), 0..80)) {
        let mut run = Run {
            session: Session::new(Rng::from_seed(9)),
            model: Model::default(),
            now: Timestamp::ZERO,
            epoch: 0,
        };
        for (kind, draw) in steps {
            run.step(kind, draw);
        }
        run.heal();
        let status = run.session.told.clone().unwrap_or_else(Session::initial_status);
        match run.session.want {
            None => prop_assert!(run.model.serving.is_empty()),
            Some(Want::Present { life, ready }) => {
                prop_assert!(run.model.serving.iter().any(|(_, l)| *l == life), "{:?}", run.session);
                prop_assert!(status.registered, "{:?}", run.session);
                let reached = matches!(status.reached, Some(Want::Present { life: l, ready: r })
                    if l == life && (r == ready || !status.metadata));
                prop_assert!(reached, "{:?}", run.session);
            }
            Some(want) => {
                let held = match &run.session.state {
                    State::Holding(held) => Some(held.lease),
                    _ => None,
                };
                // What was given back without success ends with its TTL, and nothing renews it.
                let revived = run.model.serving.iter().any(|(lease, _)| Some(*lease) == held);
                prop_assert!(!revived, "{:?}", run.session);
                prop_assert_eq!(status.reached, Some(want));
                prop_assert!(!status.registered);
            }
        }
    }
}
