//! A provider from build to report.

mod leaving;
mod routes;
mod signals;
mod whole;
mod wire;
