//! One call, from its request to the head of its answer.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use lameduck_core::directory::EndpointId;
use lameduck_core::event::{Event, Tier};
use lameduck_core::failover::Proof;
use lameduck_core::failover::attempt::{self, Attempts, Decision};
use lameduck_core::instance::Incarnation;
use lameduck_core::limits::REPLAY_BYTES_MAX;
use lameduck_core::name::Address;
use tokio::time::{Instant, timeout_at};
use tonic::body::Body;

use super::Directory;
use super::body::AnswerBody;
use super::channel::Options;
use super::connection::{Failure, Outgoing, say_who};
use super::directory::Shared;
use super::endpoint::Endpoint;
use super::error::{self, CallFailed};
use super::gather::gather;
use super::link::Unanswered;
use super::pick::{Pick, Place};
use super::unavailable;
use crate::deadline::{self, GRPC_TIMEOUT};

/// Runs one call. Its deadline stands over everything: choice and waiting, each attempt, and the answer.
pub(super) async fn run(
    directory: Arc<Directory>,
    options: Arc<Options>,
    request: Request<Body>,
) -> Result<Response<Body>, tonic::Status> {
    let (head, body) = request.into_parts();
    let call = Call::new(directory, options, head);
    call.place_until_answered(body).await
}

/// One call on its way.
pub(super) struct Call {
    /// Held so that the directory outlives the call.
    directory: Arc<Directory>,
    pub(super) options: Arc<Options>,
    head: Parts,
    pub(super) deadline: Option<Instant>,
    policy: attempt::Policy,
    pub(super) attempts: Attempts,
    /// Endpoints that have failed it.
    pub(super) tried: Vec<EndpointId>,
    /// Until when it waits for another one than those, once it has begun to.
    pub(super) for_another: Option<Instant>,
    /// What is proven of all attempts together: one that may have run taints the call for good.
    pub(super) proof: Proof,
}

/// An attempt that failed.
struct Failed {
    endpoint: EndpointId,
    at: (Address, Incarnation),
    proof: Proof,
    /// No endpoint would take it.
    own_fault: bool,
    /// The end of its connection left it out: no server refused it.
    left_out: bool,
    code: tonic::Code,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// The body, where it came back.
    body: Option<Outgoing>,
    /// The server's own answer, where there is one: UNAVAILABLE.
    answer: Option<Box<Response<Body>>>,
}

impl Failed {
    fn at(endpoint: &Endpoint, proof: Proof, code: tonic::Code) -> Self {
        Self {
            endpoint: endpoint.id,
            at: (endpoint.address.clone(), endpoint.incarnation()),
            proof,
            own_fault: false,
            left_out: false,
            code,
            source: None,
            body: None,
            answer: None,
        }
    }

    fn unanswered(endpoint: &Endpoint, failure: Failure) -> Self {
        let error = failure.error;
        Self {
            own_fault: error.is_own_fault(),
            left_out: error.is_left_out(),
            body: failure.unsent.map(|body| *body),
            ..Self::at(endpoint, error.proof, error.code())
        }
        .caused_by(error)
    }

    fn caused_by(self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let source = Some(source.into());
        Self { source, ..self }
    }
}

