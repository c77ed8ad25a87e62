//! Which of the servers behind an address an endpoint is, and when it looks for another.

use super::{Connection, Endpoint, Output, Standing};
use crate::machine::Ticket;
use crate::mutant;

impl Endpoint {
    /// Whether a new connection leads to a server that wants no calls, as those that are there do: it was
    /// a try to find another one.
    pub(super) fn is_spare(&self, ticket: Ticket) -> bool {
        let spare = self.shared && !self.voices.is_good(ticket) && self.has_settled_one();
        spare && !mutant!("endpoint/spares-are-given-up")
    }

    pub(super) fn is_serving(&mut self, ticket: Ticket, serving: bool) {
        self.voices.serving(ticket, serving);
        if !matches!(self.standing, Standing::Wanted { .. }) {
            return;
        }
        // Given out whether or not it changes anything: calls were kept away, and are to be let in again.
        self.voices.serving_changed();
        self.out.push_back(Output::Health {
            serving: self.voices.together().unwrap_or(serving),
            refused: !serving,
        });
    }

    /// Says what the voices that are left say, where that is something else.
    pub(super) fn settle_voices(&mut self) {
        for (ticket, connection) in &self.connections {
            if *connection == Connection::Leaving {
                self.voices.leave(*ticket);
            }
        }
        if !matches!(self.standing, Standing::Wanted { .. }) {
            return;
        }
        if let Some(serving) = self.voices.serving_changed() {
            let refused = false;
            self.out.push_back(Output::Health { serving, refused });
        }
        if let Some((life, right_service)) = self.voices.name_changed() {
            self.out.push_back(Output::Named {
                life,
                right_service,
            });
        }
    }

    /// Whether another connection may lead to a server that serves, where none of the `staying` does. There
    /// may be two, even where one was to be the most: the other one is a try.
    pub(super) fn seeks(&self, staying: usize) -> bool {
        if staying >= self.connections_max.max(2) {
            return false;
        }
        let mut staying = self
            .connections
            .iter()
            .filter(|(_, one)| **one != Connection::Leaving);
        let bad = staying.all(|(ticket, connection)| {
            !matches!(connection, Connection::Fresh { .. }) && !self.voices.is_good(*ticket)
        });
        self.shared && bad && !mutant!("endpoint/seeks-another-server")
    }
}
