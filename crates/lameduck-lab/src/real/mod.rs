//! The lab on real processes and sockets.
//!
//! Who does what: [`plan`] says which calls are due and when, for caller and judge alike; the
//! children ([`child`]) write what they intend, start and answer into files, one [`record`] a line;
//! [`ledger`] folds the lines of all files into one account; [`oracle`], [`windows`] and
//! [`validity`] read that account and nothing else; [`run`] starts, rolls and kills.

pub mod clock;
pub mod ledger;
pub mod limits;
pub mod oracle;
pub mod picks;
pub mod plan;
pub mod record;
pub mod report;
pub mod sequence;
pub mod story;
#[cfg(test)]
mod synthetic;
pub mod tail;
pub mod validity;
pub mod windows;
pub mod writer;
