//! Rates over the last second, for whoever looks on.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lameduck_core::time::Timestamp;

use super::ledger::Ledger;

const SPAN: Duration = Duration::from_secs(1);

/// Remembers counts for a second.
#[derive(Debug, Default)]
pub struct Meter {
    samples: VecDeque<Sample>,
}

#[derive(Debug)]
struct Sample {
    at: Timestamp,
    ended: u64,
    started: BTreeMap<u16, u64>,
}

impl Meter {
    /// Takes the present counts.
    pub fn take(&mut self, ledger: &Ledger, at: Timestamp) {
        let started = ledger.started_by.clone();
        let ended = ledger.ended.0;
        self.samples.push_back(Sample { at, ended, started });
        while self.samples.get(1).is_some_and(|next| next.at + SPAN <= at) {
            self.samples.pop_front();
        }
    }

    /// Calls a second that ended well.
    #[must_use]
    pub fn ended(&self) -> f64 {
        self.rate(|sample| sample.ended)
    }

    /// Calls a second that `server` started.
    #[must_use]
    pub fn started(&self, server: u16) -> f64 {
        self.rate(|sample| sample.started.get(&server).copied().unwrap_or(0))
    }

    fn rate(&self, count: impl Fn(&Sample) -> u64) -> f64 {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return 0.0;
        };
        let seconds = last.at.saturating_since(first.at).as_secs_f64();
        let counted = count(last).saturating_sub(count(first)) as f64;
        if seconds > 0.0 {
            counted / seconds
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_second() {
        let (mut meter, mut ledger) = (Meter::default(), Ledger::default());
        assert!(meter.ended() < f64::EPSILON);
        for tenth in 0..30u64 {
            ledger.ended.0 += if tenth < 15 { 100 } else { 10 };
            ledger.started_by.insert(1, tenth);
            meter.take(&ledger, Timestamp::from_millis(tenth * 100));
        }
        assert!((meter.ended() - 100.0).abs() < 1e-6);
        assert!((meter.started(1) - 10.0).abs() < 1e-6);
        assert!(meter.started(2) < f64::EPSILON);
    }
}
