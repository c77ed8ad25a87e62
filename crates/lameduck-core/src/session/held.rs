//! A lease that is held, and what is published under it.

use core::time::Duration;

use super::{LeaseId, Output};
use crate::instance::Life;
use crate::limits;
use crate::machine::{Ticket, earliest};
use crate::mutant;
use crate::registry::Want;
use crate::time::Timestamp;

/// What stands in the registry under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Published {
    Serving(Serving),
    Closing(Life),
}

/// What is written of a life that serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Serving {
    pub(super) life: Life,
    pub(super) ready: bool,
    /// Whether our own records are written beside the foreign keys.
    pub(super) records: bool,
}

/// A piece of work on the keys. At most one is under way, so their order is never in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    Put(Serving),
    Close(Life),
    Check,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Free,
    Busy { ticket: Ticket, job: Job },
    Resting { until: Timestamp },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewal {
    At(Timestamp),
    Sent { ticket: Ticket, sent: Timestamp },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) lease: LeaseId,
    ttl: Duration,
    /// Counted from when the request was sent: the registry counts from later.
    pub(super) expires: Timestamp,
    /// It has ended by then, if the registry lets leases end: a renewal without an answer may have
    /// been taken as late as anybody waited for it.
    pub(super) ended_by: Timestamp,
    pub(super) renewal: Renewal,
    pub(super) work: Work,
    /// Whether our own records are tried.
    pub(super) records: bool,
    pub(super) published: Option<Published>,
    /// Whether *closing* stands under this lease, or may: a write that failed may have happened.
    said_closing: bool,
    put_at: Timestamp,
    check_due: bool,
    pub(super) damaged: bool,
}

impl Held {
    /// A lease that was asked for at `sent` and got at `now`.
    pub(super) fn new(lease: LeaseId, ttl: Duration, sent: Timestamp, now: Timestamp) -> Self {
        Self {
            lease,
            ttl,
            expires: sent + ttl,
            ended_by: now + ttl,
            renewal: Renewal::At(sent + ttl / limits::LEASE_RENEW_DIVISOR),
            work: Work::Free,
            records: true,
            published: None,
            said_closing: false,
            put_at: sent,
            check_due: false,
            damaged: false,
        }
    }

    pub(super) fn renew_interval(&self) -> Duration {
        self.ttl / limits::LEASE_RENEW_DIVISOR
    }

    pub(super) fn is_renewing(&self, ticket: Ticket) -> bool {
        matches!(self.renewal, Renewal::Sent { ticket: sent, .. } if sent == ticket)
    }

    pub(super) fn is_working(&self, ticket: Ticket) -> bool {
        matches!(self.work, Work::Busy { ticket: busy, .. } if busy == ticket)
    }

    /// Whether keys are being written now.
    pub(super) fn is_writing(&self) -> bool {
        matches!(self.work, Work::Busy { job, .. } if job != Job::Check)
    }

    pub(super) const fn is_resting(&self) -> bool {
        matches!(self.work, Work::Resting { .. })
    }

    /// Ends a rest: what is wanted has changed.
    pub(super) fn rouse(&mut self) {
        if self.is_resting() {
            self.work = Work::Free;
        }
    }

    /// Ends a rest that has lasted long enough.
    pub(super) fn wake(&mut self, now: Timestamp) {
        if matches!(self.work, Work::Resting { until } if until <= now) {
            self.work = Work::Free;
        }
    }

    /// A renewal is on its way.
    pub(super) fn renewing(&mut self, ticket: Ticket, sent: Timestamp) {
        self.renewal = Renewal::Sent { ticket, sent };
        let taken_by = sent + limits::REGISTRY_CALL_MAX;
        if !mutant!("session/a-late-renewal-counts") {
            self.ended_by = self.ended_by.max(taken_by + self.ttl);
        }
    }

    /// Takes a renewal's completion; `false` for a stale one.
    pub(super) fn renewed(&mut self, now: Timestamp, ticket: Ticket, ttl: Duration) -> bool {
        let Renewal::Sent { ticket: own, sent } = self.renewal else {
            return false;
        };
        if own != ticket {
            return false;
        }
        self.ttl = ttl;
        self.expires = sent + ttl;
        self.ended_by = now + ttl;
        self.renewal = Renewal::At(sent + self.renew_interval());
        self.check_due = true;
        true
    }

