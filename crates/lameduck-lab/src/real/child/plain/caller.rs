//! A caller's channel on tonic's own.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};

use lameduck_core::event::Tier;
use lameduck_core::instance::{Incarnation, Instance};
use lameduck_core::name::Target;
use lameduck_core::registry::{Entry, EntryId, Subscription, Update};
use tokio::sync::mpsc::Sender;
use tonic::transport::channel::Change;
use tonic::transport::{Channel, Endpoint};

use super::super::super::record::{Place, Record};
use super::super::super::spec::CallerSpec;
use super::super::recorder::Recorder;
use super::super::{ChildError, refused};

/// Changes of the list that may wait: more than a run has servers.
const CHANGES: usize = 1_024;
/// Stands for the endpoint where a call had been before: tonic tells nobody.
pub(in super::super) const SOMEWHERE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A channel over the addresses that the target lists.
pub(in super::super) fn listed(
    spec: &CallerSpec,
    recorder: &Recorder,
) -> Result<Channel, ChildError> {
    let target: Target = spec.target.parse().map_err(|error| refused(&error))?;
    let mut endpoints = Vec::new();
    for address in target.addresses().map_err(|error| refused(&error))? {
        endpoints.push(endpoint(&address.to_string())?);
        moved(
            recorder,
            &Instance::new(address, Incarnation::Unknown),
            Tier::Ready,
        );
    }
    Ok(Channel::balance_list(endpoints.into_iter()))
}

/// A channel whose list follows the registry.
pub(in super::super) fn followed(
    spec: &CallerSpec,
    recorder: &Recorder,
) -> Result<Channel, ChildError> {
    let target: Target = spec.target.parse().map_err(|error| refused(&error))?;
    let registry = lameduck_registry::builtin().connect(&target);
    let registry = registry.map_err(|error| refused(&error))?;
    let Some(service) = target.service() else {
        return Err(ChildError::Refused(format!("{target} names no service")));
    };
    let mut subscription = registry.subscribe(service);
    let (channel, changes) = Channel::balance_channel(CHANGES);
    let mut list = List {
        changes,
        recorder: recorder.clone(),
        known: BTreeMap::new(),
    };
    tokio::spawn(async move {
        // As long as it is subscribed, the registry is needed.
        let _registry = registry;
        while let Some(update) = next(subscription.as_mut()).await {
            list.take(update).await;
        }
    });
    Ok(channel)
}

async fn next(subscription: &mut dyn Subscription) -> Option<Update> {
    poll_fn(|context| subscription.poll_update(context)).await
}

/// The list that tonic's channel was told.
struct List {
    changes: Sender<Change<EntryId, Endpoint>>,
    recorder: Recorder,
    known: BTreeMap<EntryId, Instance>,
}

impl List {
    async fn take(&mut self, update: Update) {
        match update {
            Update::Reset { entries, .. } => {
                let listed = |id: &EntryId| entries.iter().any(|entry| entry.id == *id);
                let gone: Vec<EntryId> = self
                    .known
                    .keys()
                    .copied()
                    .filter(|id| !listed(id))
                    .collect();
                self.remove(gone).await;
                self.insert(entries).await;
            }
            Update::Delta {
                changed, removed, ..
            } => {
                self.remove(removed).await;
                self.insert(changed).await;
            }
            _ => {}
        }
    }

    async fn insert(&mut self, entries: Vec<Entry>) {
        for Entry { id, instance } in entries {
            if self.known.contains_key(&id) {
                continue;
            }
            if let Ok(endpoint) = endpoint(&instance.address.to_string()) {
                moved(&self.recorder, &instance, Tier::Ready);
                self.known.insert(id, instance);
                // A channel that is gone needs no list.
                let _ = self.changes.send(Change::Insert(id, endpoint)).await;
            }
        }
    }

    async fn remove(&mut self, ids: Vec<EntryId>) {
        for id in ids {
            if let Some(instance) = self.known.remove(&id) {
                moved(&self.recorder, &instance, Tier::Out);
                let _ = self.changes.send(Change::Remove(id)).await;
            }
        }
    }
}

fn endpoint(address: &str) -> Result<Endpoint, ChildError> {
    Endpoint::from_shared(format!("http://{address}")).map_err(|error| refused(&error))
}

fn moved(recorder: &Recorder, instance: &Instance, tier: Tier) {
    if let Some(address) = instance.address.socket() {
        let life = match instance.incarnation {
            Incarnation::Life(life) => Some(life),
            _ => None,
        };
        let place = Place { address, life };
        recorder.write(Record::Moved { place, tier });
    }
}
