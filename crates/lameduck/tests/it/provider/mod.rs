//! A provider from build to report.

mod signals;
mod whole;
mod wire;
