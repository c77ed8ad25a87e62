//! What is learnt of one endpoint, and who hears of it in which order.
//!
//! A statement must be the last reason why any call chooses that endpoint, sooner than its directory
//! can publish a new view. So calls are kept away first, then the directory is told; and only once
//! the directory has heard *that* statement and still says "ready" are they let in again.

use crate::directory::{EndpointId, Input};
use crate::endpoint;
use crate::event::ClosingSource;
use crate::instance::{Incarnation, Life};
use crate::machine::Ticket;

use super::directory::Message;

/// Who hears what is learnt of one endpoint.
pub trait Hearers {
    /// Names one withholding, for its release.
    type Withheld;

    /// Which endpoint.
    fn id(&self) -> EndpointId;
    /// From here on calls choose it only where nothing else is ready.
    fn withhold(&mut self) -> Self::Withheld;
    /// Tells the directory that it belongs to.
    fn directory(&mut self, message: Message<Self::Withheld>);
    /// Tells its own machine.
    fn endpoint(&mut self, input: endpoint::Input);
    /// Tells every directory of the program that a life is closing.
    fn closing(&mut self, incarnation: Incarnation, source: ClosingSource);
}

/// One of its connections has a health answer, its first or a change. It takes calls from here on.
pub fn answered(hearers: &mut impl Hearers, connection: Ticket, serving: bool) {
    if !serving {
        // Let in again once the directory has heard what the machine makes of it.
        let _ = hearers.withhold();
    }
    hearers.endpoint(endpoint::Input::Serving {
        ticket: connection,
        serving,
    });
    hearers.endpoint(endpoint::Input::Answered(connection));
}

/// Whether it serves, its connections together; `refused` where one has just said that it does not.
pub fn health(hearers: &mut impl Hearers, serving: bool, refused: bool) {
    let endpoint = hearers.id();
    let withheld = refused.then(|| hearers.withhold());
    hearers.directory(Message::Input(Input::Health { endpoint, serving }));
    if let Some(withheld) = withheld {
        hearers.directory(Message::Withheld { endpoint, withheld });
    }
}

/// An answer on one of its connections says that the life that gave it is closing.
pub fn said_closing(hearers: &mut impl Hearers, connection: Ticket, incarnation: Incarnation) {
    let endpoint = hearers.id();
    let withheld = hearers.withhold();
    hearers.closing(incarnation, ClosingSource::Mark);
    hearers.directory(Message::Withheld { endpoint, withheld });
    hearers.endpoint(endpoint::Input::Closing(connection));
}

/// A connection's peer says who it is.
pub fn identified(hearers: &mut impl Hearers, connection: Ticket, life: Life, right_service: bool) {
    named(hearers, life, right_service);
    hearers.endpoint(endpoint::Input::Named {
        ticket: connection,
        life,
        right_service,
    });
}

/// Who it is, as far as its connections know.
pub fn named(hearers: &mut impl Hearers, life: Life, right_service: bool) {
    let endpoint = hearers.id();
    hearers.directory(Message::Input(Input::Identified {
        endpoint,
        life,
        right_service,
    }));
}

/// Its peer ended a health Watch or sent GOAWAY.
pub fn peer_ended(hearers: &mut impl Hearers) {
    let endpoint = hearers.id();
    hearers.directory(Message::Input(Input::PeerEnded { endpoint }));
}

/// It has a usable connection, or has none any more.
pub fn link(hearers: &mut impl Hearers, up: bool) {
    let endpoint = hearers.id();
    hearers.directory(Message::Input(Input::Link { endpoint, up }));
}
