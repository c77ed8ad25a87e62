//! The etcd registry against a real etcd.

mod auth;
mod away;
mod field;
mod foreign;
mod help;
mod layout;
mod leaving;
mod login;
