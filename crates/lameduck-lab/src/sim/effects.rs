//! What a simulated caller's machines want done, done.

use std::collections::BTreeMap;

use lameduck_core::directory::{self, EndpointId, Snapshot};
use lameduck_core::endpoint::{self, Endpoint};
use lameduck_core::event::Event;
use lameduck_core::failover::Proof;
use lameduck_core::instance::{Incarnation, Instance};
use lameduck_core::machine::{Machine, Ticket};
use lameduck_core::mirror::{self, News};
use lameduck_core::name::Address;
use lameduck_core::registry::{Entry, EntryId, Update};
use lameduck_core::watch::{self, Watch};

use super::caller::{Caller, Inner, Peer, Place, address};
use super::net::Net;
use super::oracle::Oracle;
use super::wire::{Ask, ConnId, Frame, Record};

impl Caller {
    pub(super) fn perform_mirror(&mut self, net: &mut Net) {
        while let Some(output) = self.mirror.poll() {
            match output {
                mirror::Output::List { ticket } => net.ask(self.node(), ticket, Ask::List),
                mirror::Output::Watch { ticket, from } => {
                    net.ask(self.node(), ticket, Ask::Watch { from });
                }
                mirror::Output::Emit(news) => {
                    let update = directory::Input::Update(update(news));
                    self.inbox.push_back(Inner::Directory(update));
                }
            }
        }
    }

    pub(super) fn perform_directory(&mut self, net: &mut Net, oracle: &mut Oracle) {
        while let Some(output) = self.directory.poll() {
            match output {
                directory::Output::Add {
                    endpoint,
                    address,
                    incarnation,
                } => {
                    net.note(format_args!(
                        "caller {}: adds {endpoint:?} {address} {incarnation}",
                        self.index
                    ));
                    let peer = Peer {
                        machine: Endpoint::new(self.rng.next_u64()),
                        slot: slot_of(&address),
                        incarnation,
                        connections: BTreeMap::new(),
                        closing: false,
                    };
                    self.peers.insert(endpoint, peer);
                    self.perform_endpoint(net, endpoint);
                }
                directory::Output::Dialling { endpoint, allowed } => {
                    let input = endpoint::Input::Dialling { allowed };
                    self.inbox.push_back(Inner::Endpoint(endpoint, input));
                }
                directory::Output::Became {
                    endpoint,
                    incarnation,
                } => {
                    if let Some(peer) = self.peers.get_mut(&endpoint) {
                        peer.incarnation = incarnation;
                        peer.closing = false;
                    }
                }
                directory::Output::Remove { endpoint } => {
                    self.inbox
                        .push_back(Inner::Endpoint(endpoint, endpoint::Input::Remove));
                }
                directory::Output::Publish(snapshot) => self.publish(oracle, snapshot),
                directory::Output::Event(event) => {
                    net.note(format_args!("caller {}: {event:?}", self.index));
                    self.event(&event);
                }
            }
        }
    }

    fn publish(&mut self, oracle: &mut Oracle, snapshot: Snapshot) {
        for member in &snapshot.members {
            if let Some(why) = self.naive.disagrees(member) {
                oracle.violations.push(format!(
                    "caller {}: the directory and the naive one differ: {why}",
                    self.index
                ));
            }
        }
        self.snapshot = snapshot;
    }

    /// Health clients look for a Resume while their peer counts as closing.
    fn event(&mut self, event: &Event) {
        let (of, closing) = match event {
            Event::Closing { incarnation, .. } => (*incarnation, true),
            Event::ClosingLifted { incarnation, .. } => (*incarnation, false),
            _ => return,
        };
        for (id, peer) in self.peers.iter().filter(|(_, peer)| peer.incarnation == of) {
            for ticket in peer.connections.keys() {
                self.inbox
                    .push_back(Inner::Watch(*id, *ticket, watch::Input::Closing(closing)));
            }
        }
    }

