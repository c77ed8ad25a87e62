//! What happens in one simulated world: made from a seed, shrunk by leaving things out.

use std::fmt;
use std::time::Duration;

use lameduck_core::rng::Rng;

/// One thing that an operator, or bad luck, does to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// SIGTERM to the process of a slot; its successor starts on the same address once it is gone.
    Roll {
        /// Which slot.
        slot: usize,
    },
    /// SIGKILL, and a successor on the same address a little later.
    Kill {
        /// Which slot.
        slot: usize,
        /// How much later.
        restart_after: Duration,
    },
    /// The process stops running for a while, and does not know it.
    Pause {
        /// Which slot.
        slot: usize,
        /// How long.
        length: Duration,
    },
    /// A drain is held, then taken back.
    Hold {
        /// Which slot.
        slot: usize,
        /// How long it is held.
        length: Duration,
    },
    /// All connections of a slot's process break.
    Break {
        /// Which slot.
        slot: usize,
    },
    /// A slot's process takes connections and ends them at once, for a while.
    Flap {
        /// Which slot.
        slot: usize,
        /// How long.
        length: Duration,
    },
    /// A slot's process tells all its connections to go: they have become old.
    Age {
        /// Which slot.
        slot: usize,
    },
    /// SIGTERM to the process of a slot if it is leaving already: one that is held goes on to its
    /// end, one that is stopping does not begin anew.
    Again {
        /// Which slot.
        slot: usize,
    },
    /// The process of a slot stops running for a while if it is leaving.
    Freeze {
        /// Which slot.
        slot: usize,
        /// How long.
        length: Duration,
    },
    /// Nobody reaches the registry for a while.
    RegistryAway {
        /// How long.
        length: Duration,
        /// What it is like when it is back.
        back: Back,
    },
    /// The registry takes longer to hear and to answer than anybody waits.
    RegistrySlow {
        /// How long it is so.
        length: Duration,
    },
    /// All leases end at once, as after a registry that lost its clock.
    LeasesEnd,
    /// The registry forgets its history: watches must list anew.
    Compact,
    /// One caller's watch breaks.
    WatchBreaks {
        /// Whose.
        caller: usize,
    },
    /// The registration of an earlier life of a slot shows up again.
    Replay {
        /// Of which slot.
        slot: usize,
    },
}

impl Act {
    /// Whether calls in flight may die of it, whoever handles them.
    #[must_use]
    pub const fn is_violent(self) -> bool {
        matches!(
            self,
            Self::Kill { .. }
                | Self::Pause { .. }
                | Self::Break { .. }
                | Self::Flap { .. }
                | Self::Freeze { .. }
        )
    }
}

/// What a registry is like when it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    /// Leases have gone on to run meanwhile.
    AsItWas,
    /// Leases get their whole time again, as after a registry that was not running.
    LeasesKept,
    /// As it was, but without its history.
    Compacted,
    /// Another registry with nothing in it.
    Anew,
}

/// A client that knows one slot's address and nothing else: it hears no signal and calls on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Which slot.
    pub slot: usize,
    /// How long its calls take: longer than a stop may, or not.
    pub work: Duration,
}

/// A world before it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Fixes everything that is drawn while it runs.
    pub seed: u64,
    /// How many server slots: one address each, one process at a time.
    pub servers: usize,
    /// How many callers.
    pub callers: usize,
    /// Calls of one caller in a second.
    pub rate: u32,
    /// Longest delay of one message.
    pub delay_max: Duration,
    /// Of a thousand messages to and from the registry, so many are lost.
    pub loss_permille: u32,
    /// Of a thousand watch events, so many are told twice.
    pub twice_permille: u32,
    /// Whether callers place a call again that was not processed, or may be repeated.
    pub failover: bool,
    /// Closing lasts at least this long.
    pub floor: Duration,
    /// The servers' health service has no Watch.
    pub watchless: bool,
    /// It knows the server as a whole, and no service by its name.
    pub nameless: bool,
    /// Somebody else's client.
    pub foreign: Option<Foreign>,
    /// When what happens, in order.
    pub acts: Vec<(Duration, Act)>,
    /// A fault that is planted in all servers, to see that it is found. None in seeded worlds.
    pub flaw: Option<Flaw>,
}

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A stopping process drops what it has in flight as soon as it has announced itself.
    DropsAtAnnouncement,
    /// A process that takes a drain back still marks its answers.
    StaysMarked,
}

