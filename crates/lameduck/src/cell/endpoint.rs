//! What calls note about one endpoint: how many are there, and that it must not be chosen.

use std::sync::atomic::{AtomicU64, Ordering};

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
#[derive(Debug, Default)]
pub(crate) struct EndpointCell {
    in_flight: AtomicU64,
    word: AtomicU64,
}

impl EndpointCell {
    /// Calls there now. A load signal: no order with anything else is needed.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
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
    fn counts() {
        let cell = EndpointCell::default();
        cell.enter();
        cell.enter();
        cell.leave();
        assert_eq!(cell.in_flight(), 1);
    }
}
