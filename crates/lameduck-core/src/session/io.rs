//! What can happen to a session, and what it wants done.

use core::time::Duration;

use crate::instance::Life;
#[cfg(doc)]
use crate::limits;
use crate::machine::Ticket;
use crate::registry::{PublicationStatus, RegistryError, Want};

/// A lease, as the registry numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

/// What can happen to a session. Every started piece of IO must complete, with an error at the
/// latest after [`limits::REGISTRY_CALL_MAX`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Somebody wants another state from now on.
    Want(Want),
    /// [`Output::Grant`] succeeded.
    Granted {
        /// Whose completion.
        ticket: Ticket,
        /// The new lease.
        lease: LeaseId,
        /// The TTL that was granted, not the one asked for.
        ttl: Duration,
    },
    /// [`Output::Renew`] succeeded.
    Renewed {
        /// Whose completion.
        ticket: Ticket,
        /// What is left of the lease now.
        ttl: Duration,
    },
    /// [`Output::Put`], [`Output::PutClosing`] or [`Output::Revoke`] succeeded.
    Done {
        /// Whose completion.
        ticket: Ticket,
    },
    /// [`Output::Check`] gave an answer.
    Checked {
        /// Whose completion.
        ticket: Ticket,
        /// Whether all keys are there, under this lease.
        intact: bool,
    },
    /// Any output found that its lease does not exist any more.
    LeaseGone {
        /// Whose completion.
        ticket: Ticket,
    },
    /// Any output failed.
    Failed {
        /// Whose completion.
        ticket: Ticket,
        /// How.
        error: RegistryError,
    },
}

/// What a session wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Get a lease.
    Grant {
        /// For the completion.
        ticket: Ticket,
    },
    /// Write the keys of this life under this lease, or put them right.
    Put {
        /// For the completion.
        ticket: Ticket,
        /// Under which lease.
        lease: LeaseId,
        /// Whose keys.
        life: Life,
        /// Whether it wants calls.
        ready: bool,
        /// Whether our own records are written beside the foreign keys.
        records: bool,
    },
    /// In one step: let our records say *closing* and delete the foreign keys.
    PutClosing {
        /// For the completion.
        ticket: Ticket,
        /// Under which lease.
        lease: LeaseId,
        /// Whose records.
        life: Life,
    },
    /// Renew the lease once.
    Renew {
        /// For the completion.
        ticket: Ticket,
        /// Which lease.
        lease: LeaseId,
    },
    /// Look whether all keys are there.
    Check {
        /// For the completion.
        ticket: Ticket,
        /// Under which lease.
        lease: LeaseId,
        /// Whether the foreign keys are to be there, which are absent while the instance is not ready.
        ready: bool,
        /// Whether our own records are to be there too.
        records: bool,
    },
    /// End the lease, and every key with it. A lease that is gone already counts as done.
    Revoke {
        /// For the completion.
        ticket: Ticket,
        /// Which lease.
        lease: LeaseId,
    },
    /// The publication's status has changed.
    Status(PublicationStatus),
}
