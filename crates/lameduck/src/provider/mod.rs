//! The serving side: build, run, leave well.
//!
//! ```no_run
//! # async fn serve() -> Result<std::process::ExitCode, lameduck::provider::BuildError> {
//! let provider = lameduck::Provider::builder("orders")
//!     .listen("0.0.0.0:8080")
//!     .registry("etcd://127.0.0.1:2379")
//!     .router(axum::Router::new().route("/", axum::routing::get(async || "hello")))
//!     .build()?;
//! let report = provider.run().await;
//! Ok(report.exit_code().into())
//! # }
//! ```
//!
//! `build` binds the port and catches signals from then on; `run` serves until somebody asks to
//! leave, leaves in the order that [`lameduck_core::drain`] keeps, and returns how that went.

mod address;
mod assemble;
mod builder;
mod early;
mod error;
mod extract;
mod handle;
mod hooks;
mod listener;
mod probes;
mod readiness;
mod registration;
mod report;
mod routes;
mod run;
mod signals;

pub use crate::mark::ShowLife;
pub use builder::{Builder, Provider};
pub use error::BuildError;
pub use handle::{Answer, Handle, Status};
pub use lameduck_core::drain::{ClosingEnd, Problem, Reason, Report as DrainReport};
pub use registration::RegistrationStatus;
