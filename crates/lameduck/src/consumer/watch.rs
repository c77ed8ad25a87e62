//! The task that asks one connection for its health.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use lameduck_core::directory::Input as DirectoryInput;
use lameduck_core::endpoint::Input as EndpointInput;
use lameduck_core::machine::Ticket;
use lameduck_core::watch::{Input, Name, Output, Watch as Machine};
use lameduck_registry::driver::drive;
use tokio::sync::mpsc::{WeakUnboundedSender, unbounded_channel};
use tokio_util::task::AbortOnDropHandle;

use super::directory::Message;
use super::endpoint::Endpoint;
use super::health;
use super::link::Link;

/// Keeps a connection's health asked for; dropped, it cancels the Watch.
#[derive(Debug)]
pub(super) struct WatchHandle {
    _task: AbortOnDropHandle<()>,
    _closing: AbortOnDropHandle<()>,
}

/// Begins to ask. `ticket` names the connection to the endpoint's machine.
pub(super) fn start(link: Arc<Link>, ticket: Ticket) -> WatchHandle {
    let (inbox, inputs) = unbounded_channel();
    let hub = &link.endpoint.directory.hub;
    let clock = hub.clock();
    let machine = Machine::new(clock.now(), hub.seed());
    let mut effects = Effects {
        link,
        ticket,
        inbox: inbox.downgrade(),
        streams: BTreeMap::new(),
    };
    let mut closing = effects.link.endpoint.follow_closing();
    closing.mark_changed();
    let task = tokio::spawn(async move {
        drive(machine, clock, inputs, |output| effects.perform(output)).await;
    });
    let closing = tokio::spawn(async move {
        while closing.changed().await.is_ok() {
            let closing = *closing.borrow_and_update();
            if inbox.send(Input::Closing(closing)).is_err() {
                return;
            }
        }
    });
    WatchHandle {
        _task: AbortOnDropHandle::new(task),
        _closing: AbortOnDropHandle::new(closing),
    }
}

/// Passes a health answer on: it keeps calls away at once, tells the directory, and lets the
/// connection take calls once it is the first.
pub(super) fn answered(endpoint: &Endpoint, ticket: Ticket, serving: bool) {
    let withheld = (!serving).then(|| endpoint.cell.withhold());
    endpoint.tell(DirectoryInput::Health {
        endpoint: endpoint.id,
        serving,
    });
    if let Some(withheld) = withheld {
        endpoint.directory.send(Message::Withheld {
            endpoint: endpoint.id,
            withheld,
        });
    }
    endpoint.input(EndpointInput::Answered(ticket));
}

struct Effects {
    link: Arc<Link>,
    ticket: Ticket,
    /// Weak, so that the streams' own senders are all that holds the task beside its handle.
    inbox: WeakUnboundedSender<Input>,
    streams: BTreeMap<Ticket, AbortOnDropHandle<()>>,
}

impl Effects {
    fn perform(&mut self, output: Output) -> ControlFlow<()> {
        match output {
            Output::Watch { ticket, name } => self.watch(ticket, name),
            Output::Check { ticket, name } => self.check(ticket, name),
            Output::Cancel { ticket } => drop(self.streams.remove(&ticket)),
            Output::Health { serving } => answered(&self.link.endpoint, self.ticket, serving),
            Output::PeerEnded => self.link.endpoint.tell(DirectoryInput::PeerEnded {
                endpoint: self.link.endpoint.id,
            }),
        }
        self.streams.retain(|_, stream| !stream.is_finished());
        ControlFlow::Continue(())
    }

    fn service(&self, name: Name) -> String {
        let service = self.link.endpoint.directory.service.as_ref();
        match (name, service) {
            (Name::Service, Some(service)) => service.as_str().to_owned(),
            _ => String::new(),
        }
    }

    fn watch(&mut self, ticket: Ticket, name: Name) {
        let Some(inbox) = self.inbox.upgrade() else {
            return;
        };
        let (link, service) = (Arc::clone(&self.link), self.service(name));
        let task = tokio::spawn(async move {
            let tell = |status| {
                // The machine is gone with the connection.
                let _ = inbox.send(Input::Status { ticket, status });
            };
            let how = health::watch(link, service, tell).await;
            let _ = inbox.send(Input::Ended { ticket, how });
        });
        self.streams.insert(ticket, AbortOnDropHandle::new(task));
    }

    fn check(&mut self, ticket: Ticket, name: Name) {
        let Some(inbox) = self.inbox.upgrade() else {
            return;
        };
        let (link, service) = (Arc::clone(&self.link), self.service(name));
        let task = tokio::spawn(async move {
            health::check(link, service).await;
            // As above.
            let _ = inbox.send(Input::Checked { ticket });
        });
        self.streams.insert(ticket, AbortOnDropHandle::new(task));
    }
}
