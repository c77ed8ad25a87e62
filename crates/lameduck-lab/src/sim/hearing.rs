//! What a simulated caller can do about one endpoint and one connection of it.

use lameduck_core::directory::{self, EndpointId};
use lameduck_core::effects::directory::Message;
use lameduck_core::effects::statement::Hearers;
use lameduck_core::effects::{endpoint as endpoint_effects, watch as watch_effects};
use lameduck_core::endpoint;
use lameduck_core::event::ClosingSource;
use lameduck_core::failover::Proof;
use lameduck_core::instance::Incarnation;
use lameduck_core::machine::{Machine, Ticket};
use lameduck_core::watch::{self, Name, Watch};

use super::caller::{Caller, Connection, Inner, Peer, Place};
use super::net::Net;
use super::wire::{ConnId, Frame};

/// One endpoint of a caller, and one connection where it concerns one.
pub(super) struct At<'a> {
    pub(super) caller: &'a mut Caller,
    pub(super) net: &'a mut Net,
    pub(super) endpoint: EndpointId,
    pub(super) connection: Ticket,
}

impl Caller {
    pub(super) fn perform_endpoint(&mut self, net: &mut Net, endpoint: EndpointId) {
        while let Some(output) = self
            .peers
            .get_mut(&endpoint)
            .and_then(|peer| peer.machine.poll())
        {
            let mut at = At {
                caller: self,
                net,
                endpoint,
                connection: Ticket::default(),
            };
            if endpoint_effects::perform(&mut at, output).is_break() {
                self.peers.remove(&endpoint);
            }
        }
    }

    pub(super) fn perform_watch(&mut self, net: &mut Net, endpoint: EndpointId, ticket: Ticket) {
        while let Some(output) = self.watch(endpoint, ticket).and_then(Machine::poll) {
            let mut at = At {
                caller: self,
                net,
                endpoint,
                connection: ticket,
            };
            watch_effects::perform(&mut at, output);
        }
    }

    pub(super) fn close(&mut self, net: &mut Net, id: EndpointId, ticket: Ticket) {
        let connection = self
            .peers
            .get_mut(&id)
            .and_then(|peer| peer.connections.remove(&ticket));
        let Some(connection) = connection else { return };
        self.places.remove(&connection.id);
        net.gone(connection.id, true);
        let cut = connection.open.into_keys();
        self.failed.extend(cut.map(|call| (call, Proof::Unknown)));
    }
}

impl At<'_> {
    fn peer(&mut self) -> Option<&mut Peer> {
        self.caller.peers.get_mut(&self.endpoint)
    }

    fn connection(&mut self, ticket: Ticket) -> Option<&mut Connection> {
        self.peer()?.connections.get_mut(&ticket)
    }

    /// Sends a frame on the connection.
    fn frame(&mut self, frame: Frame) {
        let ticket = self.connection;
        if let Some(id) = self.connection(ticket).map(|one| one.id) {
            self.net.frame(id, true, frame);
        }
    }
}

impl Hearers for At<'_> {
    type Withheld = u64;

    fn id(&self) -> EndpointId {
        self.endpoint
    }

    fn withhold(&mut self) -> u64 {
        let Some(peer) = self.peer() else { return 0 };
        peer.statements += 1;
        peer.withheld = Some(peer.statements);
        peer.statements
    }

    fn directory(&mut self, message: Message<u64>) {
        self.caller.inbox.push_back(Inner::Directory(message));
    }

    fn endpoint(&mut self, input: endpoint::Input) {
        self.caller
            .inbox
            .push_back(Inner::Endpoint(self.endpoint, input));
    }

    fn closing(&mut self, incarnation: Incarnation, source: ClosingSource) {
        // A program with one directory.
        self.directory(Message::Input(directory::Input::Closing {
            incarnation,
            source,
        }));
    }
}

impl endpoint_effects::Edge for At<'_> {
    fn hearers(&mut self) -> impl Hearers {
        At {
            caller: self.caller,
            net: self.net,
            ..*self
        }
    }

    fn dial(&mut self, ticket: Ticket) {
        let conn = ConnId(self.net.rng.next_u64());
        let Some(slot) = self.peer().map(|peer| peer.slot) else {
            return;
        };
        let place = Place {
            endpoint: self.endpoint,
            ticket,
        };
        self.caller.places.insert(conn, place);
        self.caller.dials.push((conn, slot));
    }

    fn attach(&mut self, ticket: Ticket) -> bool {
        let Some(peer) = self.peer() else {
            return false;
        };
        let Some(conn) = peer.dialled.remove(&ticket) else {
            return false;
        };
        peer.connections.insert(ticket, Connection::new(conn));
        true
    }

    fn asks_health(&self) -> bool {
        true
    }

    fn watch(&mut self, ticket: Ticket) {
        let watch = Watch::new(self.net.now, self.caller.rng.next_u64());
        let closing = self.peer().is_some_and(|peer| peer.closing);
        if let Some(connection) = self.connection(ticket) {
            connection.watch = Some(watch);
            let told = Inner::Watch(self.endpoint, ticket, watch::Input::Closing(closing));
            self.caller.inbox.push_back(told);
        }
    }

    fn offer(&mut self, ticket: Ticket) {
        if let Some(connection) = self.connection(ticket) {
            connection.usable = true;
        }
    }

    fn withdraw(&mut self, ticket: Ticket) {
        if let Some(connection) = self.connection(ticket) {
            connection.usable = false;
        }
    }

    fn retire(&mut self, ticket: Ticket) {
        let Some(connection) = self.connection(ticket) else {
            return;
        };
        connection.retired = true;
        connection.watch = None;
        let (conn, streams) = (connection.id, std::mem::take(&mut connection.streams));
        for ticket in streams {
            self.net.frame(conn, true, Frame::Cancel { ticket });
        }
        let place = Place {
            endpoint: self.endpoint,
            ticket,
        };
        self.caller.idle(self.net, place);
    }

    fn discard(&mut self, ticket: Ticket) {
        if let Some(conn) = self.peer().and_then(|peer| peer.dialled.remove(&ticket)) {
            self.caller.places.remove(&conn);
            self.net.gone(conn, true);
        }
    }

    fn cut(&mut self, ticket: Ticket) {
        self.discard(ticket);
        self.caller.close(self.net, self.endpoint, ticket);
    }
}

impl watch_effects::Edge for At<'_> {
    fn hearers(&mut self) -> impl Hearers {
        endpoint_effects::Edge::hearers(self)
    }

    fn connection(&self) -> Ticket {
        self.connection
    }

    fn watch(&mut self, ticket: Ticket, name: Name) {
        let at = self.connection;
        if let Some(connection) = self.connection(at) {
            connection.streams.insert(ticket);
        }
        self.frame(Frame::Watch { ticket, name });
    }

    fn check(&mut self, ticket: Ticket, _: Name) {
        self.frame(Frame::Check { ticket });
    }

    fn cancel(&mut self, ticket: Ticket) {
        let at = self.connection;
        if let Some(connection) = self.connection(at) {
            connection.streams.remove(&ticket);
        }
        self.frame(Frame::Cancel { ticket });
    }
}
