//! The pure part of lameduck: vocabulary and state machines.
//!
//! Nothing in this crate reads a clock, opens a socket, spawns a task or logs. Time is an argument
//! ([`time::Timestamp`]), randomness is an argument ([`rng::Rng`]), and whatever has to happen
//! outside is a value that a machine gives out ([`machine::Machine`]). That is why the same code
//! runs in production, in a simulated world and in a unit test that takes no time.
#![no_std]
#![deny(missing_docs)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod backoff;
pub mod balance;
pub mod conn;
pub mod directory;
pub mod drain;
pub mod effects;
pub mod endpoint;
pub mod event;
pub mod failover;
pub mod instance;
pub mod limits;
pub mod machine;
pub mod mirror;
pub mod mutant;
pub mod name;
pub mod registry;
pub mod rng;
pub mod session;
pub mod store;
#[cfg(test)]
mod table;
pub mod time;
pub mod watch;
