//! One server process of a simulated world: the production machines of leaving and of registering,
//! and as much of a server as they act upon.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lameduck_core::conn::{self, Protocol};
use lameduck_core::drain::{self, Drain, Plan, Reason, Report};
use lameduck_core::effects::connection::Orders;
use lameduck_core::effects::leaving;
use lameduck_core::event::Phase;
use lameduck_core::instance::{BootId, Life, State};
use lameduck_core::machine::{Machine, Ticket, earliest};
use lameduck_core::registry::{ErrorClass, RegistryError, Want};
use lameduck_core::rng::Rng;
use lameduck_core::session::{self, LeaseId, Session};
use lameduck_core::time::Timestamp;
use lameduck_core::watch::{Ended, Name, Status};

use super::leaving::Leaving;
use super::net::Net;
use super::oracle::Oracle;
use super::scenario::{Flaw, Scenario};
use super::served::Connection;
use super::wire::{Ask, CallId, ConnId, Due, Frame, Node, Record, Tell};

/// The one total time that a stop may take.
pub(super) const BUDGET: Duration = Duration::from_secs(10);
/// Closing ends by then.
pub(super) const CLOSING_CAP: Duration = Duration::from_secs(4);
/// The connection of the client that hears nothing.
const FOREIGN: ConnId = ConnId(u64::MAX);
const FOREIGN_CALLER: usize = usize::MAX;

/// The process.
pub(super) struct Process {
    pub(super) id: usize,
    pub(super) slot: usize,
    pub(super) drain: Drain,
    pub(super) session: Session,
    pub(super) life: Life,
    pub(super) alive: bool,
    pub(super) paused_until: Timestamp,
    /// Until then it ends every connection that it takes.
    pub(super) flaps_until: Timestamp,
    pub(super) serving_since: Option<Timestamp>,
    pub(super) listening: bool,
    pub(super) gate_open: bool,
    pub(super) watches_open: bool,
    pub(super) closing: bool,
    pub(super) ready: bool,
    pub(super) admitted: u64,
    /// Of these, requests of callers that were told to go and came back.
    pub(super) returning: u64,
    /// While it closes: connections with a smaller number existed at the announcement.
    pub(super) announced: Option<u64>,
    /// When all connections of that time have their first GOAWAY.
    pub(super) told_by: Timestamp,
    /// Callers that were told to go since.
    pub(super) told_callers: BTreeSet<usize>,
    pub(super) running: BTreeMap<CallId, ConnId>,
    pub(super) connections: BTreeMap<ConnId, Connection>,
    /// How many were ever accepted: each has a number.
    pub(super) accepted: u64,
    pub(super) orders: Orders,
    /// What the drain is told next.
    pub(super) inputs: VecDeque<drain::Input>,
    /// What its session has asked of the registry, and nobody has sent yet.
    asked: Vec<(Ticket, Ask)>,
    pub(super) reached: Option<Want>,
    // What it is asked to tell the drain, once it is so.
    pub(super) want: Option<(Want, Ticket)>,
    pub(super) all_told: Option<Ticket>,
    pub(super) idle: Option<Ticket>,
    pub(super) gone_told: bool,
    pub(super) report: Option<Report>,
    pub(super) flaw: Option<Flaw>,
    watchless: bool,
    nameless: bool,
}

impl Process {
    pub(super) fn start(id: usize, slot: usize, scenario: &Scenario, net: &mut Net) -> Self {
        let bits = u128::from(net.rng.next_u64()) << 64 | u128::from(net.rng.next_u64());
        let life = Life::first(BootId::from_bits(bits));
        let plan = Plan {
            budget: BUDGET,
            floor: scenario.floor,
            cap: CLOSING_CAP,
            ..Plan::default()
        };
        let mut process = Self {
            id,
            slot,
            drain: Drain::new(plan, life),
            life,
            session: Session::new(Rng::from_seed(net.rng.next_u64())),
            alive: true,
            paused_until: Timestamp::ZERO,
            flaps_until: Timestamp::ZERO,
            serving_since: None,
            listening: true,
            gate_open: true,
            watches_open: true,
            closing: false,
            ready: true,
            admitted: 0,
            returning: 0,
            announced: None,
            told_by: Timestamp::MAX,
            told_callers: BTreeSet::new(),
            running: BTreeMap::new(),
            connections: BTreeMap::new(),
            accepted: 0,
            orders: Orders::default(),
            inputs: VecDeque::new(),
            asked: Vec::new(),
            reached: None,
            want: None,
            all_told: None,
            idle: None,
            gone_told: false,
            report: None,
            flaw: scenario.flaw,
            watchless: scenario.watchless,
            nameless: scenario.nameless,
        };
        net.note(format_args!("process {id} starts at slot {slot} as {life}"));
        process.tell_drain(net, drain::Input::Started);
        process
    }

