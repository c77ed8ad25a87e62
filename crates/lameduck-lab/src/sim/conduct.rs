//! How processes and callers conduct themselves, seen from outside: what each rule of leaving, of
//! registering and of dialling comes to for others. It knows times and messages, not machines.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lameduck_core::directory::EndpointId;
use lameduck_core::drain::{Problem, Report};
use lameduck_core::event::Tier;
use lameduck_core::instance::{Incarnation, Life, State};
use lameduck_core::limits;
use lameduck_core::time::Timestamp;

use super::caller::{Caller, address};
use super::process::{BUDGET, CLOSING_CAP};
use super::scenario::Foreign;
use super::wire::{CallId, ConnId, Due, Node};
use super::world::World;

/// Whoever is connected knows of a closing before the first GOAWAY: by health and by marks.
const SEES_CLOSING: Duration = Duration::from_millis(80);
/// Whoever is connected knows of a Resume at once where it has a Watch.
const SEES_RESUMED: Duration = Duration::from_secs(2);
/// And by asking where it has none.
const ASKS_RESUMED: Duration = Duration::from_secs(8);
/// One to whom nothing was done for so long has all its connections.
const SETTLED: Duration = Duration::from_secs(3);
/// One caller dials one slot at most so often within [`DIALS_WITHIN`].
const DIALS_MAX: usize = 20;
const DIALS_WITHIN: Duration = Duration::from_secs(2);
/// Whatever was sent has arrived by then.
const ARRIVED: Duration = Duration::from_millis(40);
/// Between two calls of the foreign client.
const FOREIGN_GAP: Duration = Duration::from_millis(100);
/// Its calls bear names above all others.
const FOREIGN_CALLS: u64 = 1 << 40;

/// A process that is leaving, or held.
pub(super) struct Departure {
    life: Life,
    closing: Timestamp,
    /// When it was told to go on to its end.
    stop: Option<Timestamp>,
    /// Callers that had it in tier 1 when it began.
    callers: Vec<usize>,
    /// Connections that had been told to go before.
    told: BTreeSet<ConnId>,
    has_closed: bool,
}

impl Caller {
    /// Whether it has a connection that takes calls to some epoch of this life.
    fn is_connected(&self, life: Life) -> bool {
        let same = |of: Incarnation| matches!(of, Incarnation::Life(of) if of.boot == life.boot);
        let mut peers = self.peers.values().filter(|peer| same(peer.incarnation));
        peers.any(|peer| peer.connections.values().any(|one| one.usable))
    }
}

impl World {
    // --- leaving ---

    /// The operator tells a process to stop, or holds it.
    pub(super) fn begins(&mut self, id: usize, stops: bool) {
        let (now, life) = (self.net.now, self.processes[id].life());
        let chosen = |caller: &&Caller| caller.ready().contains(&Incarnation::Life(life));
        let callers = self.callers.iter().filter(chosen);
        let callers = callers.map(|caller| caller.index).collect();
        let is_new = !self.departures.contains_key(&id);
        let departure = self.departures.entry(id).or_insert(Departure {
            life,
            closing: now,
            stop: None,
            callers,
            told: self.processes[id].told(),
            has_closed: false,
        });
        if stops {
            departure.stop.get_or_insert(now);
        }
        if is_new && self.is_settled(id) && !self.scenario.watchless {
            self.net
                .after(SEES_CLOSING, Due::SeeClosing { process: id });
        }
    }

    /// Nothing was done to it lately that costs connections.
    fn is_settled(&self, id: usize) -> bool {
        let quiet = |at: &Timestamp| *at + SETTLED <= self.net.now;
        let process = &self.processes[id];
        self.disturbed.get(&id).is_none_or(quiet)
            && !self.oracle.was_harmed(id, self.net.now)
            && process.serving_since.is_some_and(|since| quiet(&since))
    }

