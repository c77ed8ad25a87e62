//! One world: actors, what is due next, and what the operator does to them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lameduck_core::directory::EndpointId;
use lameduck_core::failover::Proof;
use lameduck_core::instance::{Incarnation, Life};
use lameduck_core::machine::Ticket;
use lameduck_core::time::Timestamp;

use super::caller::Caller;
use super::conduct::Departure;
use super::net::Net;
use super::oracle::Oracle;
use super::process::Process;
use super::registry::Registry;
use super::scenario::{Back, Scenario};
use super::wire::{Ask, CallId, ConnId, Due, Frame, Node, Tell};

/// A process starts this long after its predecessor has gone.
const RESTART: Duration = Duration::from_millis(50);
/// What the world is given to come to rest once nothing happens to it any more.
const REST: Duration = Duration::from_secs(40);
/// Calls begin after this: everybody has found everybody.
const CALM_START: Duration = Duration::from_secs(2);
/// No world takes more steps than this: one that does is stuck in a loop.
const STEPS_MAX: u64 = 2_000_000;

/// A connection, as the network knows it.
struct Link {
    caller: usize,
    slot: usize,
    process: Option<usize>,
}

/// The world.
pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) net: Net,
    pub(super) registry: Registry,
    pub(super) processes: Vec<Process>,
    /// The newest process of each slot.
    pub(super) slots: Vec<usize>,
    /// Lives that a slot had before.
    pub(super) lives: Vec<Vec<Life>>,
    pub(super) callers: Vec<Caller>,
    links: BTreeMap<ConnId, Link>,
    pub(super) oracle: Oracle,
    pub(super) next_call: u64,
    pub(super) woken: BTreeMap<Node, Timestamp>,
    /// What each watcher was told last.
    told: BTreeMap<Node, (Ticket, Tell)>,
    /// Processes that are leaving, or held.
    pub(super) departures: BTreeMap<usize, Departure>,
    /// When something was last done to a process beside its being stopped.
    pub(super) disturbed: BTreeMap<usize, Timestamp>,
    /// Endpoints of each caller that have left by their own word, with their last connections.
    pub(super) barred: BTreeMap<usize, BTreeMap<EndpointId, BTreeSet<ConnId>>>,
    /// When each caller dialled each slot.
    pub(super) dialled: BTreeMap<(usize, usize), VecDeque<Timestamp>>,
}

/// How a world went.
pub(super) struct Outcome {
    pub(super) violations: Vec<String>,
    pub(super) timeline: Vec<String>,
    pub(super) answered: u64,
    pub(super) excused: u64,
    pub(super) drains: u64,
}