    pub(super) const fn life(&self) -> Life {
        self.life
    }

    pub(super) const fn is_serving(&self) -> bool {
        self.alive && matches!(self.drain.phase(), Phase::Serving)
    }

    fn node(&self) -> Node {
        Node::Process(self.id)
    }

    pub(super) fn status(&self) -> Status {
        if self.ready {
            Status::Serving
        } else {
            Status::NotServing
        }
    }

    // --- what happens to it ---

    pub(super) fn stop(&mut self, net: &mut Net) {
        let begin = drain::Input::Begin(drain::Command(0), Reason::Sigterm);
        self.tell_drain(net, begin);
    }

    pub(super) fn hold(&mut self, net: &mut Net) {
        self.tell_drain(net, drain::Input::Hold(drain::Command(0)));
    }

    pub(super) fn resume(&mut self, net: &mut Net) {
        self.tell_drain(net, drain::Input::Resume(drain::Command(0)));
    }

    pub(super) fn kill(&mut self, net: &mut Net) {
        self.alive = false;
        self.end_connections(net);
    }

    pub(super) fn break_connections(&mut self, net: &mut Net) {
        let broken: Vec<ConnId> = self.connections.keys().copied().collect();
        for conn in broken {
            net.gone(conn, false);
            net.gone(conn, true);
        }
    }

    pub(super) fn end_connections(&mut self, net: &mut Net) {
        for conn in std::mem::take(&mut self.connections).into_keys() {
            net.gone(conn, false);
        }
    }

    pub(super) fn accept(&mut self, net: &mut Net, conn: ConnId, caller: usize) {
        let connection = Connection::new(net.now, self.accepted, caller);
        self.accepted += 1;
        self.connections.insert(conn, connection);
        // The preface comes with the dial.
        self.tell_connection(net, conn, conn::Input::Spoken(Protocol::Http2));
        self.obey(net);
        self.run(net);
    }

    pub(super) fn gone(&mut self, net: &mut Net, conn: ConnId) {
        if self.connections.remove(&conn).is_some() {
            // Handlers of a connection that is gone are dropped.
            self.running.retain(|_, at| *at != conn);
            self.run(net);
        }
    }

    pub(super) fn frame(&mut self, net: &mut Net, oracle: &mut Oracle, conn: ConnId, frame: Frame) {
        let (life, closing, status) = (self.life, self.closing, self.status());
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        match frame {
            Frame::Watch { .. } | Frame::Check { .. } if connection.last_told => {}
            Frame::Watch { ticket, name } if name == Name::Service && self.nameless => {
                let marks = Some(connection.marks(life, closing));
                let status = Status::Unknown;
                let frame = Frame::Status {
                    ticket,
                    status,
                    marks,
                };
                net.frame(conn, false, frame);
            }
            Frame::Watch { ticket, .. } if self.watchless => {
                let how = Ended::Unimplemented;
                net.frame(conn, false, Frame::WatchEnded { ticket, how });
            }
            Frame::Watch { ticket, .. } if self.watches_open => {
                connection.watches.insert(ticket);
                let marks = Some(connection.marks(life, closing));
                net.frame(
                    conn,
                    false,
                    Frame::Status {
                        ticket,
                        status,
                        marks,
                    },
                );
            }
            Frame::Watch { ticket, .. } => {
                net.frame(
                    conn,
                    false,
                    Frame::WatchEnded {
                        ticket,
                        how: Ended::ByPeer,
                    },
                );
            }
            Frame::Cancel { ticket } => {
                connection.watches.remove(&ticket);
            }
            Frame::Check { ticket } => {
                let marks = connection.marks(life, closing);
                net.frame(
                    conn,
                    false,
                    Frame::Checked {
                        ticket,
                        status,
                        marks,
                    },
                );
            }
            Frame::Request { call, stream, work } => {
                self.request(net, oracle, conn, (call, stream, work));
            }
            Frame::Pong => {
                connection.pong(net, conn);
                self.perform_connection(net, conn);
            }
            _ => {}
        }
        self.run(net);
    }

