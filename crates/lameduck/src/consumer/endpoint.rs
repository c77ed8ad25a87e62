//! One endpoint: what calls see of it, and the task that keeps it connected.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use lameduck_core::directory::EndpointId;
use lameduck_core::endpoint::{Endpoint as Machine, Input, Output};
use lameduck_core::event::{ClosingSource, Event};
use lameduck_core::instance::Incarnation;
use lameduck_core::limits::FAILING_TRIED_AFTER;
use lameduck_core::machine::Ticket;
use lameduck_core::name::{Address, ServiceName};
use lameduck_core::time::Timestamp;
use lameduck_registry::driver::drive;
use tokio::sync::mpsc::{
    UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel,
};
use tokio::sync::watch as watch_channel;
use tokio::time::sleep;

use super::connection::{Connection, DialConfig, Slot, State};
use super::directory::{Message, Shared};
use super::link::Link;
use super::names::{self, DialFailed};
use super::reach::{Outcome, Reach, Want};
use super::watch::{self, WatchHandle};
use crate::cell::counter::Number;
use crate::cell::endpoint::{Spot, Withheld};
use crate::hub::Bounds;
use lameduck_core::effects;
use lameduck_core::effects::statement::Hearers;

/// The id of a connection's first stream, which is the health Watch's where it is asked.
const FIRST_STREAM: u32 = 1;
/// After so many connections that ended with their Watch, the next one does without.
const WATCHES_SPENT: u32 = 2;

/// What calls see of an endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(super) id: EndpointId,
    pub(super) address: Address,
    pub(super) incarnation: ArcSwap<Incarnation>,
    pub(super) cell: Spot,
    /// Whether it was given as an address alone.
    shared: bool,
    pub(super) directory: Arc<Shared>,
    /// Those that take calls.
    links: ArcSwap<Vec<Arc<Link>>>,
    reach: Reach,
    /// Connections one after the other whose only stream was the health Watch.
    spent: Number,
    /// The services that it says it serves, where ours is not among them.
    instead: ArcSwapOption<String>,
    /// How many calls one connection takes, where its peer ends them by number; 0 where it does not.
    takes: Number,
    /// Whether it counts as closing, so that its Watches look for a Resume.
    closing: watch_channel::Sender<bool>,
    inbox: UnboundedSender<Input>,
}

impl Endpoint {
    /// A new endpoint; its task dials it at once and lives until it is removed and idle.
    pub(super) fn start(
        directory: Arc<Shared>,
        id: EndpointId,
        address: Address,
        incarnation: Incarnation,
    ) -> Arc<Self> {
        let (endpoint, inputs) = Self::without_task(directory, id, address, incarnation);
        let hub = &endpoint.directory.hub;
        let machine = Machine::new(hub.seed())
            .with_connections_max(hub.bounds().connections)
            .with_shared_address(endpoint.is_shared());
        let clock = hub.clock();
        let mut effects = Effects::new(Arc::clone(&endpoint), endpoint.inbox.downgrade());
        tokio::spawn(async move {
            drive(machine, clock, inputs, |output| effects.perform(output)).await;
            effects.endpoint.given_up();
        });
        endpoint
    }

    /// A new endpoint that nobody connects, and what it is told.
    fn without_task(
        directory: Arc<Shared>,
        id: EndpointId,
        address: Address,
        incarnation: Incarnation,
    ) -> (Arc<Self>, UnboundedReceiver<Input>) {
        let (inbox, inputs) = unbounded_channel();
        let endpoint = Arc::new(Self {
            id,
            address,
            incarnation: ArcSwap::from_pointee(incarnation),
            cell: directory.spots.take(),
            shared: incarnation == Incarnation::Unknown,
            directory,
            links: ArcSwap::default(),
            reach: Reach::default(),
            spent: Number::default(),
            instead: ArcSwapOption::empty(),
            takes: Number::default(),
            closing: watch_channel::Sender::new(false),
            inbox,
        });
        (endpoint, inputs)
    }

