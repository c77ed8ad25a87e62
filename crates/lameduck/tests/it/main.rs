//! The crate against sockets, frames and foreign peers.

mod channel;
mod connection;
#[path = "../../examples/greeter/mod.rs"]
mod greeter;
mod provider;
mod raw;
mod serve;
mod standing;
mod texts;
mod tonic_server;