    /// Who had it in tier 1 has heard from itself that it is closing.
    pub(super) fn see_closing(&mut self, id: usize) {
        let Some(departure) = self.departures.get(&id) else {
            return;
        };
        let disturbed = self
            .disturbed
            .get(&id)
            .is_some_and(|at| *at >= departure.closing);
        if disturbed || self.oracle.was_harmed(id, departure.closing) {
            return;
        }
        let life = Incarnation::Life(departure.life);
        for caller in departure.callers.iter().map(|index| &self.callers[*index]) {
            let member = caller
                .snapshot
                .members
                .iter()
                .any(|m| m.incarnation == life);
            self.oracle
                .require(!member || caller.naive.is_closed(life), || {
                    format!(
                        "caller {} has not seen that {life} is closing",
                        caller.index
                    )
                });
        }
    }

    /// A held process has been told to serve again.
    pub(super) fn resumes(&mut self, id: usize) {
        let Some(departure) = self.departures.get(&id) else {
            return;
        };
        let (process, life) = (id, self.processes[id].life());
        if !self.processes[id].is_serving() {
            return;
        }
        let stopped = departure.stop.is_some();
        self.oracle.require(!stopped, || {
            format!("process {id} was told to stop and serves again")
        });
        self.departures.remove(&id);
        let watchless = self.scenario.watchless;
        let pause = if watchless {
            ASKS_RESUMED
        } else {
            SEES_RESUMED
        };
        for caller in self.callers.iter().filter(|one| one.is_connected(life)) {
            let see = Due::SeeResumed {
                process,
                life,
                caller: caller.index,
            };
            self.net.after(pause, see);
        }
    }

    /// Who was connected calls a life that has been taken back, whatever the registry does.
    pub(super) fn see_resumed(&mut self, id: usize, life: Life, caller: usize) {
        let process = &self.processes[id];
        let since = process.serving_since.unwrap_or(self.net.now);
        let undisturbed = self
            .disturbed
            .get(&id)
            .is_none_or(|at| *at + SETTLED < since);
        let known = process.is_serving() && process.life() == life;
        if !known || !undisturbed || self.oracle.was_harmed(id, since) {
            return;
        }
        let caller = &self.callers[caller];
        let same = |of: &Incarnation| matches!(of, Incarnation::Life(of) if of.boot == life.boot);
        let says = |(of, state): &(Incarnation, State)| same(of) && *state == State::Serving;
        let listed = caller.naive.listed().values().any(says);
        // Under its earlier name for who heard nothing of the closing, and has not called since.
        let ready = caller.ready().iter().any(same);
        self.oracle.require(ready || !listed, || {
            format!(
                "caller {} has not seen that {life} serves again",
                caller.index
            )
        });
    }

    /// Closing lasts its floor, until it is quiet, and not beyond its cap.
    pub(super) fn leaves(&mut self, id: usize) {
        let now = self.net.now;
        let process = &self.processes[id];
        let Some(departure) = self.departures.get_mut(&id) else {
            return;
        };
        let Some(stop) = departure.stop.filter(|_| process.alive) else {
            return;
        };
        if process.paused_until >= departure.closing {
            // It did not run, and cannot have acted in time.
            return;
        }
        let cap = stop + CLOSING_CAP;
        let told = process.told();
        let early = process.listening && now < departure.closing + limits::GOAWAY_DELAY;
        self.oracle
            .require(!early || told.is_subset(&departure.told), || {
                format!("process {id} said GOAWAY before NOT_SERVING had its head start")
            });
        let last = self.oracle.last_start.get(&id).copied();
        let floor = departure.closing + self.scenario.floor;
        if process.listening {
            let what = || format!("process {id} was told to stop at {stop} and is closing still");
            self.oracle.require(now <= cap, what);
            // Whoever was told and came back does not prolong it.
            let still = last.unwrap_or_default().max(process.told_by) + limits::QUIET_WINDOW;
            let by = still.max(floor).max(stop) + limits::QUIET_SAMPLE * 2;
            let what = || {
                format!(
                    "process {id} is closing still, though nobody who learns has called since {last:?}"
                )
            };
            return self.oracle.require(now <= by, what);
        }
        if std::mem::replace(&mut departure.has_closed, true) {
            return;
        }
        let quiet = last.is_none_or(|last| last + limits::QUIET_WINDOW <= now);
        self.oracle.require(now >= floor, || {
            format!("process {id} closed its listener at {now}, before {floor}")
        });
        self.oracle.require(quiet || now >= cap, || {
            format!("process {id} closed its listener at {now}; its last call began at {last:?}")
        });
    }

