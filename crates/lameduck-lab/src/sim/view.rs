//! What a simulated caller can do about its view of the service.

use std::collections::BTreeMap;

use lameduck_core::directory::{self, EndpointId, Snapshot};
use lameduck_core::effects::directory::{Edge, Message};
use lameduck_core::endpoint::{self, Endpoint};
use lameduck_core::event::Event;
use lameduck_core::instance::{Incarnation, Instance};
use lameduck_core::machine::Machine;
use lameduck_core::mirror::{self, News};
use lameduck_core::name::Address;
use lameduck_core::registry::{Entry, EntryId, Update};
use lameduck_core::watch;

use super::caller::{Caller, Inner, Peer, address};
use super::net::Net;
use super::oracle::Oracle;
use super::wire::{Ask, Record};

impl Caller {
    pub(super) fn perform_mirror(&mut self, net: &mut Net) {
        while let Some(output) = self.mirror.poll() {
            match output {
                mirror::Output::List { ticket } => net.ask(self.node(), ticket, Ask::List),
                mirror::Output::Watch { ticket, from } => {
                    net.ask(self.node(), ticket, Ask::Watch { from });
                }
                mirror::Output::Emit(news) => {
                    let update = Message::Input(directory::Input::Update(update(news)));
                    self.inbox.push_back(Inner::Directory(update));
                }
            }
        }
    }

    pub(super) fn perform_directory(&mut self, net: &mut Net, oracle: &mut Oracle) {
        while let Some(step) = self.directory.poll() {
            let mut performer = std::mem::take(&mut self.performer);
            let mut view = View {
                caller: self,
                net,
                oracle,
            };
            // It is in use as long as the world lasts.
            let _ = performer.perform(&mut view, step);
            self.performer = performer;
        }
    }
}

struct View<'a> {
    caller: &'a mut Caller,
    net: &'a mut Net,
    oracle: &'a mut Oracle,
}

impl View<'_> {
    fn peer(&mut self, id: EndpointId) -> Option<&mut Peer> {
        self.caller.peers.get_mut(&id)
    }
}

impl Edge for View<'_> {
    type Withheld = u64;

    fn add(&mut self, id: EndpointId, address: Address, incarnation: Incarnation) {
        let index = self.caller.index;
        self.net.note(format_args!(
            "caller {index}: adds {id:?} {address} {incarnation}"
        ));
        let peer = Peer {
            machine: Endpoint::new(self.caller.rng.next_u64()),
            slot: slot_of(&address),
            incarnation,
            dialled: BTreeMap::new(),
            connections: BTreeMap::new(),
            withheld: None,
            statements: 0,
            closing: false,
        };
        self.caller.peers.insert(id, peer);
        self.caller.perform_endpoint(self.net, id);
    }

    fn became(&mut self, id: EndpointId, incarnation: Incarnation) {
        if let Some(peer) = self.peer(id) {
            peer.incarnation = incarnation;
        }
    }

    fn endpoint(&mut self, id: EndpointId, input: endpoint::Input) {
        self.caller.inbox.push_back(Inner::Endpoint(id, input));
    }

    fn forget(&mut self, _: EndpointId) {
        // It goes once its machine is done; nobody finds it in a view before.
    }

    fn count_as_closing(&mut self, id: EndpointId, closing: bool) {
        let Some(peer) = self.peer(id) else { return };
        if std::mem::replace(&mut peer.closing, closing) != closing {
            let tickets: Vec<_> = peer.connections.keys().copied().collect();
            let told = tickets
                .into_iter()
                .map(|ticket| Inner::Watch(id, ticket, watch::Input::Closing(closing)));
            self.caller.inbox.extend(told);
        }
    }

    fn publish(&mut self, snapshot: Snapshot) {
        self.caller.snapshot = snapshot;
        self.caller.compare(self.oracle);
    }

    fn release(&mut self, id: EndpointId, withheld: u64) {
        if let Some(peer) = self.peer(id)
            && peer.withheld == Some(withheld)
        {
            peer.withheld = None;
        }
    }

    fn heard(&mut self, event: &Event) {
        let index = self.caller.index;
        self.net.note(format_args!("caller {index}: {event:?}"));
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
