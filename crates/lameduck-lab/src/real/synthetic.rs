//! A run that never happened, for the judges' tests: two servers, two callers, one drain, one kill,
//! and not one fault.

use std::net::SocketAddr;
use std::time::Duration;

use lameduck_core::event::Tier;
use lameduck_core::instance::{BootId, Life};
use lameduck_core::time::Timestamp;

use super::ledger::{Ledger, Source};
use super::oracle::{Drain, History, Kill};
use super::plan::{Plan, Planned};
use super::record::{CallId, Kind, Line, Place, Record};

pub(super) const SIGNAL: Duration = Duration::from_millis(1_000);
pub(super) const KILLED: Duration = Duration::from_millis(2_000);
const AWAY: Duration = Duration::from_millis(400);
const STOPPED: Duration = Duration::from_millis(3_000);

/// The lines of all files, and what the lab did.
pub(super) struct Synthetic {
    pub(super) plan: Plan,
    pub(super) history: History,
    pub(super) lines: Vec<(Source, Line)>,
}

/// The life of `server` that is its `generation`th, from 0.
pub(super) fn life(server: u16, generation: u16) -> Life {
    let bits = u128::from(server) * 100 + u128::from(generation) + 1;
    Life::first(BootId::from_bits(bits))
}

pub(super) fn place(server: u16, generation: u16) -> Place {
    Place {
        address: SocketAddr::from(([127, 0, 0, 1], 7_000 + server)),
        life: Some(life(server, generation)),
    }
}

impl Synthetic {
    /// Server 0 leaves at [`SIGNAL`], server 1 is killed at [`KILLED`]; both come back.
    pub(super) fn clean(seed: u64) -> Self {
        let start_ns = 10_000_000_000;
        let plan = Plan {
            slow_link: false,
            seed,
            rate: 400,
            callers: 2,
            start_ns,
        };
        let start = plan.start();
        let drain = Drain {
            server: 0,
            life: life(0, 0),
            signalled: start + SIGNAL,
            exited: start + SIGNAL + AWAY,
        };
        let kill = Kill {
            server: 1,
            life: life(1, 0),
            at: start + KILLED,
        };
        let history = History {
            failover: true,
            drains: vec![drain],
            kills: vec![kill],
            stopped: start + STOPPED,
            ..History::default()
        };
        let lines = Vec::new();
        let mut run = Self {
            plan,
            history,
            lines,
        };
        run.write_servers();
        run.write_callers();
        run.lines.sort_by_key(|(source, line)| (line.at, *source));
        run
    }

