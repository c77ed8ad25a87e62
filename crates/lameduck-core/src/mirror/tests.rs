//! Scenarios are lines of text: one input each, or `at <ms>` to let time pass. `#w` is the ticket
//! of the last watch, `#l` of the last list. Items are `key=value@revision`, deletions `key-@revision`.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::registry::ErrorClass;
use crate::rng::Rng;

type Key = String;

struct World {
    mirror: Mirror<Key, u64>,
    now: Timestamp,
    watch: u64,
    list: u64,
    trace: Vec<String>,
}

fn ticket(number: u64) -> Ticket {
    (0..number).fold(Ticket::default(), |ticket, _| ticket.next())
}

fn number(word: &str) -> u64 {
    word.parse().expect("a number")
}

fn change(word: &str) -> Change<Key, u64> {
    let (what, modified) = word.split_once('@').expect("a revision");
    let (key, value) = match what.split_once('=') {
        Some((key, value)) => (key, Some(number(value))),
        None => (what.strip_suffix('-').expect("a change"), None),
    };
    Change {
        key: key.to_string(),
        modified: number(modified),
        value,
    }
}

fn item(word: &str) -> Item<Key, u64> {
    let Change {
        key,
        modified,
        value,
    } = change(word);
    let value = value.expect("an item holds something");
    Item {
        key,
        modified,
        value,
    }
}

fn retry() -> RegistryError {
    RegistryError {
        class: ErrorClass::Retry,
        message: "away".to_string(),
    }
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            mirror: Mirror::new(Rng::from_seed(1)),
            now: Timestamp::ZERO,
            watch: 0,
            list: 0,
            trace: Vec::new(),
        };
        world.drain();
        world
    }

    fn run(&mut self, scenario: &str) {
        for line in scenario.lines().map(str::trim).filter(|l| !l.is_empty()) {
            if let Some(millis) = line.strip_prefix("at ") {
                self.pass(Timestamp::from_millis(number(millis)));
            } else {
                let input = self.input(line);
                self.mirror.handle(self.now, input);
                self.drain();
            }
        }
    }

    fn pass(&mut self, until: Timestamp) {
        while let Some((due, _)) = self.mirror.deadline().filter(|(due, _)| *due <= until) {
            self.now = self.now.max(due);
            self.mirror.handle_timeout(self.now);
            self.drain();
        }
        self.now = until;
    }

    fn input(&self, line: &str) -> Input<Key, u64> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ticket = match words[1] {
            "#w" => ticket(self.watch),
            "#l" => ticket(self.list),
            word => ticket(number(&word[1..])),
        };
        let origin = |word: &str| {
            let (revision, cluster) = word.split_once('/').unwrap_or((word, "1"));
            Origin {
                revision: number(revision),
                cluster: number(cluster),
            }
        };
        match words[0] {
            "listed" => Input::Listed {
                ticket,
                origin: origin(words[2]),
                items: words[3..].iter().map(|word| item(word)).collect(),
            },
            "opened" => Input::Opened {
                ticket,
                origin: origin(words[2]),
            },
            "changed" => Input::Changed {
                ticket,
                revision: number(words[2]),
                changes: words[3..].iter().map(|word| change(word)).collect(),
            },
            "compacted" => Input::Compacted { ticket },
            "failed" => Input::Failed {
                ticket,
                error: retry(),
            },
            _ => panic!("no input: {line}"),
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.mirror.poll() {
            let line = match output {
                Output::List { ticket } => {
                    self.list = ticket.number();
                    format!("list #{}", self.list)
                }
                Output::Watch { ticket, from } => {
                    self.watch = ticket.number();
                    format!("watch #{} from {from}", self.watch)
                }
                Output::Emit(news) => show(&news),
            };
            self.trace
                .push(format!("@{} {line}", self.now.as_nanos() / 1_000_000));
        }
    }

    fn state(&self) -> &'static str {
        match (self.mirror.state, self.mirror.check) {
            (State::Listing { .. }, _) => "listing",
            (State::Pausing { .. }, _) => "pausing",
            (State::Opening { .. }, _) => "opening",
            (State::Watching { .. }, Check::At(_)) => "watching",
            (State::Watching { .. }, Check::Listing { .. }) => "checking",
        }
    }
}

