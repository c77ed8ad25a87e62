//! A registry whose instances have no lasting identity: what is registered once more is new.
//!
//! It takes from callers what tombstones hang on, so that a replayed registration is believed.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use lameduck_core::instance::Incarnation;
use lameduck_core::name::{ServiceName, Target};
use lameduck_core::registry::{
    Entry, Publication, Registration, Registry, RegistryError, Schemes, Subscription, Update,
};

/// The usual schemes, each without memory.
pub(super) fn schemes() -> Result<Schemes, RegistryError> {
    let usual = Arc::new(lameduck_registry::builtin());
    let mut schemes = Schemes::new();
    for scheme in ["etcd", "discov", "direct"] {
        let usual = Arc::clone(&usual);
        let connect = move |target: &Target| -> Result<Arc<dyn Registry>, RegistryError> {
            Ok(Arc::new(Forgetful(usual.connect(target)?)))
        };
        schemes.register(scheme, "the lab", Arc::new(connect))?;
    }
    Ok(schemes)
}

#[derive(Debug)]
struct Forgetful(Arc<dyn Registry>);

impl Registry for Forgetful {
    fn propagation(&self) -> Duration {
        self.0.propagation()
    }

    fn publish(&self, registration: Registration) -> Box<dyn Publication> {
        self.0.publish(registration)
    }

    fn subscribe(&self, service: &ServiceName) -> Box<dyn Subscription> {
        Box::new(Nameless(self.0.subscribe(service)))
    }
}

struct Nameless(Box<dyn Subscription>);

impl Subscription for Nameless {
    fn poll_update(&mut self, context: &mut Context<'_>) -> Poll<Option<Update>> {
        self.0.poll_update(context).map(|update| {
            let mut update = update?;
            match &mut update {
                Update::Reset { entries, .. } => forget(entries),
                Update::Delta { changed, .. } => forget(changed),
                _ => {}
            }
            Some(update)
        })
    }
}

fn forget(entries: &mut [Entry]) {
    for entry in entries {
        entry.instance.incarnation = Incarnation::Lease(entry.id.0);
    }
}
