//! What a registry is, seen from both ends.
//!
//! A registry never fails as a list: an error is [`Update::Stale`], never an empty
//! [`Update::Reset`]. A back end only has to tell the truth in these few forms; protection,
//! tombstones and doubt are the directory's.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::task::{Context, Poll};
use core::time::Duration;

use crate::instance::{Instance, Life};
use crate::name::{ServiceName, Target};

/// Names one registration in one registry, as long as it lasts: etcd's lease or create revision,
/// a counter elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub i64);

/// One registration as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which registration.
    pub id: EntryId,
    /// What it says.
    pub instance: Instance,
}

/// What a subscription tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// The whole list, in no order: what is not in it is not registered.
    Reset {
        /// All registrations.
        entries: Vec<Entry>,
        /// The registry's revision, 0 where it has none. One that goes back means another history.
        revision: u64,
    },
    /// Changes since the last update. Says nothing of whether all can be read.
    Delta {
        /// New and changed registrations.
        changed: Vec<Entry>,
        /// Registrations that are gone. Unknown ids are ignored.
        removed: Vec<EntryId>,
        /// The registry's revision, 0 where it has none.
        revision: u64,
    },
    /// The registry, or part of it, cannot be read now, until [`Live`](Self::Live) or
    /// [`Reset`](Self::Reset). What was told before still stands, only older.
    Stale(RegistryError),
    /// It can be read again, and nothing else has changed.
    Live,
    /// A value among the service's own is no instance: it is left out, and changes nothing else.
    /// Said once for one key and value, at most
    /// [`limits::SKIPPED_TOLD_MAX`](crate::limits::SKIPPED_TOLD_MAX) times by a subscription.
    Skipped {
        /// The key, what it holds, and what is wrong with that, for a line in a log.
        what: String,
    },
}

/// What to do about a registry error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Try again later: not reached, no leader, timed out.
    Retry,
    /// Trying again does not help until somebody changes something: denied, bad request.
    Refused,
    /// The store takes no writes: deletes and revokes still work.
    Full,
}

/// A registry that could not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryError {
    /// What to do about it.
    pub class: ErrorClass,
    /// Which registry, and what it said.
    pub message: String,
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl core::error::Error for RegistryError {}

/// What a process wants its registrations to be. One value, which every repair loop reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Want {
    /// Listed, as this life, wanting calls or not.
    Present {
        /// Which life; a higher epoch of the same boot is a Resume.
        life: Life,
        /// Whether it wants calls now.
        ready: bool,
    },
    /// Still listed for readers that know closing instances, gone for all others.
    Closing,
    /// Gone. Final.
    Gone,
}

/// What is to be published: one instance under one or more names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The names, at least one.
    pub services: Vec<ServiceName>,
    /// The instance; its incarnation is a [`Life`].
    pub instance: Instance,
}

/// How a publication stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicationStatus {
    /// The last wanted state that the registry has confirmed.
    pub reached: Option<Want>,
    /// Whether readers of any kind can find this instance now, as far as is known.
    pub registered: bool,
    /// Whether our own records are kept beside foreign keys (`false`: denied by the registry).
    pub metadata: bool,
    /// What is in the way now.
    pub error: Option<RegistryError>,
}

/// One process's presence in one registry. It repairs itself until it is dropped or
/// [`Want::Gone`] is reached; dropping it leaves whatever is published to its lease.
pub trait Publication: Send {
    /// Says what is wanted from now on. Replaces what was wanted before; [`Want::Gone`] is final.
    fn want(&mut self, want: Want);

    /// The next change of the status; at first the status as it is. Ends never.
    fn poll_status(&mut self, context: &mut Context<'_>) -> Poll<PublicationStatus>;
}

/// A live view of one service in one registry.
pub trait Subscription: Send {
    /// The next update; `None` where no more can come (a fixed list).
    fn poll_update(&mut self, context: &mut Context<'_>) -> Poll<Option<Update>>;
}

/// Somewhere instances are published and found. Must be used from within the async runtime of the
/// back end.
pub trait Registry: Send + Sync + fmt::Debug {
    /// How long a change takes to reach all readers; decides the floor of Closing.
    fn propagation(&self) -> Duration;

