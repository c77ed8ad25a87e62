//! One process's lease in one registry: got, published under, renewed, lost, got again, given up.
//!
//! What is wanted is one value, [`Want`], which every step reads: nothing is ever registered by a
//! repair that a later decision to leave does not also stop. Under one lease *closing* is final: a
//! Resume takes a new lease, so a late write of the old one can revive nothing.
//!
//! A lease that could not be renewed for its whole TTL is not thrown away, it is asked for first:
//! a registry that was down gives its leases a fresh TTL when it comes back, and to revoke what it
//! has just kept would empty every list at once.

use alloc::collections::VecDeque;
use alloc::string::ToString;
use core::time::Duration;

use crate::backoff::Backoff;
use crate::instance::Life;
use crate::limits;
use crate::machine::{Machine, Ticket, earliest};
use crate::mutant;
use crate::registry::{ErrorClass, PublicationStatus, RegistryError, Want};
use crate::rng::Rng;
use crate::time::Timestamp;

mod held;
mod io;
#[cfg(test)]
mod tests;

pub use io::{Input, LeaseId, Output};

use held::{Held, Job, Published, Renewal, Serving, Work};

/// Where a session stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Holds nothing and asks for nothing.
    Idle,
    /// Waits before it asks for a lease again.
    Pausing { until: Timestamp },
    /// Has asked for a lease.
    Granting { ticket: Ticket, sent: Timestamp },
    /// Holds a lease.
    Holding(Held),
    /// Gives a lease up.
    Revoking {
        lease: LeaseId,
        ended_by: Timestamp,
        /// The revocation under way, or when to try again.
        step: Result<Ticket, Timestamp>,
    },
    /// Has left for good.
    Gone,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Session {
    want: Option<Want>,
    state: State,
    /// The lease of an earlier life, to be revoked once the next life is published.
    retiring: Option<LeaseId>,
    backoff: Backoff,
    rng: Rng,
    last_ticket: Ticket,
    out: VecDeque<Output>,
    reached: Option<Want>,
    metadata: bool,
    error: Option<RegistryError>,
    told: Option<PublicationStatus>,
}

impl Session {
    /// A session that holds nothing and wants nothing yet.
    #[must_use]
    pub fn new(rng: Rng) -> Self {
        let (first, last) = limits::REGISTRY_BACKOFF;
        Self {
            want: None,
            state: State::Idle,
            retiring: None,
            backoff: Backoff::new(first, last),
            rng,
            last_ticket: Ticket::default(),
            out: VecDeque::new(),
            reached: None,
            metadata: true,
            error: None,
            told: None,
        }
    }

