//! Keeps requests alive while the processes that serve them come and go.
#![deny(missing_docs)]

pub mod cell;
pub mod consumer;
pub mod deadline;
pub mod env;
mod frames;
pub mod health;
pub mod hub;
pub mod mark;
pub mod observe;
pub mod provider;
pub mod serve;

pub use consumer::{Channel, ChannelBuilder, Policy};
pub use hub::{Hub, HubBuilder, TargetError};
pub use lameduck_core as core;
pub use lameduck_registry::driver;
pub use provider::Provider;