    /// A process has come to its end.
    pub(super) fn has_left(&mut self, id: usize, report: &Report) {
        let now = self.net.now;
        let process = &self.processes[id];
        let foreign = self
            .scenario
            .foreign
            .is_some_and(|one| one.slot == process.slot);
        let departure = self.departures.remove(&id);
        let closing = departure.as_ref().map(|departure| departure.closing);
        let frozen = closing.is_some_and(|closing| process.paused_until > closing);
        // A freeze moves the end of a stop, and by no more than it must.
        let over = report.total > BUDGET;
        let excused = frozen && now.saturating_since(process.paused_until) <= limits::ABORT_MAX;
        self.oracle
            .require(report.abandoned == 0 || foreign || frozen, || {
                format!("a stop abandoned calls: {report}")
            });
        self.oracle.require(!over || excused, || {
            format!("a stop took longer than its budget: {report}")
        });
        let slow = [Problem::Listener, Problem::GoAways];
        let waited = report.problems.iter().any(|one| slow.contains(one));
        self.oracle
            .require(!waited || process.paused_until > Timestamp::ZERO, || {
                format!("a stop waited in vain for a step of its own: {report}")
            });
        if let Some(departure) = departure {
            let ran = process.paused_until < departure.closing;
            let late = departure.stop.is_none_or(|stop| stop + BUDGET < now);
            self.oracle.require(!(ran && late), || {
                format!(
                    "process {id} was told to stop at {:?} and ended at {now}",
                    departure.stop
                )
            });
        }
        let life = report.life;
        let may_be_left = |one: &Problem| matches!(one, Problem::Registration(_));
        if !report.problems.iter().any(may_be_left) {
            self.net.after(ARRIVED, Due::SeeLeft { life });
        }
    }

    /// Who does not say that its registration may be left is not registered any more.
    pub(super) fn see_left(&mut self, life: Life) {
        let registered = self.registry.registered();
        let left = registered.iter().any(|(_, record)| record.life == life);
        // Where leases get their whole time again, nobody can know when they end.
        let excused = self.scenario.loss_permille > 0 || self.scenario.keeps_leases();
        self.oracle.require(!left || excused, || {
            format!("{life} has stopped, and is registered without having said so")
        });
    }

    // --- the foreign client ---

    pub(super) fn foreign(&mut self) {
        let Some(Foreign { slot, work }) = self.scenario.foreign else {
            return;
        };
        if self.net.now >= Timestamp::ZERO + self.scenario.length() {
            return;
        }
        self.net.after(FOREIGN_GAP, Due::Foreign);
        let id = self.slots[slot];
        let process = &self.processes[id];
        if process.alive && process.paused_until <= self.net.now {
            self.next_call += 1;
            let call = CallId(FOREIGN_CALLS + self.next_call);
            self.processes[id].foreign(&mut self.net, &mut self.oracle, call, work);
            self.after(Node::Process(id));
        }
    }

    // --- registering and dialling ---

    /// One life stands in the registry once.
    pub(super) fn registered_once(&mut self) {
        let registered = self.registry.registered();
        for process in self.processes.iter().filter(|process| process.alive) {
            let life = process.life();
            let count = registered
                .iter()
                .filter(|(_, one)| one.life == life)
                .count();
            self.oracle.require(count <= 1, || {
                format!("{life} is registered {count} times: {registered:?}")
            });
        }
    }

    /// Who serves, and is registered, has somebody in the view who stands for it.
    pub(super) fn overlooks_nobody(&mut self, index: usize) {
        let caller = &self.callers[index];
        let members = &caller.snapshot.members;
        for process in self.processes.iter().filter(|one| one.is_serving()) {
            let (life, at) = (Incarnation::Life(process.life()), address(process.slot));
            let stands_for = members.iter().any(|member| member.address == at);
            self.oracle
                .require(stands_for || !caller.naive.serves(life), || {
                    format!("caller {index} has nobody in its view for {life}, which serves")
                });
        }
    }

