//! A provider from build to report.

mod leaving;
mod routes;
mod signals;
mod watchers;
mod whole;
mod wire;
