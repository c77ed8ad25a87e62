//! The lab on real processes and sockets.
//!
//! Who does what: [`plan`] says which calls are due and when, for caller and judge alike; the
//! children ([`child`]) write what they intend, start and answer into files, one [`record`] a line;
//! [`ledger`] folds the lines of all files into one account; [`oracle`], [`windows`] and
//! [`validity`] read that account and nothing else; [`run`] starts, rolls and kills.

pub mod books;
pub mod chart;
pub mod child;
pub mod clock;
pub mod compare;
pub mod control;
pub mod disk;
pub mod error;
pub mod flavour;
pub mod fleet;
pub mod home;
pub mod html;
pub mod ledger;
pub mod limits;
pub mod meter;
pub mod options;
pub mod oracle;
pub mod picks;
pub mod plan;
pub mod process;
pub mod progress;
pub mod proxy;
pub mod record;
pub mod report;
pub mod run;
pub mod sabotage;
pub mod sentinel;
pub mod sequence;
pub mod spec;
pub mod stages;
pub mod stalls;
pub mod story;
#[cfg(test)]
mod synthetic;
pub mod tail;
pub mod validity;
pub mod windows;
pub mod writer;
