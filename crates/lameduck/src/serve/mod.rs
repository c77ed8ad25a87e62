//! The accept loop and its connections, over hyper.
//!
//! axum routers and tonic routes (which come as a router) are served alike, HTTP/1.1 and HTTP/2 on
//! one port. What leaving well needs stands outside of them, in one service per connection: the gate
//! and its permits, refusals that prove that nothing was processed, marks on answers, `grpc-timeout`.
//! What hyper waits for without a bound is bounded by the connection's machine
//! ([`lameduck_core::conn`]).
//!
//! ```no_run
//! # async fn example(life: lameduck::core::instance::Life) -> std::io::Result<()> {
//! use lameduck::cell::gate::Gate;
//! use lameduck::serve::{Server, bind};
//!
//! let gate = Gate::new();
//! let server = Server::builder()
//!     .listener(bind("127.0.0.1:8080".parse().expect("an address"))?)
//!     .router(axum::Router::new())
//!     .life(life)
//!     .gate(gate.clone())
//!     .build()?;
//! let control = server.control();
//! let running = tokio::spawn(server.run());
//! // Leaving, in order:
//! control.announce();
//! control.go_away_existing(std::time::Duration::from_millis(100));
//! control.close_listener().await;
//! control.final_goaways(lameduck::core::limits::FINAL_GOAWAY_MAX).await;
//! control.close_gate();
//! gate.idle().await;
//! running.await.expect("the server does not panic");
//! # Ok(())
//! # }
//! ```

mod accept;
mod answer;
mod authority;
mod connection;
mod control;
mod early;
mod farewell;
mod fit;
mod flavour;
mod http;
mod io;
mod limits;
mod pause;
mod peer;
mod refuse;
mod service;
mod shared;
mod upload;

pub use accept::{Server, ServerBuilder, bind, bind_shared};
pub use control::{Connections, Control};
pub use limits::{Limits, LimitsError};
pub use peer::ConnectionInfo;
pub use refuse::Refused;
pub(crate) use shared::Extend;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
