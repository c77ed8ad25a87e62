//! How a serving process leaves: the order, the deadlines, and what may still change its mind.
//!
//! One machine for a whole process, however many services and registries it has. It knows neither
//! sockets nor registries: it says what is to be done ([`Output`]) and is told what happened
//! ([`Input`]). The order is Starting → Serving → Closing → Draining → Stopped, and a stop that has
//! begun cannot fail: whatever does not happen in time becomes an entry of the [`Report`].

mod draining;
mod report;
#[cfg(test)]
mod tests;
mod words;

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

pub use report::{ClosingEnd, Problem, Reason, Report};
pub use words::{Command, HookPlan, Input, Output, Plan};

use crate::event::Phase;
use crate::instance::Life;
use crate::limits;
use crate::machine::{Machine, Ticket, earliest};
use crate::mutant;
use crate::registry::Want;
use crate::time::Timestamp;

/// The machine.
#[derive(Clone, Debug)]
pub struct Drain {
    plan: Plan,
    state: State,
    stop: Option<Stop>,
    /// The last ticket given out: completions of the current step carry it.
    ticket: Ticket,
    /// The ticket of the last want.
    want: Ticket,
    want_gone: bool,
    cut: bool,
    connections_gone: bool,
    /// Whether the program's own conditions hold.
    ready: bool,
    report: Report,
    out: VecDeque<Output>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Starting,
    Serving,
    Closing(Closing),
    Draining(Step),
    Stopped,
}

/// Closing, held where no stop has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Closing {
    since: Timestamp,
    /// When the connections of that time get their first GOAWAY; `None` once they have.
    go_away: Option<Timestamp>,
    /// When they all have got it.
    told_by: Timestamp,
    next_sample: Timestamp,
    counted: Option<Counted>,
    quiet_since: Timestamp,
}

/// The gate's counters of callers' requests, as last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted {
    admitted: u32,
    /// Without those that came back.
    learning: u32,
}

impl Counted {
    /// From counters that wrap at 2^32.
    const fn of(admitted: u64, returning: u64) -> Self {
        Self {
            admitted: admitted as u32,
            learning: admitted.wrapping_sub(returning) as u32,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Listener(Timestamp),
    GoAways(Timestamp),
    InFlight,
    /// What is still waited for, and until when.
    Leaving {
        gone: Option<Timestamp>,
        connections: Option<Timestamp>,
    },
    Hook {
        index: usize,
        by: Timestamp,
    },
}

/// A stop that has begun: its deadlines never move again, but see [`Drain::overslept`].
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stop {
    since: Timestamp,
    floor: Duration,
    closing_by: Timestamp,
    cut_by: Timestamp,
    end_by: Timestamp,
    /// Whether the counters have been read since it began.
    sampled: bool,
    /// Whether its end was moved.
    overslept: bool,
}

impl Drain {
    /// A process that is starting, as the life `life`.
    #[must_use]
    pub fn new(plan: Plan, life: Life) -> Self {
        let report = Report {
            life,
            reason: Reason::Abort,
            closing: Duration::ZERO,
            closing_end: ClosingEnd::Skipped,
            total: Duration::ZERO,
            deregistered: None,
            in_flight: 0,
            abandoned: 0,
            forced: false,
            problems: Vec::new(),
        };
        Self {
            plan,
            state: State::Starting,
            stop: None,
            ticket: Ticket::default(),
            want: Ticket::default(),
            want_gone: false,
            cut: false,
            connections_gone: false,
            ready: true,
            report,
            out: VecDeque::new(),
        }
    }

    /// The life that serves, or served last.
    #[must_use]
    pub const fn life(&self) -> Life {
        self.report.life
    }

    /// Where it stands.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        match self.state {
            State::Starting => Phase::Starting,
            State::Serving => Phase::Serving,
            State::Closing(_) => Phase::Closing,
            State::Draining(_) => Phase::Draining,
            State::Stopped => Phase::Stopped,
        }
    }

    // --- requests ---

    fn started(&mut self) {
        if self.state == State::Starting {
            self.state = State::Serving;
            self.put(Output::Enter(Phase::Serving));
            self.be_present();
        }
    }