    /// Whether instances can be published here (`true` unless a back end says otherwise). A provider
    /// that is told to publish where nothing can be is not built: nobody would find it.
    fn takes_registrations(&self) -> bool {
        true
    }

    /// Begins to publish; nothing is published before the first [`Publication::want`].
    fn publish(&self, registration: Registration) -> Box<dyn Publication>;

    /// Begins to watch a service.
    fn subscribe(&self, service: &ServiceName) -> Box<dyn Subscription>;
}

/// Makes a registry from a target's hosts.
pub type Connect = dyn Fn(&Target) -> Result<Arc<dyn Registry>, RegistryError> + Send + Sync;

/// Which scheme stands for which registry: a value, nothing global.
#[derive(Default)]
pub struct Schemes {
    table: BTreeMap<String, (&'static str, Arc<Connect>)>,
}

impl Schemes {
    /// A table without any scheme.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            table: BTreeMap::new(),
        }
    }

    /// Adds `scheme`, provided by `holder` (a crate's or module's name, for messages).
    ///
    /// # Errors
    ///
    /// Where somebody holds the scheme already: names both.
    pub fn register(
        &mut self,
        scheme: &str,
        holder: &'static str,
        connect: Arc<Connect>,
    ) -> Result<(), RegistryError> {
        let scheme = scheme.to_ascii_lowercase();
        if let Some((other, _)) = self.table.get(&scheme) {
            let message =
                alloc::format!("scheme {scheme:?} of {holder} is held by {other} already");
            return Err(RegistryError {
                class: ErrorClass::Refused,
                message,
            });
        }
        self.table.insert(scheme, (holder, connect));
        Ok(())
    }

    /// The registry that `target` names.
    ///
    /// # Errors
    ///
    /// Where the scheme is unknown (the message lists the known ones), or its back end refuses.
    pub fn connect(&self, target: &Target) -> Result<Arc<dyn Registry>, RegistryError> {
        self.find(target)?(target)
    }

    /// Looks whether the scheme of `target` is known, and connects nothing.
    ///
    /// # Errors
    ///
    /// Where it is unknown: the message lists the known ones.
    pub fn check(&self, target: &Target) -> Result<(), RegistryError> {
        self.find(target).map(|_| ())
    }

    fn find(&self, target: &Target) -> Result<&Connect, RegistryError> {
        match self.table.get(target.scheme()) {
            Some((_, connect)) => Ok(connect.as_ref()),
            None => {
                let known: Vec<&str> = self.table.keys().map(String::as_str).collect();
                let message = alloc::format!(
                    "no registry for scheme {:?}; known here: {}",
                    target.scheme(),
                    known.join(", ")
                );
                Err(RegistryError {
                    class: ErrorClass::Refused,
                    message,
                })
            }
        }
    }
}

impl fmt::Debug for Schemes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.table.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn nowhere() -> Arc<Connect> {
        Arc::new(|_| {
            Err(RegistryError {
                class: ErrorClass::Retry,
                message: "away".to_string(),
            })
        })
    }

    #[test]
    fn a_scheme_has_one_holder() {
        let mut schemes = Schemes::new();
        assert_eq!(schemes.register("etcd", "first", nowhere()), Ok(()));
        let error = schemes
            .register("ETCD", "second", nowhere())
            .expect_err("held already");
        assert!(
            error.message.contains("first") && error.message.contains("second"),
            "{error}"
        );
    }

    #[test]
    fn an_unknown_scheme_names_the_known_ones() {
        let mut schemes = Schemes::new();
        schemes.register("etcd", "first", nowhere()).expect("free");
        let target = "etdc://h:1/orders".parse().expect("a target");
        let error = schemes.connect(&target).expect_err("unknown");
        assert!(
            error.message.contains("etdc") && error.message.contains("etcd"),
            "{error}"
        );
        assert_eq!(schemes.check(&target), Err(error));
        let target = "etcd://h:1/orders".parse().expect("a target");
        assert_eq!(schemes.connect(&target).expect_err("away").message, "away");
    }
}
