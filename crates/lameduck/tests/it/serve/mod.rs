//! The accept loop and its connections, seen from raw sockets and frames.

mod client;
mod goaway;
mod plain;
mod refuse;
mod start;
