//! What a run shows while it runs.

use std::net::SocketAddr;
use std::time::Duration;

/// A moment of a run.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Since the first call was due.
    pub elapsed: Duration,
    /// Rolls and kills that are done.
    pub steps_done: u64,
    /// Rolls and kills of the whole run.
    pub steps: u64,
    /// Calls a second that ended well, over the last second or so.
    pub calls_per_second: f64,
    /// Calls that did not end well, up to the kill.
    pub failed: u64,
    /// Calls that did not end well since: the judge will tell which of them the kill excuses.
    pub failed_since_kill: u64,
    /// One for each server.
    pub rows: Vec<Row>,
    /// What is being done.
    pub doing: String,
}

/// One server.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which one, from 0.
    pub server: u16,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its phase, in one word.
    pub phase: String,
    /// Calls a second that it started, over the last second or so.
    pub calls_per_second: f64,
    /// Calls that were last placed there and did not end well, so far.
    pub failed: u64,
}

/// Somebody who looks on.
pub trait Onlooker {
    /// How it stands: a few times a second.
    fn see(&mut self, progress: &Progress);
}

/// Nobody.
impl Onlooker for () {
    fn see(&mut self, _: &Progress) {}
}
