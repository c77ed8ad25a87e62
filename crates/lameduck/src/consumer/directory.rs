//! The live view of one service: the task that keeps it, and what calls read.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::ops::ControlFlow;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::uri::Authority;
use lameduck_core::directory::{self as core, EndpointId, Input, Snapshot};
use lameduck_core::endpoint::Input as EndpointInput;
use lameduck_core::event::{Event, Tier};
use lameduck_core::machine::Machine;
use lameduck_core::name::{Address, ServiceName};
use lameduck_core::registry::{Registry, Subscription};
use lameduck_core::time::Timestamp;
use lameduck_registry::driver::drive;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::task::AbortOnDropHandle;

use super::endpoint::Endpoint;
use crate::cell::budget::SharedBudget;
use crate::cell::endpoint::{Spot, Spots, Withheld};
use crate::cell::waiters::Waiters;
use crate::hub::HubHandle;

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
#[derive(Debug)]
pub(crate) enum Message {
    /// For the machine.
    Input(Input),
    /// What was said before this concerns an endpoint that calls withhold since.
    Withheld {
        endpoint: EndpointId,
        withheld: Withheld,
    },
    /// Nobody uses it any more.
    Stop,
}

/// What the directory, its endpoints and its calls share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) view: ArcSwap<View>,
    pub(super) waiters: Waiters,
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
    ) -> (Arc<Self>, UnboundedReceiver<Message>) {
        let (inbox, messages) = unbounded_channel();
        let shared = Arc::new(Self {
            view: ArcSwap::default(),
            waiters: Waiters::default(),
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
}

impl Directory {
    /// Begins to follow a service; `tombstones` are the lives that are known to be closing.
    pub(crate) fn start(
        hub: Arc<HubHandle>,
        subject: Subject,
        tombstones: core::Tombstones,
    ) -> Self {
        let (shared, messages) = Shared::new(hub, subject.registry_key, subject.service.clone());
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
    while let Some(update) = poll_fn(|context| subscription.poll_update(context)).await {
        if inbox.send(Message::Input(Input::Update(update))).is_err() {
            return;
        }
    }
    // A fixed list has been told whole; its registry may still hang on the subscription.
    std::future::pending::<()>().await;
}

async fn run(shared: Arc<Shared>, machine: core::Directory, messages: UnboundedReceiver<Message>) {
    let clock = shared.hub.clock();
    let tracked = Tracked {
        machine,
        events: VecDeque::new(),
        said: None,
    };
    let mut effects = Effects {
        shared,
        endpoints: BTreeMap::new(),
        withheld: BTreeMap::new(),
    };
    drive(tracked, clock, messages, |output| effects.perform(output)).await;
    effects.stop();
}

/// The directory's machine, and where in the order of its inputs calls withheld an endpoint.
///
/// Its events come after everything else that one input brings: whoever hears that a life is
/// closing finds the view published that no longer offers it.
struct Tracked {
    machine: core::Directory,
    events: VecDeque<Event>,
    said: Option<Said>,
}

enum Said {
    Withheld(EndpointId, Withheld),
    Stop,
}

enum Output {
    Core(core::Output),
    Event(Event),
    Said(Said),
}

impl Machine for Tracked {
    type Input = Message;
    type Output = Output;

    fn handle(&mut self, now: Timestamp, message: Message) {
        match message {
            Message::Input(input) => self.machine.handle(now, input),
            Message::Withheld { endpoint, withheld } => {
                self.said = Some(Said::Withheld(endpoint, withheld));
            }
            Message::Stop => self.said = Some(Said::Stop),
        }
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.machine.handle_timeout(now);
    }

    fn poll(&mut self) -> Option<Output> {
        while let Some(output) = self.machine.poll() {
            match output {
                core::Output::Event(event) => self.events.push_back(event),
                output => return Some(Output::Core(output)),
            }
        }
        let event = self.events.pop_front().map(Output::Event);
        event.or_else(|| self.said.take().map(Output::Said))
    }

    fn deadline(&self) -> Option<(Timestamp, &'static str)> {
        self.machine.deadline()
    }
}

struct Effects {
    shared: Arc<Shared>,
    endpoints: BTreeMap<EndpointId, Arc<Endpoint>>,
    /// The last withholding of an endpoint that the machine has heard the reason of.
    withheld: BTreeMap<EndpointId, Withheld>,
}

impl Effects {
    fn perform(&mut self, output: Output) -> ControlFlow<()> {
        match output {
            Output::Core(output) => self.perform_core(output),
            Output::Event(event) => self.heard(&event),
            Output::Said(Said::Withheld(id, withheld)) if self.endpoints.contains_key(&id) => {
                self.withheld.insert(id, withheld);
                self.release();
            }
            // An endpoint that was removed meanwhile.
            Output::Said(Said::Withheld(..)) => {}
            Output::Said(Said::Stop) => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn perform_core(&mut self, output: core::Output) {
        match output {
            core::Output::Add {
                endpoint,
                address,
                incarnation,
            } => {
                let shared = Arc::clone(&self.shared);
                let started = Endpoint::start(shared, endpoint, address, incarnation);
                self.endpoints.insert(endpoint, started);
            }
            core::Output::Dialling { endpoint, allowed } => {
                self.tell(endpoint, EndpointInput::Dialling { allowed });
            }
            core::Output::Became {
                endpoint,
                incarnation,
            } => {
                if let Some(endpoint) = self.endpoints.get(&endpoint) {
                    endpoint.incarnation.store(Arc::new(incarnation));
                }
            }
            core::Output::Remove { endpoint } => {
                self.tell(endpoint, EndpointInput::Remove);
                self.endpoints.remove(&endpoint);
                self.withheld.remove(&endpoint);
            }
            core::Output::Publish(snapshot) => self.publish(&snapshot),
            core::Output::Event(event) => self.heard(&event),
        }
    }

    fn heard(&self, event: &Event) {
        self.shared.hub.heard(&self.shared.registry, event);
    }

    fn tell(&self, id: EndpointId, input: EndpointInput) {
        if let Some(endpoint) = self.endpoints.get(&id) {
            endpoint.input(input);
        }
    }

    fn publish(&mut self, snapshot: &Snapshot) {
        let mut view = View {
            known_empty: snapshot.known_empty,
            stale: snapshot.stale.clone(),
            ..View::default()
        };
        for member in &snapshot.members {
            let Some(endpoint) = self.endpoints.get(&member.endpoint) else {
                continue;
            };
            endpoint.count_as_closing(member.tier == Tier::LastResort);
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
        self.release();
        self.shared.waiters.wake_all();
    }

    /// What is ready after all that was said is chosen again.
    fn release(&self) {
        for endpoint in &self.shared.view.load().ready {
            if let Some(withheld) = self.withheld.get(&endpoint.id)
                && endpoint.cell.release(*withheld)
            {
                self.shared.waiters.wake_all();
            }
        }
    }

    fn stop(&mut self) {
        for endpoint in self.endpoints.values() {
            endpoint.input(EndpointInput::Remove);
        }
        self.endpoints.clear();
        self.shared.view.store(Arc::default());
    }
}

impl Shared {
    /// Why a call found nothing to choose: the service, and what is known of it.
    pub(super) fn why_nothing(&self) -> String {
        let why = self.view.load().why_nothing();
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
        let Some(first) = self.all.first() else {
            return format!("no instance is known yet{age}");
        };
        let mut reasons = self.all.iter().filter_map(|endpoint| endpoint.failure());
        match reasons.next_back() {
            Some(why) => format!(
                "none of {} instances can be reached{age}: {why}",
                self.all.len()
            ),
            None => format!(
                "none of {} instances takes calls now{age}, {} among them",
                self.all.len(),
                first.address
            ),
        }
    }
}
