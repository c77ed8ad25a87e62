//! The account of a run: all files' lines, folded by call and by life.
//!
//! It grows by about a hundred bytes a call, so that a run of an hour fits into memory; whoever
//! wants the story of one call reads the files again.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use lameduck_core::event::Tier;
use lameduck_core::instance::Life;
use lameduck_core::time::Timestamp;

use super::picks::View;
use super::plan::Plan;
use super::record::{CallId, Kind, Line, Place, Record};
use super::stalls::{self, Stall, Whose};

/// Whose file a line is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A life of the server in this place.
    Server(u16),
    /// This caller.
    Caller(u16),
}

/// How a call ended, as its caller says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// Not yet.
    #[default]
    Open,
    /// With its whole answer.
    Answered {
        /// When.
        at: Timestamp,
        /// The life that the answer names.
        life: Life,
        /// Items that came.
        items: u32,
    },
    /// With an error.
    Failed {
        /// When.
        at: Timestamp,
        /// Whether the error is that its time was over, and not that anybody refused it or cut it.
        timed_out: bool,
    },
}

impl End {
    /// When the call ended.
    #[must_use]
    pub const fn at(self) -> Option<Timestamp> {
        match self {
            Self::Open => None,
            Self::Answered { at, .. } | Self::Failed { at, .. } => Some(at),
        }
    }
}

/// What a caller is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent {
    /// What it asks for.
    pub kind: Kind,
    /// When the plan wanted it sent.
    pub due: Timestamp,
    /// When it was.
    pub sent: Timestamp,
}

/// One call.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// What its caller wrote down before the call.
    pub intent: Option<Intent>,
    /// Its end. The first one counts; a second one is counted in [`Ledger::second_ends`].
    pub end: End,
    /// Which lives started it, and when.
    pub starts: Vec<(Life, Timestamp)>,
    /// The life that the caller chose last, where that is known.
    pub picked: Option<Life>,
}

/// One life of a server.
#[derive(Clone, Debug)]
pub struct LifeAccount {
    /// Which server, from 0.
    pub server: u16,
    /// Where it listened.
    pub address: SocketAddr,
    /// When it said so.
    pub born: Timestamp,
    /// The phase that it wrote down last; empty before.
    pub phase: String,
    /// All phases that it wrote down, and when.
    pub phases: Vec<(Timestamp, String)>,
    /// When it started one last.
    pub last_started: Option<Timestamp>,
    /// Whether all that did not end well is a registration that may be left; none where all did.
    pub only_left: Option<bool>,
    /// Exit code and number of cut requests, once it has drained.
    pub drained: Option<(u8, u64)>,
    /// For each caller: when it chose this life last.
    pub last_picked: BTreeMap<u16, Timestamp>,
    /// For each caller: when it first had a call started here.
    pub first_used: BTreeMap<u16, Timestamp>,
    /// For each caller: where it stood in the order of choice, from when on.
    pub moves: BTreeMap<u16, Vec<(Timestamp, Tier)>>,
}

/// Calls that were placed once more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retried {
    /// Provably not processed before.
    pub proven: u64,
    /// Perhaps processed before.
    pub unproven: u64,
}

/// The account.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    calls: Vec<Vec<Call>>,
    lives: HashMap<Life, LifeAccount>,
    views: BTreeMap<u16, View>,
    /// Calls placed once more.
    pub retried: Retried,
    /// Ends of calls that had ended.
    pub second_ends: Vec<CallId>,
    /// Calls started by a life that never said that it lives.
    pub starts_of_strangers: u64,
    /// Picks against the rule: caller, when, and for which call.
    pub bad_picks: Vec<(u16, Timestamp, Option<CallId>)>,
    /// For each caller that has stopped: the first call that it did not send.
    pub stopped: BTreeMap<u16, u32>,
    /// Calls started by each server, whatever its life.
    pub started_by: BTreeMap<u16, u64>,
    /// Calls that were last placed at each server and did not end well, so far.
    pub failed_at: BTreeMap<u16, u64>,
    /// Calls that have ended well, and calls that have not, so far.
    pub ended: (u64, u64),
    /// When the machine, or one process of the run, stood still, in no order.
    pub stalls: Vec<Stall>,
}

