//! The caller's side.
//!
//! ```text
//! registry ─▶ directory task ─▶ View (published, read without a lock) ◀─ Channel::call: pick
//!                 ▲    │ add, dial, remove                                 │ slot of a Link
//!                 │    ▼                                                   ▼
//!                 └─ endpoint task ─▶ Link (a connection, its health Watch, who answers there)
//! ```

pub mod connection;
#[doc(hidden)]
pub mod workbench;

mod body;
mod call;
mod channel;
mod descriptors;
mod directory;
mod endpoint;
mod error;
mod gather;
mod health;
mod leaving;
mod link;
mod names;
mod pick;
mod reach;
mod unavailable;
mod wait;
mod watch;

pub use channel::{Channel, ChannelBuilder, Policy};
pub use error::CallFailed;
pub use leaving::Leaving;
pub use names::{Found, Lookup};

pub(crate) use descriptors::Descriptors;
pub(crate) use directory::{Directory, Message, Subject};
pub(crate) use names::system as system_lookup;