impl World {
    pub(super) fn new(scenario: Scenario, tell_timeline: bool) -> Self {
        let mut net = Net::new(scenario.seed, scenario.delay_max, scenario.loss_permille);
        net.tell_timeline = tell_timeline;
        let registry = Registry::new(scenario.seed | 1);
        let mut world = Self {
            slots: vec![usize::MAX; scenario.servers],
            lives: vec![Vec::new(); scenario.servers],
            scenario,
            net,
            registry,
            processes: Vec::new(),
            callers: Vec::new(),
            links: BTreeMap::new(),
            oracle: Oracle::default(),
            next_call: 0,
            woken: BTreeMap::new(),
            told: BTreeMap::new(),
            departures: BTreeMap::new(),
            disturbed: BTreeMap::new(),
            barred: BTreeMap::new(),
            dialled: BTreeMap::new(),
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        for slot in 0..self.scenario.servers {
            self.start(slot);
        }
        for index in 0..self.scenario.callers {
            let failover = self.scenario.failover;
            let caller = Caller::new(index, failover, &mut self.net);
            self.callers.push(caller);
            self.net.after(CALM_START, Due::NewCall { caller: index });
            self.after(Node::Caller(index));
        }
        self.oracle.once = !self.scenario.failover;
        if self.scenario.foreign.is_some() {
            self.net.after(CALM_START, Due::Foreign);
        }
        for (index, (at, _)) in self.scenario.acts.iter().enumerate() {
            self.net.at(Timestamp::ZERO + *at, Due::Act { index });
        }
    }

    pub(super) fn run(mut self) -> Outcome {
        let end = Timestamp::ZERO + self.scenario.length() + REST;
        let mut steps = 0;
        while let Some(due) = self.net.next() {
            if self.net.now > end || !self.oracle.violations.is_empty() {
                break;
            }
            steps += 1;
            if steps > STEPS_MAX {
                self.oracle
                    .violations
                    .push("the world does not come to rest".to_owned());
                break;
            }
            self.step(due);
        }
        if self.oracle.violations.is_empty() {
            self.at_rest();
        }
        let Oracle {
            violations,
            answered,
            excused,
            drains,
            ..
        } = self.oracle;
        Outcome {
            violations,
            timeline: self.net.timeline,
            answered,
            excused,
            drains,
        }
    }

    /// Liveness: what must have come true once nothing happens any more.
    fn at_rest(&mut self) {
        self.oracle.unfinished();
        let serving = self.processes.iter().filter(|process| process.is_serving());
        let alive: std::collections::BTreeSet<Incarnation> = serving
            .clone()
            .map(|process| Incarnation::Life(process.life()))
            .collect();
        let count = self.scenario.servers;
        self.oracle.require(alive.len() == count, || {
            format!("{} of {count} serve at last", alive.len())
        });
        for caller in &self.callers {
            let ready = caller.ready();
            self.oracle.require(ready == alive, || {
                format!(
                    "caller {} would call {ready:?}; alive are {alive:?}",
                    caller.index
                )
            });
        }
        self.registry_at_rest(&alive);
        self.callers_at_rest();
        for process in &self.processes {
            let stuck = process.alive && !process.is_serving();
            let slot = process.slot;
            self.oracle
                .require(!stuck, || format!("a process of slot {slot} never ended"));
        }
    }

    // --- steps ---

    fn step(&mut self, due: Due) {
        if let Some(process) = self.owner(&due)
            && self.processes[process].paused_until > self.net.now
        {
            let until = self.processes[process].paused_until;
            self.net.at(until, due);
            return;
        }
        match due {
            Due::Ask { from, ticket, ask } => self.ask(from, ticket, &ask),
            Due::Tell { to, ticket, tell } => self.tell(to, ticket, tell),
            Due::LeaseEnds if self.registry.away && self.registry.keeps => {}
            Due::LeaseEnds => {
                self.registry.store.expire(self.net.now);
                self.after_registry();
            }
            // Another outage has begun, and ends later.
            Due::RegistryBack { .. } if self.registry.away_until > self.net.now => {}
            Due::RegistryBack { back } => {
                self.registry.come_back(self.net.now, back);
                if back == Back::Anew {
                    self.break_watches(None);
                }
                self.after_registry();
            }
            Due::Foreign => self.foreign(),
            Due::SeeLeft { life } => self.see_left(life),
            Due::SeeClosing { process } => self.see_closing(process),
            Due::SeeResumed {
                process,
                life,
                caller,
            } => self.see_resumed(process, life, caller),
            Due::Dial { conn } => self.dial(conn),
            Due::Dialled { conn, ok } => {
                self.on_caller(conn, |caller, net, oracle| {
                    caller.dialled(net, oracle, conn, ok)
                });
            }
            Due::GoneAtCaller { conn } => {
                self.on_caller(conn, |caller, net, oracle| caller.gone(net, oracle, conn));
            }
            Due::ToCaller { conn, frame } => self.deliver(conn, frame),
            Due::ToServer { conn, frame } => {
                self.on_server(conn, |process, net, oracle| {
                    process.frame(net, oracle, conn, frame)
                });
            }
            Due::GoneAtServer { conn } => {
                self.on_server(conn, |process, net, _| process.gone(net, conn));
            }
            Due::Wake { node } => self.wake(node),
            Due::NewCall { caller } => self.new_call(caller),
            Due::Place { caller, call } => self.place(caller, call),
            Due::Deadline { caller, call } => {
                self.callers[caller].too_late(&mut self.net, &mut self.oracle, call);
            }
            Due::Act { index } => self.act(index),
            Due::Start { slot } => self.start(slot),
            other => self.step_process(other),
        }
    }

    fn step_process(&mut self, due: Due) {
        let net = &mut self.net;
        let id = match due {
            Due::Finish { process, call } => {
                self.processes[process].finish(net, call);
                process
            }
            Due::Resume { process } => {
                self.processes[process].resume(net);
                self.resumes(process);
                process
            }
            _ => return,
        };
        self.after(Node::Process(id));
    }

    /// The process that something happens in; a paused one does not notice yet.
    fn owner(&self, due: &Due) -> Option<usize> {
        match due {
            Due::Tell {
                to: Node::Process(process),
                ..
            }
            | Due::Wake {
                node: Node::Process(process),
            }
            | Due::Finish { process, .. }
            | Due::Resume { process } => Some(*process),
            Due::ToServer { conn, .. } | Due::GoneAtServer { conn } => {
                self.links.get(conn).and_then(|link| link.process)
            }
            Due::Dial { conn } => self.links.get(conn).map(|link| self.slots[link.slot]),
            _ => None,
        }
    }

    fn on_caller(&mut self, conn: ConnId, act: impl FnOnce(&mut Caller, &mut Net, &mut Oracle)) {
        let Some(link) = self.links.get(&conn) else {
            return;
        };
        let index = link.caller;
        act(&mut self.callers[index], &mut self.net, &mut self.oracle);
        self.after(Node::Caller(index));
    }

    fn on_server(&mut self, conn: ConnId, act: impl FnOnce(&mut Process, &mut Net, &mut Oracle)) {
        let Some(process) = self.links.get(&conn).and_then(|link| link.process) else {
            return;
        };
        if self.processes[process].alive {
            act(
                &mut self.processes[process],
                &mut self.net,
                &mut self.oracle,
            );
            self.after(Node::Process(process));
        }
    }

    fn deliver(&mut self, conn: ConnId, frame: Frame) {
        let is_answer = matches!(
            frame,
            Frame::Answer { .. } | Frame::Refused { .. } | Frame::Reset { .. }
        );
        self.on_caller(conn, |caller, net, oracle| {
            if is_answer {
                caller.answered(net, oracle, conn, frame);
            } else {
                caller.frame(net, oracle, conn, frame);
            }
        });
    }

    fn dial(&mut self, conn: ConnId) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        let process = self.slots[link.slot];
        let accepts = &self.processes[process];
        let ok = accepts.alive && accepts.listening;
        if ok {
            link.process = Some(process);
            self.processes[process].accept(&mut self.net, conn, link.caller);
        }
        // Nothing that is sent on the connection overtakes its beginning.
        self.net.in_order(conn, Due::Dialled { conn, ok });
        if ok && self.processes[process].flaps_until > self.net.now {
            self.processes[process].break_connections(&mut self.net);
        }
        if ok {
            self.after(Node::Process(process));
        }
    }