    /// Takes a job's completion: which job it was, `None` for a stale one.
    pub(super) fn finish(&mut self, ticket: Ticket) -> Option<Job> {
        let Work::Busy { ticket: own, job } = self.work else {
            return None;
        };
        if own != ticket {
            return None;
        }
        self.work = Work::Free;
        Some(job)
    }

    pub(super) fn put_done(&mut self, serving: Serving, now: Timestamp) {
        self.published = Some(Published::Serving(serving));
        self.put_at = now;
        self.damaged = false;
    }

    /// Whether `life` needs a lease of its own: this one has said *closing*, or is another life's.
    pub(super) fn is_spent(&self, life: Life) -> bool {
        if self.said_closing && !mutant!("session/resume-takes-a-new-lease") {
            return true;
        }
        let written = match self.work {
            Work::Busy {
                job: Job::Put(serving),
                ..
            } => Some(Published::Serving(serving)),
            _ => self.published,
        };
        match written {
            Some(Published::Serving(serving)) => serving.life != life,
            Some(Published::Closing(_)) | None => false,
        }
    }

    /// What is to be done so that `life` stands there as wanted.
    pub(super) fn next_job(&self, now: Timestamp, life: Life, ready: bool) -> Option<Job> {
        if self.work != Work::Free {
            return None;
        }
        let wanted = Serving {
            life,
            ready,
            records: self.records,
        };
        let put = Some(Job::Put(wanted));
        match self.published {
            _ if self.damaged => put,
            // What was refused of our records is said: callers that read them see an old state.
            Some(Published::Serving(old)) if old.records != self.records => put,
            Some(Published::Serving(old)) if old.ready != ready && self.shows_readiness() => {
                let rested = mutant!("session/changes-are-paced") || self.change_due() <= now;
                if rested { put } else { None }
            }
            Some(Published::Serving(_)) if self.check_due => Some(Job::Check),
            Some(Published::Serving(_)) => None,
            _ => put,
        }
    }

    /// Where our own records are denied too: the foreign keys go while it is not ready.
    fn shows_readiness(&self) -> bool {
        self.records || !mutant!("session/foreign-keys-show-readiness")
    }

    fn change_due(&self) -> Timestamp {
        self.put_at + limits::REPUBLISH_INTERVAL
    }

    pub(super) fn start(&mut self, ticket: Ticket, job: Job) -> Output {
        self.work = Work::Busy { ticket, job };
        self.said_closing |= matches!(job, Job::Close(_));
        let lease = self.lease;
        match job {
            Job::Put(Serving {
                life,
                ready,
                records,
            }) => Output::Put {
                ticket,
                lease,
                life,
                ready,
                records,
            },
            Job::Close(life) => Output::PutClosing {
                ticket,
                lease,
                life,
            },
            Job::Check => {
                self.check_due = false;
                let unready = matches!(self.published, Some(Published::Serving(old)) if !old.ready);
                Output::Check {
                    ticket,
                    lease,
                    ready: !unready,
                    records: self.records,
                }
            }
        }
    }

    /// Whether callers of every kind find this instance now (where it is ready), as far as is known.
    pub(super) fn is_listed(&self, now: Timestamp) -> bool {
        let serving = matches!(self.published, Some(Published::Serving(_)));
        serving && !self.damaged && now < self.expires
    }

    pub(super) fn deadline(
        &self,
        want: Option<Want>,
        told_registered: bool,
    ) -> Option<(Timestamp, &'static str)> {
        let renew = match self.renewal {
            Renewal::At(at) => Some((at, "renew")),
            Renewal::Sent { .. } => None,
        };
        let expiry = told_registered.then_some((self.expires, "the lease may have ended"));
        let work = match (self.work, want, self.published) {
            (Work::Resting { until }, _, _) => Some((until, "write again")),
            (Work::Free, Some(Want::Present { ready, .. }), Some(Published::Serving(old)))
                if ready != old.ready && self.shows_readiness() =>
            {
                Some((self.change_due(), "write the change"))
            }
            _ => None,
        };
        earliest(earliest(renew, expiry), work)
    }
}