fn show(news: &News<Key, u64>) -> String {
    match news {
        News::Reset { items, revision } => {
            let items = items
                .iter()
                .map(|i| format!(" {}={}@{}", i.key, i.value, i.modified));
            format!("reset {revision}:{}", items.collect::<String>())
        }
        News::Delta { changes, revision } => {
            let changes = changes.iter().map(|c| match c.value {
                Some(value) => format!(" {}={value}@{}", c.key, c.modified),
                None => format!(" {}-@{}", c.key, c.modified),
            });
            format!("delta {revision}:{}", changes.collect::<String>())
        }
        News::Stale(error) => format!("stale {error}"),
        News::Live => "live".to_string(),
    }
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

const WATCHING: &str = "listed #1 5 a=1@3 b=2@5\nopened #2 5\n";

#[test]
fn lists_then_watches_from_the_next_revision() {
    check(
        &format!("{WATCHING} changed #2 7 a=9@6 b-@7\nchanged #2 8 c=3@8"),
        "@0 list #1
         @0 reset 5: a=1@3 b=2@5
         @0 watch #2 from 6
         @0 delta 7: a=9@6 b-@7
         @0 delta 8: c=3@8",
    );
}

#[test]
fn a_broken_watch_is_resumed_and_nothing_is_taken_twice() {
    check(
        &format!(
            "{WATCHING} changed #2 6 a=9@6\nfailed #2\nat 100\nopened #3 8\n
             changed #3 7 a=9@6 c=1@7"
        ),
        "@0 list #1
         @0 reset 5: a=1@3 b=2@5
         @0 watch #2 from 6
         @0 delta 6: a=9@6
         @0 stale away
         @78 watch #3 from 7
         @100 live
         @100 delta 7: c=1@7",
    );
}

#[test]
fn an_error_changes_nothing_and_is_told_once() {
    check(
        "failed #1\nat 100\nfailed #2\nat 400\nlisted #3 5 a=1@3\nfailed #4\nat 1000",
        "@0 list #1
         @0 stale away
         @78 list #2
         @274 list #3
         @400 reset 5: a=1@3
         @400 watch #4 from 6
         @400 stale away
         @794 watch #5 from 6",
    );
}

#[test]
fn c17_compaction_overtakes_the_watcher() {
    // One list in its place, and no loop where it happens again between list and watch.
    check(
        "listed #1 5 a=1@3\nopened #2 5\ncompacted #2\nlisted #3 90 c=1@80\ncompacted #4\nat 300\n
         listed #5 95 c=1@80\nopened #6 95",
        "@0 list #1
         @0 reset 5: a=1@3
         @0 watch #2 from 6
         @0 list #3
         @0 reset 90: c=1@80
         @0 watch #4 from 91
         @174 list #5
         @300 reset 95: c=1@80
         @300 watch #6 from 96",
    );
}

#[test]
fn a_registry_that_lost_its_history_is_listed_anew() {
    check(
        &format!("{WATCHING} failed #2\nat 100\nopened #3 2\nat 400\nlisted #4 2 z=1@2"),
        "@0 list #1
         @0 reset 5: a=1@3 b=2@5
         @0 watch #2 from 6
         @0 stale away
         @78 watch #3 from 6
         @274 list #4
         @400 reset 2: z=1@2
         @400 watch #5 from 3",
    );
    check(
        &format!("{WATCHING} failed #2\nat 100\nopened #3 9/2"),
        "@0 list #1
         @0 reset 5: a=1@3 b=2@5
         @0 watch #2 from 6
         @0 stale away
         @78 watch #3 from 6",
    );
}

#[test]
fn a_periodic_list_finds_what_the_watch_lost() {
    check(
        &format!("{WATCHING} at 300000\nlisted #3 9 a=4@8 c=3@7\nchanged #2 9 c=3@7\nat 300001"),
        "@0 list #1
         @0 reset 5: a=1@3 b=2@5
         @0 watch #2 from 6
         @252614 list #3
         @300000 delta 9: a=4@8 c=3@7 b-@9",
    );
}

/// Mirrors that list together once do not list together ever after.
#[test]
fn r19_checks_are_spread() {
    let mut firsts = alloc::collections::BTreeSet::new();
    for seed in 0..50 {
        let mut world = World::new();
        world.mirror = Mirror::new(Rng::from_seed(seed));
        world.drain();
        world.run(WATCHING);
        let mut last = Timestamp::ZERO;
        for _ in 0..3 {
            let (due, what) = world.mirror.deadline().expect("it checks");
            assert_eq!(what, "compare with a list");
            let pause = due.saturating_since(last);
            let most = limits::MIRROR_CHECK;
            assert!(pause >= most / 4 * 3 && pause <= most, "{pause:?}");
            if last == Timestamp::ZERO {
                firsts.insert(due);
            }
            world.pass(due);
            world.run("listed #l 5 a=1@3 b=2@5");
            last = due;
        }
    }
    assert!(firsts.len() > 40, "{firsts:?}");
}

#[test]
fn a_list_that_the_watch_has_overtaken_is_dropped() {
    check(
        &format!("{WATCHING} at 300000\nchanged #2 7 b-@7\nlisted #3 6 a=1@3 b=2@5"),
        "@0 list #1
         @0 reset 5: a=1@3 b=2@5
         @0 watch #2 from 6
         @252614 list #3
         @300000 delta 7: b-@7",
    );
}

#[test]
fn a_list_from_before_it_was_asked_for_is_another_history() {
    check(
        &format!("{WATCHING} at 300000\nlisted #3 4 z=1@2"),
        "@0 list #1
         @0 reset 5: a=1@3 b=2@5
         @0 watch #2 from 6
         @252614 list #3
         @300000 reset 4: z=1@2
         @300000 watch #4 from 5",
    );
}

#[test]
fn after_a_break_a_list_follows_soon() {
    let mut world = World::new();
    world.run(&format!(
        "{WATCHING} failed #2\nat 100\nopened #3 5\nat 11000"
    ));
    let last = world.trace.last().map(String::as_str);
    assert!(last.is_some_and(|l| l.ends_with("list #4")), "{last:?}");
}

#[test]
fn the_copy_is_bounded() {
    let mut world = World::new();
    let over = limits::INSTANCES_MAX as u64 + 3;
    let items = (0..over).map(|n| Item {
        key: format!("{n:06}"),
        modified: 1,
        value: n,
    });
    let input = Input::Listed {
        ticket: ticket(1),
        origin: Origin::default(),
        items: items.collect(),
    };
    world.mirror.handle(Timestamp::ZERO, input);
    assert_eq!(world.mirror.items.len(), limits::INSTANCES_MAX);
    assert_eq!(world.mirror.left_out(), 3);
}

const SITUATIONS: &[(&str, &str)] = &[
    ("listing", ""),
    ("pausing before a list", "failed #1"),
    ("opening", "listed #1 5 a=1@3"),
    ("watching", WATCHING),
    (
        "pausing before a watch",
        "listed #1 5 a=1@3 b=2@5\nopened #2 5\nfailed #2",
    ),
    (
        "opening again",
        "listed #1 5 a=1@3 b=2@5\nopened #2 5\nfailed #2\nat 100",
    ),
    (
        "listing after compaction",
        "listed #1 5 a=1@3 b=2@5\nopened #2 5\ncompacted #2",
    ),
    (
        "pausing after compaction",
        "listed #1 5 a=1@3 b=2@5\nopened #2 5\ncompacted #2\nlisted #3 6\ncompacted #4",
    ),
    (
        "checking",
        "listed #1 5 a=1@3 b=2@5\nopened #2 5\nat 300000",
    ),
    (
        "checking, watch broken",
        "listed #1 5 a=1@3 b=2@5\nopened #2 5\nat 300000\nfailed #2",
    ),
];

const INPUTS: &[&str] = &[
    "listed #l 8 a=1@3 c=7@7",
    "listed #l 2 a=1@2",
    "listed #0 8",
    "opened #w 8",
    "opened #w 2",
    "opened #w 8/2",
    "opened #0 8",
    "changed #w 8 a=2@7 b-@8",
    "changed #w 5 a=2@5",
    "changed #w 6",
    "changed #0 8 a-@8",
    "compacted #w",
    "compacted #0",
    "failed #l",
    "failed #w",
    "failed #0",
    "at 400000",
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
            if input.contains("#w") && world.watch == 0 {
                continue;
            }
            world.run(input);
            let outputs: Vec<&str> = world
                .trace
                .iter()
                .map(|l| l.split_once(' ').map_or("", |(_, l)| l))
                .collect();
            let deadline = world.mirror.deadline().map_or("never", |(_, why)| why);
            table.push_str(&format!(
                "  {input:24} -> {:8} [{}] until: {deadline}\n",
                world.state(),
                outputs.join(" | ")
            ));
        }
    }
    crate::table::assert_table("mirror", &table);
}

