//! An etcd, what publishes to it and what watches it.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use lameduck_core::instance::{BootId, Incarnation, Instance, Life, State};
use lameduck_core::name::ServiceName;
use lameduck_core::registry::{
    Entry, EntryId, Publication, PublicationStatus, Registration, Registry, Subscription, Update,
    Want,
};
use lameduck_registry::etcd::process::{Process, usable_in};
use lameduck_registry::etcd::{Client, Etcd};
use tokio::time::timeout;

/// The longest that anything here is waited for, far beyond what it takes.
pub const WAIT_MAX: Duration = Duration::from_secs(40);

/// Runs a test, a function of a registry's address, on a real etcd and on the development server.
macro_rules! on_both {
    ($body:ident) => {
        mod $body {
            #[tokio::test(flavor = "multi_thread")]
            async fn on_a_real_etcd() {
                if let Some(etcd) = crate::etcd::help::real_etcd(stringify!($body)) {
                    super::$body(etcd.address()).await;
                }
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn on_the_development_server() {
                // It is looked into with etcdctl, so that has to be there all the same.
                if lameduck_registry::etcd::process::usable_in(stringify!($body)) {
                    let server = crate::server::Dev::start();
                    super::$body(server.address()).await;
                }
            }
        }
    };
}
pub(crate) use on_both;

/// Starts a real etcd, or says why `test` is left out.
pub fn real_etcd(test: &str) -> Option<Process> {
    usable_in(test).then(|| Process::start().expect("etcd starts"))
}

pub fn registry(address: SocketAddr) -> Etcd {
    Etcd::new(Client::new(vec![address.into()])).with_lease_ttl(Duration::from_secs(5))
}

/// What etcdctl prints.
#[track_caller]
pub fn etcdctl(address: SocketAddr, arguments: &[&str]) -> String {
    let output = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints={address}"))
        // Its own limits of a few seconds are not what is tested.
        .args(["--dial-timeout=60s", "--command-timeout=60s"])
        .args(arguments)
        .output()
        .expect("etcdctl runs");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// All keys and values below `prefix`, as etcdctl prints them.
#[track_caller]
pub fn stored(address: SocketAddr, prefix: &str) -> BTreeMap<String, String> {
    let text = etcdctl(address, &["get", "--prefix", prefix]);
    let lines: Vec<&str> = text.lines().collect();
    let pairs = lines.chunks(2);
    pairs
        .map(|pair| (pair[0].to_owned(), pair[1].to_owned()))
        .collect()
}

pub fn service(name: &str) -> ServiceName {
    name.parse().expect("a service name")
}

pub fn life(boot: u128, epoch: u32) -> Life {
    let boot = BootId::from_bits(boot);
    Life { boot, epoch }
}

pub fn present(boot: u128, epoch: u32) -> Want {
    Want::Present {
        life: life(boot, epoch),
        ready: true,
    }
}

pub fn registration(services: &[&str], address: &str, boot: u128) -> Registration {
    let address = address.parse().expect("an address");
    let mut instance = Instance::new(address, Incarnation::Life(life(boot, 0)));
    instance.protocols.push("grpc".to_owned());
    Registration {
        services: services.iter().map(|name| service(name)).collect(),
        instance,
    }
}

/// One publication, and its status as it was told last.
pub struct Publisher {
    publication: Box<dyn Publication>,
    pub status: PublicationStatus,
}

impl Publisher {
    pub fn new(registry: &dyn Registry, registration: Registration) -> Self {
        let publication = registry.publish(registration);
        let status = PublicationStatus {
            reached: None,
            registered: false,
            metadata: true,
            error: None,
        };
        Self {
            publication,
            status,
        }
    }

    pub fn want(&mut self, want: Want) {
        self.publication.want(want);
    }

    pub async fn until(&mut self, what: impl Fn(&PublicationStatus) -> bool) {
        let wait = async {
            while !what(&self.status) {
                self.status = poll_fn(|context| self.publication.poll_status(context)).await;
            }
        };
        let waited = timeout(WAIT_MAX, wait).await;
        assert!(
            waited.is_ok(),
            "in vain; the last status: {:?}",
            self.status
        );
    }

    /// Says what is wanted and waits until it is so.
    pub async fn reach(&mut self, want: Want) {
        self.want(want);
        self.until(|status| status.reached == Some(want)).await;
    }
}

/// One subscription, and everything that it has told.
pub struct Watcher {
    subscription: Box<dyn Subscription>,
    pub entries: BTreeMap<EntryId, Instance>,
    pub updates: Vec<Update>,
    /// The fewest entries there have been since the list was first not empty.
    pub fewest: usize,
}

impl Watcher {
    pub fn new(registry: &dyn Registry, name: &str) -> Self {
        Self {
            subscription: registry.subscribe(&service(name)),
            entries: BTreeMap::new(),
            updates: Vec::new(),
            fewest: usize::MAX,
        }
    }

    pub async fn next(&mut self) -> &Update {
        let next = poll_fn(|context| self.subscription.poll_update(context));
        let update = timeout(WAIT_MAX, next).await.expect("an update comes");
        let update = update.expect("etcd never ends");
        match &update {
            Update::Reset { entries, .. } => {
                self.entries.clear();
                self.take(entries);
            }
            Update::Delta {
                changed, removed, ..
            } => {
                for id in removed {
                    self.entries.remove(id);
                }
                self.take(changed);
            }
            Update::Stale(_) | Update::Live | Update::Skipped { .. } => {}
        }
        if self.fewest != usize::MAX || !self.entries.is_empty() {
            self.fewest = self.fewest.min(self.entries.len());
        }
        self.updates.push(update);
        self.updates.last().expect("one was just added")
    }

    fn take(&mut self, entries: &[Entry]) {
        for entry in entries {
            self.entries.insert(entry.id, entry.instance.clone());
        }
    }

    pub async fn until(&mut self, what: impl Fn(&Self) -> bool) {
        let wait = async {
            while !what(self) {
                self.next().await;
            }
        };
        if timeout(WAIT_MAX, wait).await.is_err() {
            panic!("in vain; the list is {:?}", self.show());
        }
    }

    /// The list in one line per instance: address, identity, state.
    pub fn show(&self) -> Vec<String> {
        let show = |instance: &Instance| {
            let who = match instance.incarnation {
                Incarnation::Life(life) => format!("epoch {}", life.epoch),
                Incarnation::Lease(_) => "foreign".to_owned(),
                other => format!("{other:?}"),
            };
            let closing = match instance.state {
                State::Serving => "",
                State::Closing => " closing",
            };
            format!("{} {who}{closing}", instance.address)
        };
        let mut lines: Vec<String> = self.entries.values().map(show).collect();
        lines.sort();
        lines
    }

    pub async fn until_shown(&mut self, lines: &[&str]) {
        self.until(|watcher| watcher.show() == lines).await;
    }

    /// What was said of values that were skipped.
    pub fn skipped(&self) -> Vec<&str> {
        let said = self.updates.iter().filter_map(|update| match update {
            Update::Skipped { what } => Some(what.as_str()),
            _ => None,
        });
        said.collect()
    }

    pub fn is_stale(&self) -> bool {
        let standing = self.updates.iter().rev().find_map(|update| match update {
            Update::Stale(_) => Some(true),
            Update::Live | Update::Reset { .. } => Some(false),
            Update::Delta { .. } | Update::Skipped { .. } => None,
        });
        standing.unwrap_or_default()
    }
}