impl Call {
    fn new(directory: Arc<Directory>, options: Arc<Options>, mut head: Parts) -> Self {
        // Here, where the map has room, and not in each attempt's copy of it, which has none.
        say_who(&mut head.headers);
        let deadline = deadline::parse(&head.headers).map(|time| {
            let far = Duration::from_secs(365 * 24 * 3600);
            Instant::now() + time.min(far)
        });
        let policy = options.attempts(head.uri.path());
        Self {
            directory,
            options,
            head,
            deadline,
            policy,
            attempts: Attempts::new(),
            tried: Vec::new(),
            for_another: None,
            proof: Proof::NeverLeft,
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.directory.shared
    }

    async fn place_until_answered(mut self, body: Body) -> Result<Response<Body>, tonic::Status> {
        let shared = self.shared();
        shared.budget.deposit(shared.hub.clock().now());
        let mut body = Outgoing::take(body, REPLAY_BYTES_MAX);
        // The last server's own UNAVAILABLE.
        let mut kept = None;
        loop {
            let place = match self.place().await {
                Ok(place) => place,
                Err(status) => return end(kept, status),
            };
            if !self.chose(&place) {
                continue;
            }
            let copy = body.replay();
            let endpoint = Arc::clone(&place.link.endpoint);
            let attempt = self.attempt(place, body);
            let answered = match self.deadline {
                None => attempt.await,
                Some(deadline) => match timeout_at(deadline, attempt).await {
                    Ok(answer) => answer,
                    Err(_) => return Err(error::deadline_at(&endpoint.address)),
                },
            };
            let mut failed = match answered {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            kept = failed.answer.take().or(kept);
            match self.again(failed, copy) {
                Ok(again) => body = again,
                Err(status) => return end(kept, status),
            }
        }
    }

    async fn attempt(&self, place: Place, body: Outgoing) -> Result<Response<Body>, Failed> {
        let may_be_again = body.is_whole() && self.policy.idempotent;
        let Place {
            link,
            slot,
            in_flight,
            ..
        } = place;
        let endpoint = Arc::clone(&link.endpoint);
        let leaving = self.options.tell_leaving.then(|| link.leaving());
        let mut response = match link.place(slot, &self.head, body).await {
            Ok(response) => response,
            Err(Unanswered::Refused) => {
                let code = tonic::Code::Unavailable;
                return Err(Failed::at(&endpoint, Proof::NotProcessed, code));
            }
            Err(Unanswered::Failed(failure)) => return Err(Failed::unanswered(&endpoint, failure)),
        };
        if let Some(leaving) = leaving {
            response.extensions_mut().insert(leaving);
        }
        let directory = Arc::clone(&self.directory);
        let response =
            response.map(|body: AnswerBody| body.of_call(directory, in_flight, self.deadline));
        take(&endpoint, response, may_be_again).await
    }

    /// Decides after a failed attempt: the body for the next one, or the status for the caller.
    fn again(&mut self, failed: Failed, copy: Option<Outgoing>) -> Result<Outgoing, tonic::Status> {
        self.proof = self.proof.max(failed.proof);
        let body = failed.body.or(copy);
        // A connection that ends after so many requests leaves out those that came after them: that is
        // as good as never sent, and no refusal. Each next try needs another connection.
        let proof = if failed.left_out {
            Proof::NeverLeft
        } else {
            failed.proof
        };
        let failure = attempt::Failure {
            proof,
            own_fault: failed.own_fault,
            replayable: body.is_some(),
            refused_here_before: proof == Proof::NotProcessed
                && self.tried.contains(&failed.endpoint),
        };
        let shared = Arc::clone(self.shared());
        let withdraw = || shared.budget.withdraw(shared.hub.clock().now());
        let decision = self.attempts.after_failure(&self.policy, failure, withdraw);
        let (stop, body) = match (decision, body) {
            (Decision::Again { proven }, Some(body)) => {
                let address = failed.at.0;
                shared.hub.emit(&Event::Replaced { address, proven });
                self.tried.push(failed.endpoint);
                self.say_remaining();
                return Ok(body);
            }
            (Decision::Again { .. }, None) => (attempt::Stop::BodyGone, None::<Outgoing>),
            (Decision::Fail(stop), body) => (stop, body),
        };
        drop(body);
        let placed = self.attempts.placed();
        let error = CallFailed::placed(failed.at, self.proof, stop, placed, failed.source);
        Err(error.into_status(failed.code))
    }

    /// Tells who looks what was chosen. False where it must be chosen once more.
    fn chose(&self, place: &Place) -> bool {
        let shared = self.shared();
        let endpoint = &place.link.endpoint;
        let still = || place.tier != Tier::Ready || shared.view.load().is_ready(endpoint);
        shared.hub.emit_pick(still, || Event::Picked {
            address: endpoint.address.clone(),
            incarnation: endpoint.incarnation(),
            tier: place.tier,
        })
    }

    pub(super) fn look(&self) -> Pick {
        self.shared().pick(self.options.policy, &self.tried)
    }

    /// Time has passed: the server is told what is left of it.
    pub(super) fn say_remaining(&mut self) {
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            let value = deadline::format(left);
            self.head.headers.insert(GRPC_TIMEOUT, value);
        }
    }
}

/// Looks at an answer that has begun. One that says UNAVAILABLE has failed where the call `may_be_again`
/// placed; its answer is kept back until that is known. What cannot be sent again gains nothing by that,
/// and a client that speaks only once it has the head would wait for ever.
async fn take(
    endpoint: &Arc<Endpoint>,
    response: Response<AnswerBody>,
    may_be_again: bool,
) -> Result<Response<Body>, Failed> {
    let (response, unavailable, repeatable) = if unavailable::in_head(&response) {
        let repeatable = unavailable::may_be_repeated(response.headers());
        // What a proxy's page may say is no part of a gRPC answer: tonic would take it for a message that
        // is broken.
        (response.map(|_| Body::empty()), true, repeatable)
    } else if may_be_again {
        let response = match gather(response).await {
            Ok(response) => response,
            Err(status) => {
                let code = status.code();
                return Err(Failed::at(endpoint, Proof::Unknown, code).caused_by(status));
            }
        };
        let answer = response.body();
        let (unavailable, repeatable) = (answer.is_unavailable(), answer.may_be_repeated());
        (response.map(Body::new), unavailable, repeatable)
    } else {
        let response = response.map(|body| Body::new(body.for_application()));
        (response, false, false)
    };
    endpoint.answered(!unavailable);
    if unavailable && may_be_again && repeatable {
        let failed = Failed::at(endpoint, Proof::Unknown, tonic::Code::Unavailable);
        return Err(Failed {
            answer: Some(Box::new(response)),
            ..failed
        });
    }
    Ok(response)
}

/// What the application gets where the call is not placed again: a server's own answer, if there was one,
/// since its status and details say more than that no other server answered. That the deadline has passed
/// comes before it.
fn end(
    kept: Option<Box<Response<Body>>>,
    status: tonic::Status,
) -> Result<Response<Body>, tonic::Status> {
    match kept {
        Some(answer) if status.code() != tonic::Code::DeadlineExceeded => Ok(*answer),
        _ => Err(status),
    }
}
