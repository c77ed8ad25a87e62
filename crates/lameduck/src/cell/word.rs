//! The gate's one word: how many are in, and whether more may come.
//!
//! Generic over the atomic, so that the model checker runs the very code that production runs.

use std::sync::atomic::{AtomicU64, Ordering};

/// The operations that the word needs of its atomic.
pub(super) trait Atomic {
    fn new(value: u64) -> Self;
    fn load(&self, order: Ordering) -> u64;
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64;
    fn fetch_or(&self, value: u64, order: Ordering) -> u64;
    fn fetch_update(
        &self,
        set: Ordering,
        fetch: Ordering,
        change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64>;
}

macro_rules! atomic {
    ($type:ty) => {
        impl Atomic for $type {
            fn new(value: u64) -> Self {
                <$type>::new(value)
            }
            fn load(&self, order: Ordering) -> u64 {
                <$type>::load(self, order)
            }
            fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
                <$type>::fetch_add(self, value, order)
            }
            fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
                <$type>::fetch_sub(self, value, order)
            }
            fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
                <$type>::fetch_or(self, value, order)
            }
            fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                change: impl FnMut(u64) -> Option<u64>,
            ) -> Result<u64, u64> {
                <$type>::fetch_update(self, set, fetch, change)
            }
        }
    };
}

atomic!(AtomicU64);

const CLOSED: u64 = 1;
const WATCHED: u64 = 1 << 1;
const DRAINED: u64 = 1 << 2;
/// Somebody has seen the closed gate empty: what is in flight does not become more again.
const ENDED: u64 = 1 << 3;
/// One who is in. 28 bits: a request that is in costs far more memory than would fill them.
const ONE: u64 = 1 << 4;
const COUNT: u64 = LEFT - ONE;
/// One who was in and has left. The top 32 bits: what overflows them falls off the word.
const LEFT: u64 = 1 << 32;

/// Closed, watched, drain-begun and ended flags in the low bits, then how many are in, then how many have
/// left: whoever leaves moves from one count to the other in one step, so that the sum is how many
/// were ever admitted and costs nothing of its own.
///
/// All decisions hang on the one order in which the read-modify-writes of this word happen, which
/// any ordering gives. What a permit's holder did must be visible to who sees the count at 0: its
/// leaving releases, the look acquires.
pub(super) struct Word<A = AtomicU64>(A);

impl<A: Atomic> Word<A> {
    pub(super) fn new() -> Self {
        Self(A::new(0))
    }

    /// Counts one in. `Err` where the gate is closed: it is counted out again, and the flag tells
    /// whether the waiters must be woken for it.
    pub(super) fn enter(&self) -> Result<(), bool> {
        if self.0.fetch_add(ONE, Ordering::Relaxed) & CLOSED == 0 {
            return Ok(());
        }
        Err(must_wake(self.0.fetch_sub(ONE, Ordering::AcqRel)))
    }

    /// Counts one in beside those who are in, also where the gate is closed. False where it is closed and
    /// nobody is in, or was when somebody waited for that: who is being refused by [`enter`](Self::enter)
    /// counts for a moment, and must not let anybody in after the end.
    pub(super) fn join(&self) -> bool {
        let joined = |word| {
            let lives = word & CLOSED == 0 || (count(word) > 0 && word & ENDED == 0);
            lives.then_some(word + ONE)
        };
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, joined)
            .is_ok()
    }

    /// Counts one in beside a permit that is held, which keeps the count above 0.
    pub(super) fn join_held(&self) {
        self.0.fetch_add(ONE, Ordering::Relaxed);
    }

    /// Counts one out. True where it was the last and somebody waits for that.
    pub(super) fn leave(&self) -> bool {
        must_wake(self.0.fetch_add(LEFT - ONE, Ordering::AcqRel))
    }

    /// How many are in.
    pub(super) fn count(&self) -> u64 {
        count(self.0.load(Ordering::Acquire))
    }

    /// How many were ever admitted, modulo 2^32. Whoever is being refused at this moment counts.
    pub(super) fn admitted(&self) -> u64 {
        let word = self.0.load(Ordering::Relaxed);
        (word / LEFT + count(word)) % (u64::MAX / LEFT + 1)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLOSED != 0
    }

    /// From here on every last leaver wakes the waiters. Gives the count: where it is 0 and the gate is
    /// closed, it stays 0.
    pub(super) fn watch(&self) -> u64 {
        let watched = |word| {
            let ended = word & CLOSED != 0 && count(word) == 0;
            Some(word | WATCHED | if ended { ENDED } else { 0 })
        };
        let before = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, watched);
        count(before.unwrap_or_else(|word| word))
    }

    pub(super) fn close(&self) {
        self.0.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Closes for good. False where that has been done already.
    pub(super) fn begin_drain(&self) -> bool {
        self.0.fetch_or(CLOSED | DRAINED, Ordering::AcqRel) & DRAINED == 0
    }

    /// Opens again. False where a drain has begun; the gate stays closed then.
    pub(super) fn reopen(&self) -> bool {
        // Looks and clears in one step: whoever knocks during a drain must not find it open.
        let open = |word| (word & DRAINED == 0).then_some(word & !(CLOSED | ENDED));
        let reopened = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, open);
        reopened.is_ok()
    }
}