    /// A new endpoint that has this connection for ever.
    pub(super) fn fixed(
        directory: Arc<Shared>,
        id: EndpointId,
        address: Address,
        connection: Connection,
    ) -> Arc<Self> {
        let (endpoint, _) = Self::without_task(directory, id, address, Incarnation::Unknown);
        let link = Link::new(Arc::clone(&endpoint), connection, Ticket::START);
        endpoint.links.store(Arc::new(vec![Arc::new(link)]));
        endpoint
    }

    /// Whether more than one server may stand behind its address: a registration stands for one process,
    /// an address for whoever is there.
    pub(super) const fn is_shared(&self) -> bool {
        self.shared
    }

    /// Tells the endpoint's machine something.
    pub(super) fn input(&self, input: Input) {
        // Nobody listens any more where the endpoint is removed and idle.
        let _ = self.inbox.send(input);
    }

    /// Says whether it counts as closing.
    pub(super) fn count_as_closing(&self, closing: bool) {
        self.closing.send_if_modified(|now| {
            let before = std::mem::replace(now, closing);
            before != closing
        });
    }

    /// Follows whether it counts as closing.
    pub(super) fn follow_closing(&self) -> watch_channel::Receiver<bool> {
        self.closing.subscribe()
    }

    /// Whether a stream is free on any connection.
    pub(super) fn has_room(&self) -> bool {
        let links = self.links.load();
        fit(&links).any(|link| link.connection.state().has_room())
    }

    /// Whether any connection takes calls, now or once others are done.
    pub(super) fn is_usable(&self) -> bool {
        let links = self.links.load();
        links.iter().any(|link| link.connection.state().is_usable())
    }

    /// A stream on the connection with the fewest open, of those whose peers serve if any does.
    pub(super) fn reserve(&self) -> Option<(Arc<Link>, Slot)> {
        let links = self.links.load();
        let least = match links.as_slice() {
            [] => None,
            [only] => Some(only),
            several => fit(several).min_by_key(|link| {
                let state = link.connection.state();
                (!state.has_room(), state.streams)
            }),
        }?;
        let slot = least.connection.reserve()?;
        Some((Arc::clone(least), slot))
    }

    /// Its life, as the directory knows it.
    pub(super) fn incarnation(&self) -> Incarnation {
        **self.incarnation.load()
    }

    /// What a call that finds nothing to choose can hope for here.
    pub(super) fn want(&self, now: Timestamp) -> Want {
        self.reach.want(now)
    }

    /// Whether a call that has failed elsewhere gains by waiting for it.
    pub(super) fn is_coming(&self, now: Timestamp) -> bool {
        !*self.closing.borrow() && self.reach.is_coming(now)
    }

    /// How many streams its connections have, and whose bounds those are.
    pub(super) fn why_full(&self, ours: Bounds) -> String {
        let links = self.links.load();
        let states = links.iter().map(|link| link.connection.state());
        let limits: Vec<u32> = states.map(|state| state.limit).collect();
        let streams: u64 = limits.iter().map(|limit| u64::from(*limit)).sum();
        let count = limits.len();
        let streams_by = match limits.iter().min() {
            Some(least) if *least < ours.streams => "the server's MAX_CONCURRENT_STREAMS",
            _ => "HubBuilder::streams_per_connection",
        };
        let connections_by = if count >= ours.connections {
            "no more by HubBuilder::connections_per_endpoint"
        } else {
            "another one is being made"
        };
        format!(
            "{} has {streams} on {count} connections (bounded by {streams_by}; {connections_by})",
            self.address
        )
    }

    /// Why it was not reached last, if it was not.
    pub(super) fn failure(&self) -> Option<Arc<str>> {
        self.reach.failure()
    }

    /// One more call has an answer. Where most of them fail it is chosen after all others, but for a
    /// trial now and then.
    pub(super) fn answered(self: &Arc<Self>, succeeded: bool) {
        if self.cell.answered(succeeded) {
            let endpoint = Arc::downgrade(self);
            tokio::spawn(async move {
                sleep(FAILING_TRIED_AFTER).await;
                if let Some(endpoint) = endpoint.upgrade() {
                    endpoint.cell.try_again();
                }
            });
        }
    }