impl Ledger {
    /// Takes the next line of a file. Lines of one file come in their order; where callers know
    /// endpoints by address alone, a server's lines must come before the callers' that follow them.
    pub fn take(&mut self, source: Source, line: Line) {
        if let Record::Stalled { late } = line.record {
            let whose = Whose::Child(source);
            self.stalls.push(Stall::new(whose, line.at, late));
            return;
        }
        match source {
            Source::Server(server) => self.take_server(server, line),
            Source::Caller(caller) => self.take_caller(caller, line),
        }
    }

    /// All calls that anybody wrote about.
    pub fn calls(&self) -> impl Iterator<Item = (CallId, &Call)> {
        (0..self.calls.len()).flat_map(|caller| self.calls_of(caller as u16, 0, u32::MAX))
    }

    /// What anybody wrote about the call `id`.
    #[must_use]
    pub fn call_of(&self, id: CallId) -> Option<&Call> {
        self.calls
            .get(usize::from(id.caller))?
            .get(id.number as usize)
    }

    /// All calls that `plan` wants sent in `from..to`, and that anybody wrote about.
    pub fn calls_due(
        &self,
        plan: &Plan,
        from: Timestamp,
        to: Timestamp,
    ) -> impl Iterator<Item = (CallId, &Call)> {
        (0..plan.callers).flat_map(move |caller| {
            let (first, last) = (plan.first_due(caller, from), plan.first_due(caller, to));
            self.calls_of(caller, first, last)
        })
    }

    /// The first call of `caller` after all that anybody wrote about.
    #[must_use]
    pub fn known(&self, caller: u16) -> u32 {
        let calls = self.calls.get(usize::from(caller));
        calls.map_or(0, |calls| calls.len() as u32)
    }

    /// What is known of `life`.
    #[must_use]
    pub fn life(&self, life: Life) -> Option<&LifeAccount> {
        self.lives.get(&life)
    }

    /// All lives, in no order.
    pub fn lives(&self) -> impl Iterator<Item = (Life, &LifeAccount)> {
        self.lives.iter().map(|(life, account)| (*life, account))
    }

    /// The life that listened at `address` at `instant`: the last one born there before.
    #[must_use]
    pub fn life_at(&self, address: SocketAddr, instant: Timestamp) -> Option<Life> {
        let there = |account: &LifeAccount| account.address == address && account.born <= instant;
        let lives = self.lives.iter().filter(|(_, account)| there(account));
        lives
            .max_by_key(|(_, account)| account.born)
            .map(|(life, _)| *life)
    }

    fn calls_of(&self, caller: u16, from: u32, to: u32) -> impl Iterator<Item = (CallId, &Call)> {
        let all = self
            .calls
            .get(usize::from(caller))
            .map_or(&[][..], Vec::as_slice);
        let to = (to as usize).min(all.len());
        let from = (from as usize).min(to);
        all[from..to]
            .iter()
            .zip(from as u32..)
            .map(move |(call, number)| (CallId { caller, number }, call))
    }

    fn take_server(&mut self, server: u16, line: Line) {
        match line.record {
            Record::Born { life, address } => {
                self.lives
                    .insert(life, LifeAccount::new(server, address, line.at));
            }
            Record::Started { id, life } => self.started(id, life, line.at),
            Record::Phase(phase) => {
                if let Some(account) = self.newest_of(server) {
                    account.phase.clone_from(&phase);
                    account.phases.push((line.at, phase));
                }
            }
            Record::Problem { is_left, .. } => {
                if let Some(account) = self.newest_of(server) {
                    account.only_left = Some(is_left && account.only_left.unwrap_or(true));
                }
            }
            Record::Drained { exit, abandoned } => {
                if let Some(account) = self.newest_of(server) {
                    account.drained = Some((exit, abandoned));
                }
            }
            _ => {}
        }
    }

    /// The last life of `server`.
    #[must_use]
    pub fn newest(&self, server: u16) -> Option<(Life, &LifeAccount)> {
        let lives = self.lives.iter().map(|(life, account)| (*life, account));
        let there = lives.filter(|(_, account)| account.server == server);
        there.max_by_key(|(_, account)| account.born)
    }

