//! Performs what the drain says, from the first connection to the report.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use lameduck_core::drain::{Drain, Input, Output, Report};
use lameduck_core::event::Event;
use lameduck_core::limits::FINAL_GOAWAY_MAX;
use lameduck_core::machine::Ticket;
use lameduck_core::registry::Want;
use lameduck_registry::driver::{Clock, Effects, drive};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::builder::{Provider, names};
use super::handle::Shared;
use super::hooks::{self, Hook};
use super::registration::Registrations;
use super::report;
use crate::observe::Events;

impl Provider {
    /// Serves until a signal, or the program through its [`handle`](Self::handle), asks to leave;
    /// then leaves, and says how that went. Writes one line to stderr about it.
    ///
    /// Dropping this future before it ends drops the server with it: a cut.
    pub async fn run(self) -> Report {
        self.progress.run();
        let mut tasks = JoinSet::new();
        let server = self.server.run();
        let ended = self.shared.commands.inputs.clone();
        tasks.spawn(async move {
            server.await;
            // Where nobody listens, the report has been given.
            let _ = ended.send(Input::ConnectionsGone);
        });
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
            address: self.shared.local_addr.into(),
        });
        let _ = self.shared.commands.inputs.send(Input::Started);
        let machine = Drain::new(self.plan, self.shared.status.borrow().life);
        let report = leave(machine, self.inputs, edge, receiver).await;
        self.shared.commands.close();
        self.events.emit(&Event::Stopped(report.clone()));
        report::line(&names(&self.services), &report);
        self.progress.end();
        report
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
        let shared = &self.shared;
        match output {
            Output::Enter(phase) => {
                shared.status.send_modify(|status| status.phase = phase);
                let life = shared.status.borrow().life;
                self.events.emit(&Event::PhaseEntered { life, phase });
            }
            Output::Answer(command, granted) => shared.commands.answer(command, granted),
            Output::Stopping => shared.status.send_modify(|status| status.stopping = true),
            Output::Want(want, ticket) => self.want(want, ticket),
            Output::Ready => shared.health.open(),
            Output::Unready => shared.health.leave(),
            Output::Announce => shared.control.announce(),
            Output::Unmark(life) => {
                shared.status.send_modify(|status| status.life = life);
                shared.control.resume(life);
            }
            Output::GoAwayExisting { pace } => shared.control.go_away_existing(pace),
            Output::Sample => self.input(Input::Sampled {
                admitted: shared.gate.admitted(),
                in_flight: shared.gate.in_flight().total,
            }),
            Output::CloseListener(ticket) => self.close_listener(ticket),
            Output::GoAwayAll(ticket) => self.go_away_all(ticket, FINAL_GOAWAY_MAX),
            Output::CloseGate => shared.control.close_gate(),
            Output::EndWatches => {
                shared.health.end();
                shared.control.end_health();
            }
            Output::AwaitInFlight(ticket) => self.await_in_flight(ticket),
            Output::Cut => {
                let abandoned = shared.gate.in_flight().total;
                shared.control.cut();
                self.input(Input::WasCut { abandoned });
            }
            Output::RunHook(index, ticket) => self.run_hook(index, ticket),
            Output::Done(report) => {
                // The receiver waits for exactly this.
                let _ = self.report.send(report);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

impl Edge {
    fn input(&self, input: Input) {
        // The loop that reads this is the one that runs us.
        let _ = self.shared.commands.inputs.send(input);
    }

    /// Runs `work`, whose end is an input.
    fn spawn(&mut self, work: impl Future<Output = Input> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        let inputs = self.shared.commands.inputs.clone();
        self.tasks.spawn(async move {
            let _ = inputs.send(work.await);
        });
    }

    fn want(&mut self, want: Want, ticket: Ticket) {
        let reached = self.registrations.reached(want);
        self.registrations.want(want);
        if !matches!(want, Want::Present { .. }) {
            self.spawn(async move { Input::Deregistered(ticket, reached.await) });
        }
    }

    fn close_listener(&mut self, ticket: Ticket) {
        let control = self.shared.control.clone();
        self.spawn(async move {
            control.close_listener().await;
            Input::ListenerClosed(ticket)
        });
    }

    fn go_away_all(&mut self, ticket: Ticket, most: Duration) {
        let control = self.shared.control.clone();
        self.spawn(async move {
            control.final_goaways(most).await;
            Input::FinalGoAways(ticket)
        });
    }

    fn await_in_flight(&mut self, ticket: Ticket) {
        let gate = self.shared.gate.clone();
        self.spawn(async move {
            gate.idle().await;
            Input::InFlightZero(ticket)
        });
    }

    fn run_hook(&mut self, index: usize, ticket: Ticket) {
        if let Some(running) = self.hooks.get_mut(index).and_then(Hook::begin) {
            self.spawn(async move { hooks::done(ticket, running.await) });
        }
    }
}
