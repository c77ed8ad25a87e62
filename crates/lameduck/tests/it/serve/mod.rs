//! The accept loop and its connections, seen from raw sockets and frames.

pub mod client;
mod goaway;
mod plain;
mod refuse;
pub mod start;
