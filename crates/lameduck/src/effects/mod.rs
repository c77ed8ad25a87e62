//! What the outputs of the machines do, written once for every edge.
//!
//! A machine says what is to be done, and an *edge* can do it: sockets and tasks in this crate, a
//! world of values in the lab's simulator. Between the two lie decisions that neither should take
//! for itself: in which order, who is told of it, what is counted before what is cut. They stand
//! here, as one function or small machine for each of core's machines and one trait that names what
//! its edge must be able to do. So what the simulator shows of these decisions holds for processes.
//!
//! It is public for the simulator's sake, and no part of what this crate promises: its form may change
//! in any version.
//!
//! Nothing here waits, spawns or looks at a clock. Back ends of registries perform the outputs of
//! the session and the mirror themselves: a request to etcd has nothing in common with one to a
//! simulated store.

pub mod connection;
pub mod directory;
pub mod endpoint;
pub mod leaving;
pub mod speaker;
pub mod statement;
pub mod watch;
