//! The live view of one service: the task that keeps it, and what calls read.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use http::uri::Authority;
use lameduck_core::directory::{self as core, EndpointId, Input, Snapshot};
use lameduck_core::endpoint::Input as EndpointInput;
use lameduck_core::event::{Event, Tier};
use lameduck_core::instance::Incarnation;
use lameduck_core::limits::{DIALS_WANTED_MAX, REASONS_MAX};
use lameduck_core::mutant;
use lameduck_core::name::{Address, ServiceName};
use lameduck_core::registry::{ErrorClass, Registry, RegistryError, Subscription, Update};
use lameduck_registry::driver::drive;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::task::AbortOnDropHandle;

use super::endpoint::Endpoint;
use super::reach::Want;
use crate::cell::budget::SharedBudget;
use crate::cell::counter::Pace;
use crate::cell::endpoint::{Spot, Spots, Withheld};
use crate::cell::line::Line;
use crate::cell::waiters::Waiters;
use crate::foreign::quietly_await;
use crate::hub::HubHandle;
use lameduck_core::effects::directory::{self as effects, InOrder, Performer};

/// One version of what calls choose from.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// In use.
    pub(super) ready: Vec<Arc<Endpoint>>,
    /// The cells of those, in the same order: all that a choice looks at.
    pub(super) cells: Vec<Spot>,
    /// All that still serve, as far as is known: used where nothing is ready.
    pub(super) spare: Vec<Arc<Endpoint>>,
    /// All there are.
    pub(super) all: Vec<Arc<Endpoint>>,
    /// The registry was read, and nothing is there.
    pub(super) known_empty: bool,
    /// The registry cannot be read, and why.
    pub(super) stale: Option<String>,
}

/// What the directory's task is told.
///
/// The channel is unbounded, since a call that reads a mark can neither wait nor lose it. What is
/// said on it is bounded by connections and lives: each mark is told once a life and connection,
/// each health change once.
pub(crate) type Message = effects::Message<Withheld>;

/// What the directory, its endpoints and its calls share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) view: ArcSwap<View>,
    /// What the registry holds that is no instance, as said last: where it lists nothing else, that may
    /// be why.
    skipped: ArcSwapOption<String>,
    pub(super) waiters: Waiters,
    /// Calls that wait for a stream.
    pub(super) line: Line,
    pub(super) full_told: Pace,
    /// Whether it was said that a peer lets nobody ask for its health.
    pub(super) health_told: Pace,
    /// Whether its connections are asked for their health.
    pub(super) asks_health: bool,
    pub(super) budget: SharedBudget,
    pub(super) spots: Spots,
    pub(super) service: Option<ServiceName>,
    /// Which registry: lives without a name of their own are only told apart within one.
    pub(super) registry: String,
    pub(super) hub: Arc<HubHandle>,
    inbox: UnboundedSender<Message>,
}

impl Shared {
    /// What a directory shares, and where its task hears what it is told.
    pub(super) fn new(
        hub: Arc<HubHandle>,
        registry: String,
        service: Option<ServiceName>,
        asks_health: bool,
    ) -> (Arc<Self>, UnboundedReceiver<Message>) {
        let (inbox, messages) = unbounded_channel();
        // Callers that start together, or learn of a change together, must not choose alike.
        let first_turn = if mutant!("pick/starts-at-random") {
            0
        } else {
            hub.seed()
        };
        let shared = Arc::new(Self {
            view: ArcSwap::default(),
            skipped: ArcSwapOption::empty(),
            waiters: Waiters::starting_at(first_turn),
            line: Line::default(),
            full_told: Pace::default(),
            health_told: Pace::default(),
            asks_health,
            budget: SharedBudget::default(),
            spots: Spots::default(),
            service,
            registry,
            hub,
            inbox,
        });
        (shared, messages)
    }

    /// Tells the task something.
    pub(crate) fn send(&self, message: Message) {
        // Nobody listens where the directory has ended, and nobody chooses from it.
        let _ = self.inbox.send(message);
    }

    /// What requests call the server: the service, whatever the endpoint; failing that, its address.
    pub(super) fn authority(&self, address: &Address) -> Authority {
        let name = self
            .service
            .as_ref()
            .and_then(|name| name.as_str().parse().ok());
        name.or_else(|| address.to_string().parse().ok())
            .unwrap_or_else(|| Authority::from_static("lameduck"))
    }
}

/// A directory in use. Ends, with all its endpoints, when dropped; calls that are open finish.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) shared: Arc<Shared>,
    _feed: AbortOnDropHandle<()>,
    _registry: Arc<dyn Registry>,
}

