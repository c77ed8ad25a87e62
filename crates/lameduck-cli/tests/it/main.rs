//! The command, run as the process that it is.

mod lab;
mod registry;
