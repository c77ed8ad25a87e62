//! A process that leaves: what the [drain](crate::drain) says, done.

use core::ops::ControlFlow;
use core::time::Duration;

use crate::drain::{Command, Input, Output, Report};
use crate::event::Phase;
use crate::instance::Life;
use crate::limits::FINAL_GOAWAY_MAX;
use crate::machine::Ticket;
use crate::registry::Want;

/// The gate's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Requests of callers ever admitted, modulo 2^32.
    pub admitted: u64,
    /// Those among them of peers that were told to go and came back, modulo 2^32.
    pub returning: u64,
    /// Requests in flight now.
    pub in_flight: u64,
    /// Answers that are done here and that their callers have not got: bytes wait in this process or in
    /// the kernel.
    pub owing: u64,
}

/// What a process that can leave is able to do.
pub trait Edge {
    /// Queues an input: taken after all outputs of the present one.
    fn input(&mut self, input: Input);
    /// A phase begins.
    fn enter(&mut self, phase: Phase);
    /// Answers who asked.
    fn answer(&mut self, command: Command, granted: bool);
    /// Tells handlers that there is no way back.
    fn stopping(&mut self);
    /// Tells every registry what is wanted. Where there is a ticket, [`Input::Deregistered`] comes
    /// once they have all confirmed it or say why not.
    fn want(&mut self, want: Want, confirm: Option<Ticket>);
    /// Readiness, as health services tell it to probes and Watches.
    fn set_ready(&mut self, ready: bool);
    /// Marks every answer as coming from a closing life.
    fn mark(&mut self);
    /// Marks off: `life` serves, and says who it is on every connection.
    fn unmark(&mut self, life: Life);
    /// First GOAWAY to the connections that existed when answers were marked, spread over `pace`.
    fn go_away(&mut self, pace: Duration);
    /// The gate's counters as they are now.
    fn count(&self) -> Count;
    /// Accepts what waits, then closes the listener: [`Input::ListenerClosed`].
    fn close_listener(&mut self, ticket: Ticket);
    /// GOAWAY to all connections, the final one at most `within` from now:
    /// [`Input::FinalGoAways`].
    fn go_away_all(&mut self, ticket: Ticket, within: Duration);
    /// Refuses what is new.
    fn close_gate(&mut self);
    /// Ends the health streams.
    fn end_watches(&mut self);
    /// [`Input::InFlightZero`] once nothing is in flight.
    fn await_in_flight(&mut self, ticket: Ticket);
    /// Ends what is left, visibly.
    fn cut(&mut self);
    /// Runs a hook, by its position: [`Input::HookDone`].
    fn run_hook(&mut self, index: usize, ticket: Ticket);
    /// The end.
    fn done(&mut self, report: Report);
}

/// Performs one output. Breaks after the last one there is.
pub fn perform(edge: &mut impl Edge, output: Output) -> ControlFlow<()> {
    match output {
        Output::Enter(phase) => edge.enter(phase),
        Output::Answer(command, granted) => edge.answer(command, granted),
        Output::Stopping => edge.stopping(),
        // Nobody waits to be listed: a registry that is away must not keep a process from serving.
        Output::Want(want @ Want::Present { .. }, _) => edge.want(want, None),
        Output::Want(want, ticket) => edge.want(want, Some(ticket)),
        Output::Ready => edge.set_ready(true),
        Output::Unready => edge.set_ready(false),
        Output::Announce => edge.mark(),
        Output::Unmark(life) => edge.unmark(life),
        Output::GoAwayExisting { pace } => edge.go_away(pace),
        Output::Sample => {
            let Count {
                admitted,
                returning,
                in_flight,
                ..
            } = edge.count();
            edge.input(Input::Sampled {
                admitted,
                returning,
                in_flight,
            });
        }
        Output::CloseListener(ticket) => edge.close_listener(ticket),
        Output::GoAwayAll(ticket) => edge.go_away_all(ticket, FINAL_GOAWAY_MAX),
        Output::CloseGate => edge.close_gate(),
        Output::EndWatches => edge.end_watches(),
        Output::AwaitInFlight(ticket) => edge.await_in_flight(ticket),
        Output::Cut => {
            // Counted first: after the cut nothing is in flight.
            let Count {
                in_flight, owing, ..
            } = edge.count();
            let abandoned = in_flight + owing;
            edge.cut();
            edge.input(Input::WasCut { abandoned });
        }
        Output::RunHook(index, ticket) => edge.run_hook(index, ticket),
        Output::Done(report) => {
            edge.done(report);
            return ControlFlow::Break(());
        }
    }
    ControlFlow::Continue(())
}
