//! What the outputs of the machines do, written once for every edge.
//!
//! A machine says what is to be done, and an *edge* can do it: sockets and tasks in the crate `lameduck`, a
//! world of values in the simulator. Between the two lie decisions that neither should take for itself: in
//! which order, whom to tell, what to count before what is cut. They stand here, as one function or small
//! machine for each of core's machines and one trait that names what its edge must be able to do. So what
//! the simulator shows of these decisions holds for processes.
//!
//! Nothing here waits, spawns or looks at a clock. Back ends of registries perform the outputs of
//! the session and the mirror themselves: a request to etcd has nothing in common with one to a
//! simulated store.
//!
//! ```
//! use lameduck_core::conn::{Input, Look, Output, Reason};
//! use lameduck_core::effects::connection::{Edge, perform};
//!
//! /// A connection that only notes what it was asked to do.
//! #[derive(Default)]
//! struct Noted(Vec<&'static str>);
//!
//! impl Edge for Noted {
//!     fn graceful(&mut self) {
//!         self.0.push("GOAWAY");
//!     }
//!     fn inject_pong(&mut self) {}
//!     fn look(&mut self) -> Look {
//!         Look::Quiet
//!     }
//!     fn last_answer(&mut self) {}
//!     fn settled(&mut self) {}
//!     fn end_answers(&mut self) {}
//!     fn reset(&mut self) {}
//!     fn drop_it(&mut self, _: Reason) {}
//! }
//!
//! let mut noted = Noted::default();
//! assert_eq!(perform(&mut noted, Output::GoAway), None);
//! assert_eq!(perform(&mut noted, Output::Look), Some(Input::Seen(Look::Quiet)));
//! assert_eq!(noted.0, ["GOAWAY"]);
//! ```

pub mod connection;
pub mod directory;
pub mod endpoint;
pub mod leaving;
pub mod speaker;
pub mod statement;
pub mod watch;
