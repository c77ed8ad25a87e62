//! The health of one connection: what its [client](crate::watch) says, done.

use crate::machine::Ticket;
use crate::watch::{Name, Output};

use super::statement::{self, Hearers};

/// What a connection is able to do about health.
pub trait Edge {
    /// Who hears of its endpoint.
    fn hearers(&mut self) -> impl Hearers;
    /// Which connection of that endpoint.
    fn connection(&self) -> Ticket;
    /// Opens a Watch: [`Status`](crate::watch::Input::Status), and
    /// [`Ended`](crate::watch::Input::Ended) at last.
    fn watch(&mut self, ticket: Ticket, name: Name);
    /// Asks once: [`Checked`](crate::watch::Input::Checked).
    fn check(&mut self, ticket: Ticket, name: Name);
    /// Ends a Watch of ours.
    fn cancel(&mut self, ticket: Ticket);
}

/// Performs one output.
pub fn perform(edge: &mut impl Edge, output: Output) {
    match output {
        Output::Watch { ticket, name } => edge.watch(ticket, name),
        Output::Check { ticket, name } => edge.check(ticket, name),
        Output::Cancel { ticket } => edge.cancel(ticket),
        Output::Health { serving } => {
            let connection = edge.connection();
            statement::answered(&mut edge.hearers(), connection, serving);
        }
        Output::PeerEnded => statement::peer_ended(&mut edge.hearers()),
    }
}
