//! The crate against sockets, frames and foreign peers.

mod connection;
#[path = "../../examples/greeter/mod.rs"]
mod greeter;
mod raw;
mod tonic_server;
