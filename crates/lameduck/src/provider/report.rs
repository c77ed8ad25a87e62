//! The one line that a stop leaves on stderr.

use std::io::Write;

use lameduck_core::drain::Report;

/// Writes it. Nobody may be reading any more, and that is no reason to fail.
pub(super) fn line(service: &str, report: &Report) {
    say(service, report);
}

/// Says that a process ended before it served, or was forced to while its runtime did not answer.
pub(super) fn say(service: &str, what: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "lameduck: {service} {what}");
}
