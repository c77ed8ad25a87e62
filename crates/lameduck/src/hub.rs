//! The one value that a program's channels share.
//!
//! Nothing in lameduck is global: registries, tombstones, directories and retry budgets belong to a
//! [`Hub`]. A closing statement that one channel hears reaches every directory of its hub.

mod builder;
mod error;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lameduck_core::directory::{Input, Tombstones};
use lameduck_core::event::{ClosingSource, Event};
use lameduck_core::instance::Incarnation;
use lameduck_core::name::{Login, ServiceName, Target, redacted};
use lameduck_core::registry::{Registry, Schemes};
use lameduck_core::rng::Rng;
use lameduck_registry::driver::Clock;

use crate::cell::counter::Counter;
use crate::consumer::{
    Channel, ChannelBuilder, Descriptors, Directory, Lookup, Message, Subject, system_lookup,
};
use crate::observe::Events;

pub(crate) use builder::Bounds;
pub use builder::HubBuilder;
pub use error::TargetError;
#[cfg(test)]
use error::with_key;

/// A program's registry connections, directories, tombstones and retry budgets. Cheap to clone;
/// clones are the same hub. What nobody uses any more ends by itself.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let hub = lameduck::Hub::new();
/// let orders = hub.channel("etcd:///127.0.0.1:2379?key=orders")?;
/// let stock = hub
///     .channel_builder("etcd:///127.0.0.1:2379?key=stock")
///     .idempotent("/stock.v1.Stock/Count")
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Hub {
    handle: Arc<HubHandle>,
}

/// What the hub's directories and calls share with it.
pub(crate) struct HubHandle {
    schemes: Schemes,
    events: Events,
    /// Held while a fact is told, so that observers see facts in the order in which they held.
    order: Mutex<()>,
    clock: Clock,
    asks_health: bool,
    lookup: Lookup,
    bounds: Bounds,
    descriptors: Descriptors,
    /// Marks that nobody believed: malformed, of another life than was dialled, through a proxy.
    ignored_marks: Counter,
    /// Apart from the state, which is locked while a directory starts.
    rng: Mutex<Option<Rng>>,
    state: Mutex<State>,
}

/// Control plane: a lock that is never held across an await.
#[derive(Default)]
struct State {
    registries: BTreeMap<String, Weak<dyn Registry>>,
    directories: BTreeMap<String, Followed>,
    /// Closing statements, by registry where the life has no name of its own.
    tombstones: BTreeMap<Option<String>, Tombstones>,
    /// As whom registries are used: a login is known by its place here, so that it stands in no name.
    logins: Vec<Login>,
    /// Numbers registries that no target names.
    at_hand: u64,
}

struct Followed {
    registry: String,
    directory: Weak<Directory>,
}

impl Default for Hub {
    fn default() -> Self {
        Self::new()
    }
}

impl Hub {
    /// A hub that knows the registries which are compiled in.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A hub that differs from the usual one.
    pub fn builder() -> HubBuilder {
        HubBuilder {
            schemes: None,
            observers: Vec::new(),
            asks_health: true,
            lookup: system_lookup(),
            bounds: Bounds::default(),
        }
    }

    /// A channel to the service that `target` names. Must be called within a tokio runtime, on
    /// which it runs. Nothing is waited for: calls wait for their endpoint themselves.
    ///
    /// # Errors
    /// [`TargetError`] where the target cannot be read, names no known registry or no service.
    /// A registry that is down is none: its directory is empty until it is back.
    pub fn channel(&self, target: &str) -> Result<Channel, TargetError> {
        self.channel_builder(target).build()
    }

    /// A channel with more to say about it.
    pub fn channel_builder(&self, target: &str) -> ChannelBuilder {
        ChannelBuilder::to_target(self.clone(), target)
    }

    /// A channel to `service` in a registry that the program has at hand, such as a
    /// [`Memory`](lameduck_registry::memory::Memory) shared with a provider.
    pub fn channel_builder_with(
        &self,
        registry: Arc<dyn Registry>,
        service: ServiceName,
    ) -> ChannelBuilder {
        ChannelBuilder::to_service(self.clone(), registry, service)
    }