    /// Its peer says that it serves these services, and not ours; `None` where it serves ours. What is
    /// new and wrong is said.
    pub(super) fn serves_instead(&self, others: Option<String>) {
        let before = self.instead.swap(others.clone().map(Arc::new));
        let Some(serves) = others else { return };
        let known = before.is_some_and(|before| *before == serves);
        if known {
            return;
        }
        self.directory.hub.emit(&Event::WrongService {
            service: self.directory.service.clone(),
            address: self.address.clone(),
            serves,
        });
    }

    /// Why it takes no calls, where it takes none.
    pub(super) fn why_not(&self) -> String {
        if let Some(serves) = &*self.instead.load() {
            let service = self.directory.service.as_ref();
            let service = service.map_or("", ServiceName::as_str);
            return format!("says that it serves {serves}, not {service}");
        }
        if let Some(failure) = self.failure() {
            return format!("cannot be reached ({failure})");
        }
        if *self.closing.borrow() {
            return "is closing".to_owned();
        }
        let reason = if self.links.load().is_empty() {
            "is not connected yet"
        } else {
            "does not serve now, by its health or by the registry"
        };
        reason.to_owned()
    }

    /// Dials, once it is its turn.
    async fn dial(&self) -> Result<Connection, DialFailed> {
        let hub = &self.directory.hub;
        let mut config = DialConfig::new(self.directory.authority(&self.address));
        config.streams_max = hub.bounds().streams;
        let takes = self.takes.now();
        config.calls_at_first = (takes > 0).then_some(takes);
        let turn = hub.descriptors().turn(self.directory.has_usable()).await;
        config.descriptors_kept = turn.kept();
        let dialled = names::dial(hub.lookup(), &self.address, &config).await;
        if dialled.is_ok() {
            hub.descriptors().sufficed(hub);
        }
        dialled
    }

    /// A peer that ends each connection after one stream has nothing left for calls where the health
    /// Watch was that stream.
    fn note_spent(&self, state: &State) {
        let last = state.going_away.map(|said| said.last_stream);
        if last == Some(FIRST_STREAM) && !state.served {
            self.spent.add();
        } else {
            self.spent.set(0);
        }
    }

    fn not_reached(&self, failed: DialFailed) {
        let DialFailed {
            why,
            refused,
            starved,
        } = failed;
        let (directory, incarnation) = (&self.directory, self.incarnation());
        let now = directory.hub.clock().now();
        if starved {
            directory.hub.descriptors().ran_short(&directory.hub, &why);
        }
        let closing = directory.hub.is_closing(&directory.registry, incarnation);
        let expected = closing || starved || self.is_usable();
        let told = self.reach.failed(now, &why, Outcome { expected, refused });
        // Calls that wait may have nothing to wait for any more.
        directory.waiters.wake_all();
        if told {
            directory.hub.emit(&Event::Unreachable {
                service: directory.service.clone(),
                address: self.address.clone(),
                incarnation,
                error: why,
            });
        }
    }

    fn reached(&self) {
        let now = self.directory.hub.clock().now();
        self.outage_ended(self.reach.reached(now), true);
    }

    fn given_up(&self) {
        let now = self.directory.hub.clock().now();
        self.outage_ended(self.reach.over(now), false);
    }

    fn outage_ended(&self, after: Option<Duration>, reached: bool) {
        if let Some(after) = after {
            self.directory.hub.emit(&Event::UnreachableEnded {
                service: self.directory.service.clone(),
                address: self.address.clone(),
                incarnation: self.incarnation(),
                after,
                reached,
            });
        }
    }
}

/// The connections whose peers serve; all, where none does.
fn fit(links: &[Arc<Link>]) -> impl Iterator<Item = &Arc<Link>> {
    let all = links.iter().all(|link| link.is_avoided());
    links.iter().filter(move |link| all || !link.is_avoided())
}

