//! A provider from build to report.

mod routes;
mod signals;
mod whole;
mod wire;