    fn set_ready(&mut self, ready: bool) {
        let serves = self.state == State::Serving;
        if !serves && mutant!("drain/readiness-is-remembered") {
            return;
        }
        let changed = core::mem::replace(&mut self.ready, ready) != ready;
        if changed && (serves || mutant!("drain/ready-only-while-it-serves")) {
            self.be_present();
        }
    }

    fn begin(&mut self, now: Timestamp, command: Command, reason: Reason) {
        let runs = self.state != State::Stopped;
        let first = self.stop.is_none() && runs;
        // There is one stop: whoever asks for it hears the same.
        let granted = if mutant!("drain/one-answer") {
            first
        } else {
            runs
        };
        self.put(Output::Answer(command, granted));
        if !first && !mutant!("drain/one-stop") {
            return;
        }
        self.set_stop(now, reason);
        match &self.state {
            State::Starting => self.drain(now),
            State::Serving => self.close(now),
            // Time in a held drain counts: Closing may well be over at once.
            State::Closing(_) => self.sample(now),
            State::Draining(_) | State::Stopped => {}
        }
    }

    fn set_stop(&mut self, now: Timestamp, reason: Reason) {
        let floor = if reason == Reason::Terminal {
            Duration::ZERO
        } else {
            self.plan.floor
        };
        let margin = self.plan.margin.min(self.plan.budget / 2);
        let cut_by = now + (self.plan.budget - margin);
        self.stop = Some(Stop {
            since: now,
            floor,
            closing_by: (now + self.plan.cap).min(cut_by),
            cut_by,
            end_by: now + self.plan.budget,
            sampled: false,
            overslept: false,
        });
        if reason == Reason::ServerEnded {
            self.report.problems.push(Problem::ServerEnded);
        }
        self.report.reason = reason;
        self.put(Output::Stopping);
    }

    fn hold(&mut self, now: Timestamp, command: Command) {
        let serves = self.state == State::Serving;
        let held = matches!(self.state, State::Closing(_)) && self.stop.is_none();
        self.put(Output::Answer(command, serves || held));
        if serves {
            self.close(now);
        }
    }

    fn resume(&mut self, command: Command) {
        let held = matches!(self.state, State::Closing(_))
            && (self.stop.is_none() || mutant!("drain/no-resume-after-stop"));
        self.put(Output::Answer(command, held));
        if held {
            self.report.life = self.report.life.resumed();
            self.report.deregistered = None;
            self.state = State::Serving;
            self.put(Output::Enter(Phase::Serving));
            self.put(Output::Unmark(self.report.life));
            self.be_present();
        }
    }

    fn abort(&mut self, now: Timestamp) {
        if self.state == State::Stopped || self.report.forced {
            return;
        }
        self.report.forced = true;
        if self.stop.is_none() {
            self.set_stop(now, Reason::Abort);
        }
        let left = match self.state {
            State::Draining(Step::Leaving { gone, .. }) => gone.is_some(),
            State::Draining(Step::Hook { .. }) => false,
            State::Draining(_) => true,
            _ => {
                self.enter_draining(now);
                true
            }
        };
        self.put(Output::CloseGate);
        self.cut();
        self.want_gone();
        let by = (now + limits::ABORT_MAX).min(self.end_by());
        let connections = (!self.connections_gone).then_some(by);
        self.state = State::Draining(Step::Leaving {
            gone: left.then_some(by),
            connections,
        });
        self.after_leaving(now);
    }

    // --- Closing ---

    fn close(&mut self, now: Timestamp) {
        self.put(Output::Enter(Phase::Closing));
        self.put(Output::Unready);
        self.want = self.next_ticket();
        self.put(Output::Want(Want::Closing, self.want));
        self.put(Output::Announce);
        let delay = if mutant!("drain/go-away-delay") {
            Duration::ZERO
        } else {
            limits::GOAWAY_DELAY
        };
        self.state = State::Closing(Closing {
            since: now,
            go_away: Some(now + delay),
            told_by: Timestamp::MAX,
            next_sample: now,
            counted: None,
            quiet_since: now,
        });
        self.sample(now);
    }