    fn new_call(&mut self, caller: usize) {
        if self.net.now >= Timestamp::ZERO + self.scenario.length() {
            self.net.calm_down();
            return;
        }
        self.next_call += 1;
        let call = CallId(self.next_call);
        self.callers[caller].make(&mut self.net, &mut self.oracle, call);
        self.note_placement(caller, call);
        let gap = Duration::from_secs(1) / self.scenario.rate;
        let gap = self.net.rng.between(gap / 2, gap * 3 / 2);
        self.net.after(gap, Due::NewCall { caller });
        self.after(Node::Caller(caller));
    }

    fn place(&mut self, caller: usize, call: CallId) {
        let placed = self.callers[caller].place_call(&mut self.net, &mut self.oracle, call);
        if placed.is_some() {
            self.note_placement(caller, call);
        }
        self.after(Node::Caller(caller));
    }

    fn note_placement(&mut self, caller: usize, call: CallId) {
        let conn = self.callers[caller].connection_of(call);
        let process = conn
            .and_then(|conn| self.links.get(&conn))
            .and_then(|link| link.process);
        if let Some(process) = process {
            self.oracle.placed(self.net.now, call, process);
        }
    }

    // --- registry ---

    fn ask(&mut self, from: Node, ticket: Ticket, ask: &Ask) {
        let is_watch = matches!(ask, Ask::Watch { .. });
        if self.registry.away {
            if is_watch {
                self.net.times_out(from, ticket);
            }
            return;
        }
        let slow = self.registry.slow_until > self.net.now;
        if slow && !is_watch && self.net.rng.below(3) == 0 {
            // Its sender has given up before it is heard.
            let (late, ask) = (self.net.late(), ask.clone());
            return self.net.after(late, Due::Ask { from, ticket, ask });
        }
        let tell = self.registry.ask(self.net.now, from, ticket, ask);
        if is_watch {
            self.push(from, ticket, tell);
        } else if slow {
            let (late, to) = (self.net.late(), from);
            self.net.after(late, Due::Tell { to, ticket, tell });
        } else if !self.net.is_lost() {
            self.net.send(Due::Tell {
                to: from,
                ticket,
                tell,
            });
        }
        self.after_registry();
    }

