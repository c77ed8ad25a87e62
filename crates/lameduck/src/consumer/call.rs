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
use lameduck_core::limits::{PICK_WAIT_MAX, REPLAY_BYTES_MAX};
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

/// Runs one call. Its deadline stands over everything: choice, waiting, attempts and the answer.
pub(super) async fn run(
    directory: Arc<Directory>,
    options: Arc<Options>,
    request: Request<Body>,
) -> Result<Response<Body>, tonic::Status> {
    let (head, body) = request.into_parts();
    let call = Call::new(directory, options, head);
    match call.deadline {
        None => call.place_until_answered(body).await,
        Some(deadline) => timeout_at(deadline, call.place_until_answered(body))
            .await
            .unwrap_or_else(|_| Err(error::deadline())),
    }
}

/// One call on its way.
struct Call {
    /// Held so that the directory outlives the call.
    directory: Arc<Directory>,
    options: Arc<Options>,
    head: Parts,
    deadline: Option<Instant>,
    policy: attempt::Policy,
    attempts: Attempts,
    /// Endpoints that have failed it.
    tried: Vec<EndpointId>,
    /// What is proven of all attempts together: one that may have run taints the call for good.
    proof: Proof,
}

/// An attempt that failed.
struct Failed {
    endpoint: EndpointId,
    at: (Address, Incarnation),
    proof: Proof,
    /// No endpoint would take it.
    own_fault: bool,
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

    fn shared(&self) -> &Arc<Shared> {
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
            match self.attempt(place, body).await {
                Ok(response) => return Ok(response),
                Err(failed) => body = self.again(failed, copy)?,
            }
        }
    }

    async fn attempt(&self, place: Place, body: Outgoing) -> Result<Response<Body>, Failed> {
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
                return Err(Failed {
                    own_fault,
                    ..failed(proof, code, Some(failure.error.into()), body)
                });
            }
        };
        if let Some(leaving) = leaving {
            response.extensions_mut().insert(leaving);
        }
        let directory = Arc::clone(&self.directory);
        let response =
            response.map(|body: AnswerBody| body.of_call(directory, in_flight, self.deadline));
        if !self.policy.idempotent {
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
        let failure = attempt::Failure {
            proof: failed.proof,
            own_fault: failed.own_fault,
            replayable: body.is_some(),
            refused_here_before: failed.proof == Proof::NotProcessed
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

    /// A place to send it to: at once where there is one.
    async fn place(&mut self) -> Result<Place, tonic::Status> {
        if let Pick::Place(place) = self.look() {
            return Ok(place);
        }
        let place = self.wait_for_place().await?;
        self.say_remaining();
        Ok(place)
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

    fn look(&self) -> Pick {
        self.shared().pick(self.options.policy, &self.tried)
    }

    async fn wait_for_place(&self) -> Result<Place, tonic::Status> {
        let shared = self.shared();
        let patience = Instant::now() + PICK_WAIT_MAX;
        let waiting = shared.waiters.wait();
        loop {
            let changed = waiting.changed();
            let mut full = false;
            match self.look() {
                Pick::Place(place) => return Ok(place),
                Pick::Full(endpoint) => {
                    full = true;
                    endpoint.input(lameduck_core::endpoint::Input::Full);
                }
                Pick::Nothing => {}
            }
            let is_over = match self.wait_end(patience) {
                None => {
                    changed.await;
                    false
                }
                Some(_) if self.is_known_empty() => {
                    // Who calls again at once, in a loop, must not keep those from running who would
                    // bring news: this call has waited for nothing so far.
                    tokio::task::yield_now().await;
                    true
                }
                Some(end) => timeout_at(end, changed).await.is_err(),
            };
            if is_over {
                return Err(self.nowhere(full));
            }
        }
    }

    /// Until when it waits for a place; `None` is for ever.
    fn wait_end(&self, patience: Instant) -> Option<Instant> {
        if self.options.wait_for_ready {
            return self.deadline;
        }
        Some(self.deadline.map_or(patience, |at| at.min(patience)))
    }

    fn is_known_empty(&self) -> bool {
        !self.options.wait_for_ready && self.shared().view.load().known_empty
    }

    fn nowhere(&self, full: bool) -> tonic::Status {
        let why = if full {
            "all streams of all instances are in use".to_owned()
        } else {
            self.shared().why_nothing()
        };
        if self.deadline.is_some_and(|at| Instant::now() >= at) {
            return error::deadline_nowhere(self.proof, self.attempts.placed(), &why);
        }
        error::nowhere(self.proof, self.attempts.placed(), why)
    }

    /// Time has passed: the server is told what is left of it.
    fn say_remaining(&mut self) {
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            let value = deadline::format(left);
            self.head.headers.insert(GRPC_TIMEOUT, value);
        }
    }
}
