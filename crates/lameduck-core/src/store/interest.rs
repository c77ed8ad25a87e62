//! Who wants to hear of a key.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::{Blob, KeyRange};
use crate::mutant;

/// An index of ranges of keys: which of them contain a key.
///
/// A look-up costs what it finds, plus one step for each length of prefix that is in use: ranges
/// elsewhere cost nothing. Only ranges that are neither one key nor all keys of a prefix, and whose
/// ends begin alike with the key looked for, are gone through one by one.
#[derive(Clone, Debug)]
pub struct Interest<T> {
    keys: BTreeMap<Blob, BTreeSet<T>>,
    prefixes: Prefixes<BTreeSet<T>>,
    /// All other ranges, below what every key in them begins with.
    ranges: Prefixes<BTreeMap<T, KeyRange>>,
}

impl<T> Default for Interest<T> {
    fn default() -> Self {
        Self {
            keys: BTreeMap::new(),
            prefixes: Prefixes::default(),
            ranges: Prefixes::default(),
        }
    }
}

/// Where a range is kept.
enum Place<'a> {
    Key(&'a Blob),
    Prefix(&'a [u8]),
    /// What all its keys begin with.
    Range(&'a [u8]),
}

fn place(range: &KeyRange) -> Place<'_> {
    match range {
        KeyRange::One(key) => Place::Key(key),
        KeyRange::From(start) if start.is_empty() => Place::Prefix(&[]),
        KeyRange::From(_) => Place::Range(&[]),
        KeyRange::Between(start, _) if KeyRange::prefix(start) == *range => Place::Prefix(start),
        KeyRange::Between(start, end) => {
            let equal = start.iter().zip(end.iter()).take_while(|(a, b)| a == b);
            Place::Range(&start[..equal.count()])
        }
    }
}

impl<T: Clone + Ord> Interest<T> {
    /// Adds a range under a name. The name must not be in use for another one.
    pub fn insert(&mut self, range: &KeyRange, name: T) {
        match place(range) {
            Place::Key(key) => {
                self.keys.entry(key.clone()).or_default().insert(name);
            }
            Place::Prefix(prefix) => {
                self.prefixes.entry(prefix).insert(name);
            }
            Place::Range(prefix) => {
                self.ranges.entry(prefix).insert(name, range.clone());
            }
        }
    }

    /// Removes the range that was added under this name.
    pub fn remove(&mut self, range: &KeyRange, name: &T) {
        match place(range) {
            Place::Key(key) => {
                if let Some(names) = self.keys.get_mut(key) {
                    names.remove(name);
                    if names.is_empty() {
                        self.keys.remove(key);
                    }
                }
            }
            Place::Prefix(prefix) => self.prefixes.change(prefix, |names| {
                names.remove(name);
                names.is_empty()
            }),
            Place::Range(prefix) => self.ranges.change(prefix, |ranges| {
                ranges.remove(name);
                ranges.is_empty()
            }),
        }
    }

    /// The names of all ranges that contain `key`, in no particular order.
    pub fn find<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = &'a T> {
        let exact = self.keys.get(key).into_iter().flatten();
        let prefixes = self.prefixes.of(key).flatten();
        let ranges = self.ranges.of(key).flatten();
        let ranges = ranges
            .filter(|(_, range)| range.contains(key) || mutant!("interest/ranges-end"))
            .map(|(name, _)| name);
        exact.chain(prefixes).chain(ranges)
    }
}

/// Values below prefixes of keys.
#[derive(Clone, Debug)]
struct Prefixes<V> {
    /// By length first, so that a look-up goes through the lengths in use, not all of the key's.
    by_length: BTreeMap<usize, BTreeMap<Vec<u8>, V>>,
}

impl<V> Default for Prefixes<V> {
    fn default() -> Self {
        Self {
            by_length: BTreeMap::new(),
        }
    }
}

impl<V: Default> Prefixes<V> {
    fn entry(&mut self, prefix: &[u8]) -> &mut V {
        let equal = self.by_length.entry(prefix.len()).or_default();
        equal.entry(prefix.to_vec()).or_default()
    }

    /// Changes what is below `prefix`; `change` says whether nothing is left.
    fn change(&mut self, prefix: &[u8], change: impl FnOnce(&mut V) -> bool) {
        let Some(equal) = self.by_length.get_mut(&prefix.len()) else {
            return;
        };
        if equal.get_mut(prefix).is_some_and(change) {
            equal.remove(prefix);
            if equal.is_empty() {
                self.by_length.remove(&prefix.len());
            }
        }
    }

    /// What is below any prefix of `key`, the key itself included.
    fn of<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = &'a V> {
        let possible = self.by_length.range(..=key.len());
        possible.filter_map(|(length, equal)| equal.get(&key[..*length]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn blob(text: &str) -> Blob {
        text.as_bytes().into()
    }

    fn found(interest: &Interest<u32>, key: &str) -> Vec<u32> {
        let mut names: Vec<u32> = interest.find(key.as_bytes()).copied().collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn r24_a_key_finds_the_ranges_that_contain_it() {
        let mut interest = Interest::default();
        let all = [
            KeyRange::One(blob("orders/1")),
            KeyRange::prefix(b"orders/"),
            KeyRange::prefix(b""),
            KeyRange::From(blob("p")),
            KeyRange::Between(blob("orders/1"), blob("orders/5")),
            KeyRange::Between(blob("a"), blob("b/1")),
            KeyRange::prefix(b"orders"),
            // No key lies in these.
            KeyRange::Between(blob("b"), blob("a")),
            KeyRange::Between(blob("a"), blob("a")),
        ];
        for (name, range) in (0..).zip(&all) {
            interest.insert(range, name);
        }
        assert_eq!(found(&interest, "orders/1"), [0, 1, 2, 4, 6]);
        assert_eq!(found(&interest, "orders/5"), [1, 2, 6]);
        assert_eq!(found(&interest, "orders"), [2, 6]);
        assert_eq!(found(&interest, "q"), [2, 3]);
        assert_eq!(found(&interest, "a"), [2, 5]);
        for (name, range) in (0..).zip(&all) {
            interest.remove(range, &name);
        }
        assert!(interest.keys.is_empty());
        assert!(interest.prefixes.by_length.is_empty() && interest.ranges.by_length.is_empty());
    }

    #[test]
    fn r24_random_ranges_are_found_as_by_asking_each() {
        let mut rng = Rng::from_seed(24);
        let mut key = |most: usize| -> Blob {
            let length = rng.below(most);
            let letters = [0, b'a', b'b', 0xff];
            (0..length).map(|_| letters[rng.below(4)]).collect()
        };
        let (mut interest, mut model) = (Interest::default(), BTreeMap::new());
        for name in 0..2_000_u32 {
            let range = match name % 5 {
                0 => KeyRange::One(key(5)),
                1 => KeyRange::prefix(&key(4)),
                2 => KeyRange::From(key(4)),
                _ => KeyRange::Between(key(5), key(5)),
            };
            interest.insert(&range, name);
            model.insert(name, range);
            if let Some(old) = name.checked_sub(60) {
                let range = model.remove(&old).expect("added before");
                interest.remove(&range, &old);
            }
            let key = key(6);
            let mut names: Vec<u32> = interest.find(&key).copied().collect();
            names.sort_unstable();
            let wanted = model.iter().filter(|(_, range)| range.contains(&key));
            let wanted: Vec<u32> = wanted.map(|(name, _)| *name).collect();
            assert_eq!(names, wanted, "{key:?}");
        }
    }
}