/// What a directory is made for.
pub(crate) struct Subject {
    pub(crate) registry: Arc<dyn Registry>,
    /// The registry's name within the hub.
    pub(crate) registry_key: String,
    /// What the registry is asked for.
    pub(crate) subscribed: ServiceName,
    /// The service that instances must serve; `None` where addresses are all that is known.
    pub(crate) service: Option<ServiceName>,
    /// Whether instances are asked for their health.
    pub(crate) asks_health: bool,
}

impl Directory {
    /// Begins to follow a service; `tombstones` are the lives that are known to be closing.
    pub(crate) fn start(
        hub: Arc<HubHandle>,
        subject: Subject,
        tombstones: core::Tombstones,
    ) -> Self {
        let (shared, messages) = Shared::new(
            hub,
            subject.registry_key,
            subject.service.clone(),
            subject.asks_health,
        );
        let subscription = subject.registry.subscribe(&subject.subscribed);
        let feed = tokio::spawn(feed(subscription, shared.inbox.clone()));
        let machine = core::Directory::new(subject.service, tombstones);
        tokio::spawn(run(Arc::clone(&shared), machine, messages));
        Self {
            shared,
            _feed: AbortOnDropHandle::new(feed),
            _registry: subject.registry,
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.shared.send(Message::Stop);
    }
}

async fn feed(mut subscription: Box<dyn Subscription>, inbox: UnboundedSender<Message>) {
    // It may be the program's own code.
    let fed = quietly_await(|| async {
        while let Some(update) = poll_fn(|context| subscription.poll_update(context)).await {
            if inbox.send(Message::Input(Input::Update(update))).is_err() {
                return;
            }
        }
    });
    if let Err(panicked) = fed.await {
        let stale = RegistryError {
            class: ErrorClass::Refused,
            message: format!("the registry's code cannot be used any more: {panicked}"),
        };
        let _ = inbox.send(Message::Input(Input::Update(Update::Stale(stale))));
    }
    // A fixed list has been told whole; its registry may still hang on the subscription.
    std::future::pending::<()>().await;
}

async fn run(shared: Arc<Shared>, machine: core::Directory, messages: UnboundedReceiver<Message>) {
    let clock = shared.hub.clock();
    let mut performer = Performer::default();
    let mut edge = Edge {
        shared,
        endpoints: BTreeMap::new(),
    };
    let perform = |step| performer.perform(&mut edge, step);
    drive(InOrder::new(machine), clock, messages, perform).await;
    edge.stop();
}

struct Edge {
    shared: Arc<Shared>,
    endpoints: BTreeMap<EndpointId, Arc<Endpoint>>,
}

impl effects::Edge for Edge {
    type Withheld = Withheld;

    fn add(&mut self, id: EndpointId, address: Address, incarnation: Incarnation) {
        let endpoint = Endpoint::start(Arc::clone(&self.shared), id, address, incarnation);
        self.endpoints.insert(id, endpoint);
    }

    fn became(&mut self, id: EndpointId, incarnation: Incarnation) {
        if let Some(endpoint) = self.endpoints.get(&id) {
            endpoint.incarnation.store(Arc::new(incarnation));
        }
    }

    fn endpoint(&mut self, id: EndpointId, input: EndpointInput) {
        if let Some(endpoint) = self.endpoints.get(&id) {
            endpoint.input(input);
        }
    }

    fn forget(&mut self, id: EndpointId) {
        self.endpoints.remove(&id);
    }

    fn count_as_closing(&mut self, id: EndpointId, closing: bool) {
        if let Some(endpoint) = self.endpoints.get(&id) {
            endpoint.count_as_closing(closing);
        }
    }

    fn publish(&mut self, snapshot: Snapshot) {
        let mut view = View {
            known_empty: snapshot.known_empty,
            stale: snapshot.stale,
            ..View::default()
        };
        for member in &snapshot.members {
            let Some(endpoint) = self.endpoints.get(&member.endpoint) else {
                continue;
            };
            let endpoint = || Arc::clone(endpoint);
            view.all.push(endpoint());
            match member.tier {
                Tier::Ready => {
                    view.cells.push(endpoint().cell.clone());
                    view.ready.push(endpoint());
                    view.spare.push(endpoint());
                }
                Tier::LastResort => view.spare.push(endpoint()),
                Tier::Out => {}
            }
        }
        self.shared.view.store(Arc::new(view));
        self.shared.waiters.wake_all();
    }

    fn release(&mut self, id: EndpointId, withheld: Withheld) {
        let endpoint = self.endpoints.get(&id);
        if endpoint.is_some_and(|endpoint| endpoint.cell.release(withheld)) {
            self.shared.waiters.wake_all();
        }
    }

