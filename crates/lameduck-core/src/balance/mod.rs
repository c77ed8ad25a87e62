//! Which of several usable endpoints takes the next call.
//!
//! Pure picks over indices: what is usable and how loaded it is comes from a closure, randomness is
//! an argument, and nothing is allocated. Both look at every member before they give up, so that a
//! single usable one is always found.

mod p2c;
mod round_robin;
mod success;

pub use p2c::p2c;
pub use round_robin::round_robin;
pub use success::Success;