    /// How many marks on answers were not believed: malformed, of another life than the one that
    /// was dialled, or of several lives on one connection (a proxy is between).
    #[must_use]
    pub fn ignored_marks(&self) -> u64 {
        self.handle.ignored_marks.count()
    }

    pub(crate) fn handle(&self) -> Arc<HubHandle> {
        Arc::clone(&self.handle)
    }

    /// The directory for a target, shared by all channels to it.
    /// Whether its instances are asked for their health is the hub's choice, unless `health` says.
    pub(crate) fn directory(
        &self,
        text: &str,
        health: Option<bool>,
    ) -> Result<Arc<Directory>, TargetError> {
        let target: Target = text.parse()?;
        self.handle.schemes.check(&target)?;
        let service = target.service().cloned();
        let subscribed = match &service {
            Some(service) => service.clone(),
            // A list of addresses is the same whatever it is asked for.
            None if target.scheme() == "direct" => "direct".parse()?,
            None => {
                return Err(TargetError::NoService {
                    target: redacted(text),
                    instead: target.parameters().keys().next().cloned(),
                });
            }
        };
        let mut state = self.handle.lock();
        let registry_key = state.registry_key(&target);
        let registry = match state.registries.get(&registry_key).and_then(Weak::upgrade) {
            Some(registry) => registry,
            None => self.handle.schemes.connect(&target)?,
        };
        let weak = Arc::downgrade(&registry);
        state.registries.insert(registry_key.clone(), weak);
        let subject = Subject {
            registry,
            registry_key,
            subscribed,
            service,
            asks_health: health.unwrap_or(self.handle.asks_health),
        };
        Ok(self.follow(&mut state, subject))
    }

    /// The directory for a service in a registry at hand.
    pub(crate) fn directory_in(
        &self,
        registry: &Arc<dyn Registry>,
        service: &ServiceName,
        health: Option<bool>,
    ) -> Arc<Directory> {
        let mut state = self.handle.lock();
        let subject = Subject {
            registry: Arc::clone(registry),
            registry_key: state.key_of(registry),
            subscribed: service.clone(),
            service: Some(service.clone()),
            asks_health: health.unwrap_or(self.handle.asks_health),
        };
        self.follow(&mut state, subject)
    }

    fn follow(&self, state: &mut State, subject: Subject) -> Arc<Directory> {
        let registry = subject.registry_key.clone();
        let key = format!("{registry} {} {}", subject.subscribed, subject.asks_health);
        let known = state.directories.get(&key);
        if let Some(directory) = known.and_then(|one| one.directory.upgrade()) {
            return directory;
        }
        let tombstones = state.tombstones_for(&registry);
        let started = Directory::start(Arc::clone(&self.handle), subject, tombstones);
        let directory = Arc::new(started);
        state.forget_unused();
        let followed = Followed {
            registry,
            directory: Arc::downgrade(&directory),
        };
        state.directories.insert(key, followed);
        directory
    }
}

impl HubHandle {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every step on it leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Randomness for one more machine, or for one more directory's choices.
    pub(crate) fn seed(&self) -> u64 {
        // A step on it leaves it whole.
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let seeded = || Rng::from_seed(getrandom::u64().unwrap_or_default());
        rng.get_or_insert_with(seeded).next_u64()
    }

    /// How names are looked up.
    pub(crate) fn lookup(&self) -> &Lookup {
        &self.lookup
    }

    /// How much there may be to one instance.
    pub(crate) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// What all dials share.
    pub(crate) fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// A mark was not believed.
    pub(crate) fn ignored_mark(&self) {
        self.ignored_marks.add();
    }

    /// Says that something happened.
    pub(crate) fn emit(&self, event: &Event) {
        let _order = self.in_order();
        self.events.emit(event);
    }

