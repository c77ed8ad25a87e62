//! The only atomics: what the data plane reads and writes without a lock.
//!
//! Everything else in the crate is ordinary single-owner code; whoever wants to reason about a
//! memory ordering finds all of them here.

pub mod gate;
mod word;

pub(crate) mod budget;
pub(crate) mod counter;
pub(crate) mod endpoint;
pub(crate) mod line;
pub(crate) mod link;
pub(crate) mod streams;
pub(crate) mod switch;
pub(crate) mod tally;
pub(crate) mod waiters;
pub(crate) mod wire;
