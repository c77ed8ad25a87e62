//! Words for people, on standard error.

use std::fmt::Arguments;
use std::io::Write;

/// Writes a line. Nobody may be reading any more: that is no reason to fail, and the exit code tells.
pub fn say(line: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