impl Scenario {
    /// The world of a seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed);
        let servers = 3 + rng.below(3);
        let callers = 1 + rng.below(2);
        let mut scenario = Self {
            seed,
            servers,
            callers,
            rate: 20,
            delay_max: Duration::from_micros([200, 2_000, 15_000][rng.below(3)]),
            loss_permille: [0, 0, 20][rng.below(3)],
            twice_permille: [0, 100][rng.below(2)],
            failover: rng.below(3) > 0,
            floor: Duration::from_millis([500, 2_000][rng.below(2)]),
            watchless: rng.below(6) == 0,
            nameless: rng.below(4) == 0,
            foreign: (rng.below(4) == 0).then(|| Foreign {
                slot: rng.below(servers),
                work: Duration::from_millis([20, 20, 15_000][rng.below(3)]),
            }),
            acts: Vec::new(),
            flaw: None,
        };
        let violent = rng.below(2) == 1;
        let mut at = Duration::from_secs(3);
        for _ in 0..1 + rng.below(5) {
            let act = draw(&mut rng, &scenario, violent);
            scenario.acts.push((at, act));
            let sequel = sequel(&mut rng, &scenario, at, act, violent);
            scenario.acts.extend(sequel);
            at += rng.between(Duration::from_millis(200), Duration::from_secs(4));
        }
        scenario
    }

    /// Whether anything in it may cost calls in flight.
    #[must_use]
    pub fn is_violent(&self) -> bool {
        self.acts.iter().any(|(_, act)| act.is_violent())
    }

    /// Whether the registry may come back with leases that have their whole time again.
    #[must_use]
    pub fn keeps_leases(&self) -> bool {
        let kept =
            |act: &Act| matches!(act, Act::RegistryAway { back, .. } if *back == Back::LeasesKept);
        self.acts.iter().any(|(_, act)| kept(act))
    }

    /// How long calls are made.
    #[must_use]
    pub fn length(&self) -> Duration {
        let last = self.acts.last().map_or(Duration::ZERO, |(at, _)| *at);
        last + Duration::from_secs(8)
    }
}

fn draw(rng: &mut Rng, world: &Scenario, violent: bool) -> Act {
    let slot = match world.foreign {
        // Somebody else's long calls are what a stop may have to wait for.
        Some(Foreign { slot, .. }) if rng.below(2) == 0 => slot,
        _ => rng.below(world.servers),
    };
    let length = rng.between(Duration::from_millis(100), Duration::from_secs(6));
    let kinds = if violent { 16 } else { 12 };
    match rng.below(kinds) {
        0..=3 => Act::Roll { slot },
        4 => Act::Hold { slot, length },
        5 => Act::RegistryAway {
            length: length * [1, 2, 4][rng.below(3)],
            back: [Back::AsItWas, Back::LeasesKept, Back::Compacted, Back::Anew][rng.below(4)],
        },
        6 => Act::LeasesEnd,
        7 => Act::Compact,
        8 => Act::WatchBreaks {
            caller: rng.below(world.callers),
        },
        9 => Act::Replay { slot },
        10 => Act::RegistrySlow { length },
        11 => Act::Age { slot },
        12 => Act::Kill {
            slot,
            restart_after: length / 2,
        },
        13 => Act::Pause { slot, length },
        14 => Act::Flap { slot, length },
        _ => Act::Break { slot },
    }
}

/// What makes an act worse: a second signal or a freeze while a process leaves, and somebody who
/// leaves while the registry is away, so that only its connections tell of it.
fn sequel(
    rng: &mut Rng,
    world: &Scenario,
    at: Duration,
    act: Act,
    violent: bool,
) -> Vec<(Duration, Act)> {
    let soon = |rng: &mut Rng, most| rng.between(Duration::ZERO, Duration::from_millis(most));
    let slot = rng.below(world.servers);
    match act {
        Act::Roll { slot } if rng.below(4) == 0 => {
            vec![(at + soon(rng, 5_000), Act::Again { slot })]
        }
        Act::Roll { slot } if violent && rng.below(2) == 0 => {
            let length = rng.between(Duration::from_secs(1), Duration::from_secs(8));
            vec![(at + soon(rng, 8_000), Act::Freeze { slot, length })]
        }
        Act::Hold { slot, .. } if rng.below(3) == 0 => {
            vec![(at + soon(rng, 2_000), Act::Again { slot })]
        }
        Act::RegistryAway { .. } if rng.below(2) == 0 => {
            vec![(at + soon(rng, 500), Act::Roll { slot })]
        }
        Act::RegistryAway { length, .. } if rng.below(2) == 0 => {
            let length = length / 4;
            vec![(at + soon(rng, 500), Act::Hold { slot, length })]
        }
        Act::Break { slot } | Act::Age { slot } if rng.below(2) == 0 => {
            vec![(at + soon(rng, 60), Act::Roll { slot })]
        }
        _ => Vec::new(),
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}: {} servers, {} callers at {}/s, delay up to {:?}, {} ‰ lost, {} ‰ told twice",
            self.seed,
            self.servers,
            self.callers,
            self.rate,
            self.delay_max,
            self.loss_permille,
            self.twice_permille
        )?;
        let failover = if self.failover { "with" } else { "without" };
        write!(f, ", {failover} failover, floor {:?}", self.floor)?;
        if self.watchless {
            write!(f, ", no health Watch")?;
        }
        if self.nameless {
            write!(f, ", health only of the whole")?;
        }
        if let Some(Foreign { slot, work }) = self.foreign {
            write!(
                f,
                ", a foreign client at slot {slot} with calls of {work:?}"
            )?;
        }
        for (at, act) in &self.acts {
            write!(f, "\n  at {at:?}: {act:?}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_one_world() {
        assert_eq!(Scenario::from_seed(5), Scenario::from_seed(5));
        assert_ne!(Scenario::from_seed(5), Scenario::from_seed(6));
        let violent = (0..100)
            .filter(|seed| Scenario::from_seed(*seed).is_violent())
            .count();
        assert!((15..85).contains(&violent), "{violent} of 100 are violent");
    }
}
