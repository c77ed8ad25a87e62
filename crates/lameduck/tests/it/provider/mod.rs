//! A provider from build to report.

mod descriptors;
mod foreign;
mod frozen;
mod handles;
mod leaving;
mod listening;
mod process;
mod quiet;
mod readiness;
mod routes;
mod signals;
mod watchers;
mod whole;
mod wire;