    /// All its connections have become old.
    pub(super) fn age(&mut self, net: &mut Net) {
        let old: Vec<ConnId> = self.connections.keys().copied().collect();
        for conn in old {
            self.tell_connection(net, conn, conn::Input::Hint(Duration::ZERO));
        }
        self.run(net);
    }

    /// The connections that were told to go.
    pub(super) fn told(&self) -> BTreeSet<ConnId> {
        let all = self.connections.iter();
        all.filter(|(_, one)| one.told).map(|(id, _)| *id).collect()
    }

    /// One call of a client that hears nothing, on a connection of its own.
    pub(super) fn foreign(
        &mut self,
        net: &mut Net,
        oracle: &mut Oracle,
        call: CallId,
        work: Duration,
    ) {
        if self.listening && !self.connections.contains_key(&FOREIGN) {
            self.accept(net, FOREIGN, FOREIGN_CALLER);
        }
        self.request(net, oracle, FOREIGN, (call, 1, work));
        self.run(net);
    }

    fn request(
        &mut self,
        net: &mut Net,
        oracle: &mut Oracle,
        conn: ConnId,
        (call, stream, work): (CallId, u64, Duration),
    ) {
        let (life, closing) = (self.life, self.closing);
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        if connection.last_told {
            // Above the last stream of the final GOAWAY: the caller knows that it was not processed.
            return;
        }
        connection.last_stream = connection.last_stream.max(stream);
        if !self.gate_open {
            let marks = connection.marks(life, closing);
            net.frame(conn, false, Frame::Refused { call, marks });
            return;
        }
        connection.calls.insert(call);
        self.admitted += 1;
        let came_back = self.told_callers.contains(&connection.caller)
            && self.announced.is_some_and(|next| connection.number >= next);
        self.returning += u64::from(came_back);
        self.running.insert(call, conn);
        oracle.started(net.now, call, self.id);
        if !came_back || net.now < self.told_by {
            oracle.last_start.insert(self.id, net.now);
        }
        net.after(
            work,
            Due::Finish {
                process: self.id,
                call,
            },
        );
    }