    fn heard(&mut self, event: &Event) {
        if let Event::RecordSkipped { what, .. } = event {
            self.shared.skipped.store(Some(Arc::new(what.clone())));
        }
        self.shared.hub.heard(&self.shared.registry, event);
    }
}

impl Edge {
    fn stop(&mut self) {
        for endpoint in self.endpoints.values() {
            endpoint.input(EndpointInput::Remove);
        }
        self.endpoints.clear();
        self.shared.view.store(Arc::default());
    }
}

impl Shared {
    /// A call finds nothing to choose: what may be dialled again is, sooner than its pause says. True
    /// where there is nothing to wait for: all have refused to be connected, and none is being dialled.
    pub(super) fn want_instance(&self) -> bool {
        let view = self.view.load();
        let now = self.hub.clock().now();
        let mut under_way = 0;
        // From another one each time, since not all of thousands have their turn.
        let count = view.all.len().max(1) as u64;
        let first = (self.waiters.turn() % count) as usize;
        let (before, from) = view.all.split_at(first.min(view.all.len()));
        for endpoint in from.iter().chain(before) {
            match endpoint.want(now) {
                Want::InVain => {}
                Want::Wait => under_way += 1,
                Want::Dial => {
                    endpoint.input(EndpointInput::Wanted);
                    under_way += 1;
                }
            }
            if under_way >= DIALS_WANTED_MAX {
                break;
            }
        }
        under_way == 0 && !view.all.is_empty()
    }

    /// Whether all that can be chosen now were tried, and another one is being connected.
    pub(super) fn is_another_coming(&self, tried: &[EndpointId]) -> bool {
        let view = self.view.load();
        let now = self.hub.clock().now();
        let is_tried = |one: &Arc<Endpoint>| tried.contains(&one.id);
        let in_use = |one: &&Arc<Endpoint>| !one.cell.is_withheld() && one.is_usable();
        let mut chosen_from = view.ready.iter().filter(in_use).peekable();
        let all_tried = if chosen_from.peek().is_some() {
            chosen_from.all(is_tried)
        } else {
            view.spare.iter().all(is_tried)
        };
        all_tried
            && view
                .all
                .iter()
                .any(|one| !is_tried(one) && one.is_coming(now))
    }

    /// Whether any instance can be called now.
    pub(super) fn has_usable(&self) -> bool {
        self.view.load().spare.iter().any(|one| one.is_usable())
    }

    /// Why a call found no stream: how many there are, and whose bound that is.
    pub(super) fn why_full(&self) -> String {
        let view = self.view.load();
        let among = if view.ready.is_empty() {
            &view.spare
        } else {
            &view.ready
        };
        let Some(first) = among.first() else {
            return self.why_nothing();
        };
        let bounds = first.why_full(self.hub.bounds());
        let service = self.service.as_ref();
        let service = service
            .map(|name| format!("service {name}: "))
            .unwrap_or_default();
        format!(
            "{service}all streams of all {} instances are in use: {bounds}",
            among.len()
        )
    }

    /// Why a call found nothing to choose: the service, and what is known of it.
    pub(super) fn why_nothing(&self) -> String {
        let view = self.view.load();
        let mut why = view.why_nothing();
        if view.known_empty
            && let Some(skipped) = &*self.skipped.load()
        {
            why.push_str("; left out: ");
            why.push_str(skipped);
        }
        match &self.service {
            Some(service) => format!("service {service}: {why}"),
            None => why,
        }
    }
}

impl View {
    /// Whether it may be chosen while others may be too.
    pub(super) fn is_ready(&self, endpoint: &Arc<Endpoint>) -> bool {
        let listed = self.ready.iter().any(|one| Arc::ptr_eq(one, endpoint));
        listed && !endpoint.cell.is_withheld()
    }

    fn why_nothing(&self) -> String {
        if self.known_empty {
            return "the registry lists no instance".to_owned();
        }
        let stale = self.stale.as_ref();
        let age = stale.map(|why| format!(" (the registry cannot be read: {why})"));
        let age = age.unwrap_or_default();
        let count = self.all.len();
        let Some(last) = self.all.last() else {
            return format!("no instance is known yet{age}");
        };
        let all_fail = self.all.iter().all(|endpoint| endpoint.failure().is_some());
        if let Some(why) = last.failure().filter(|_| all_fail) {
            return format!("none of {count} instances can be reached{age}: {why}");
        }
        let named = self.all.iter().take(REASONS_MAX);
        let reasons: Vec<String> = named
            .map(|endpoint| format!("{} {}", endpoint.address, endpoint.why_not()))
            .collect();
        let more = match count.saturating_sub(REASONS_MAX) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let reasons = reasons.join("; ");
        format!("none of {count} instances takes calls now{age}: {reasons}{more}")
    }
}