    /// Says what a call chose, if anybody looks and the choice `still` stands. False where it does
    /// not: an observer has been told of its reason already, and must not see the choice after it.
    pub(crate) fn emit_pick(
        &self,
        still: impl FnOnce() -> bool,
        event: impl FnOnce() -> Event,
    ) -> bool {
        if !self.events.is_observed() {
            return true;
        }
        let _order = self.in_order();
        let stands = still();
        if stands {
            self.events.emit(&event());
        }
        stands
    }

    fn in_order(&self) -> Option<MutexGuard<'_, ()>> {
        let lock = || self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.events.is_observed().then(lock)
    }

    /// A life is closing: remembered for directories to come, told to all there are, in `registry`
    /// alone where the life has no name of its own.
    pub(crate) fn closing(&self, registry: &str, incarnation: Incarnation, source: ClosingSource) {
        let now = self.clock.now();
        let scope = scope(registry, incarnation);
        let mut state = self.lock();
        // Registries at hand come and go, each with tombstones of its own.
        state.tombstones.retain(|_, tombstones| {
            tombstones.expire(now);
            !tombstones.is_empty()
        });
        let tombstones = state.tombstones.entry(scope.clone()).or_default();
        let _ = tombstones.insert(now, incarnation, source);
        for followed in state.directories.values() {
            let concerned = scope.as_ref().is_none_or(|only| *only == followed.registry);
            if let Some(directory) = followed.directory.upgrade().filter(|_| concerned) {
                directory.shared.send(Message::Input(Input::Closing {
                    incarnation,
                    source,
                }));
            }
        }
    }

    /// A directory says that something happened, which may concern the others.
    pub(crate) fn heard(&self, registry: &str, event: &Event) {
        match event {
            Event::Closing {
                incarnation,
                source,
                ..
            } if !self.knows(registry, *incarnation, *source) => {
                self.closing(registry, *incarnation, *source);
            }
            Event::ClosingLifted { incarnation, .. } => {
                let scope = scope(registry, *incarnation);
                if let Some(tombstones) = self.lock().tombstones.get_mut(&scope) {
                    tombstones.lift(*incarnation);
                }
            }
            _ => {}
        }
        self.emit(event);
    }

    /// Whether this life is known to be closing.
    pub(crate) fn is_closing(&self, registry: &str, incarnation: Incarnation) -> bool {
        let state = self.lock();
        let tombstones = state.tombstones.get(&scope(registry, incarnation));
        tombstones.is_some_and(|tombstones| tombstones.hides(incarnation))
    }

    fn knows(&self, registry: &str, incarnation: Incarnation, source: ClosingSource) -> bool {
        let state = self.lock();
        let tombstones = state.tombstones.get(&scope(registry, incarnation));
        let stone = tombstones.and_then(|tombstones| tombstones.get(incarnation));
        stone.is_some_and(|stone| stone.source == source || source == ClosingSource::Health)
    }
}

/// Where a closing statement holds: everywhere for a life with a name, else in its registry.
fn scope(registry: &str, incarnation: Incarnation) -> Option<String> {
    match incarnation {
        Incarnation::Life(_) => None,
        Incarnation::Lease(_) | Incarnation::Revision(_) | Incarnation::Unknown => {
            Some(registry.to_owned())
        }
    }
}

impl State {
    /// A registry's name within a hub: everything in its target but the service. Another user may see
    /// another list, so that is another registry.
    fn registry_key(&mut self, target: &Target) -> String {
        let mut hosts = target.hosts().to_vec();
        hosts.sort();
        let parameters = target.parameters();
        let user = target.login().map(|login| {
            let known = self.logins.iter().position(|known| known == login);
            known.unwrap_or_else(|| {
                self.logins.push(login.clone());
                self.logins.len() - 1
            })
        });
        format!(
            "{}://{} {parameters:?} {user:?}",
            target.scheme(),
            hosts.join(",")
        )
    }

    /// What is known to be closing, for a new directory in `registry`.
    fn tombstones_for(&self, registry: &str) -> Tombstones {
        let mut seed = self.tombstones.get(&None).cloned().unwrap_or_default();
        if let Some(own) = self.tombstones.get(&Some(registry.to_owned())) {
            for stone in own.iter() {
                seed.insert(stone.since, stone.incarnation, stone.source);
            }
        }
        seed
    }

