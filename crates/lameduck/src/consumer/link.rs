//! One connection of one endpoint, and who answers on it.

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::HeaderMap;
use http::request::Parts;
use http::{HeaderValue, Response};
use lameduck_core::instance::{Incarnation, Life};
use lameduck_core::limits::MARK_BYTES_MAX;
use lameduck_core::machine::Ticket;
use tokio_util::sync::CancellationToken;

use super::body::AnswerBody;
use super::connection::{Connection, Failure, Outgoing, Slot};
use super::endpoint::Endpoint;
use super::leaving::Leaving;
use crate::cell::switch::Switch;
use crate::mark::{self, Identity};
use lameduck_core::effects::speaker::{Speaker, Worth};
use lameduck_core::effects::statement;

/// One connection of an endpoint.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) connection: Connection,
    /// How the endpoint's machine calls it.
    ticket: Ticket,
    /// Its peer does not serve, or is closing: calls go elsewhere where there is another.
    avoided: Switch,
    peer: ArcSwap<Speaker>,
    retired: CancellationToken,
}

/// Why a placed call has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// The connection failed it.
    Failed(Failure),
    /// The server said that it refused it before anything was processed.
    Refused,
}

impl Link {
    pub(super) fn new(endpoint: Arc<Endpoint>, connection: Connection, ticket: Ticket) -> Self {
        Self {
            endpoint,
            connection,
            ticket,
            avoided: Switch::default(),
            peer: ArcSwap::default(),
            retired: CancellationToken::new(),
        }
    }

    /// Whether calls go elsewhere where there is another connection.
    pub(super) fn is_avoided(&self) -> bool {
        self.avoided.is_on()
    }

    /// Its peer serves, or does not.
    pub(super) fn is_serving(&self, serving: bool) {
        self.avoided.set(!serving);
    }

    /// It takes no more calls: whoever reads an answer from it is told.
    pub(super) fn retire(&self) {
        self.retired.cancel();
    }

    /// What tells a reader that this server is going away.
    pub(super) fn leaving(&self) -> Leaving {
        Leaving::new(self.retired.clone(), self.endpoint.follow_closing())
    }

    /// Sends one call and resolves with the head of its answer, read and freed of marks.
    pub(super) async fn place(
        self: Arc<Self>,
        slot: Slot,
        head: &Parts,
        body: Outgoing,
    ) -> Result<Response<AnswerBody>, Unanswered> {
        let answer = self.connection.call(slot, head, body).await;
        let mut response = answer.map_err(Unanswered::Failed)?;
        if self.read(response.headers_mut()) {
            return Err(Unanswered::Refused);
        }
        Ok(response.map(|body| AnswerBody::new(body, self)))
    }

    /// Reads the marks of a head or of trailers, and takes them away. True where this is a refusal
    /// to be believed.
    pub(super) fn read(&self, headers: &mut HeaderMap) -> bool {
        if !mark::is_marked(headers) {
            return false;
        }
        if let Some(value) = headers.get(&mark::LIFE) {
            match Identity::from_value(value) {
                Some(identity) => self.identified(&identity, value),
                None => self.endpoint.directory.hub.ignored_mark(),
            }
        }
        if let Some(life) = mark::life(headers, &mark::CLOSING) {
            self.closing(life);
        }
        let refused = mark::life(headers, &mark::REFUSED).is_some_and(|life| self.believes(life));
        mark::strip(headers);
        refused
    }

    /// Whether a mark that names `life` is a statement of who was dialled here.
    fn believes(&self, life: Life) -> bool {
        let dialled = **self.endpoint.incarnation.load();
        self.peer.load().is_believed(life, dialled)
    }

    fn identified(&self, identity: &Identity, value: &HeaderValue) {
        loop {
            let before = self.peer.load();
            let Some(after) = before.named(identity.life) else {
                return;
            };
            let stored = self.peer.compare_and_swap(&*before, Arc::new(after));
            if !Arc::ptr_eq(&stored, &before) {
                continue;
            }
            if after == Speaker::Several {
                self.endpoint.directory.hub.ignored_mark();
                return;
            }
            let right_service = self.serves_ours(identity, value);
            let life = identity.life;
            if !right_service {
                self.avoided.set(true);
            }
            statement::identified(&mut &*self.endpoint, self.ticket, life, right_service);
            let others = (!right_service).then(|| identity.services.join(", "));
            return self.endpoint.serves_instead(others);
        }
    }

    fn serves_ours(&self, identity: &Identity, value: &HeaderValue) -> bool {
        let Some(service) = self.endpoint.directory.service.as_ref() else {
            return true;
        };
        let service = service.as_str();
        // A list that is as long as a mark may be has lost its end: no evidence.
        let cut = value.len() + 3 * service.len() + 1 > MARK_BYTES_MAX;
        cut || identity.services.is_empty() || identity.services.iter().any(|one| one == service)
    }

    fn closing(&self, life: Life) {
        let before = self.peer.load();
        let dialled = **self.endpoint.incarnation.load();
        let withheld = self.endpoint.cell.is_withheld();
        match before.says_closing(life, dialled, withheld) {
            Worth::Nothing => self.endpoint.directory.hub.ignored_mark(),
            Worth::Known => {}
            Worth::News(speaker) => {
                // Whoever swapped before us has read a mark of this connection too, and tells it.
                self.peer.compare_and_swap(&*before, Arc::new(speaker));
                self.avoided.set(true);
                let incarnation = Incarnation::Life(life);
                statement::said_closing(&mut &*self.endpoint, self.ticket, incarnation);
            }
        }
    }
}
