//! Performs what the drain says, from the first connection to the report.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use lameduck_core::drain::{ClosingEnd, Command, Drain, Input, Output, Reason, Report};
use lameduck_core::event::{Event, Phase};
use lameduck_core::instance::Life;
use lameduck_core::machine::Ticket;
use lameduck_core::registry::Want;
use lameduck_registry::driver::{Clock, Effects, drive};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::assemble::names;
use super::builder::Provider;
use super::handle::Shared;
use super::hooks::Hook;
use super::registration::Registrations;
use super::report;
use super::signals::Membership;
use crate::foreign::discard;
use crate::observe::Events;
use crate::serve::Server;
use lameduck_core::effects::leaving::{self, Count};

impl Provider {
    /// Serves until a signal, or the program through its [`handle`](Self::handle), asks to leave;
    /// then leaves, and says how that went. Writes one line to stderr about it.
    ///
    /// Dropping this future before it ends is a cut: connections end, upgraded ones too, the phase is
    /// Stopped, and [`closing`](super::Handle::closing) resolves. A registration then lasts until its
    /// lease ends.
    pub async fn run(self) -> Report {
        let handle = self.handle();
        let living = self.living;
        living.membership.iter().for_each(Membership::run);
        let mut tasks = JoinSet::new();
        serve(self.server, &self.shared.commands.inputs, &mut tasks);
        let registrations = Registrations::keep(self.planned, &self.events, &mut tasks);
        let (sender, receiver) = mpsc::unbounded_channel();
        let edge = Edge {
            shared: Arc::clone(&self.shared),
            registrations,
            hooks: self.hooks,
            events: self.events.clone(),
            tasks,
            report: sender,
        };
        self.events.emit(&Event::Listening {
            services: self.services.clone(),
            address: handle.local_addr().into(),
        });
        self.shared.readiness.run(&self.shared.commands);
        let _ = self.shared.commands.inputs.send(Input::Started);
        let budget = self.plan.budget;
        let machine = Drain::new(self.plan, self.shared.status.borrow().life);
        let report = leave(machine, self.inputs, edge, receiver).await;
        self.shared.commands.close();
        self.events.emit(&Event::Stopped(report.clone()));
        let said = self.events.said();
        report::farewell(&names(&self.services), &report, said, budget).await;
        drop(living);
        report
    }
}

/// A provider from `build` to the end of its `run`. Dropped earlier, as by a timeout around it, with its
/// runtime, or before it ran, it cuts what is left and tells those who wait for it.
pub(super) struct Living {
    pub(super) shared: Arc<Shared>,
    pub(super) events: Events,
    pub(super) membership: Option<Membership>,
}

impl Drop for Living {
    fn drop(&mut self) {
        // First: a signal that comes once the end can be seen is no longer this provider's.
        drop(self.membership.take());
        let status = *self.shared.status.borrow();
        if status.phase != Phase::Stopped {
            self.shared.end();
            self.events.emit(&Event::PhaseEntered {
                life: status.life,
                phase: Phase::Stopped,
            });
        }
    }
}

/// Runs the server. However it ends, also by a panic, the drain hears of it.
fn serve(server: Server, inputs: &mpsc::UnboundedSender<Input>, tasks: &mut JoinSet<()>) {
    let closed = server.control();
    let (ended, begin) = (Gone(inputs.clone()), inputs.clone());
    tasks.spawn(async move {
        let _ended = ended;
        server.run().await;
    });
    tasks.spawn(async move {
        closed.listener_closed().await;
        // No answer is waited for. Where a stop has begun, this is a part of it and changes nothing.
        let _ = begin.send(Input::Begin(Command(0), Reason::ServerEnded));
    });
}

/// Says that there are no connections any more, when it is dropped.
struct Gone(mpsc::UnboundedSender<Input>);

impl Drop for Gone {
    fn drop(&mut self) {
        // Where nobody listens, the report has been given.
        let _ = self.0.send(Input::ConnectionsGone);
    }
}

async fn leave(
    machine: Drain,
    inputs: mpsc::UnboundedReceiver<Input>,
    edge: Edge,
    mut report: mpsc::UnboundedReceiver<Report>,
) -> Report {
    drive(machine, Clock::start(), inputs, edge).await;
    report
        .recv()
        .await
        .expect("the loop ends by a report: the edge itself holds a sender of inputs")
}

