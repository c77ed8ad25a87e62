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
use super::connection::{Outgoing, say_who};
use super::directory::Shared;
use super::error::{self, CallFailed};
use super::gather::gather;
use super::link::Unanswered;
use super::pick::{Pick, Place};
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
    tried: Vec<EndpointId>,
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
        loop {
            let place = self.place().await?;
            if !self.chose(&place) {
                continue;
            }
            let copy = body.replay();
            let endpoint = Arc::clone(&place.link.endpoint);
            let attempt = self.attempt(place, body);
            let answer = match self.deadline {
                None => attempt.await,
                Some(deadline) => match timeout_at(deadline, attempt).await {
                    Ok(answer) => answer,
                    Err(_) => return Err(error::deadline_at(&endpoint.address)),
                },
            };
            match answer {
                Ok(response) => return Ok(response),
                Err(failed) => body = self.again(failed, copy)?,
            }
        }
    }

    async fn attempt(&self, place: Place, body: Outgoing) -> Result<Response<Body>, Failed> {
        // What cannot be sent again gains nothing by an answer that is kept back; and a client that
        // speaks only once it has the head would wait for ever.
        let replayable = body.is_whole();
        let Place {
            link,
            slot,
            in_flight,
            ..
        } = place;
        let endpoint = Arc::clone(&link.endpoint);
        let failed = |proof, code, source, body| Failed {
            endpoint: endpoint.id,
            at: (endpoint.address.clone(), endpoint.incarnation()),
            proof,
            own_fault: false,
            left_out: false,
            code,
            source,
            body,
        };
        let leaving = self.options.tell_leaving.then(|| link.leaving());
        let mut response = match link.place(slot, &self.head, body).await {
            Ok(response) => response,
            Err(Unanswered::Refused) => {
                let code = tonic::Code::Unavailable;
                return Err(failed(Proof::NotProcessed, code, None, None));
            }
            Err(Unanswered::Failed(failure)) => {
                let body = failure.unsent.map(|body| *body);
                let (proof, code) = (failure.error.proof, failure.error.code());
                let own_fault = failure.error.is_own_fault();
                let left_out = failure.error.is_left_out();
                return Err(Failed {
                    own_fault,
                    left_out,
                    ..failed(proof, code, Some(failure.error.into()), body)
                });
            }
        };
        endpoint.answered(!is_unavailable(&response));
        if let Some(leaving) = leaving {
            response.extensions_mut().insert(leaving);
        }
        let directory = Arc::clone(&self.directory);
        let response =
            response.map(|body: AnswerBody| body.of_call(directory, in_flight, self.deadline));
        if !replayable || !self.policy.idempotent {
            return Ok(response.map(|body| Body::new(body.for_application())));
        }
        match gather(response).await {
            Ok(response) => Ok(response.map(Body::new)),
            Err(status) => {
                let code = status.code();
                Err(failed(Proof::Unknown, code, Some(status.into()), None))
            }
        }
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

/// Whether this answer says, without a message, that the server cannot serve.
fn is_unavailable<B>(response: &Response<B>) -> bool {
    let code = response.headers().get("grpc-status");
    code.map(|code| tonic::Code::from_bytes(code.as_bytes())) == Some(tonic::Code::Unavailable)
}