    /// Asks for the counters, and says when to ask again: soon, or exactly when Closing might end.
    fn sample(&mut self, now: Timestamp) {
        let stop = self.stop.as_ref();
        let quiet = self.plan.quiet;
        if let State::Closing(closing) = &mut self.state {
            let soon = now + limits::QUIET_SAMPLE;
            let end =
                stop.map(|stop| (closing.since + stop.floor).max(closing.quiet_since + quiet));
            closing.next_sample = end
                .filter(|end| *end > now)
                .map_or(soon, |end| end.min(soon));
            self.put(Output::Sample);
        }
    }

    fn sampled(&mut self, now: Timestamp, counted: Counted, in_flight: u64) {
        let State::Closing(closing) = &mut self.state else {
            return;
        };
        let before = closing.counted.replace(counted).unwrap_or(counted);
        let told = now >= closing.told_by || mutant!("drain/all-are-told-first");
        // A peer that was told and came back learns nothing by waiting: a closed listener tells it.
        let heard = if told && !mutant!("drain/who-came-back-does-not-count") {
            before.learning != counted.learning
        } else {
            before.admitted != counted.admitted
        };
        if heard {
            closing.quiet_since = now;
        }
        let Some(stop) = &mut self.stop else { return };
        if !core::mem::replace(&mut stop.sampled, true) {
            self.report.in_flight = in_flight;
        }
        let floor = now >= closing.since + stop.floor || mutant!("drain/floor");
        let quiet = now >= closing.quiet_since + self.plan.quiet || mutant!("drain/quiet");
        if floor && quiet {
            self.report.closing_end = ClosingEnd::Quiet;
            self.drain(now);
        }
    }

    fn closing_timeout(&mut self, now: Timestamp) {
        let State::Closing(closing) = &mut self.state else {
            return;
        };
        let tell = closing.go_away.is_some_and(|at| at <= now);
        let sample = closing.next_sample <= now;
        if tell {
            let floor = self
                .stop
                .as_ref()
                .map_or(self.plan.floor, |stop| stop.floor);
            let pace = floor / limits::GOAWAY_PACE_DIVISOR;
            closing.go_away = None;
            closing.told_by = now + pace;
            self.put(Output::GoAwayExisting { pace });
        }
        let capped = self
            .stop
            .as_ref()
            .is_some_and(|stop| stop.closing_by <= now);
        if capped && !mutant!("drain/cap") {
            self.report.closing_end = ClosingEnd::Cap;
            self.drain(now);
        } else if sample {
            self.sample(now);
        }
    }

    // --- completions ---

    fn deregistered(&mut self, now: Timestamp, ticket: Ticket, result: Result<(), String>) {
        if ticket != self.want && !mutant!("drain/stale-want") {
            return;
        }
        if let State::Closing(closing) = &self.state {
            if result.is_ok() {
                self.report
                    .deregistered
                    .get_or_insert(now.saturating_since(closing.since));
            }
        } else if let State::Draining(Step::Leaving { gone, .. }) = &mut self.state
            && gone.take().is_some()
        {
            if let Err(why) = result {
                self.problem(Problem::Registration(why));
            }
            self.after_leaving(now);
        }
    }

    fn connections_gone(&mut self, now: Timestamp) {
        self.connections_gone = true;
        match &mut self.state {
            State::Starting | State::Serving | State::Closing(_) => {
                if self.stop.is_none() {
                    self.set_stop(now, Reason::ServerEnded);
                }
                // Nothing can come any more: what is left is to say goodbye.
                self.drain(now);
            }
            State::Draining(Step::Leaving { connections, .. }) => {
                *connections = None;
                self.after_leaving(now);
            }
            State::Draining(_) | State::Stopped => {}
        }
    }

    fn completed(&mut self, now: Timestamp, ticket: Ticket, what: &Completion) {
        if ticket != self.ticket && !mutant!("drain/stale-ticket") {
            return;
        }
        match (&self.state, what) {
            (State::Draining(Step::Listener(_)), Completion::Listener) => self.listener_closed(now),
            (State::Draining(Step::GoAways(_)), Completion::GoAways) => self.all_told(),
            (State::Draining(Step::InFlight), Completion::InFlight) => self.leave(now),
            (State::Draining(Step::Hook { index, .. }), Completion::Hook(result)) => {
                let index = *index;
                if let Err(why) = result {
                    let name = self.plan.hooks[index].name.clone();
                    let why = why.clone();
                    self.problem(Problem::HookFailed { name, why });
                }
                self.hook(now, index + 1);
            }
            _ => {}
        }
    }