/// A registry with a history, some of it compacted.
#[derive(Default)]
struct Source {
    history: Vec<Change<Key, u64>>,
    compacted: u64,
    cluster: u64,
}

impl Source {
    fn revision(&self) -> u64 {
        self.history.len() as u64
    }

    fn origin(&self) -> Origin {
        Origin {
            revision: self.revision(),
            cluster: self.cluster,
        }
    }

    fn write(&mut self, draw: u8) {
        let key = format!("k{}", draw % 5);
        let modified = self.revision() + 1;
        let value = (draw & 64 == 0).then_some(u64::from(draw));
        self.history.push(Change {
            key,
            modified,
            value,
        });
    }

    fn items(&self) -> BTreeMap<Key, (u64, u64)> {
        let mut items = BTreeMap::new();
        for change in &self.history {
            match change.value {
                Some(value) => {
                    items.insert(change.key.clone(), (change.modified, value));
                }
                None => {
                    items.remove(&change.key);
                }
            }
        }
        items
    }
}

struct Run {
    mirror: Mirror<Key, u64>,
    source: Source,
    view: BTreeMap<Key, (u64, u64)>,
    now: Timestamp,
    lists: Vec<Ticket>,
    watch: Option<(Ticket, u64, bool)>,
    away: bool,
}

