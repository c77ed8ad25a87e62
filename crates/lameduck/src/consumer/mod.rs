//! The caller's side.

pub mod connection;