    /// The name of a registry that no target names. A number of its own: another one may lie at the
    /// same place once this is gone.
    fn key_of(&mut self, registry: &Arc<dyn Registry>) -> String {
        let is_it =
            |known: &Weak<dyn Registry>| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(registry));
        let mut known = self
            .registries
            .iter()
            .filter(|(_, one)| one.strong_count() > 0);
        if let Some((key, _)) = known.find(|(_, one)| is_it(one)) {
            return key.clone();
        }
        self.at_hand += 1;
        let key = format!("at hand {}", self.at_hand);
        self.registries
            .insert(key.clone(), Arc::downgrade(registry));
        key
    }

    fn forget_unused(&mut self) {
        self.directories
            .retain(|_, followed| followed.directory.strong_count() > 0);
        self.registries
            .retain(|_, registry| registry.strong_count() > 0);
    }
}

impl fmt::Debug for HubHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Hub")
            .field("schemes", &self.schemes)
            .field("directories", &state.directories.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lameduck_core::limits::TOMBSTONE_TTL;

    #[test]
    fn a_target_without_a_service_is_refused_before_anything_is_connected() {
        let mut schemes = Schemes::new();
        let connect = Arc::new(|_: &Target| panic!("there is nothing to follow"));
        let added = schemes.register("test", "this test", connect);
        added.expect("the only scheme");
        let hub = Hub::builder().schemes(schemes).build();
        let error = hub.channel("test://h:1").expect_err("no service");
        assert!(matches!(error, TargetError::NoService { .. }), "{error}");
        assert!(error.to_string().contains("test://h:1?key="), "{error}");
        let misspelt = hub.channel("test:///h:1?kye=a").expect_err("no service");
        let says = "target \"test:///h:1?kye=a\" names no service: its query says \"kye\", not \"key\"; \
                    write test:///h:1?kye=a&key=SERVICE";
        assert_eq!(misspelt.to_string(), says);
        assert_eq!(with_key("test:///h?key=#x"), "test:///h?key=SERVICE");
        let unknown = hub.channel("dns:///x:80").expect_err("an unknown scheme");
        let says = "no registry for scheme \"dns\"; known here: test";
        assert_eq!(unknown.to_string(), says);
    }

    #[test]
    fn d12_c_two_users_of_one_etcd_are_two_registries_and_neither_is_shown() {
        let hub = Hub::new();
        let key = |text: &str| {
            let target: Target = text.parse().expect("a target");
            hub.handle.lock().registry_key(&target)
        };
        let (one, two) = (key("etcd://a:s3cret@h:1/o"), key("etcd://b:s3cret@h:1/o"));
        assert_eq!(one, key("etcd:///h:1?key=other&user=a&pass=s3cret"));
        let none = key("etcd://h:1/o");
        assert!(one != two && one != none && two != none);
        assert!(!format!("{one}{two}{hub:?}").contains("s3cret"));
        let refused = [
            "etcd://a:s3cret@h:1",
            "etcd://a:s3/cret@h:1",
            "nacos://a:s3cret@h:1/o",
        ];
        for text in refused
            .iter()
            .chain(&["direct:///a:s3cret@h:1", "memory://a:s3cret@h:1/o"])
        {
            let error = hub.channel(text).expect_err("refused").to_string();
            assert!(!error.contains("s3") && !error.contains("cret"), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn registries_that_are_gone_leave_nothing_behind() {
        let hub = Hub::new();
        let (source, handle) = (ClosingSource::Mark, &hub.handle);
        for number in 0..3 {
            let registry = format!("at hand {number}");
            handle.closing(&registry, Incarnation::Lease(number), source);
            assert!(handle.knows(&registry, Incarnation::Lease(number), source));
            tokio::time::advance(TOMBSTONE_TTL).await;
        }
        assert_eq!(handle.lock().tombstones.len(), 1, "the last one's");
    }
}