    /// How many endpoints `caller` has in the first tier of its order of choice.
    #[must_use]
    pub fn ready_in(&self, caller: u16) -> usize {
        self.views.get(&caller).map_or(0, View::ready)
    }

    fn newest_of(&mut self, server: u16) -> Option<&mut LifeAccount> {
        let accounts = self.lives.values_mut();
        accounts
            .filter(|account| account.server == server)
            .max_by_key(|account| account.born)
    }

    fn started(&mut self, id: CallId, life: Life, at: Timestamp) {
        self.call(id).starts.push((life, at));
        let Some(account) = self.lives.get_mut(&life) else {
            self.starts_of_strangers += 1;
            return;
        };
        *self.started_by.entry(account.server).or_default() += 1;
        account.last_started = account.last_started.max(Some(at));
        account.first_used.entry(id.caller).or_insert(at);
    }

    fn take_caller(&mut self, caller: u16, line: Line) {
        let at = line.at;
        let record = self.with_life(line.record, at);
        if self.views.entry(caller).or_default().take(&record) {
            let id = match record {
                Record::Picked { id, .. } => id,
                _ => None,
            };
            self.bad_picks.push((caller, at, id));
        }
        match record {
            Record::Intent { id, kind, due } => {
                let sent = at;
                self.call(id).intent = Some(Intent { kind, due, sent });
            }
            Record::Answered { id, life, items } => {
                self.ended(id, End::Answered { at, life, items });
            }
            Record::Failed { id, error } => {
                let timed_out = stalls::is_timeout(&error);
                self.ended(id, End::Failed { at, timed_out });
            }
            Record::Picked { id, place, .. } => self.picked(caller, id, place, at),
            Record::Replaced { proven: true, .. } => self.retried.proven += 1,
            Record::Replaced { .. } => self.retried.unproven += 1,
            Record::Moved { place, tier } => {
                if let Some(account) = place.life.and_then(|life| self.lives.get_mut(&life)) {
                    account.moves.entry(caller).or_default().push((at, tier));
                }
            }
            Record::Stopped { next } => {
                self.stopped.insert(caller, next);
            }
            _ => {}
        }
    }

    /// `record` with the life filled in that was to be found there, where the caller knew none.
    fn with_life(&self, mut record: Record, at: Timestamp) -> Record {
        if let Record::Picked { place, .. }
        | Record::Moved { place, .. }
        | Record::Closing { place, .. }
        | Record::Lifted { place } = &mut record
            && place.life.is_none()
        {
            place.life = self.life_at(place.address, at);
        }
        record
    }

    fn picked(&mut self, caller: u16, id: Option<CallId>, place: Place, at: Timestamp) {
        if let Some(id) = id {
            self.call(id).picked = place.life;
        }
        if let Some(account) = place.life.and_then(|life| self.lives.get_mut(&life)) {
            account.last_picked.insert(caller, at);
        }
    }

    fn ended(&mut self, id: CallId, end: End) {
        match end {
            End::Answered { .. } => self.ended.0 += 1,
            _ => {
                self.ended.1 += 1;
                let last = self.call(id).picked;
                if let Some(account) = last.and_then(|life| self.lives.get(&life)) {
                    *self.failed_at.entry(account.server).or_default() += 1;
                }
            }
        }
        let call = self.call(id);
        if call.end == End::Open {
            call.end = end;
        } else {
            self.second_ends.push(id);
        }
    }

    fn call(&mut self, id: CallId) -> &mut Call {
        let caller = usize::from(id.caller);
        if self.calls.len() <= caller {
            self.calls.resize_with(caller + 1, Vec::new);
        }
        let calls = &mut self.calls[caller];
        let number = id.number as usize;
        if calls.len() <= number {
            calls.resize_with(number + 1, Call::default);
        }
        &mut calls[number]
    }
}

impl LifeAccount {
    fn new(server: u16, address: SocketAddr, born: Timestamp) -> Self {
        Self {
            server,
            address,
            born,
            phase: String::new(),
            phases: Vec::new(),
            last_started: None,
            only_left: None,
            drained: None,
            last_picked: BTreeMap::new(),
            first_used: BTreeMap::new(),
            moves: BTreeMap::new(),
        }
    }
}
