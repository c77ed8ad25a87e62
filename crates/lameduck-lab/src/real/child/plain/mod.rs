//! Servers and callers on tonic alone, as its documentation shows them, and with what people add.

pub(super) mod caller;
pub(super) mod server;
