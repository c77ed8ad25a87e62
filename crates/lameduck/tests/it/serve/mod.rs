//! The accept loop and its connections, seen from raw sockets and frames.

mod plain;
mod start;