    pub(super) fn finish(&mut self, net: &mut Net, call: CallId) {
        let Some(conn) = self.running.remove(&call) else {
            return;
        };
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.calls.remove(&call);
            let marks = connection.marks(self.life, self.closing);
            net.frame(conn, false, Frame::Answer { call, marks });
        }
        self.run(net);
    }

    pub(super) fn tell(&mut self, net: &mut Net, ticket: Ticket, tell: Tell) {
        let input = match tell {
            Tell::Granted { lease, ttl } => session::Input::Granted {
                ticket,
                lease: LeaseId(lease),
                ttl,
            },
            Tell::Renewed { ttl } => session::Input::Renewed { ticket, ttl },
            Tell::Done => session::Input::Done { ticket },
            Tell::Checked { intact } => session::Input::Checked { ticket, intact },
            Tell::LeaseGone => session::Input::LeaseGone { ticket },
            _ => session::Input::Failed {
                ticket,
                error: away(),
            },
        };
        self.tell_session(net, input);
        self.run(net);
    }

    // --- its machines ---

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let mut least = earliest(self.drain.deadline(), self.session.deadline());
        for connection in self.connections.values() {
            least = earliest(least, connection.machine.deadline());
        }
        least.map(|(at, _)| at)
    }

    pub(super) fn wake(&mut self, net: &mut Net) {
        self.drain.handle_timeout(net.now);
        self.perform_drain(net);
        self.session.handle_timeout(net.now);
        self.perform_session();
        let all: Vec<ConnId> = self.connections.keys().copied().collect();
        for conn in all {
            if let Some(connection) = self.connections.get_mut(&conn) {
                connection.machine.handle_timeout(net.now);
            }
            self.perform_connection(net, conn);
        }
        self.run(net);
    }

    fn tell_drain(&mut self, net: &mut Net, input: drain::Input) {
        self.inputs.push_back(input);
        self.run(net);
    }

    /// Until nothing is left to be told: one input, all its outputs, the next input. What is asked of
    /// the registry meanwhile leaves only a process that lives on: its tasks come after its machines.
    fn run(&mut self, net: &mut Net) {
        self.settle(net);
        while let Some(input) = self.inputs.pop_front() {
            self.drain.handle(net.now, input);
            self.perform_drain(net);
            self.settle(net);
        }
        let (node, asked) = (self.node(), std::mem::take(&mut self.asked));
        for (ticket, ask) in asked.into_iter().filter(|_| self.alive) {
            net.ask(node, ticket, ask);
        }
    }

    fn perform_drain(&mut self, net: &mut Net) {
        while let Some(output) = self.drain.poll() {
            if !matches!(output, drain::Output::Sample) {
                net.note(format_args!("process {}: {output:?}", self.id));
            }
            let mut edge = Leaving { process: self, net };
            if leaving::perform(&mut edge, output).is_break() {
                return;
            }
        }
    }

    pub(super) fn tell_session(&mut self, net: &mut Net, input: session::Input) {
        self.session.handle(net.now, input);
        self.perform_session();
    }

    pub(super) fn tell_connection(&mut self, net: &mut Net, id: ConnId, input: conn::Input) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.machine.handle(net.now, input);
            self.perform_connection(net, id);
        }
    }

    /// Has every connection read the orders.
    pub(super) fn obey(&mut self, net: &mut Net) {
        let numbers = self.connections.iter();
        let numbers: Vec<(ConnId, u64)> = numbers.map(|(id, one)| (*id, one.number)).collect();
        for (id, number) in numbers {
            for input in self.orders.inputs(number) {
                self.tell_connection(net, id, input);
            }
        }
    }

    fn perform_connection(&mut self, net: &mut Net, id: ConnId) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.perform(net, id);
        if connection.told && self.announced.is_some() {
            self.told_callers.insert(connection.caller);
        }
        for call in std::mem::take(&mut connection.ended) {
            self.running.remove(&call);
        }
        if connection.over {
            self.running.retain(|_, at| *at != id);
            self.connections.remove(&id);
            net.gone(id, false);
        }
    }

    /// Tells the drain what has become true.
    fn settle(&mut self, net: &mut Net) {
        let idle = self.connections.iter().filter(|(_, one)| one.is_done());
        let idle: Vec<ConnId> = idle.map(|(id, _)| *id).collect();
        for id in idle {
            self.connections.remove(&id);
            net.gone(id, false);
        }
        if let Some((want, ticket)) = self.want
            && self.reached == Some(want)
        {
            self.want = None;
            self.inputs
                .push_back(drain::Input::Deregistered(ticket, Ok(())));
        }
        if self.connections.values().all(|one| one.settled)
            && let Some(ticket) = self.all_told.take()
        {
            self.inputs.push_back(drain::Input::FinalGoAways(ticket));
        }
        if self.running.is_empty()
            && let Some(ticket) = self.idle.take()
        {
            self.inputs.push_back(drain::Input::InFlightZero(ticket));
        }
        let all_gone = !self.listening && self.connections.is_empty() && self.alive;
        if all_gone && !std::mem::replace(&mut self.gone_told, true) {
            self.inputs.push_back(drain::Input::ConnectionsGone);
        }
    }

    fn perform_session(&mut self) {
        while let Some(output) = self.session.poll() {
            let record = |life, state, ready| Record {
                slot: self.slot,
                life,
                state,
                ready,
            };
            let (ticket, ask) = match output {
                session::Output::Grant { ticket } => (ticket, Ask::Grant),
                session::Output::Put {
                    ticket,
                    lease,
                    life,
                    ready,
                    ..
                } => {
                    let record = record(life, State::Serving, ready);
                    (
                        ticket,
                        Ask::Put {
                            lease: lease.0,
                            record,
                        },
                    )
                }
                session::Output::PutClosing {
                    ticket,
                    lease,
                    life,
                } => {
                    let record = record(life, State::Closing, false);
                    (
                        ticket,
                        Ask::PutClosing {
                            lease: lease.0,
                            record,
                        },
                    )
                }
                session::Output::Renew { ticket, lease } => (ticket, Ask::Renew { lease: lease.0 }),
                session::Output::Check { ticket, lease, .. } => {
                    (ticket, Ask::Check { lease: lease.0 })
                }
                session::Output::Revoke { ticket, lease } => {
                    (ticket, Ask::Revoke { lease: lease.0 })
                }
                session::Output::Status(status) => {
                    self.reached = status.reached;
                    continue;
                }
            };
            self.asked.push((ticket, ask));
        }
    }
}

fn away() -> RegistryError {
    RegistryError {
        class: ErrorClass::Retry,
        message: "the registry did not answer".to_owned(),
    }
}
