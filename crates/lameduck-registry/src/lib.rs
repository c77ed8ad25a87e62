//! Registries of lameduck: where instances are published and found.
#![deny(missing_docs)]

pub mod driver;
pub mod etcd;