/// A connection that the machine knows.
#[derive(Debug)]
struct Attached {
    link: Arc<Link>,
    watch: Option<WatchHandle>,
}

/// Dialled connections that the machine has not accepted yet. A lock, since a dial's task hands
/// them over; never held across an await.
type Dialled = Arc<Mutex<BTreeMap<Ticket, Connection>>>;

struct Effects {
    endpoint: Arc<Endpoint>,
    /// Weak, so that what is sent later does not keep the task alive.
    inbox: WeakUnboundedSender<Input>,
    dialled: Dialled,
    attached: BTreeMap<Ticket, Attached>,
}

impl Effects {
    fn new(endpoint: Arc<Endpoint>, inbox: WeakUnboundedSender<Input>) -> Self {
        Self {
            endpoint,
            inbox,
            dialled: Dialled::default(),
            attached: BTreeMap::new(),
        }
    }

    fn perform(&mut self, output: Output) -> ControlFlow<()> {
        let flow = effects::endpoint::perform(self, output);
        self.forget_ended();
        flow
    }

    fn take_dialled(&self, ticket: Ticket) -> Option<Connection> {
        lock(&self.dialled).remove(&ticket)
    }

    /// Tells the machine when the connection goes away, and when it is gone.
    fn follow(&self, ticket: Ticket, connection: &Connection) {
        let (inbox, connection) = (self.inbox.clone(), connection.clone());
        let endpoint = Arc::clone(&self.endpoint);
        let (served, ended) = (connection.served(), connection.ended_after());
        let send = move |input| {
            if let Some(inbox) = inbox.upgrade() {
                // As above.
                let _ = inbox.send(input);
            }
        };
        tokio::spawn(async move {
            let state = connection.unusable().await;
            endpoint
                .takes
                .set(connection.calls_until_goaway().unwrap_or_default());
            drop(connection);
            endpoint.note_spent(&state);
            if state.served {
                send(Input::Served(ticket));
            }
            if state.going_away.is_some() || !(state.ended || state.closed) {
                send(Input::GoAway(ticket));
            }
            // What is still open may be answered yet.
            if !state.served && served.await {
                send(Input::Served(ticket));
            }
            let (end, takes) = ended.await;
            if let Some(takes) = takes {
                // A GOAWAY in two steps names the last call only in the second.
                endpoint.takes.set(takes);
            }
            endpoint.reach.ended();
            endpoint.directory.hub.emit(&Event::Disconnected {
                address: endpoint.address.clone(),
                reason: end.to_string(),
            });
            send(Input::Ended(ticket));
        });
    }

    /// Tells the machine whether the endpoint's name still leads to this connection's peer. Holds
    /// neither the connection nor the endpoint.
    fn follow_name(&self, ticket: Ticket, connection: &Connection) {
        let inbox = self.inbox.clone();
        let tell = move |listed| {
            if let Some(inbox) = inbox.upgrade() {
                // As above.
                let _ = inbox.send(Input::Found { ticket, listed });
            }
        };
        let lookup = Arc::clone(self.endpoint.directory.hub.lookup());
        let address = self.endpoint.address.clone();
        let (socket, ended) = (connection.address(), connection.ended());
        tokio::spawn(names::follow(lookup, address, socket, ended, tell));
    }

    /// Publishes which connections take calls: what was there, plus one, less one.
    fn publish(&self, more: Option<Ticket>, less: Option<Ticket>) {
        let link = |ticket: Option<Ticket>| {
            ticket.and_then(|ticket| self.attached.get(&ticket).map(|one| Arc::clone(&one.link)))
        };
        let (more, less) = (link(more), link(less));
        let before = self.endpoint.links.load();
        let kept = before
            .iter()
            .filter(|one| less.as_ref().is_none_or(|less| !Arc::ptr_eq(less, one)));
        let links: Vec<Arc<Link>> = kept.cloned().chain(more).collect();
        self.endpoint.links.store(Arc::new(links));
        self.endpoint.directory.waiters.wake_all();
    }

