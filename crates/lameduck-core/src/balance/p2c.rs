//! The better of two chosen at random (Mitzenmacher 2001).

use crate::mutant;
use crate::rng::mix;

/// The less loaded of two different members drawn by `bits`; `load` gives `None` for one that is
/// not usable. Where a drawn one is not usable, the next usable one after it stands in, so that a
/// pick fails only where nothing is usable at all.
#[must_use]
pub fn p2c(bits: u64, count: usize, load: impl Fn(usize) -> Option<u64>) -> Option<usize> {
    if count == 0 {
        return None;
    }
    let first = draw(bits, count);
    let (first, first_load) = usable_from(first, count, &load)?;
    if count == 1 {
        return Some(first);
    }
    // Drawn among the others, so that the two always differ.
    let second = (first + 1 + draw(mix(bits), count - 1)) % count;
    let (second, second_load) = usable_from(second, count, &load)?;
    let better = second_load < first_load || mutant!("p2c/takes-the-less-loaded");
    Some(if better { second } else { first })
}

fn draw(bits: u64, count: usize) -> usize {
    ((u128::from(bits) * count as u128) >> 64) as usize
}

fn usable_from(
    start: usize,
    count: usize,
    load: &impl Fn(usize) -> Option<u64>,
) -> Option<(usize, u64)> {
    let members = (start..count).chain(0..start);
    members
        .into_iter()
        .find_map(|member| load(member).map(|load| (member, load)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;

    #[test]
    fn even_load_is_spread_evenly() {
        let mut rng = Rng::from_seed(11);
        let mut picks = [0_u32; 5];
        for _ in 0..10_000 {
            picks[p2c(rng.next_u64(), 5, |_| Some(1)).expect("all usable")] += 1;
        }
        assert!(
            picks.iter().all(|count| (1_800..2_200).contains(count)),
            "{picks:?}"
        );
    }

    #[test]
    fn the_most_loaded_is_never_the_better_of_two() {
        let mut rng = Rng::from_seed(12);
        for _ in 0..1_000 {
            let pick = p2c(rng.next_u64(), 4, |member| Some(u64::from(member == 2)));
            assert_ne!(pick, Some(2));
        }
    }

    proptest! {
        #[test]
        fn finds_a_usable_one_where_there_is_one(
            bits: u64,
            loads in prop::collection::vec(prop::option::of(0_u64..9), 0..12),
        ) {
            let pick = p2c(bits, loads.len(), |member| loads[member]);
            prop_assert_eq!(pick.is_some(), loads.iter().any(Option::is_some));
            if let Some(pick) = pick {
                prop_assert!(loads[pick].is_some());
            }
        }
    }
}
