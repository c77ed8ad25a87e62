//! etcd: a registry in go-zero's layout, the thin client beneath it, a development server that
//! speaks its API, and a real one as a child process for tests, on ports of its own.

mod client;
mod dial;
mod join;
mod keys;
mod login;
pub mod ports;
pub mod process;
mod publication;
mod registry;
pub mod server;
mod skipped;
mod streams;
mod subscription;
mod transport;

pub use client::{Client, Error, Listing, Watch};
pub use registry::{Etcd, connector};