    /// How the publication of a session that was just made stands.
    #[must_use]
    pub const fn initial_status() -> PublicationStatus {
        PublicationStatus {
            reached: None,
            registered: false,
            metadata: true,
            error: None,
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.last_ticket = self.last_ticket.next();
        self.last_ticket
    }

    fn pause(&mut self) -> Duration {
        self.backoff.next(&mut self.rng)
    }

    // --- what has happened ---------------------------------------------------------------------

    fn take_want(&mut self, now: Timestamp, want: Want) {
        if self.want == Some(Want::Gone) {
            return;
        }
        let same_kind = match (self.want, want) {
            (Some(Want::Present { life: old, .. }), Want::Present { life, .. }) => old == life,
            (old, new) => old == Some(new),
        };
        self.want = Some(want);
        if same_kind {
            return;
        }
        // Another intention does not wait out the pauses of the last one.
        self.backoff.reset();
        match &mut self.state {
            State::Pausing { until } => *until = now,
            State::Holding(held) => held.rouse(),
            _ => {}
        }
    }

    fn granted(&mut self, now: Timestamp, ticket: Ticket, lease: LeaseId, ttl: Duration) {
        let sent = match self.state {
            State::Granting {
                ticket: asked,
                sent,
            } if asked == ticket => sent,
            // Nobody waits for this lease any more: it must not make a leaver present again.
            _ if !mutant!("session/late-grant-is-given-back") => return self.give_back(lease),
            _ => now,
        };
        self.state = State::Holding(Held::new(lease, ttl, sent, now));
    }

    fn renewed(&mut self, now: Timestamp, ticket: Ticket, ttl: Duration) {
        if let State::Holding(held) = &mut self.state
            && held.renewed(now, ticket, ttl)
            && !held.is_resting()
        {
            self.clear_failures();
        }
    }

    fn done(&mut self, now: Timestamp, ticket: Ticket) {
        match &mut self.state {
            State::Holding(held) => match held.finish(ticket) {
                Some(Job::Put(serving)) => {
                    held.put_done(serving, now);
                    self.put_done(serving);
                }
                Some(Job::Close(life)) => {
                    held.published = Some(Published::Closing(life));
                    self.clear_failures();
                }
                Some(Job::Check) | None => {}
            },
            State::Revoking { step, .. } if *step == Ok(ticket) => self.revoked(),
            _ => {}
        }
    }

    fn put_done(&mut self, serving: Serving) {
        let Serving {
            life,
            ready,
            records,
        } = serving;
        self.reached = Some(Want::Present { life, ready });
        self.metadata = records;
        self.clear_failures();
        if let Some(old) = self.retiring.take() {
            self.give_back(old);
        }
    }

    fn clear_failures(&mut self) {
        self.error = None;
        self.backoff.reset();
    }

    fn checked(&mut self, ticket: Ticket, intact: bool) {
        if let State::Holding(held) = &mut self.state
            && held.finish(ticket) == Some(Job::Check)
            && !intact
        {
            held.damaged = true;
        }
    }

    fn lease_gone(&mut self, now: Timestamp, ticket: Ticket) {
        let (renewing, working) = match &self.state {
            State::Holding(held) => (held.is_renewing(ticket), held.is_working(ticket)),
            State::Revoking { step, .. } if *step == Ok(ticket) => return self.revoked(),
            _ => return,
        };
        if renewing {
            // Found out by the clock, so this cannot spin: the next lease is asked for at once.
            self.state = State::Idle;
        } else if working {
            let until = now + self.pause();
            self.state = State::Pausing { until };
        } else {
            return;
        }
        if matches!(self.want, Some(Want::Present { .. })) {
            self.error = Some(RegistryError {
                class: ErrorClass::Retry,
                message: "the lease is gone".to_string(),
            });
        }
    }

    fn failed(&mut self, now: Timestamp, ticket: Ticket, error: RegistryError) {
        if !self.owns(ticket) {
            return;
        }
        let pause = self.pause();
        match &mut self.state {
            State::Granting { .. } => self.state = State::Pausing { until: now + pause },
            State::Revoking { step, .. } => *step = Err(now + pause),
            State::Holding(held) if held.is_renewing(ticket) => {
                held.renewal = Renewal::At(now + pause.min(held.renew_interval()));
            }
            State::Holding(_) => {
                if !self.job_failed(now + pause, ticket, error.class) {
                    return;
                }
            }
            State::Idle | State::Pausing { .. } | State::Gone => {}
        }
        self.error = Some(error);
    }

    /// Whether this is the ticket of something under way.
    fn owns(&self, ticket: Ticket) -> bool {
        match &self.state {
            State::Granting { ticket: asked, .. } => *asked == ticket,
            State::Revoking { step, .. } => *step == Ok(ticket),
            State::Holding(held) => held.is_renewing(ticket) || held.is_working(ticket),
            State::Idle | State::Pausing { .. } | State::Gone => false,
        }
    }

    /// Decides how a failed piece of work goes on; says whether the failure is worth telling.
    fn job_failed(&mut self, again: Timestamp, ticket: Ticket, class: ErrorClass) -> bool {
        let State::Holding(held) = &mut self.state else {
            return false;
        };
        let job = held.finish(ticket);
        match job {
            None | Some(Job::Check) => return false,
            Some(Job::Put(_)) if class == ErrorClass::Refused && held.records => {
                // The registry refuses the transaction as a whole: foreign keys alone, then.
                held.records = false;
                return false;
            }
            Some(Job::Put(_)) => {
                held.records = held.records || class == ErrorClass::Refused;
                if matches!(self.want, Some(Want::Present { .. })) {
                    held.work = Work::Resting { until: again };
                }
            }
            Some(Job::Close(_)) if class != ErrorClass::Retry => {
                // No *closing* can be written, but revoking always works.
                let (lease, ended_by) = (held.lease, held.ended_by);
                self.revoke(lease, ended_by);
            }
            Some(Job::Close(_)) => held.work = Work::Resting { until: again },
        }
        true
    }

    // --- what is to be done --------------------------------------------------------------------

    fn settle(&mut self, now: Timestamp) {
        self.retry_revocation(now);
        match self.want {
            None => {}
            Some(Want::Present { life, ready }) => self.be_present(now, life, ready),
            Some(Want::Closing) => self.be_closing(),
            Some(Want::Gone) => self.be_gone(),
        }
        self.renew(now);
        self.tell(now);
    }

    fn be_present(&mut self, now: Timestamp, life: Life, ready: bool) {
        match &mut self.state {
            State::Idle => self.grant(now),
            State::Pausing { until } if *until <= now => self.grant(now),
            State::Revoking { lease, .. } => {
                // A Resume after a revocation: that one may end by itself.
                let lease = *lease;
                self.retiring = None;
                self.give_back(lease);
                self.grant(now);
            }
            State::Holding(held) if held.is_spent(life) => {
                let lease = held.lease;
                match self.retiring {
                    // Still on the way from an earlier life: this one has never been seen.
                    Some(_) => self.give_back(lease),
                    None => self.retiring = Some(lease),
                }
                self.grant(now);
            }
            State::Holding(held) => {
                if let Some(job) = held.next_job(now, life, ready) {
                    self.start(job);
                }
            }
            State::Pausing { .. } | State::Granting { .. } | State::Gone => {}
        }
    }

    fn be_closing(&mut self) {
        match &mut self.state {
            State::Idle | State::Pausing { .. } | State::Granting { .. } => {
                self.state = State::Idle;
                self.left(Want::Closing);
            }
            State::Holding(held) => match held.published {
                Some(Published::Closing(_)) => self.reached = Some(Want::Closing),
                // What was sent may have arrived, so it is waited for: closing comes after it.
                _ if held.is_writing() || held.is_resting() => {}
                Some(Published::Serving(Serving {
                    life,
                    records: true,
                    ..
                })) => self.start(Job::Close(life)),
                _ => {
                    let (lease, ended_by) = (held.lease, held.ended_by);
                    self.revoke(lease, ended_by);
                }
            },
            State::Revoking { .. } | State::Gone => {}
        }
    }

    fn be_gone(&mut self) {
        match &self.state {
            State::Idle | State::Pausing { .. } | State::Granting { .. } => {
                self.state = State::Gone;
                self.left(Want::Gone);
            }
            State::Holding(held) => {
                let (lease, ended_by) = (held.lease, held.ended_by);
                self.revoke(lease, ended_by);
            }
            State::Revoking { .. } | State::Gone => {}
        }
    }

    /// Nothing of ours is published any more, as `want` asks.
    fn left(&mut self, want: Want) {
        if let Some(old) = self.retiring.take() {
            self.give_back(old);
        }
        if self.reached != Some(want) {
            self.reached = Some(want);
            self.clear_failures();
        }
    }

    fn grant(&mut self, now: Timestamp) {
        let ticket = self.ticket();
        self.state = State::Granting { ticket, sent: now };
        self.out.push_back(Output::Grant { ticket });
    }

    fn start(&mut self, job: Job) {
        let ticket = self.ticket();
        let State::Holding(held) = &mut self.state else {
            return;
        };
        self.out.push_back(held.start(ticket, job));
    }

    /// Revokes a lease that is not this session's state any more: its TTL ends it otherwise.
    fn give_back(&mut self, lease: LeaseId) {
        let ticket = self.ticket();
        self.out.push_back(Output::Revoke { ticket, lease });
    }

    fn revoke(&mut self, lease: LeaseId, ended_by: Timestamp) {
        let ticket = self.ticket();
        let step = Ok(ticket);
        self.state = State::Revoking {
            lease,
            ended_by,
            step,
        };
        self.out.push_back(Output::Revoke { ticket, lease });
    }

    fn revoked(&mut self) {
        self.state = State::Idle;
    }

    fn retry_revocation(&mut self, now: Timestamp) {
        let State::Revoking {
            lease,
            ended_by,
            step,
        } = self.state
        else {
            return;
        };
        if ended_by <= now {
            self.revoked();
        } else if step.is_err_and(|again| again <= now) {
            self.revoke(lease, ended_by);
        }
    }

    fn renew(&mut self, now: Timestamp) {
        if let State::Holding(held) = &self.state
            && matches!(held.renewal, Renewal::At(at) if at <= now)
        {
            if mutant!("session/outlived-lease-is-asked-for") && held.expires <= now {
                let lease = held.lease;
                self.state = State::Pausing { until: now };
                return self.give_back(lease);
            }
            let lease = held.lease;
            let ticket = self.ticket();
            if let State::Holding(held) = &mut self.state {
                held.renewing(ticket, now);
            }
            self.out.push_back(Output::Renew { ticket, lease });
        }
    }

    fn tell(&mut self, now: Timestamp) {
        let status = PublicationStatus {
            reached: self.reached,
            registered: matches!(&self.state, State::Holding(held) if held.is_listed(now)),
            metadata: self.metadata,
            error: self.error.clone(),
        };
        if self.told.as_ref().unwrap_or(&Self::initial_status()) != &status {
            self.told = Some(status.clone());
            self.out.push_back(Output::Status(status));
        }
    }
}

impl Machine for Session {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Timestamp, input: Input) {
        match input {
            Input::Want(want) => self.take_want(now, want),
            Input::Granted { ticket, lease, ttl } => self.granted(now, ticket, lease, ttl),
            Input::Renewed { ticket, ttl } => self.renewed(now, ticket, ttl),
            Input::Done { ticket } => self.done(now, ticket),
            Input::Checked { ticket, intact } => self.checked(ticket, intact),
            Input::LeaseGone { ticket } => self.lease_gone(now, ticket),
            Input::Failed { ticket, error } => self.failed(now, ticket, error),
        }
        self.settle(now);
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if let State::Holding(held) = &mut self.state {
            held.wake(now);
        }
        self.settle(now);
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<(Timestamp, &'static str)> {
        match &self.state {
            State::Idle | State::Granting { .. } | State::Gone => None,
            State::Pausing { until } => Some((*until, "ask for a lease again")),
            State::Revoking { ended_by, step, .. } => {
                let again = step.err().map(|again| (again, "revoke again"));
                earliest(again, Some((*ended_by, "the lease has ended by itself")))
            }
            State::Holding(held) => held.deadline(self.want, self.told_registered()),
        }
    }
}

impl Session {
    fn told_registered(&self) -> bool {
        self.told.as_ref().is_some_and(|status| status.registered)
    }
}
