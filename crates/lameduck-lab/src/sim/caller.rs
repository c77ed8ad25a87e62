//! One caller of a simulated world: the production mirror, directory, endpoints and health
//! clients, wired as in production: one input, all outputs, the next input.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lameduck_core::directory::{Directory, EndpointId, Snapshot, Tombstones};
use lameduck_core::effects::directory::{InOrder, Message, Performer};
use lameduck_core::effects::speaker::{Speaker, Worth};
use lameduck_core::effects::statement;
use lameduck_core::endpoint::{self, Endpoint};
use lameduck_core::failover::budget::RetryBudget;
use lameduck_core::instance::Incarnation;
use lameduck_core::machine::{Machine, Ticket, earliest};
use lameduck_core::mirror::{self, Mirror};
use lameduck_core::name::Address;
use lameduck_core::registry::{ErrorClass, RegistryError};
use lameduck_core::rng::Rng;
use lameduck_core::time::Timestamp;
use lameduck_core::watch::{self, Watch};

use super::call::Call;
use super::hearing::At;
use super::net::Net;
use super::oracle::Oracle;
use super::reference::Naive;
use super::wire::{CallId, ConnId, Due, Frame, Marks, Node, Record, Tell};

/// One connection of an endpoint.
pub(super) struct Connection {
    pub(super) id: ConnId,
    pub(super) watch: Option<Watch>,
    pub(super) usable: bool,
    pub(super) retired: bool,
    pub(super) next_stream: u64,
    pub(super) open: BTreeMap<CallId, u64>,
    pub(super) speaker: Speaker,
    /// Health streams of ours that are open.
    pub(super) streams: BTreeSet<Ticket>,
}

impl Connection {
    pub(super) fn new(id: ConnId) -> Self {
        Self {
            id,
            watch: None,
            usable: false,
            retired: false,
            next_stream: 1,
            open: BTreeMap::new(),
            speaker: Speaker::default(),
            streams: BTreeSet::new(),
        }
    }
}

/// One endpoint of the directory.
pub(super) struct Peer {
    pub(super) machine: Endpoint,
    pub(super) slot: usize,
    pub(super) incarnation: Incarnation,
    /// Connections that its machine has not taken on yet.
    pub(super) dialled: BTreeMap<Ticket, ConnId>,
    pub(super) connections: BTreeMap<Ticket, Connection>,
    /// Chosen only where nothing else is ready, whatever is published, since this statement.
    pub(super) withheld: Option<u64>,
    pub(super) statements: u64,
    /// Whether its health clients look for a Resume.
    pub(super) closing: bool,
}

/// What the caller's machines tell one another.
pub(super) enum Inner {
    Mirror(mirror::Input<i64, Record>),
    Directory(Message<u64>),
    Endpoint(EndpointId, endpoint::Input),
    Watch(EndpointId, Ticket, watch::Input),
}

/// Where a connection leads.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) endpoint: EndpointId,
    pub(super) ticket: Ticket,
}

/// The caller.
pub(super) struct Caller {
    pub(super) index: usize,
    pub(super) mirror: Mirror<i64, Record>,
    pub(super) directory: InOrder<u64>,
    pub(super) performer: Performer<u64>,
    pub(super) snapshot: Snapshot,
    pub(super) peers: BTreeMap<EndpointId, Peer>,
    pub(super) places: BTreeMap<ConnId, Place>,
    pub(super) naive: Naive,
    /// Whether a call may be placed a second time.
    pub(super) failover: bool,
    pub(super) calls: BTreeMap<CallId, Call>,
    pub(super) budget: RetryBudget,
    pub(super) rng: Rng,
    pub(super) inbox: VecDeque<Inner>,
    /// Connections that the world is to make: id and slot.
    pub(super) dials: Vec<(ConnId, usize)>,
    /// Calls whose connection is gone, or that were above a final GOAWAY.
    pub(super) failed: Vec<(CallId, lameduck_core::failover::Proof)>,
}

impl Caller {
    pub(super) fn new(index: usize, failover: bool, net: &mut Net) -> Self {
        let mut rng = Rng::from_seed(net.rng.next_u64());
        let mut caller = Self {
            index,
            mirror: Mirror::new(Rng::from_seed(rng.next_u64())),
            directory: InOrder::new(Directory::new(None, Tombstones::new())),
            performer: Performer::default(),
            snapshot: Snapshot::default(),
            peers: BTreeMap::new(),
            places: BTreeMap::new(),
            naive: Naive::default(),
            failover,
            calls: BTreeMap::new(),
            budget: RetryBudget::default(),
            rng,
            inbox: VecDeque::new(),
            dials: Vec::new(),
            failed: Vec::new(),
        };
        caller.perform_mirror(net);
        caller
    }

    pub(super) const fn node(&self) -> Node {
        Node::Caller(self.index)
    }