impl Run {
    fn new() -> Self {
        let mut run = Self {
            mirror: Mirror::new(Rng::from_seed(5)),
            source: Source::default(),
            view: BTreeMap::new(),
            now: Timestamp::ZERO,
            lists: Vec::new(),
            watch: None,
            away: false,
        };
        run.drain();
        run
    }

    fn take(&mut self, input: Input<Key, u64>) {
        self.mirror.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.mirror.poll() {
            match output {
                Output::List { ticket } => self.lists.push(ticket),
                Output::Watch { ticket, from } => self.watch = Some((ticket, from, false)),
                Output::Emit(News::Reset { items, .. }) => {
                    let items = items.into_iter();
                    self.view = items.map(|i| (i.key, (i.modified, i.value))).collect();
                }
                Output::Emit(News::Delta { changes, .. }) => {
                    for change in changes {
                        match change.value {
                            Some(value) => {
                                self.view.insert(change.key, (change.modified, value));
                            }
                            None => {
                                self.view.remove(&change.key);
                            }
                        }
                    }
                }
                Output::Emit(_) => {}
            }
        }
    }

    fn answer_lists(&mut self) {
        for ticket in core::mem::take(&mut self.lists) {
            if self.away {
                let error = retry();
                self.take(Input::Failed { ticket, error });
                continue;
            }
            let items = self.source.items().into_iter();
            let items = items.map(|(key, (modified, value))| Item {
                key,
                modified,
                value,
            });
            let (origin, items) = (self.source.origin(), items.collect());
            self.take(Input::Listed {
                ticket,
                origin,
                items,
            });
        }
    }

    fn answer_watch(&mut self) {
        let Some((ticket, from, open)) = self.watch else {
            return;
        };
        if self.away {
            self.watch = None;
            let error = retry();
            return self.take(Input::Failed { ticket, error });
        }
        if !open {
            self.watch = Some((ticket, from, true));
            let origin = self.source.origin();
            self.take(Input::Opened { ticket, origin });
            if self.watch.is_none_or(|(own, _, _)| own != ticket) {
                return;
            }
        }
        if from <= self.source.compacted {
            self.watch = None;
            return self.take(Input::Compacted { ticket });
        }
        let new = self.source.history.iter().filter(|c| c.modified >= from);
        let changes: Vec<_> = new.cloned().collect();
        let revision = self.source.revision();
        if revision >= from {
            self.watch = Some((ticket, revision + 1, true));
            self.take(Input::Changed {
                ticket,
                revision,
                changes,
            });
        }
    }

    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some((due, _)) = self.mirror.deadline().filter(|(due, _)| *due <= until) {
            self.now = self.now.max(due);
            self.mirror.handle_timeout(self.now);
            self.drain();
        }
        self.now = until;
    }

    fn step(&mut self, kind: u8, draw: u8) {
        match kind {
            0..=3 => self.source.write(draw),
            4 => self.answer_lists(),
            5 | 6 => self.answer_watch(),
            7 => self.source.compacted = self.source.revision(),
            8 => self.away = draw & 1 == 0,
            9 if draw > 220 => {
                let cluster = self.source.cluster + 1;
                let (history, compacted) = (Vec::new(), 0);
                self.source = Source {
                    history,
                    compacted,
                    cluster,
                };
                self.away = true;
                self.answer_watch();
                self.away = false;
            }
            _ => self.wait(Duration::from_millis(u64::from(draw) * 10)),
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_the_copy_is_right_in_the_end(
        steps in prop::collection::vec((0..12_u8, any::<u8>()), 0..120),
    ) {
        let mut run = Run::new();
        for (kind, draw) in steps {
            run.step(kind, draw);
        }
        run.away = false;
        for _ in 0..60 {
            run.answer_lists();
            run.answer_watch();
            run.wait(Duration::from_secs(1));
        }
        prop_assert_eq!(&run.view, &run.source.items());
        prop_assert_eq!(&run.view, &run.mirror.items);
        prop_assert!(!run.mirror.stale);
    }
}
