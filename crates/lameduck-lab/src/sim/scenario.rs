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
    /// Nobody reaches the registry for a while; what it holds stays.
    RegistryAway {
        /// How long.
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
            Self::Kill { .. } | Self::Pause { .. } | Self::Break { .. }
        )
    }
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
            acts: Vec::new(),
            flaw: None,
        };
        let violent = rng.below(2) == 1;
        let mut at = Duration::from_secs(3);
        for _ in 0..1 + rng.below(5) {
            let act = draw(&mut rng, &scenario, violent);
            scenario.acts.push((at, act));
            at += rng.between(Duration::from_millis(200), Duration::from_secs(4));
        }
        scenario
    }

    /// Whether anything in it may cost calls in flight.
    #[must_use]
    pub fn is_violent(&self) -> bool {
        self.acts.iter().any(|(_, act)| act.is_violent())
    }

    /// How long calls are made.
    #[must_use]
    pub fn length(&self) -> Duration {
        let last = self.acts.last().map_or(Duration::ZERO, |(at, _)| *at);
        last + Duration::from_secs(8)
    }
}

fn draw(rng: &mut Rng, world: &Scenario, violent: bool) -> Act {
    let slot = rng.below(world.servers);
    let length = rng.between(Duration::from_millis(100), Duration::from_secs(6));
    let kinds = if violent { 13 } else { 10 };
    match rng.below(kinds) {
        0..=3 => Act::Roll { slot },
        4 => Act::Hold { slot, length },
        5 => Act::RegistryAway { length },
        6 => Act::LeasesEnd,
        7 => Act::Compact,
        8 => Act::WatchBreaks {
            caller: rng.below(world.callers),
        },
        9 => Act::Replay { slot },
        10 => Act::Kill {
            slot,
            restart_after: length / 4,
        },
        11 => Act::Pause { slot, length },
        _ => Act::Break { slot },
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
