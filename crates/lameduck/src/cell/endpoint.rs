//! What calls note about one endpoint: how many are there, and that it must not be chosen.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lameduck_core::balance::Success;

/// Set while the endpoint is withheld; the bits below count how often it was.
const WITHHELD: u64 = 1 << 63;

/// Which withholding a release is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Withheld(u64);

/// The cell of one endpoint.
///
/// A call that reads a closing mark must be the last reason why any other call chooses that
/// endpoint, sooner than the directory can publish a new view. So it withholds the endpoint here,
/// then tells the directory; and only once the directory has heard *that* statement and still says
/// "ready" does it release it, by the count that it was told. A later statement has raised the
/// count by then, and stays.
///
/// Two share a cache line: close enough together for the cells of 10,000 instances to stay near the
/// processor, and no more neighbours than that to fight with over a line.
#[derive(Debug, Default)]
#[repr(align(32))]
pub(crate) struct EndpointCell {
    in_flight: AtomicU64,
    word: AtomicU64,
    /// How much of what it answers succeeds, as [`Success`] is kept.
    success: AtomicU32,
}

/// Cells that lie together.
const TOGETHER: usize = 64;

/// One cell of those that lie together. Clones are the same cell.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    cells: Arc<[EndpointCell]>,
    index: usize,
}

impl Deref for Spot {
    type Target = EndpointCell;

    fn deref(&self) -> &EndpointCell {
        &self.cells[self.index]
    }
}

/// Gives out cells, side by side: a choice that draws among many reads the cells alone, and finds
/// them in few pages instead of one page each.
#[derive(Debug, Default)]
pub(crate) struct Spots {
    /// Control plane: taken when an endpoint begins.
    last: Mutex<Option<Spot>>,
}

impl Spots {
    /// One that nobody had before.
    pub(crate) fn take(&self) -> Spot {
        // It is whole whoever panicked.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let next = match last.take() {
            Some(spot) if spot.index + 1 < TOGETHER => Spot {
                index: spot.index + 1,
                ..spot
            },
            _ => Spot {
                cells: (0..TOGETHER).map(|_| EndpointCell::default()).collect(),
                index: 0,
            },
        };
        *last = Some(next.clone());
        next
    }
}

impl EndpointCell {
    /// Calls there now. A load signal: no order with anything else is needed.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// How loaded a choice is to take it for: calls there now, and more than those where most of them
    /// fail. As above, a signal.
    pub(crate) fn load(&self) -> u64 {
        let success = Success::from_bits(self.success.load(Ordering::Relaxed));
        success.load(self.in_flight())
    }

    /// One more answer. True where most of them fail from here on.
    pub(crate) fn answered(&self, succeeded: bool) -> bool {
        // Nearly every answer succeeds, and changes nothing.
        if succeeded && self.success.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let before = self.update(|success| success.after(succeeded));
        !before.is_failing() && before.after(succeeded).is_failing()
    }

    /// It is chosen again, until the next failure.
    pub(crate) fn try_again(&self) {
        self.update(Success::tried_again);
    }

    fn update(&self, change: impl Fn(Success) -> Success) -> Success {
        let after = |bits| Some(change(Success::from_bits(bits)).to_bits());
        let updated = self
            .success
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
        Success::from_bits(updated.unwrap_or_else(|bits| bits))
    }

    /// One call more.
    pub(crate) fn enter(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// One call less.
    pub(crate) fn leave(&self) {
        let before = self.in_flight.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "nobody leaves who has not entered");
    }

    /// Whether it must not be chosen while another is ready. Sequentially consistent with
    /// [`EndpointCell::withhold`], so that after a statement was handled nobody overlooks it.
    pub(crate) fn is_withheld(&self) -> bool {
        self.word.load(Ordering::SeqCst) & WITHHELD != 0
    }

    /// From here on it is not chosen.
    pub(crate) fn withhold(&self) -> Withheld {
        // Two steps: in between it is withheld under the next count, which nobody was told yet.
        self.word.fetch_or(WITHHELD, Ordering::SeqCst);
        let before = self.word.fetch_add(1, Ordering::SeqCst);
        Withheld((before + 1) | WITHHELD)
    }

    /// Takes that withholding back, unless it was withheld once more since. True where it was so.
    pub(crate) fn release(&self, which: Withheld) -> bool {
        let Withheld(word) = which;
        self.word
            .compare_exchange(word, word & !WITHHELD, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_release_does_not_undo_a_new_statement() {
        let cell = EndpointCell::default();
        let first = cell.withhold();
        let second = cell.withhold();
        assert!(!cell.release(first));
        assert!(cell.is_withheld());
        assert!(cell.release(second));
        assert!(!cell.is_withheld());
        let third = cell.withhold();
        assert!(cell.is_withheld() && third != second);
        assert!(!cell.release(second));
    }

    #[test]
    fn no_spot_is_given_out_twice() {
        let spots = Spots::default();
        let taken: Vec<Spot> = (0..2 * TOGETHER + 1).map(|_| spots.take()).collect();
        for spot in &taken {
            assert_eq!(spot.in_flight(), 0);
            spot.enter();
        }
        assert!(taken.iter().all(|spot| spot.in_flight() == 1));
    }

    #[test]
    fn counts() {
        let cell = EndpointCell::default();
        cell.enter();
        cell.enter();
        cell.leave();
        assert_eq!(cell.in_flight(), 1);
    }
}