    pub(super) fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::default();
        for (source, line) in &self.lines {
            ledger.take(*source, line.clone());
        }
        ledger
    }

    /// A call of `kind` that was answered, due at `after` the start or later.
    pub(super) fn a_call(&self, kind: Kind, after: Duration) -> CallId {
        let from = self.plan.first_due(0, self.at(after));
        let mut ids = (from..).map(|number| CallId { caller: 0, number });
        ids.find(|id| self.plan.call(*id).kind == kind)
            .expect("the plan has no end")
    }

    /// The one record that `is` tells, to be changed.
    pub(super) fn record(&mut self, is: impl Fn(&Record) -> bool) -> &mut Line {
        let mut lines = self.lines.iter_mut().map(|(_, line)| line);
        lines.find(|line| is(&line.record)).expect("there is one")
    }

    /// Takes away all lines that `is` tells.
    pub(super) fn remove(&mut self, is: impl Fn(&Record) -> bool) {
        self.lines.retain(|(_, line)| !is(&line.record));
    }

    /// Adds a line at its place.
    pub(super) fn add(&mut self, source: Source, at: Timestamp, record: Record) {
        self.lines.push((source, Line { at, record }));
        self.lines.sort_by_key(|(source, line)| (line.at, *source));
    }

    pub(super) fn at(&self, after: Duration) -> Timestamp {
        self.plan.start() + after
    }

    fn write_servers(&mut self) {
        for server in 0..2 {
            let away = if server == 0 { SIGNAL } else { KILLED };
            let before = self.plan.start() - Duration::from_millis(100);
            for (generation, born) in [(0, before), (1, self.at(away + AWAY))] {
                let place = place(server, generation);
                let record = Record::Born {
                    life: life(server, generation),
                    address: place.address,
                };
                self.write(Source::Server(server), born, record);
                self.moved(place, born, Tier::Ready);
            }
            self.moved(place(server, 0), self.at(away) + ms(3), Tier::Out);
        }
        for caller in 0..2 {
            let record = Record::Closing {
                place: place(0, 0),
                source: "mark".to_owned(),
            };
            self.write(Source::Caller(caller), self.at(SIGNAL) + ms(3), record);
        }
        let drained = Record::Drained {
            exit: 0,
            abandoned: 0,
        };
        let at = self.at(SIGNAL + AWAY) - ms(1);
        self.write(Source::Server(0), at, drained);
    }

    fn moved(&mut self, place: Place, at: Timestamp, tier: Tier) {
        for caller in 0..2 {
            let record = Record::Moved { place, tier };
            self.write(Source::Caller(caller), at, record);
        }
    }

    fn write_callers(&mut self) {
        for caller in 0..self.plan.callers {
            let end = self.plan.first_due(caller, self.history.stopped);
            for number in 0..end {
                let id = CallId { caller, number };
                self.write_call(id, &self.plan.call(id));
            }
            let at = self.history.stopped + ms(900);
            self.write(Source::Caller(caller), at, Record::Stopped { next: end });
        }
    }

    fn write_call(&mut self, id: CallId, call: &Planned) {
        let caller = Source::Caller(id.caller);
        let sent = call.due + Duration::from_micros(100);
        let intent = Record::Intent {
            id,
            kind: call.kind,
            due: call.due,
        };
        self.write(caller, sent, intent);
        let (server, generation) = self.choose(id, sent);
        self.write_start(id, (server, generation), sent);
        let end = sent + call.work * call.items;
        let dies = server == 1 && generation == 0 && end >= self.at(KILLED);
        if !dies {
            self.write_answer(id, call, life(server, generation), end);
        } else if call.kind.is_idempotent() {
            let again = self.at(KILLED) + ms(1);
            self.write_start(id, (0, 1), again);
            self.write_answer(id, call, life(0, 1), again + call.work);
        } else {
            let error = "the connection is gone".to_owned();
            let at = self.at(KILLED) + ms(1);
            self.write(caller, at, Record::Failed { id, error });
        }
    }

    fn choose(&self, id: CallId, sent: Timestamp) -> (u16, u16) {
        let after = sent.saturating_since(self.plan.start());
        let is_away = |gone: Duration| after >= gone && after < gone + AWAY + ms(5);
        let server = match id.number % 2 {
            0 if is_away(SIGNAL) => 1,
            1 if is_away(KILLED) => 0,
            other => other as u16,
        };
        let gone = if server == 0 { SIGNAL } else { KILLED };
        (server, u16::from(after >= gone))
    }

    fn write_start(&mut self, id: CallId, (server, generation): (u16, u16), at: Timestamp) {
        let picked = Record::Picked {
            id: Some(id),
            place: place(server, generation),
            tier: Tier::Ready,
        };
        self.write(Source::Caller(id.caller), at, picked);
        let life = life(server, generation);
        let started = Record::Started { id, life };
        let at = at + Duration::from_micros(200);
        self.write(Source::Server(server), at, started);
    }

    fn write_answer(&mut self, id: CallId, call: &Planned, life: Life, at: Timestamp) {
        let items = call.items;
        let record = Record::Answered { id, life, items };
        let at = at + Duration::from_micros(300);
        self.write(Source::Caller(id.caller), at, record);
    }

    fn write(&mut self, source: Source, at: Timestamp, record: Record) {
        self.lines.push((source, Line { at, record }));
    }
}

pub(super) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