/// The outside of the machine.
struct Edge {
    shared: Arc<Shared>,
    registrations: Registrations,
    hooks: Vec<Hook>,
    events: Events,
    tasks: JoinSet<()>,
    report: mpsc::UnboundedSender<Report>,
}

impl Effects<Output> for Edge {
    fn perform(&mut self, output: Output) -> ControlFlow<()> {
        leaving::perform(self, output)
    }
}

impl leaving::Edge for Edge {
    fn input(&mut self, input: Input) {
        // The loop that reads this is the one that runs us.
        let _ = self.shared.commands.inputs.send(input);
    }

    fn enter(&mut self, phase: Phase) {
        let status = &self.shared.status;
        status.send_modify(|status| status.phase = phase);
        let life = status.borrow().life;
        self.events.emit(&Event::PhaseEntered { life, phase });
    }

    fn answer(&mut self, command: Command, granted: bool) {
        self.shared.commands.answer(command, granted);
    }

    fn stopping(&mut self) {
        self.shared
            .status
            .send_modify(|status| status.stopping = true);
    }

    fn want(&mut self, want: Want, confirm: Option<Ticket>) {
        // Asked for before it is wanted, so that no confirmation is missed.
        let reached = confirm.map(|ticket| (ticket, self.registrations.reached(want)));
        self.registrations.want(want);
        if let Some((ticket, reached)) = reached {
            self.spawn(async move { Input::Deregistered(ticket, reached.await) });
        }
    }

    fn set_ready(&mut self, ready: bool) {
        if ready {
            self.shared.health.open();
        } else {
            self.shared.health.leave();
        }
    }

    fn mark(&mut self) {
        self.shared.control().announce();
    }

    fn unmark(&mut self, life: Life) {
        self.shared.status.send_modify(|status| status.life = life);
        self.shared.control().resume(life);
    }

    fn go_away(&mut self, pace: Duration) {
        self.shared.control().go_away_existing(pace);
    }

    fn count(&self) -> Count {
        Count {
            admitted: self.shared.gate.traffic(),
            returning: self.shared.gate.returning(),
            in_flight: self.shared.gate.in_flight().total,
            owing: self.shared.control().connections().owing as u64,
        }
    }

    fn close_listener(&mut self, ticket: Ticket) {
        let control = self.shared.control().clone();
        self.spawn(async move {
            control.close_listener().await;
            Input::ListenerClosed(ticket)
        });
    }

    fn go_away_all(&mut self, ticket: Ticket, within: Duration) {
        let control = self.shared.control().clone();
        self.spawn(async move {
            control.final_goaways(within).await;
            Input::FinalGoAways(ticket)
        });
    }

    fn close_gate(&mut self) {
        self.shared.control().close_gate();
    }

    fn end_watches(&mut self) {
        self.shared.health.end();
        self.shared.control().end_health();
    }

    fn await_in_flight(&mut self, ticket: Ticket) {
        let gate = self.shared.gate.clone();
        self.spawn(async move {
            gate.idle().await;
            Input::InFlightZero(ticket)
        });
    }

    fn cut(&mut self) {
        self.shared.control().cut();
    }

    fn run_hook(&mut self, index: usize, ticket: Ticket) {
        if let Some(running) = self.hooks.get_mut(index).and_then(Hook::begin) {
            self.spawn(running.done(ticket));
        }
    }

    fn done(&mut self, mut report: Report) {
        report.abandoned += self.shared.gate.lost();
        // One that has not served, or was forced to end, had no time to be registered.
        if report.closing_end != ClosingEnd::Skipped {
            report.problems.extend(self.registrations.never_confirmed());
        }
        // The receiver waits for exactly this.
        let _ = self.report.send(report);
    }
}

impl Edge {
    /// Runs `work`, whose end is an input.
    fn spawn(&mut self, work: impl Future<Output = Input> + Send + 'static) {
        while let Some(ended) = self.tasks.try_join_next() {
            discard(ended);
        }
        let inputs = self.shared.commands.inputs.clone();
        self.tasks.spawn(async move {
            let _ = inputs.send(work.await);
        });
    }
}
