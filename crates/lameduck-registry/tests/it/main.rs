//! Tests of the registries from outside.

mod etcdctl;
mod process;
mod server;
