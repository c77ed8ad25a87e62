//! A provider from build to report.

mod whole;