    // --- small things ---

    /// Serves, to be called where it is ready.
    fn be_present(&mut self) {
        self.put(if self.ready {
            Output::Ready
        } else {
            Output::Unready
        });
        self.want = self.next_ticket();
        let life = self.report.life;
        let ready = self.ready || mutant!("drain/readiness-is-published");
        self.put(Output::Want(Want::Present { life, ready }, self.want));
    }

    fn want_gone(&mut self) {
        if !core::mem::replace(&mut self.want_gone, true) {
            self.want = self.next_ticket();
            self.put(Output::Want(Want::Gone, self.want));
        }
    }

    fn cut(&mut self) {
        if !core::mem::replace(&mut self.cut, true) {
            self.put(Output::Cut);
        }
    }

    fn cut_by(&self) -> Timestamp {
        self.stop
            .as_ref()
            .map_or(Timestamp::MAX, |stop| stop.cut_by)
    }

    fn end_by(&self) -> Timestamp {
        self.stop
            .as_ref()
            .map_or(Timestamp::MAX, |stop| stop.end_by)
    }

    /// Half of what is left, so that hooks get the other half.
    fn after_cut(&self, now: Timestamp) -> Timestamp {
        let left = self.end_by().saturating_since(now);
        now + (left / 2).min(limits::REVOKE_MAX)
    }

    fn problem(&mut self, problem: Problem) {
        self.report.problems.push(problem);
    }

    fn next_ticket(&mut self) -> Ticket {
        self.ticket = self.ticket.next();
        self.ticket
    }

    fn put(&mut self, output: Output) {
        self.out.push_back(output);
    }
}

enum Completion {
    Listener,
    GoAways,
    InFlight,
    Hook(Result<(), String>),
}

impl Machine for Drain {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Timestamp, input: Input) {
        match input {
            Input::Started => self.started(),
            Input::Begin(command, reason) => self.begin(now, command, reason),
            Input::Hold(command) => self.hold(now, command),
            Input::Resume(command) => self.resume(command),
            Input::Ready(ready) => self.set_ready(ready),
            Input::Abort => self.abort(now),
            Input::Sampled {
                admitted,
                returning,
                in_flight,
            } => self.sampled(now, Counted::of(admitted, returning), in_flight),
            Input::Deregistered(ticket, result) => self.deregistered(now, ticket, result),
            Input::ListenerClosed(ticket) => self.completed(now, ticket, &Completion::Listener),
            Input::FinalGoAways(ticket) => self.completed(now, ticket, &Completion::GoAways),
            Input::InFlightZero(ticket) => self.completed(now, ticket, &Completion::InFlight),
            Input::HookDone(ticket, result) => {
                self.completed(now, ticket, &Completion::Hook(result))
            }
            Input::ConnectionsGone => self.connections_gone(now),
            Input::WasCut { abandoned } => self.report.abandoned = abandoned,
        }
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.overslept(now);
        self.closing_timeout(now);
        self.step_timeout(now);
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<(Timestamp, &'static str)> {
        match &self.state {
            State::Closing(closing) => {
                let tell = closing.go_away.map(|at| (at, "go away"));
                let cap = self.stop.as_ref().map(|stop| (stop.closing_by, "cap"));
                earliest(earliest(tell, cap), Some((closing.next_sample, "quiet")))
            }
            State::Draining(step) => match step {
                Step::Listener(by) => Some((*by, "listener")),
                Step::GoAways(by) => Some((*by, "final GOAWAYs")),
                Step::InFlight => Some((self.cut_by(), "in flight")),
                Step::Leaving { gone, connections } => earliest(
                    gone.map(|by| (by, "registration gone")),
                    connections.map(|by| (by, "connections gone")),
                ),
                Step::Hook { by, .. } => Some((*by, "hook")),
            },
            State::Starting | State::Serving | State::Stopped => None,
        }
    }
}