    pub(super) fn place(&self, conn: ConnId) -> Option<Place> {
        self.places.get(&conn).copied()
    }

    pub(super) fn connection(&mut self, place: Place) -> Option<&mut Connection> {
        self.peers
            .get_mut(&place.endpoint)?
            .connections
            .get_mut(&place.ticket)
    }

    // --- what happens to it ---

    pub(super) fn tell(&mut self, net: &mut Net, oracle: &mut Oracle, ticket: Ticket, tell: Tell) {
        let input = match tell {
            Tell::Listed { origin, items } => mirror::Input::Listed {
                ticket,
                origin,
                items,
            },
            Tell::Opened { origin } => mirror::Input::Opened { ticket, origin },
            Tell::Changed { revision, changes } => mirror::Input::Changed {
                ticket,
                revision,
                changes,
            },
            Tell::Compacted => mirror::Input::Compacted { ticket },
            _ => mirror::Input::Failed {
                ticket,
                error: away(),
            },
        };
        self.inbox.push_back(Inner::Mirror(input));
        self.run(net, oracle);
    }

    pub(super) fn dialled(&mut self, net: &mut Net, oracle: &mut Oracle, conn: ConnId, ok: bool) {
        let Some(Place { endpoint, ticket }) = self.place(conn) else {
            return;
        };
        let input = if ok {
            endpoint::Input::Dialled(ticket)
        } else {
            endpoint::Input::Failed(ticket)
        };
        match self.peers.get_mut(&endpoint) {
            Some(peer) if ok => {
                peer.dialled.insert(ticket, conn);
            }
            None if ok => net.gone(conn, true),
            _ => {
                self.places.remove(&conn);
            }
        }
        self.inbox.push_back(Inner::Endpoint(endpoint, input));
        self.run(net, oracle);
    }

    pub(super) fn gone(&mut self, net: &mut Net, oracle: &mut Oracle, conn: ConnId) {
        let Some(place) = self.places.remove(&conn) else {
            return;
        };
        if let Some(peer) = self.peers.get_mut(&place.endpoint) {
            peer.dialled.remove(&place.ticket);
            if let Some(connection) = peer.connections.remove(&place.ticket) {
                let lost = connection.open.into_keys();
                self.failed
                    .extend(lost.map(|call| (call, lameduck_core::failover::Proof::Unknown)));
            }
        }
        self.inbox.push_back(Inner::Endpoint(
            place.endpoint,
            endpoint::Input::Ended(place.ticket),
        ));
        self.run(net, oracle);
    }

    /// One frame that is no answer to a call.
    pub(super) fn frame(&mut self, net: &mut Net, oracle: &mut Oracle, conn: ConnId, frame: Frame) {
        let Some(place) = self.place(conn) else {
            return;
        };
        let Place { endpoint, ticket } = place;
        match frame {
            Frame::Status {
                ticket: of,
                status,
                marks,
            } => {
                if let Some(marks) = marks {
                    self.marks(net, place, marks);
                }
                let input = watch::Input::Status { ticket: of, status };
                self.inbox.push_back(Inner::Watch(endpoint, ticket, input));
            }
            Frame::WatchEnded { ticket: of, how } => {
                let input = watch::Input::Ended { ticket: of, how };
                self.inbox.push_back(Inner::Watch(endpoint, ticket, input));
            }
            Frame::Checked {
                ticket: of,
                status,
                marks,
            } => {
                self.marks(net, place, marks);
                let input = watch::Input::Checked {
                    ticket: of,
                    status: Some(status),
                };
                self.inbox.push_back(Inner::Watch(endpoint, ticket, input));
            }
            Frame::GoAway => {
                net.frame(conn, true, Frame::Pong);
                self.inbox
                    .push_back(Inner::Endpoint(endpoint, endpoint::Input::GoAway(ticket)));
            }
            Frame::FinalGoAway { last } => self.final_go_away(net, place, last),
            _ => {}
        }
        self.run(net, oracle);
    }

    fn final_go_away(&mut self, net: &mut Net, place: Place, last: u64) {
        let Some(connection) = self.connection(place) else {
            return;
        };
        let above = connection.open.iter().filter(|(_, stream)| **stream > last);
        let above: Vec<CallId> = above.map(|(call, _)| *call).collect();
        for call in &above {
            connection.open.remove(call);
        }
        let proof = lameduck_core::failover::Proof::NotProcessed;
        self.failed
            .extend(above.into_iter().map(|call| (call, proof)));
        self.inbox.push_back(Inner::Endpoint(
            place.endpoint,
            endpoint::Input::GoAway(place.ticket),
        ));
        self.idle(net, place);
    }

