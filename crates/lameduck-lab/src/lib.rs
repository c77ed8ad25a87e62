//! The lab: real processes rolled under load, and the ledger that judges them.
//!
//! [`real`] starts servers and callers as processes of their own, rolls every server while calls go
//! through them on a fixed schedule, and judges the run by what each process wrote down beforehand.
#![deny(missing_docs)]

pub mod pb;
pub mod real;
pub mod sim;
