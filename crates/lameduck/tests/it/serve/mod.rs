//! The accept loop and its connections, seen from raw sockets and frames.

mod accept;
mod authority;
pub mod client;
mod cut;
mod early;
mod fit;
mod goaway;
mod grpc;
mod half;
mod hang_up;
mod limits;
pub mod permits;
mod plain;
mod refuse;
mod resets;
mod slow;
pub mod start;
mod tunnels;
mod unread;
mod upload;
mod web;