    /// What an answer says of its sender; whether that is who was dialled here.
    pub(super) fn marks(&mut self, net: &mut Net, place: Place, marks: Marks) -> bool {
        let Place { endpoint, ticket } = place;
        let life = marks.life;
        let Some(connection) = self.connection(place) else {
            return false;
        };
        let named = marks
            .names
            .then(|| connection.speaker.named(life))
            .flatten();
        let speaker = named.unwrap_or(connection.speaker);
        connection.speaker = speaker;
        let Some(peer) = self.peers.get(&endpoint) else {
            return false;
        };
        let (dialled, withheld) = (peer.incarnation, peer.withheld.is_some());
        let worth = speaker.says_closing(life, dialled, withheld);
        if let Some(connection) = self.connection(place).filter(|_| marks.closing)
            && let Worth::News(speaker) = worth
        {
            connection.speaker = speaker;
        }
        let mut at = At {
            caller: self,
            net,
            endpoint,
            connection: ticket,
        };
        if named.is_some_and(|speaker| speaker != Speaker::Several) {
            statement::identified(&mut at, ticket, life, true);
        }
        if marks.closing && matches!(worth, Worth::News(_)) {
            statement::said_closing(&mut at, ticket, Incarnation::Life(life));
        }
        worth != Worth::Nothing
    }

    /// A retired connection ends by itself once nothing is open on it.
    pub(super) fn idle(&mut self, net: &mut Net, place: Place) {
        let Place { endpoint, ticket } = place;
        let over = |one: &mut Connection| one.retired && one.open.is_empty();
        if self.connection(place).is_some_and(over) {
            self.close(net, endpoint, ticket);
            let ended = endpoint::Input::Ended(ticket);
            self.inbox.push_back(Inner::Endpoint(endpoint, ended));
        }
    }

    // --- its machines ---

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let mut least = earliest(self.mirror.deadline(), self.directory.deadline());
        for peer in self.peers.values() {
            least = earliest(least, peer.machine.deadline());
            for connection in peer.connections.values() {
                least = earliest(least, connection.watch.as_ref().and_then(Watch::deadline));
            }
        }
        least.map(|(at, _)| at)
    }

    pub(super) fn wake(&mut self, net: &mut Net, oracle: &mut Oracle) {
        self.mirror.handle_timeout(net.now);
        self.perform_mirror(net);
        self.directory.handle_timeout(net.now);
        self.perform_directory(net, oracle);
        let peers: Vec<EndpointId> = self.peers.keys().copied().collect();
        for id in peers {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.machine.handle_timeout(net.now);
            }
            self.perform_endpoint(net, id);
            let tickets: Vec<Ticket> = self
                .peers
                .get(&id)
                .map(|peer| peer.connections.keys().copied().collect())
                .unwrap_or_default();
            for ticket in tickets {
                if let Some(watch) = self.watch(id, ticket) {
                    watch.handle_timeout(net.now);
                }
                self.perform_watch(net, id, ticket);
            }
        }
        self.run(net, oracle);
    }

    pub(super) fn run(&mut self, net: &mut Net, oracle: &mut Oracle) {
        while let Some(inner) = self.inbox.pop_front() {
            match inner {
                Inner::Mirror(input) => {
                    self.mirror.handle(net.now, input);
                    self.perform_mirror(net);
                }
                Inner::Directory(message) => {
                    if let Message::Input(input) = &message {
                        self.naive.hear(input);
                    }
                    self.directory.handle(net.now, message);
                    self.perform_directory(net, oracle);
                    self.compare(oracle);
                }
                Inner::Endpoint(id, input) => {
                    if let Some(peer) = self.peers.get_mut(&id) {
                        peer.machine.handle(net.now, input);
                    }
                    self.perform_endpoint(net, id);
                }
                Inner::Watch(id, ticket, input) => {
                    if let Some(watch) = self.watch(id, ticket) {
                        watch.handle(net.now, input);
                    }
                    self.perform_watch(net, id, ticket);
                }
            }
        }
    }

    pub(super) fn watch(&mut self, id: EndpointId, ticket: Ticket) -> Option<&mut Watch> {
        self.peers
            .get_mut(&id)?
            .connections
            .get_mut(&ticket)?
            .watch
            .as_mut()
    }

    /// The lives that it would call now.
    pub(super) fn ready(&self) -> BTreeSet<Incarnation> {
        let ready = self.snapshot.members.iter();
        ready
            .filter(|m| m.tier == lameduck_core::event::Tier::Ready)
            .map(|m| m.incarnation)
            .collect()
    }

    /// Connections that it still holds or tries.
    pub(super) fn dials(&mut self, net: &mut Net) -> Vec<(ConnId, usize)> {
        let dials = std::mem::take(&mut self.dials);
        for (conn, _) in &dials {
            net.send(Due::Dial { conn: *conn });
        }
        dials
    }
}

pub(super) fn address(slot: usize) -> Address {
    format!("10.0.0.{}:80", slot + 1)
        .parse()
        .expect("an address")
}

fn away() -> RegistryError {
    RegistryError {
        class: ErrorClass::Retry,
        message: "the registry did not answer".to_owned(),
    }
}