    pub(super) fn perform_endpoint(&mut self, net: &mut Net, id: EndpointId) {
        while let Some(output) = self.peers.get_mut(&id).and_then(|peer| peer.machine.poll()) {
            let Some(peer) = self.peers.get_mut(&id) else {
                return;
            };
            match output {
                endpoint::Output::Dial(ticket) => {
                    let conn = ConnId(net.rng.next_u64());
                    self.places.insert(
                        conn,
                        Place {
                            endpoint: id,
                            ticket,
                        },
                    );
                    self.dials.push((conn, peer.slot));
                }
                endpoint::Output::Watch(ticket) => {
                    let watch = Watch::new(net.now, self.rng.next_u64());
                    if let Some(connection) = peer.connections.get_mut(&ticket) {
                        connection.watch = Some(watch);
                    }
                    self.perform_watch(net, id, ticket);
                }
                endpoint::Output::Use(ticket) => {
                    if let Some(connection) = peer.connections.get_mut(&ticket) {
                        connection.usable = true;
                    }
                }
                endpoint::Output::Retire(ticket) => {
                    if let Some(connection) = peer.connections.get_mut(&ticket) {
                        connection.usable = false;
                        connection.retired = true;
                    }
                    self.inbox
                        .push_back(Inner::Watch(id, ticket, watch::Input::Retired));
                    self.idle(
                        net,
                        Place {
                            endpoint: id,
                            ticket,
                        },
                    );
                }
                endpoint::Output::Close(ticket) | endpoint::Output::Cut(ticket) => {
                    self.close(net, id, ticket);
                }
                endpoint::Output::Link { up } => {
                    self.inbox
                        .push_back(Inner::Directory(directory::Input::Link {
                            endpoint: id,
                            up,
                        }));
                }
                endpoint::Output::PeerEnded => {
                    let input = directory::Input::PeerEnded { endpoint: id };
                    self.inbox.push_back(Inner::Directory(input));
                }
                endpoint::Output::Done => {
                    self.peers.remove(&id);
                }
            }
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

    pub(super) fn perform_watch(&mut self, net: &mut Net, id: EndpointId, ticket: Ticket) {
        while let Some(output) = self.watch(id, ticket).and_then(Machine::poll) {
            let Some(conn) = self
                .connection(Place {
                    endpoint: id,
                    ticket,
                })
                .map(|one| one.id)
            else {
                return;
            };
            match output {
                watch::Output::Watch { ticket, .. } => {
                    net.frame(conn, true, Frame::Watch { ticket })
                }
                watch::Output::Cancel { ticket } => net.frame(conn, true, Frame::Cancel { ticket }),
                watch::Output::Check { ticket, .. } => {
                    net.frame(conn, true, Frame::Check { ticket })
                }
                watch::Output::Health { serving } => {
                    let input = directory::Input::Health {
                        endpoint: id,
                        serving,
                    };
                    self.inbox.push_back(Inner::Directory(input));
                    let answered = endpoint::Input::Answered(ticket);
                    self.inbox.push_back(Inner::Endpoint(id, answered));
                }
                watch::Output::PeerEnded => {
                    let input = directory::Input::PeerEnded { endpoint: id };
                    self.inbox.push_back(Inner::Directory(input));
                }
            }
        }
    }
}

fn update(news: News<i64, Record>) -> Update {
    let entry = |lease: i64, record: Record| {
        let mut instance = Instance::new(address(record.slot), Incarnation::Life(record.life));
        instance.state = record.state;
        instance.ready = record.ready;
        Entry {
            id: EntryId(lease),
            instance,
        }
    };
    match news {
        News::Reset { items, revision } => {
            let entries = items
                .into_iter()
                .map(|item| entry(item.key, item.value))
                .collect();
            Update::Reset { entries, revision }
        }
        News::Delta { changes, revision } => {
            let (mut changed, mut removed) = (Vec::new(), Vec::new());
            for change in changes {
                match change.value {
                    Some(record) => changed.push(entry(change.key, record)),
                    None => removed.push(EntryId(change.key)),
                }
            }
            Update::Delta {
                changed,
                removed,
                revision,
            }
        }
        News::Stale(error) => Update::Stale(error),
        News::Live => Update::Live,
    }
}

fn slot_of(address: &Address) -> usize {
    let socket = address.socket().expect("an IP address");
    match socket.ip() {
        std::net::IpAddr::V4(ip) => usize::from(ip.octets()[3]) - 1,
        std::net::IpAddr::V6(_) => unreachable!("all slots are IPv4"),
    }
}
