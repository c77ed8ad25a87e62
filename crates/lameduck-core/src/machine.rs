//! The shape of every decision-maker.

use crate::time::Timestamp;

/// A state machine without clock and without IO.
///
/// The edge hands in one input, then calls [`poll`](Machine::poll) until it gives `None`, then hands
/// in the next. [`deadline`](Machine::deadline) says when the machine wants to be woken by
/// [`handle_timeout`](Machine::handle_timeout), and why. Where machines are composed, a parent's
/// deadline is the earliest of its children's.
pub trait Machine {
    /// What can happen to it.
    type Input;
    /// What it wants done.
    type Output;

    /// Takes one input that happened at `now`. `now` never goes back.
    fn handle(&mut self, now: Timestamp, input: Self::Input);

    /// Tells it that its deadline has come. Harmless before the deadline.
    fn handle_timeout(&mut self, now: Timestamp);

    /// The next thing to do, in order; `None` once there is no more.
    fn poll(&mut self) -> Option<Self::Output>;

    /// When to wake it, and for what (a word for traces and the status page).
    fn deadline(&self) -> Option<(Timestamp, &'static str)>;
}

/// Marks one piece of IO that an output starts, and comes back with its completion.
///
/// A machine that has changed its mind in between recognises the old ticket and ignores the late
/// completion: a lease granted to a process that is leaving by now must not make it present again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

impl Ticket {
    /// The ticket before the first one: names nothing.
    pub const START: Self = Self(0);

    /// The ticket after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Its number, for traces.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// The earlier of two deadlines.
#[must_use]
pub fn earliest(
    left: Option<(Timestamp, &'static str)>,
    right: Option<(Timestamp, &'static str)>,
) -> Option<(Timestamp, &'static str)> {
    match (left, right) {
        (Some(a), Some(b)) => Some(if b.0 < a.0 { b } else { a }),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_takes_the_first_to_come() {
        let soon = Some((Timestamp::from_millis(1), "soon"));
        let late = Some((Timestamp::from_millis(2), "late"));
        assert_eq!(earliest(soon, late), soon);
        assert_eq!(earliest(late, soon), soon);
        assert_eq!(earliest(None, late), late);
        assert_eq!(earliest(None, None), None);
    }
}
