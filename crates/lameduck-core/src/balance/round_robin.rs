//! Each in turn.

use crate::mutant;

/// The first usable member at or after `turn` (taken modulo `count`). The caller counts `turn` up
/// by one for each pick. `None` where nothing is usable.
#[must_use]
pub fn round_robin(turn: u64, count: usize, usable: impl Fn(usize) -> bool) -> Option<usize> {
    if count == 0 {
        return None;
    }
    let start = (turn % count as u64) as usize;
    let members = (start..count).chain(0..start);
    members
        .into_iter()
        .find(|member| usable(*member) || mutant!("round-robin/skips-unusable"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn takes_turns_and_skips_the_unusable() {
        let picks: Vec<_> = (0..6).map(|turn| round_robin(turn, 3, |_| true)).collect();
        assert_eq!(
            picks,
            [Some(0), Some(1), Some(2), Some(0), Some(1), Some(2)]
        );
        let picks: Vec<_> = (0..3)
            .map(|turn| round_robin(turn, 3, |member| member == 1))
            .collect();
        assert_eq!(picks, [Some(1); 3]);
        assert_eq!(round_robin(7, 3, |_| false), None);
        assert_eq!(round_robin(7, 0, |_| true), None);
    }
}
