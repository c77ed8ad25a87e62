//! The connections of one endpoint: what its [machine](crate::endpoint) says, done.

use core::ops::ControlFlow;

use crate::endpoint::Output;
use crate::machine::Ticket;

use super::statement::{self, Hearers};

/// What an endpoint is able to do.
pub trait Edge {
    /// Who hears of it.
    fn hearers(&mut self) -> impl Hearers;
    /// Connects: [`Dialled`](crate::endpoint::Input::Dialled) or
    /// [`Failed`](crate::endpoint::Input::Failed).
    fn dial(&mut self, ticket: Ticket);
    /// Takes a dialled connection on, and follows its end. False where it is gone already.
    fn attach(&mut self, ticket: Ticket) -> bool;
    /// Whether peers are asked for their health.
    fn asks_health(&self) -> bool;
    /// Opens the health Watch, the first stream on this connection.
    fn watch(&mut self, ticket: Ticket);
    /// Calls may choose this connection.
    fn offer(&mut self, ticket: Ticket);
    /// Calls must not choose it any more.
    fn withdraw(&mut self, ticket: Ticket);
    /// No new stream, no Watch: it closes once nothing is open on it.
    fn retire(&mut self, ticket: Ticket);
    /// Closes a connection that was never attached.
    fn discard(&mut self, ticket: Ticket);
    /// Closes a connection with whatever is open on it.
    fn cut(&mut self, ticket: Ticket);
}

/// Performs one output. Breaks after the last one there is.
pub fn perform(edge: &mut impl Edge, output: Output) -> ControlFlow<()> {
    match output {
        Output::Dial(ticket) => edge.dial(ticket),
        Output::Watch(ticket) => {
            if edge.attach(ticket) {
                ask(edge, ticket);
            }
        }
        Output::Use(ticket) => edge.offer(ticket),
        // Withdrawn before it closes: nobody chooses what is about to refuse a stream.
        Output::Retire(ticket) => {
            edge.withdraw(ticket);
            edge.retire(ticket);
        }
        Output::Close(ticket) => edge.discard(ticket),
        Output::Cut(ticket) => {
            edge.withdraw(ticket);
            edge.cut(ticket);
        }
        Output::Link { up } => statement::link(&mut edge.hearers(), up),
        Output::Health { serving, refused } => {
            statement::health(&mut edge.hearers(), serving, refused);
        }
        Output::Named {
            life,
            right_service,
        } => statement::named(&mut edge.hearers(), life, right_service),
        Output::PeerEnded => statement::peer_ended(&mut edge.hearers()),
        Output::Done => return ControlFlow::Break(()),
    }
    ControlFlow::Continue(())
}

fn ask(edge: &mut impl Edge, connection: Ticket) {
    if edge.asks_health() {
        edge.watch(connection);
    } else {
        // Where nobody asks, a peer counts as serving.
        statement::answered(&mut edge.hearers(), connection, true);
    }
}
