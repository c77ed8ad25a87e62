//! The memory that a life is closing, so that late data cannot bring it back.

use alloc::collections::BTreeMap;

use crate::event::ClosingSource;
use crate::instance::{BootId, Incarnation};
use crate::limits::{TOMBSTONE_TTL, TOMBSTONES_MAX};
use crate::mutant;
use crate::time::Timestamp;

/// One life that is closing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// Which life. Hides this life, and earlier epochs of the same boot.
    pub incarnation: Incarnation,
    /// What said so last.
    pub source: ClosingSource,
    /// When it was said last.
    pub since: Timestamp,
}

impl Tombstone {
    /// When it stops hiding its life.
    #[must_use]
    pub fn expires(&self) -> Timestamp {
        self.since + TOMBSTONE_TTL
    }
}

/// What a tombstone hangs on: lives of one boot share one, all else stands for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Boot(BootId),
    Foreign(Incarnation),
}

/// All lives known to be closing; at most [`TOMBSTONES_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tombstones {
    stones: BTreeMap<Key, Tombstone>,
    /// By age, oldest first: what expires next, and what goes where there are too many.
    ages: BTreeMap<(Timestamp, Key), ()>,
    dropped: u64,
}

impl Tombstones {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            stones: BTreeMap::new(),
            ages: BTreeMap::new(),
            dropped: 0,
        }
    }

    /// Notes a closing statement. True where the life was not hidden by it before, or the statement
    /// is of a stronger kind than the one that hid it (its own word over a guess from health).
    pub fn insert(
        &mut self,
        now: Timestamp,
        incarnation: Incarnation,
        source: ClosingSource,
    ) -> bool {
        let Some(key) = key_of(incarnation) else {
            return false;
        };
        let before = self.stones.get(&key).copied();
        let hidden = before.filter(|_| self.hides(incarnation));
        let stronger = hidden.is_none_or(|stone| {
            stone.source == ClosingSource::Health && source != ClosingSource::Health
        });
        // A later guess from health only renews what the life itself has said.
        let source = if stronger {
            source
        } else {
            hidden.map_or(source, |stone| stone.source)
        };
        let incarnation = match before {
            Some(stone) if !self.is_newer(incarnation, stone.incarnation) => stone.incarnation,
            _ => incarnation,
        };
        if let Some(stone) = before {
            self.ages.remove(&(stone.since, key));
        }
        self.stones.insert(
            key,
            Tombstone {
                incarnation,
                source,
                since: now,
            },
        );
        self.ages.insert((now, key), ());
        self.bound();
        stronger
    }

    /// Whether this life is hidden.
    #[must_use]
    pub fn hides(&self, incarnation: Incarnation) -> bool {
        self.get(incarnation).is_some()
    }

    /// The tombstone that hides this life.
    #[must_use]
    pub fn get(&self, incarnation: Incarnation) -> Option<&Tombstone> {
        if mutant!("tombstone/hides") {
            return None;
        }
        let stone = self.stones.get(&key_of(incarnation)?)?;
        let revived = self.is_newer(incarnation, stone.incarnation);
        (!revived || mutant!("tombstone/lifted-by-higher-epoch")).then_some(stone)
    }

    /// Takes the tombstone of this life away. True where there was one.
    pub fn lift(&mut self, incarnation: Incarnation) -> bool {
        let Some(key) = key_of(incarnation) else {
            return false;
        };
        let Some(stone) = self.stones.remove(&key) else {
            return false;
        };
        self.ages.remove(&(stone.since, key));
        true
    }

    /// Drops what has expired by `now`. True where anything has.
    pub fn expire(&mut self, now: Timestamp) -> bool {
        let mut any = false;
        while let Some((&(since, key), ())) = self.ages.first_key_value() {
            if since + TOMBSTONE_TTL > now {
                break;
            }
            self.ages.pop_first();
            self.stones.remove(&key);
            any = true;
        }
        any
    }

    /// When the next one expires.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        self.ages
            .first_key_value()
            .map(|(&(since, _), ())| since + TOMBSTONE_TTL)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stones.is_empty()
    }

    /// All of them, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = &Tombstone> {
        self.stones.values()
    }

    /// How many were dropped for want of room.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    fn is_newer(&self, life: Incarnation, than: Incarnation) -> bool {
        match (life, than) {
            (Incarnation::Life(life), Incarnation::Life(than)) => life.epoch > than.epoch,
            _ => false,
        }
    }

    fn bound(&mut self) {
        while self.stones.len() > TOMBSTONES_MAX {
            let Some(((_, key), ())) = self.ages.pop_first() else {
                return;
            };
            self.stones.remove(&key);
            self.dropped += 1;
        }
    }
}

