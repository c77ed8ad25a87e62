//! Simulated worlds: the production machines on a clock made of numbers.
//!
//! A world is made from a seed: servers, callers, a registry, a network that delays, loses and
//! repeats, and an operator who rolls, holds, kills and pauses. Everything that decides is the
//! production machine of `lameduck-core` (drain, conn, session, mirror, directory, endpoint, watch,
//! the store, attempts and budget), and what their outputs do is the production mapping of
//! `lameduck_core::effects`; what is simulated is only what they act upon. Each world is judged
//! by an oracle (no call lost, none run twice, nobody chosen against better knowledge) and, once it
//! has come to rest, by what must have come true (everybody found, everybody registered, nobody
//! stuck). Where something is violated, the scenario is shrunk, and its timeline is printed; the
//! same seed gives the same bytes.

mod call;
mod caller;
mod conduct;
mod hearing;
mod leaving;
mod net;
mod operator;
mod oracle;
mod process;
mod reference;
mod registry;
pub mod scenario;
mod served;
mod view;
mod wire;
mod world;

use std::fmt;

use scenario::Scenario;
use world::World;

/// A world that violated something, made as small as leaving things out can make it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What happens in it.
    pub scenario: Scenario,
    /// What was violated.
    pub violations: Vec<String>,
    /// What happened, line by line.
    pub timeline: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.timeline {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "{}", self.scenario)?;
        for violation in &self.violations {
            writeln!(f, "violated: {violation}")?;
        }
        write!(f, "again: lameduck lab sim --seed {}", self.scenario.seed)
    }
}

/// What many worlds came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How many worlds were run.
    pub worlds: u64,
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that were lost with a process that was killed, paused or cut off.
    pub excused: u64,
    /// Graceful stops.
    pub drains: u64,
    /// The first world that violated something.
    pub violation: Option<Box<Violation>>,
}

/// Runs the world of one seed, shrunk where it violates something.
#[must_use]
pub fn run_seed(seed: u64) -> Summary {
    run(Scenario::from_seed(seed))
}

/// Runs the worlds of `seeds` on all cores. Where several violate something, the lowest seed is
/// the one that is told, so that the answer does not depend on the machine.
///
/// # Panics
///
/// Where a world panics: that is a bug, and its seed is in the message.
#[must_use]
pub fn run_seeds(seeds: std::ops::Range<u64>) -> Summary {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let seeds = &seeds;
    let share = move |thread: u64| {
        let own = seeds.clone().filter(move |seed| seed % threads == thread);
        own.map(run_seed).fold(Summary::default(), Summary::and)
    };
    std::thread::scope(|scope| {
        let shares = (0..threads).map(|thread| scope.spawn(move || share(thread)));
        let shares: Vec<_> = shares.collect();
        let summaries = shares
            .into_iter()
            .map(|one| one.join().expect("no world panics"));
        summaries.fold(Summary::default(), Summary::and)
    })
}

impl Summary {
    /// Both together; of two violations the one of the lower seed.
    fn and(self, other: Self) -> Self {
        let violations = [self.violation, other.violation].into_iter().flatten();
        Self {
            worlds: self.worlds + other.worlds,
            answered: self.answered + other.answered,
            excused: self.excused + other.excused,
            drains: self.drains + other.drains,
            violation: violations.min_by_key(|violation| violation.scenario.seed),
        }
    }
}

/// Runs one world.
#[must_use]
pub fn run(scenario: Scenario) -> Summary {
    let outcome = World::new(scenario.clone(), false).run();
    let violation = (!outcome.violations.is_empty()).then(|| Box::new(shrink(scenario)));
    Summary {
        worlds: 1,
        answered: outcome.answered,
        excused: outcome.excused,
        drains: outcome.drains,
        violation,
    }
}

/// Leaves out whatever can be left out while something is still violated.
fn shrink(mut scenario: Scenario) -> Violation {
    let fails = |scenario: &Scenario| {
        !World::new(scenario.clone(), false)
            .run()
            .violations
            .is_empty()
    };
    loop {
        let smaller = simpler(&scenario)
            .into_iter()
            .find(|smaller| fails(smaller));
        match smaller {
            Some(smaller) => scenario = smaller,
            None => break,
        }
    }
    let outcome = World::new(scenario.clone(), true).run();
    Violation {
        scenario,
        violations: outcome.violations,
        timeline: outcome.timeline,
    }
}

/// The same world with one thing less.
fn simpler(scenario: &Scenario) -> Vec<Scenario> {
    let mut all = Vec::new();
    for index in 0..scenario.acts.len() {
        let mut one = scenario.clone();
        one.acts.remove(index);
        all.push(one);
    }
    if scenario.callers > 1 && !names_caller(scenario) {
        all.push(Scenario {
            callers: 1,
            ..scenario.clone()
        });
    }
    if scenario.loss_permille > 0 {
        all.push(Scenario {
            loss_permille: 0,
            ..scenario.clone()
        });
    }
    if scenario.twice_permille > 0 {
        all.push(Scenario {
            twice_permille: 0,
            ..scenario.clone()
        });
    }
    all
}

fn names_caller(scenario: &Scenario) -> bool {
    let acts = scenario.acts.iter();
    acts.into_iter()
        .any(|(_, act)| matches!(act, scenario::Act::WatchBreaks { caller } if *caller > 0))
}

#[cfg(test)]
mod tests;
