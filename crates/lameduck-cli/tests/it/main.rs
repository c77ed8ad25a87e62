//! The command, run as the process that it is.

mod lab;
mod manual;
mod registry;
mod view;
