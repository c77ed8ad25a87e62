//! etcd: a development server that speaks its API, and a real one as a child process for tests.

pub mod process;
pub mod server;
