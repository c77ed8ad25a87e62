//! Exit codes of the command.

/// All is well.
pub const OK: u8 = 0;
/// An error.
pub const ERROR: u8 = 1;
/// Usage or configuration; clap gives the same.
pub const USAGE: u8 = 2;
/// It could not start: its address is taken.
pub const NOT_STARTED: u8 = 12;
/// Calls were lost, or the judge found a rule broken.
pub const LOST: u8 = 20;
/// The run proves nothing.
pub const INVALID: u8 = 21;
/// Something that is needed is missing.
pub const MISSING: u8 = 22;