/// An unknown life cannot be told from the next one at its address, so nothing may hide it.
const fn key_of(incarnation: Incarnation) -> Option<Key> {
    match incarnation {
        Incarnation::Life(life) => Some(Key::Boot(life.boot)),
        Incarnation::Lease(_) | Incarnation::Revision(_) => Some(Key::Foreign(incarnation)),
        Incarnation::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::Life;

    fn life(boot: u128, epoch: u32) -> Incarnation {
        Incarnation::Life(Life {
            boot: BootId::from_bits(boot),
            epoch,
        })
    }

    const NOW: Timestamp = Timestamp::from_millis(1_000);

    #[test]
    fn hides_one_life_and_its_past_never_its_future() {
        let mut stones = Tombstones::new();
        assert!(stones.insert(NOW, life(1, 3), ClosingSource::Mark));
        assert!(stones.hides(life(1, 3)) && stones.hides(life(1, 2)));
        assert!(!stones.hides(life(1, 4)) && !stones.hides(life(2, 0)));
        assert!(
            !stones.insert(NOW, life(1, 2), ClosingSource::Mark),
            "nothing new"
        );
        assert!(
            stones.hides(life(1, 3)),
            "an old statement takes nothing back"
        );
        assert!(stones.insert(NOW, life(1, 4), ClosingSource::Mark));
        assert!(stones.hides(life(1, 4)));
    }

    #[test]
    fn the_own_word_is_stronger_than_a_guess() {
        let mut stones = Tombstones::new();
        assert!(stones.insert(NOW, life(1, 0), ClosingSource::Health));
        assert!(!stones.insert(NOW, life(1, 0), ClosingSource::Health));
        assert!(stones.insert(NOW, life(1, 0), ClosingSource::Registry));
        assert!(!stones.insert(NOW, life(1, 0), ClosingSource::Health));
        assert_eq!(
            stones.get(life(1, 0)).map(|stone| stone.source),
            Some(ClosingSource::Registry)
        );
    }

    #[test]
    fn nothing_hides_an_unknown_life() {
        let mut stones = Tombstones::new();
        assert!(!stones.insert(NOW, Incarnation::Unknown, ClosingSource::Mark));
        assert!(!stones.hides(Incarnation::Unknown));
        assert!(!stones.lift(Incarnation::Unknown));
    }

    #[test]
    fn expires_after_its_time_unless_renewed() {
        let mut stones = Tombstones::new();
        stones.insert(NOW, life(1, 0), ClosingSource::Mark);
        stones.insert(NOW, Incarnation::Lease(7), ClosingSource::Health);
        let half = NOW + TOMBSTONE_TTL / 2;
        stones.insert(half, life(1, 0), ClosingSource::Mark);
        assert_eq!(stones.deadline(), Some(NOW + TOMBSTONE_TTL));
        assert!(stones.expire(NOW + TOMBSTONE_TTL));
        assert!(stones.hides(life(1, 0)) && !stones.hides(Incarnation::Lease(7)));
        assert!(!stones.expire(NOW + TOMBSTONE_TTL));
        assert!(stones.expire(half + TOMBSTONE_TTL));
        assert_eq!(stones, Tombstones::new());
    }

    #[test]
    fn the_oldest_goes_where_there_are_too_many() {
        let mut stones = Tombstones::new();
        for number in 0..=TOMBSTONES_MAX as u64 {
            let now = Timestamp::from_nanos(number);
            stones.insert(
                now,
                Incarnation::Lease(number as i64),
                ClosingSource::Health,
            );
        }
        assert_eq!(
            (stones.iter().count(), stones.dropped()),
            (TOMBSTONES_MAX, 1)
        );
        assert!(!stones.hides(Incarnation::Lease(0)) && stones.hides(Incarnation::Lease(1)));
    }
}
