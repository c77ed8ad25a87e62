//! Tests of the registries from outside.

mod etcd;
mod etcdctl;
mod process;
mod server;
mod wire;
