//! The crate against sockets, frames and foreign peers.

mod connection;
mod raw;
