//! The steps of Draining: listener, GOAWAYs, what is in flight, registration and connections, hooks.

use alloc::string::String;

use super::{Drain, Output, Problem, State, Step};
use crate::event::Phase;
use crate::limits;
use crate::mutant;
use crate::time::Timestamp;

impl Drain {
    pub(super) fn enter_draining(&mut self, now: Timestamp) {
        match &self.state {
            State::Closing(closing) => self.report.closing = now.saturating_since(closing.since),
            State::Serving => self.put(Output::Unready),
            State::Starting | State::Draining(_) | State::Stopped => {}
        }
        self.put(Output::Enter(Phase::Draining));
    }

    pub(super) fn drain(&mut self, now: Timestamp) {
        self.enter_draining(now);
        let ticket = self.next_ticket();
        self.put(Output::CloseListener(ticket));
        let by = (now + limits::LISTENER_CLOSE_MAX).min(self.cut_by());
        self.state = State::Draining(Step::Listener(by));
    }

    pub(super) fn listener_closed(&mut self, now: Timestamp) {
        let ticket = self.next_ticket();
        self.put(Output::GoAwayAll(ticket));
        let by = (now + limits::FINAL_GOAWAY_MAX * 2).min(self.cut_by());
        self.state = State::Draining(Step::GoAways(by));
    }

    pub(super) fn all_told(&mut self) {
        self.put(Output::CloseGate);
        self.put(Output::EndWatches);
        let ticket = self.next_ticket();
        self.put(Output::AwaitInFlight(ticket));
        self.state = State::Draining(Step::InFlight);
    }

    pub(super) fn leave(&mut self, now: Timestamp) {
        let revoked_by = if self.cut {
            self.after_cut(now)
        } else {
            self.slow_by(now)
        };
        let flushed_by = if self.cut {
            self.after_cut(now)
        } else {
            self.cut_by()
        };
        self.state = State::Draining(Step::Leaving {
            gone: Some(revoked_by.min(self.end_by())),
            connections: (!self.connections_gone).then_some(flushed_by),
        });
        self.want_gone();
    }

    /// Until when a registry may confirm that the process is gone. The edge gives up sooner on one that
    /// fails; hooks keep half of what is left of the budget.
    fn slow_by(&self, now: Timestamp) -> Timestamp {
        if mutant!("drain/slow-registry") {
            return now + limits::REVOKE_MAX;
        }
        let left = self.end_by().saturating_since(now);
        now + (left / 2)
            .min(limits::REVOKE_SLOW_MAX)
            .max(limits::REVOKE_MAX)
    }

    pub(super) fn after_leaving(&mut self, now: Timestamp) {
        let State::Draining(Step::Leaving {
            gone: None,
            connections: None,
        }) = self.state
        else {
            return;
        };
        if self.report.forced {
            self.done(now);
        } else {
            self.hook(now, 0);
        }
    }

    pub(super) fn hook(&mut self, now: Timestamp, index: usize) {
        if index >= self.plan.hooks.len() {
            return self.done(now);
        }
        let ticket = self.next_ticket();
        self.put(Output::RunHook(index, ticket));
        // A fair share of what is left: a hook that hangs does not take the time of the next.
        let waiting = u32::try_from(self.plan.hooks.len() - index).unwrap_or(u32::MAX);
        let share = self.end_by().saturating_since(now) / waiting;
        let max = if mutant!("drain/hook-max") {
            limits::HOOK_MAX
        } else {
            self.plan.hooks[index].max
        };
        let by = now + share.min(max);
        self.state = State::Draining(Step::Hook { index, by });
    }

    pub(super) fn done(&mut self, now: Timestamp) {
        if let Some(stop) = &self.stop {
            self.report.total = now.saturating_since(stop.since);
        }
        self.state = State::Stopped;
        self.put(Output::Enter(Phase::Stopped));
        self.put(Output::Done(self.report.clone()));
    }

    /// A process that was frozen past the end of its budget finds all of its deadlines passed at once.
    /// What is left to say (resets, the registry's goodbye, hooks) gets a moment nevertheless, once: as
    /// much as a forced stop.
    pub(super) fn overslept(&mut self, now: Timestamp) {
        let Some(stop) = &mut self.stop else { return };
        let late = now > stop.end_by + limits::ABORT_MAX && !stop.overslept;
        if !late || mutant!("drain/overslept") {
            return;
        }
        stop.overslept = true;
        stop.end_by = now + limits::ABORT_MAX;
        let end = stop.end_by;
        let half = self.after_cut(now);
        match &mut self.state {
            State::Draining(Step::Leaving { gone, connections }) => {
                for by in [gone, connections].into_iter().flatten() {
                    *by = half;
                }
            }
            State::Draining(Step::Hook { by, .. }) => *by = end,
            State::Draining(Step::Listener(_) | Step::GoAways(_) | Step::InFlight)
            | State::Starting
            | State::Serving
            | State::Closing(_)
            | State::Stopped => {}
        }
    }

    pub(super) fn step_timeout(&mut self, now: Timestamp) {
        let State::Draining(step) = self.state.clone() else {
            return;
        };
        match step {
            Step::Listener(by) if by <= now => {
                self.problem(Problem::Listener);
                self.listener_closed(now);
            }
            Step::GoAways(by) if by <= now => {
                self.problem(Problem::GoAways);
                self.all_told();
            }
            Step::InFlight if self.cut_by() <= now && !mutant!("drain/budget") => {
                self.problem(Problem::Connections);
                self.cut();
                self.leave(now);
            }
            Step::Leaving { gone, connections } => self.leaving_timeout(now, gone, connections),
            Step::Hook { index, by } if by <= now => {
                let name = self.plan.hooks[index].name.clone();
                self.problem(Problem::HookLeft { name });
                self.hook(now, index + 1);
            }
            _ => {}
        }
    }

    pub(super) fn leaving_timeout(
        &mut self,
        now: Timestamp,
        mut gone: Option<Timestamp>,
        mut connections: Option<Timestamp>,
    ) {
        if gone.is_some_and(|by| by <= now) {
            self.problem(Problem::Registration(String::from("no answer in time")));
            gone = None;
        }
        if connections.is_some_and(|by| by <= now) {
            connections = None;
            if !self.cut {
                self.problem(Problem::Connections);
                self.cut();
                connections = Some(self.after_cut(now));
            }
        }
        self.state = State::Draining(Step::Leaving { gone, connections });
        self.after_leaving(now);
    }
}
