//! Keeps requests alive while the processes that serve them come and go.
//!
//! A server that is asked to stop first tells everybody to go elsewhere, and still serves whatever
//! arrives; it refuses only once traffic has gone, provably unprocessed; it waits for what is in
//! flight, within one budget, and reports how that went. axum and tonic routes share one port:
//!
//! ```no_run
//! # async fn serve() {
//! let provider = lameduck::Provider::builder("orders")
//!     .listen("0.0.0.0:8080")
//!     .registry("etcd://127.0.0.1:2379")
//!     .router(axum::Router::new().route("/", axum::routing::get(async || "hello")))
//!     .build()
//!     .unwrap_or_else(|error| {
//!         eprintln!("orders: {error}");
//!         std::process::exit(error.exit_code().into())
//!     });
//! let report = provider.run().await; // until SIGTERM or SIGINT, then leaves well
//! std::process::exit(report.exit_code().into());
//! # }
//! ```
//!
//! A caller keeps a live directory of a service's instances: one that says that it is leaving gets
//! no new call, and no late news brings it back. What provably was not processed is placed
//! elsewhere, what may have been only where its method is declared idempotent. A [`Channel`] takes
//! the place of `tonic::transport::Channel` in generated clients:
//!
//! ```no_run
//! # fn call() -> Result<(), lameduck::TargetError> {
//! let hub = lameduck::Hub::new(); // one for all channels of a program
//! let channel = hub
//!     .channel_builder("etcd:///127.0.0.1:2379?key=orders")
//!     .idempotent("/orders.v1.Orders/Get")
//!     .build()?;
//! # drop(channel);
//! # Ok(())
//! # }
//! ```
//!
//! [`provider`] and [`hub`] are where to begin. [`serve`] and [`consumer::connection`] are the two
//! ends of a connection by themselves, [`health`] is `grpc.health.v1`, [`observe`] shows what
//! happens. [`registry`] has the registries that a program makes itself: one in memory for tests, an
//! etcd that asks for a login. Every default stands in [`core::limits`], with its reason.
#![deny(missing_docs)]

pub mod cell;
pub mod consumer;
pub mod deadline;
pub mod env;
mod foreign;
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
pub use lameduck_registry as registry;
pub use provider::Provider;