    /// Who has left by its own word is not connected to anew, but where nobody else is ready.
    pub(super) fn keeps_away(&mut self, index: usize) {
        let caller = &self.callers[index];
        if caller.ready().is_empty() {
            self.barred.remove(&index);
            return;
        }
        let left = caller
            .peers
            .iter()
            .filter(|(id, peer)| caller.naive.has_left(**id, peer.slot, peer.incarnation));
        let left = left.map(|(id, peer)| {
            let connections = peer.connections.values().filter(|one| !one.retired);
            (*id, connections.map(|one| one.id).collect())
        });
        let left: BTreeMap<EndpointId, BTreeSet<ConnId>> = left.collect();
        let before = self.barred.insert(index, left).unwrap_or_default();
        for (id, now) in &self.barred[&index] {
            let anew = before.get(id).is_some_and(|before| !now.is_subset(before));
            self.oracle.require(!anew, || {
                format!("caller {index} connected anew to {id:?}, which has left")
            });
        }
    }

    /// Nobody is dialled in a loop.
    pub(super) fn dials_anew(&mut self, caller: usize, conn: ConnId) {
        let now = self.net.now;
        let place = self.callers[caller].place(conn);
        let peer = place.and_then(|place| self.callers[caller].peers.get(&place.endpoint));
        let Some(slot) = peer.map(|peer| peer.slot) else {
            return;
        };
        let left = place.is_some_and(|place| {
            let barred = self.barred.get(&caller);
            barred.is_some_and(|barred| barred.contains_key(&place.endpoint))
        });
        self.oracle.require(!left, || {
            format!("caller {caller} dials slot {slot}, whose process has left")
        });
        let times = self.dialled.entry((caller, slot)).or_default();
        times.push_back(now);
        while times.front().is_some_and(|at| *at + DIALS_WITHIN < now) {
            times.pop_front();
        }
        let count = times.len();
        self.oracle.require(count <= DIALS_MAX, || {
            format!("caller {caller} dialled slot {slot} {count} times within {DIALS_WITHIN:?}")
        });
    }

    // --- at rest ---

    /// Exactly those that serve are registered, as serving, and no lease is left over.
    pub(super) fn registry_at_rest(&mut self, alive: &BTreeSet<Incarnation>) {
        let registered = self.registry.registered();
        let serving = registered
            .iter()
            .filter(|(_, record)| record.state == State::Serving && record.ready);
        let lives: BTreeSet<Incarnation> = serving
            .map(|(_, record)| Incarnation::Life(record.life))
            .collect();
        let leases = self.registry.store.leases().count();
        let right = lives == *alive && registered.len() == alive.len() && leases == alive.len();
        self.oracle.require(right, || {
            format!("registered are {registered:?} by {leases} leases; alive are {alive:?}")
        });
    }

    /// Every caller has the registry's list, and one connection to each of those that serve.
    pub(super) fn callers_at_rest(&mut self) {
        let registered = self
            .registry
            .registered()
            .into_iter()
            .map(|(lease, record)| (lease, (Incarnation::Life(record.life), record.state)));
        let registered = registered.collect();
        for caller in &self.callers {
            let (index, listed) = (caller.index, caller.naive.listed());
            self.oracle.require(listed == registered, || {
                format!("caller {index} was told {listed:?}; registered are {registered:?}")
            });
            let tiers = caller.snapshot.members.iter().map(|member| member.tier);
            let others = tiers.filter(|tier| *tier != Tier::Ready).count();
            let held = caller.peers.values().map(|peer| peer.connections.len());
            let held: Vec<usize> = held.collect();
            let right =
                others == 0 && held.len() == registered.len() && held.iter().all(|n| *n == 1);
            self.oracle.require(right, || {
                format!("caller {index} holds {held:?} connections, and {others} members in vain")
            });
        }
    }
}
