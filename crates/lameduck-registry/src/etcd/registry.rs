//! etcd as a registry.

use std::sync::Arc;
use std::time::Duration;

use lameduck_core::limits;
use lameduck_core::name::{ServiceName, Target};
use lameduck_core::registry::{
    Connect, ErrorClass, Publication, Registration, Registry, RegistryError, Subscription,
};

use super::client::Client;
use super::publication::Published;
use super::subscription::{Malformed, Subscribed};

/// Instances in etcd, as go-zero programs publish and find them, with our own records beside.
///
/// Nothing is connected before it is needed, and an etcd that is away is waited for: a service
/// starts and serves without it.
#[derive(Clone, Debug)]
pub struct Etcd {
    client: Client,
    ttl: Duration,
    malformed: Malformed,
}

impl Etcd {
    /// The registry that `client` talks to.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client,
            ttl: limits::LEASE_TTL,
            malformed: Malformed::default(),
        }
    }

    /// The same with another lease TTL: how long a process that died stays listed. Whole seconds;
    /// etcd grants no less than about two.
    #[must_use]
    pub fn with_lease_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The registry that a target's hosts name, in any of go-zero's three forms, as the user that it
    /// names.
    ///
    /// # Errors
    ///
    /// Where a host is no `host:port`.
    pub fn at(target: &Target) -> Result<Self, RegistryError> {
        let hosts = target.addresses().map_err(|error| RegistryError {
            class: ErrorClass::Refused,
            message: error.to_string(),
        })?;
        let client = Client::new(hosts);
        let client = match target.login() {
            Some(login) => client.with_login(login.name(), login.password()),
            None => client,
        };
        Ok(Self::new(client))
    }

    /// How many values its subscriptions have found that were no instances. Each is skipped, and
    /// spoils nothing else.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed.count()
    }
}

impl Registry for Etcd {
    fn propagation(&self) -> Duration {
        limits::FLOOR_PUSH
    }

    fn publish(&self, registration: Registration) -> Box<dyn Publication> {
        Box::new(Published::start(
            self.client.clone(),
            registration,
            self.ttl,
            seed(),
        ))
    }

    fn subscribe(&self, service: &ServiceName) -> Box<dyn Subscription> {
        Box::new(Subscribed::start(
            self.client.clone(),
            service.clone(),
            self.malformed.clone(),
            seed(),
        ))
    }
}

/// Only jitter depends on it, so a system without randomness still works.
fn seed() -> u64 {
    getrandom::u64().unwrap_or_default()
}

/// Makes registries for the schemes `etcd` and `discov`.
#[must_use]
pub fn connector() -> Arc<Connect> {
    Arc::new(|target| {
        let etcd = Etcd::at(target)?;
        Ok(Arc::new(etcd) as Arc<dyn Registry>)
    })
}
