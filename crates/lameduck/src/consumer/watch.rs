//! The task that asks one connection for its health.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use lameduck_core::machine::Ticket;
use lameduck_core::watch::{Input, Name, Output, Watch as Machine};
use lameduck_registry::driver::drive;
use tokio::sync::mpsc::{WeakUnboundedSender, unbounded_channel};
use tokio_util::task::AbortOnDropHandle;

use super::health;
use super::link::Link;
use lameduck_core::effects;
use lameduck_core::effects::statement::Hearers;

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
    let machine =
        Machine::new(clock.now(), hub.seed()).with_shared_address(link.endpoint.is_shared());
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

struct Effects {
    link: Arc<Link>,
    ticket: Ticket,
    /// Weak, so that the streams' own senders are all that holds the task beside its handle.
    inbox: WeakUnboundedSender<Input>,
    streams: BTreeMap<Ticket, AbortOnDropHandle<()>>,
}

impl Effects {
    fn perform(&mut self, output: Output) -> ControlFlow<()> {
        if let Output::Health { serving } = output {
            self.link.is_serving(serving);
        }
        effects::watch::perform(self, output);
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
}

impl effects::watch::Edge for Effects {
    fn hearers(&mut self) -> impl Hearers {
        &*self.link.endpoint
    }

    fn connection(&self) -> Ticket {
        self.ticket
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.streams.remove(&ticket);
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
            let status = health::check(link, service).await;
            // As above.
            let _ = inbox.send(Input::Checked { ticket, status });
        });
        self.streams.insert(ticket, AbortOnDropHandle::new(task));
    }
}
