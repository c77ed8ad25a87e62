//! How a call waits for a place: for a stream in the order in which calls came, for an instance until
//! one can be called.

use std::future::Future;
use std::sync::Arc;

use lameduck_core::event::Event;
use lameduck_core::limits::{
    DIAL_WANTED_AFTER, PICK_WAIT_MAX, STREAM_WAIT_MAX, STREAMS_TOLD_INTERVAL,
};
use tokio::time::{Instant, timeout_at};

use super::call::Call;
use super::directory::Shared;
use super::error;
use super::pick::{Pick, Place};
use crate::cell::line::First;

impl Call {
    /// A place to send it to: at once where there is one and nobody waits for it.
    pub(super) async fn place(&mut self) -> Result<Place, tonic::Status> {
        if !self.shared().line.is_formed()
            && !self.is_another_coming()
            && let Pick::Place(place) = self.look()
        {
            return Ok(place);
        }
        if self.is_another_coming() {
            self.wait_for_another().await;
        }
        let place = self.wait_for_place().await?;
        self.say_remaining();
        Ok(place)
    }

    /// Whether all that could take it now have failed it, and another one is being connected: the retry
    /// would go straight back to where it has just failed.
    fn is_another_coming(&self) -> bool {
        let passed = self.for_another.is_some_and(|end| Instant::now() >= end);
        !self.tried.is_empty() && !passed && self.shared().is_another_coming(&self.tried)
    }

    /// Until when it waits for that one: half of what is left of its deadline, so that there is time to go
    /// back, and never longer than for any instance.
    fn another_end(&mut self) -> Instant {
        let now = Instant::now();
        let left = self
            .deadline
            .map(|at| at.saturating_duration_since(now) / 2);
        let patience = left.map_or(PICK_WAIT_MAX, |left| left.min(PICK_WAIT_MAX));
        *self.for_another.get_or_insert(now + patience)
    }

    /// Waits for it, or until it does not come.
    async fn wait_for_another(&mut self) {
        let shared = Arc::clone(self.shared());
        let waiting = shared.waiters.wait();
        loop {
            let changed = waiting.changed();
            if !self.is_another_coming() {
                return;
            }
            let soon = Instant::now() + DIAL_WANTED_AFTER;
            // Looked at again in any case.
            let _ = timeout_at(self.another_end().min(soon), changed).await;
        }
    }

    async fn wait_for_place(&self) -> Result<Place, tonic::Status> {
        let shared = self.shared();
        let waiting = shared.waiters.wait();
        let for_stream = self.wait_end(STREAM_WAIT_MAX);
        let mut for_instance = None;
        let mut first: Option<First<'_>> = None;
        loop {
            if first.is_none() && shared.line.is_formed() {
                first = Some(self.join(for_stream).await?);
            }
            let changed = waiting.changed();
            let end = match self.look() {
                Pick::Place(place) => return Ok(place),
                Pick::Full(endpoint) => {
                    for_instance = None;
                    shared.tell_full();
                    endpoint.input(lameduck_core::endpoint::Input::Full);
                    if first.is_none() {
                        first = Some(self.join(for_stream).await?);
                        continue;
                    }
                    for_stream
                }
                Pick::Nothing => {
                    // All others of the line are to see it too.
                    first = None;
                    if self.is_in_vain() {
                        // Who calls again at once, in a loop, must not keep those from running who
                        // would bring news: this call has waited for nothing so far.
                        tokio::task::yield_now().await;
                        return Err(self.nowhere(shared.why_nothing()));
                    }
                    *for_instance.get_or_insert_with(|| self.wait_end(PICK_WAIT_MAX))
                }
            };
            // Looked at again before that: a dial that is worth another attempt by then is made.
            let soon = Instant::now() + DIAL_WANTED_AFTER;
            let is_last = end.is_some_and(|end| end <= soon);
            let until = end.map_or(soon, |end| end.min(soon));
            if timeout_at(until, changed).await.is_err() && is_last {
                return Err(self.nowhere(match first {
                    Some(_) => shared.why_full(),
                    None => shared.why_nothing(),
                }));
            }
        }
    }

    /// Waits until all that came before have a stream.
    async fn join(&self, end: Option<Instant>) -> Result<First<'_>, tonic::Status> {
        let shared = self.shared();
        by(end, shared.line.join())
            .await
            .ok_or_else(|| self.nowhere(shared.why_full()))
    }

    /// Until when it waits, where it would wait so long without a deadline; `None` is for ever.
    fn wait_end(&self, patience: std::time::Duration) -> Option<Instant> {
        let is_stream = patience == STREAM_WAIT_MAX;
        if self.options.wait_for_ready || (is_stream && self.deadline.is_some()) {
            return self.deadline;
        }
        let patience = Instant::now() + patience;
        Some(self.deadline.map_or(patience, |at| at.min(patience)))
    }

    /// Whether nothing is to be hoped for: the registry lists nobody, or all that it lists have just
    /// refused to be connected.
    fn is_in_vain(&self) -> bool {
        let shared = self.shared();
        let refused = shared.want_instance();
        let known_empty = shared.view.load().known_empty;
        (known_empty || refused) && !self.options.wait_for_ready
    }

    fn nowhere(&self, why: String) -> tonic::Status {
        if self.deadline.is_some_and(|at| Instant::now() >= at) {
            return error::deadline_nowhere(self.proof, self.attempts.placed(), &why);
        }
        error::nowhere(self.proof, self.attempts.placed(), why)
    }
}

/// What the future gives, or nothing where it takes longer than that.
async fn by<T>(end: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match end {
        Some(end) => timeout_at(end, future).await.ok(),
        None => Some(future.await),
    }
}

impl Shared {
    /// Says that calls wait for streams, once in a while.
    fn tell_full(self: &Arc<Self>) {
        if self
            .full_told
            .is_due(self.hub.clock().now(), STREAMS_TOLD_INTERVAL)
        {
            self.hub.emit(&Event::StreamsUsedUp {
                service: self.service.clone(),
                why: self.why_full(),
            });
        }
    }
}
