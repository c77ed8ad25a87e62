//! Development tasks of lameduck.
fn main() {}
