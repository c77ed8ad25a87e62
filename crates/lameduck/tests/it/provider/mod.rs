//! A provider from build to report.

mod descriptors;
mod frozen;
mod leaving;
mod routes;
mod signals;
mod watchers;
mod whole;
mod wire;