    /// Connections that have ended are of no use to anybody.
    fn forget_ended(&mut self) {
        let ended: Vec<Ticket> = self
            .attached
            .iter()
            .filter(|(_, one)| one.link.connection.state().ended)
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in ended {
            self.publish(None, Some(ticket));
            self.attached.remove(&ticket);
        }
    }
}

impl effects::endpoint::Edge for Effects {
    fn hearers(&mut self) -> impl Hearers {
        &*self.endpoint
    }

    fn dial(&mut self, ticket: Ticket) {
        let (inbox, dialled) = (self.inbox.clone(), Arc::clone(&self.dialled));
        let endpoint = Arc::clone(&self.endpoint);
        self.endpoint.reach.begins();
        tokio::spawn(async move {
            let input = match endpoint.dial().await {
                Ok(connection) => {
                    endpoint.reached();
                    lock(&dialled).insert(ticket, connection);
                    Input::Dialled(ticket)
                }
                Err(why) => {
                    endpoint.not_reached(why);
                    Input::Failed(ticket)
                }
            };
            if let Some(inbox) = inbox.upgrade() {
                // Not taken where the endpoint is gone: then so is the connection, with its map.
                let _ = inbox.send(input);
            }
        });
    }

    fn attach(&mut self, ticket: Ticket) -> bool {
        let Some(connection) = self.take_dialled(ticket) else {
            return false;
        };
        self.follow(ticket, &connection);
        self.follow_name(ticket, &connection);
        let link = Arc::new(Link::new(Arc::clone(&self.endpoint), connection, ticket));
        self.attached.insert(ticket, Attached { link, watch: None });
        true
    }

    fn asks_health(&self) -> bool {
        self.endpoint.directory.asks_health && self.endpoint.spent.now() < WATCHES_SPENT
    }

    fn watch(&mut self, ticket: Ticket) {
        if let Some(attached) = self.attached.get_mut(&ticket) {
            attached.watch = Some(watch::start(Arc::clone(&attached.link), ticket));
        }
    }

    fn offer(&mut self, ticket: Ticket) {
        let now = self.endpoint.directory.hub.clock().now();
        self.endpoint.reach.offered(now);
        self.publish(Some(ticket), None);
    }

    fn withdraw(&mut self, ticket: Ticket) {
        self.publish(None, Some(ticket));
    }

    fn discard(&mut self, ticket: Ticket) {
        drop(self.take_dialled(ticket));
    }

    fn retire(&mut self, ticket: Ticket) {
        if let Some(attached) = self.attached.get_mut(&ticket) {
            // Dropping the handle cancels the Watch: an open stream keeps a connection open.
            attached.watch = None;
            attached.link.retire();
            attached.link.connection.close();
        }
    }

    fn cut(&mut self, ticket: Ticket) {
        if let Some(attached) = self.attached.remove(&ticket) {
            attached.link.retire();
            attached.link.connection.abort();
        }
    }
}

/// Who hears what is learnt of it, in this program.
impl Hearers for &Endpoint {
    type Withheld = Withheld;

    fn id(&self) -> EndpointId {
        self.id
    }

    fn withhold(&mut self) -> Withheld {
        self.cell.withhold()
    }

    fn directory(&mut self, message: Message) {
        self.directory.send(message);
    }

    fn endpoint(&mut self, input: Input) {
        self.input(input);
    }

    fn closing(&mut self, incarnation: Incarnation, source: ClosingSource) {
        let registry = &self.directory.registry;
        self.directory.hub.closing(registry, incarnation, source);
    }
}

impl Drop for Effects {
    fn drop(&mut self) {
        // Links hold their endpoint; without this the two would keep each other.
        self.endpoint.links.store(Arc::default());
    }
}

fn lock(dialled: &Dialled) -> std::sync::MutexGuard<'_, BTreeMap<Ticket, Connection>> {
    // A map of owned values is whole whoever panicked.
    dialled.lock().unwrap_or_else(PoisonError::into_inner)
}