    pub(super) fn after_registry(&mut self) {
        self.registered_once();
        if let Some(at) = self.registry.store.deadline() {
            self.net.at(at, Due::LeaseEnds);
        }
        if self.registry.away {
            return;
        }
        for (to, ticket, tell) in self.registry.news() {
            if self.net.rng.below(1000) < self.scenario.twice_permille as usize {
                self.push(to, ticket, tell.clone());
            }
            self.push(to, ticket, tell.clone());
            // What was told before is told again, out of its order: a watch that was resumed.
            let before = self.told.insert(to, (ticket, tell));
            if let Some((earlier, tell)) = before
                && earlier == ticket
                && self.net.rng.below(1000) < self.scenario.twice_permille as usize
            {
                self.push(to, ticket, tell);
            }
        }
    }

    /// Events of one watch stay in order.
    fn push(&mut self, to: Node, ticket: Ticket, tell: Tell) {
        let stream = match to {
            Node::Caller(index) => ConnId(index as u64),
            Node::Process(index) => ConnId(1_000_000 + index as u64),
        };
        self.net.in_order(stream, Due::Tell { to, ticket, tell });
    }

    fn tell(&mut self, to: Node, ticket: Ticket, tell: Tell) {
        match to {
            Node::Process(process) if self.processes[process].alive => {
                self.processes[process].tell(&mut self.net, ticket, tell);
            }
            Node::Process(_) => return,
            Node::Caller(caller) => {
                self.callers[caller].tell(&mut self.net, &mut self.oracle, ticket, tell);
            }
        }
        self.after(to);
    }

    pub(super) fn break_watches(&mut self, whose: Option<usize>) {
        let broken: Vec<(Node, Ticket)> = self
            .registry
            .watchers
            .iter()
            .filter(|(node, _)| whose.is_none_or(|caller| **node == Node::Caller(caller)))
            .map(|(node, (ticket, _))| (*node, *ticket))
            .collect();
        for (node, ticket) in broken {
            self.registry.watchers.remove(&node);
            self.push(node, ticket, Tell::Failed);
        }
    }

    // --- after every step ---

    fn wake(&mut self, node: Node) {
        self.woken.remove(&node);
        match node {
            Node::Process(process) if self.processes[process].alive => {
                self.processes[process].wake(&mut self.net);
            }
            Node::Process(_) => return,
            Node::Caller(caller) => self.callers[caller].wake(&mut self.net, &mut self.oracle),
        }
        self.after(node);
    }

    /// Dials that were asked for, calls that have failed, the next deadline, the end of a process.
    pub(super) fn after(&mut self, node: Node) {
        let deadline = match node {
            Node::Caller(index) => {
                self.after_caller(index);
                self.callers[index].deadline()
            }
            Node::Process(index) => {
                self.after_process(index);
                let process = &self.processes[index];
                process.alive.then(|| process.deadline()).flatten()
            }
        };
        let Some(at) = deadline.map(|at| at.max(self.net.now)) else {
            return;
        };
        if self.woken.get(&node).is_none_or(|woken| at < *woken) {
            self.woken.insert(node, at);
            self.net.at(at, Due::Wake { node });
        }
    }

    fn after_caller(&mut self, index: usize) {
        let caller = &mut self.callers[index];
        let dials = caller.dials(&mut self.net);
        for (conn, _) in &dials {
            self.dials_anew(index, *conn);
        }
        for (conn, slot) in dials {
            self.links.insert(
                conn,
                Link {
                    caller: index,
                    slot,
                    process: None,
                },
            );
        }
        self.keeps_away(index);
        self.overlooks_nobody(index);
        let caller = &mut self.callers[index];
        let failed: Vec<(CallId, Proof)> = std::mem::take(&mut caller.failed);
        for (call, proof) in failed {
            caller.fail(&mut self.net, &mut self.oracle, call, proof);
        }
    }

    fn after_process(&mut self, index: usize) {
        self.leaves(index);
        let process = &mut self.processes[index];
        let Some(report) = process.report.take() else {
            return;
        };
        let slot = process.slot;
        self.net.note(format_args!("process {index} {report}"));
        self.has_left(index, &report);
        self.net.after(RESTART, Due::Start { slot });
    }
}