fn count(word: u64) -> u64 {
    (word & COUNT) / ONE
}

/// Whether who changed the word `before` by going out was the last, and somebody waits for that.
fn must_wake(before: u64) -> bool {
    debug_assert!(before & COUNT > 0, "nobody leaves who has not entered");
    before & COUNT == ONE && before & WATCHED != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64 as Modelled;
    use loom::thread;

    atomic!(Modelled);

    type Model = Arc<Word<Modelled>>;

    /// Enters and leaves. Gives whether it was admitted, and whether it must wake the waiters.
    fn visit(word: &Model) -> (bool, bool) {
        match word.enter() {
            Ok(()) => (true, word.leave()),
            Err(wake) => (false, wake),
        }
    }

    #[test]
    fn nobody_is_admitted_after_close_and_the_last_one_wakes() {
        let mut model = loom::model::Builder::new();
        // All orders of three threads take half a minute; what two interruptions can break is
        // found in a moment.
        model.preemption_bound = Some(2);
        model.check(|| {
            let word: Model = Arc::new(Word::new());
            let visitors: Vec<_> = (0..2)
                .map(|_| {
                    let word = Arc::clone(&word);
                    thread::spawn(move || visit(&word))
                })
                .collect();
            word.close();
            let waiting = word.watch() > 0;
            let (late, mut woken) = visit(&word);
            assert!(!late, "closed is closed at once");
            let mut count = 0;
            for visitor in visitors {
                let (admitted, wake) = visitor.join().expect("no panic");
                count += u64::from(admitted);
                woken |= wake;
            }
            assert_eq!(word.count(), 0, "every exit counts out");
            assert_eq!(word.admitted(), count, "who was refused was never in");
            assert!(!waiting || woken, "a missed wake-up waits for ever");
        });
    }

    #[test]
    fn counts_of_those_who_left_fall_off_the_top() {
        let word = Word::<AtomicU64>::new();
        word.0.store(u64::MAX - COUNT, Ordering::Relaxed);
        assert_eq!((word.count(), word.admitted()), (0, u64::MAX / LEFT));
        assert!(word.enter().is_err(), "the flags are as they were");
        word.0.fetch_and(!(CLOSED | DRAINED), Ordering::Relaxed);
        word.enter().expect("open");
        assert_eq!((word.count(), word.admitted()), (1, 0));
        assert!(word.leave(), "the last one wakes");
        assert_eq!((word.count(), word.admitted()), (0, 0));
        assert_eq!(word.watch(), 0);
    }

    #[test]
    fn a_waiter_that_saw_somebody_is_woken() {
        loom::model(|| {
            let word: Model = Arc::new(Word::new());
            word.enter().expect("open");
            let holder = {
                let word = Arc::clone(&word);
                thread::spawn(move || word.leave())
            };
            let refused = {
                let word = Arc::clone(&word);
                thread::spawn(move || word.enter())
            };
            word.close();
            let waiting = word.watch() > 0;
            let woken = holder.join().expect("no panic");
            let woken = woken
                | match refused.join().expect("no panic") {
                    Ok(()) => word.leave(),
                    Err(wake) => wake,
                };
            assert!(!waiting || woken, "a missed wake-up waits for ever");
            assert_eq!(word.count(), 0);
        });
    }

    #[test]
    fn nobody_is_let_in_by_a_reopen_that_comes_after_a_drain() {
        loom::model(|| {
            let word: Model = Arc::new(Word::new());
            assert!(word.begin_drain());
            let other = {
                let word = Arc::clone(&word);
                thread::spawn(move || word.reopen())
            };
            let (admitted, _) = visit(&word);
            assert!(!admitted, "a drain refuses to its end");
            assert!(!other.join().expect("no panic"));
        });
    }

    #[test]
    fn what_joins_is_waited_for_or_refused() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let word: Model = Arc::new(Word::new());
            word.enter().expect("open");
            let holder = {
                let word = Arc::clone(&word);
                thread::spawn(move || {
                    let joined = word.join();
                    assert!(joined, "its own permit is out");
                    word.leave() | word.leave()
                })
            };
            // Counts for a moment once the gate is closed, by which nobody else may be let in.
            let late = {
                let word = Arc::clone(&word);
                thread::spawn(move || visit(&word).1)
            };
            word.close();
            let seen = word.watch();
            let joined = word.join();
            assert!(seen > 0 || !joined, "nobody joins what has ended");
            let mut woken = joined && word.leave();
            woken |= holder.join().expect("no panic");
            woken |= late.join().expect("no panic");
            assert!(seen == 0 || woken, "a missed wake-up waits for ever");
            assert_eq!((word.watch(), word.join()), (0, false));
        });
    }

    #[test]
    fn of_two_drains_one_begins() {
        loom::model(|| {
            let word: Model = Arc::new(Word::new());
            let other = {
                let word = Arc::clone(&word);
                thread::spawn(move || word.begin_drain())
            };
            let here = word.begin_drain();
            assert!(here != other.join().expect("no panic"));
            assert!(!word.reopen(), "what has begun is not taken back");
            assert!(word.is_closed());
        });
    }
}
