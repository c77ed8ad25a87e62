//! Tests of the registries from outside.

mod differential;
mod etcd;
mod etcdctl;
mod plain;
mod process;
mod server;
mod wire;
