//! One server process of a simulated world: the production machines of leaving and of registering,
//! and as much of a server as they act upon.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lameduck_core::drain::{self, Drain, Plan, Reason, Report};
use lameduck_core::event::Phase;
use lameduck_core::instance::{BootId, Life, State};
use lameduck_core::limits;
use lameduck_core::machine::{Machine, Ticket, earliest};
use lameduck_core::registry::{ErrorClass, RegistryError, Want};
use lameduck_core::rng::Rng;
use lameduck_core::session::{self, LeaseId, Session};
use lameduck_core::time::Timestamp;
use lameduck_core::watch::{Ended, Status};

use super::net::Net;
use super::oracle::Oracle;
use super::scenario::Flaw;
use super::wire::{Ask, CallId, ConnId, Due, Frame, Marks, Node, Record, Step, Tell};

/// One accepted connection.
#[derive(Default)]
struct Connection {
    told: bool,
    last_told: bool,
    last_stream: u64,
    calls: BTreeSet<CallId>,
    watches: BTreeSet<Ticket>,
}

/// The process.
pub(super) struct Process {
    id: usize,
    pub(super) slot: usize,
    pub(super) drain: Drain,
    session: Session,
    pub(super) alive: bool,
    pub(super) paused_until: Timestamp,
    pub(super) serving_since: Option<Timestamp>,
    pub(super) listening: bool,
    gate_open: bool,
    watches_open: bool,
    closing: bool,
    ready: bool,
    admitted: u64,
    running: BTreeMap<CallId, ConnId>,
    connections: BTreeMap<ConnId, Connection>,
    want: Option<(Want, Ticket)>,
    all_told: Option<Ticket>,
    idle: Option<Ticket>,
    gone_told: bool,
    pub(super) report: Option<Report>,
    flaw: Option<Flaw>,
}

impl Process {
    pub(super) fn start(
        id: usize,
        slot: usize,
        flaw: Option<Flaw>,
        net: &mut Net,
        oracle: &mut Oracle,
    ) -> Self {
        let bits = u128::from(net.rng.next_u64()) << 64 | u128::from(net.rng.next_u64());
        let life = Life::first(BootId::from_bits(bits));
        let plan = Plan {
            budget: Duration::from_secs(10),
            ..Plan::default()
        };
        let mut process = Self {
            id,
            slot,
            drain: Drain::new(plan, life),
            session: Session::new(Rng::from_seed(net.rng.next_u64())),
            alive: true,
            paused_until: Timestamp::ZERO,
            serving_since: None,
            listening: true,
            gate_open: true,
            watches_open: true,
            closing: false,
            ready: true,
            admitted: 0,
            running: BTreeMap::new(),
            connections: BTreeMap::new(),
            want: None,
            all_told: None,
            idle: None,
            gone_told: false,
            report: None,
            flaw,
        };
        net.note(format_args!("process {id} starts at slot {slot} as {life}"));
        process.drain(net, oracle, drain::Input::Started);
        process
    }

    pub(super) const fn life(&self) -> Life {
        self.drain.life()
    }

    pub(super) const fn is_serving(&self) -> bool {
        self.alive && matches!(self.drain.phase(), Phase::Serving)
    }

    fn node(&self) -> Node {
        Node::Process(self.id)
    }

    fn marks(&self) -> Marks {
        Marks {
            life: self.life(),
            closing: self.closing,
        }
    }

    fn status(&self) -> Status {
        if self.ready {
            Status::Serving
        } else {
            Status::NotServing
        }
    }

    // --- what happens to it ---

    pub(super) fn stop(&mut self, net: &mut Net, oracle: &mut Oracle) {
        let begin = drain::Input::Begin(drain::Command(0), Reason::Sigterm);
        self.drain(net, oracle, begin);
    }

    pub(super) fn hold(&mut self, net: &mut Net, oracle: &mut Oracle) {
        self.drain(net, oracle, drain::Input::Hold(drain::Command(0)));
    }

    pub(super) fn resume(&mut self, net: &mut Net, oracle: &mut Oracle) {
        self.drain(net, oracle, drain::Input::Resume(drain::Command(0)));
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

    fn end_connections(&mut self, net: &mut Net) {
        for conn in std::mem::take(&mut self.connections).into_keys() {
            net.gone(conn, false);
        }
    }

    pub(super) fn accept(&mut self, conn: ConnId) {
        self.connections.insert(conn, Connection::default());
    }

    pub(super) fn gone(&mut self, net: &mut Net, oracle: &mut Oracle, conn: ConnId) {
        if self.connections.remove(&conn).is_some() {
            // Handlers of a connection that is gone are dropped.
            self.running.retain(|_, at| *at != conn);
            self.settle(net, oracle);
        }
    }

    pub(super) fn frame(&mut self, net: &mut Net, oracle: &mut Oracle, conn: ConnId, frame: Frame) {
        let (marks, status) = (self.marks(), self.status());
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        match frame {
            Frame::Watch { .. } | Frame::Check { .. } if connection.last_told => {}
            Frame::Watch { ticket } if self.watches_open => {
                connection.watches.insert(ticket);
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
            Frame::Watch { ticket } => {
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
            Frame::Check { ticket } => net.frame(conn, false, Frame::Checked { ticket, marks }),
            Frame::Request { call, stream, work } => {
                self.request(net, oracle, conn, (call, stream, work));
            }
            Frame::Pong if connection.told => self.last_go_away(net, conn),
            _ => {}
        }
        self.settle(net, oracle);
    }

    fn request(
        &mut self,
        net: &mut Net,
        oracle: &mut Oracle,
        conn: ConnId,
        (call, stream, work): (CallId, u64, Duration),
    ) {
        let marks = self.marks();
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        if connection.last_told {
            // Above the last stream of the final GOAWAY: the caller knows that it was not processed.
            return;
        }
        connection.last_stream = connection.last_stream.max(stream);
        if !self.gate_open {
            net.frame(conn, false, Frame::Refused { call, marks });
            return;
        }
        connection.calls.insert(call);
        self.admitted += 1;
        self.running.insert(call, conn);
        oracle.started(net.now, call, self.id);
        net.after(
            work,
            Due::Finish {
                process: self.id,
                call,
            },
        );
    }

    pub(super) fn finish(&mut self, net: &mut Net, oracle: &mut Oracle, call: CallId) {
        let Some(conn) = self.running.remove(&call) else {
            return;
        };
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.calls.remove(&call);
            let marks = self.marks();
            net.frame(conn, false, Frame::Answer { call, marks });
        }
        self.settle(net, oracle);
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
        self.session(net, input);
    }

    pub(super) fn step(&mut self, net: &mut Net, oracle: &mut Oracle, step: Step) {
        let input = match step {
            Step::ListenerClosed(ticket) => drain::Input::ListenerClosed(ticket),
            Step::HookDone(ticket) => drain::Input::HookDone(ticket, Ok(())),
            Step::Deregistered(ticket) => drain::Input::Deregistered(ticket, Ok(())),
        };
        self.drain(net, oracle, input);
        self.settle(net, oracle);
    }

    pub(super) fn force_final(&mut self, net: &mut Net, oracle: &mut Oracle, ticket: Ticket) {
        if self.all_told == Some(ticket) {
            let waiting: Vec<ConnId> = self.connections.keys().copied().collect();
            for conn in waiting {
                self.last_go_away(net, conn);
            }
            self.settle(net, oracle);
        }
    }

    pub(super) fn tell_to_go(&mut self, net: &mut Net, conn: ConnId) {
        if let Some(connection) = self.connections.get_mut(&conn)
            && !std::mem::replace(&mut connection.told, true)
        {
            net.frame(conn, false, Frame::GoAway);
        }
    }

    fn last_go_away(&mut self, net: &mut Net, conn: ConnId) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        if !std::mem::replace(&mut connection.last_told, true) {
            net.frame(
                conn,
                false,
                Frame::FinalGoAway {
                    last: connection.last_stream,
                },
            );
        }
    }

    // --- its machines ---

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        earliest(self.drain.deadline(), self.session.deadline()).map(|(at, _)| at)
    }

    pub(super) fn wake(&mut self, net: &mut Net, oracle: &mut Oracle) {
        self.drain.handle_timeout(net.now);
        self.perform_drain(net, oracle);
        self.session.handle_timeout(net.now);
        self.perform_session(net);
        self.settle(net, oracle);
    }

    fn drain(&mut self, net: &mut Net, oracle: &mut Oracle, input: drain::Input) {
        self.drain.handle(net.now, input);
        self.perform_drain(net, oracle);
    }

    fn session(&mut self, net: &mut Net, input: session::Input) {
        self.session.handle(net.now, input);
        self.perform_session(net);
    }

    fn perform_drain(&mut self, net: &mut Net, oracle: &mut Oracle) {
        loop {
            let mut sample = false;
            while let Some(output) = self.drain.poll() {
                if matches!(output, drain::Output::Sample) {
                    sample = true;
                    continue;
                }
                net.note(format_args!("process {}: {output:?}", self.id));
                self.perform(net, oracle, output);
            }
            if !sample {
                return;
            }
            let (admitted, in_flight) = (self.admitted, self.running.len() as u64);
            self.drain.handle(
                net.now,
                drain::Input::Sampled {
                    admitted,
                    in_flight,
                },
            );
        }
    }

    fn perform(&mut self, net: &mut Net, oracle: &mut Oracle, output: drain::Output) {
        match output {
            drain::Output::Enter(Phase::Serving) => self.serving_since = Some(net.now),
            drain::Output::Enter(_) => self.serving_since = None,
            drain::Output::Want(want, ticket) => {
                self.want = (!matches!(want, Want::Present { .. })).then_some((want, ticket));
                self.session(net, session::Input::Want(want));
            }
            drain::Output::Ready => self.set_ready(net, true),
            drain::Output::Unready => self.set_ready(net, false),
            drain::Output::Announce => {
                self.closing = true;
                if self.flaw == Some(Flaw::DropsAtAnnouncement) {
                    self.cut(net, oracle);
                }
            }
            drain::Output::Unmark(_) => self.closing = self.flaw == Some(Flaw::StaysMarked),
            drain::Output::GoAwayExisting { pace } => self.go_away_existing(net, pace),
            drain::Output::CloseListener(ticket) => {
                self.listening = false;
                let step = Step::ListenerClosed(ticket);
                net.after(
                    Duration::ZERO,
                    Due::Step {
                        process: self.id,
                        step,
                    },
                );
            }
            drain::Output::GoAwayAll(ticket) => {
                self.go_away_existing(net, Duration::ZERO);
                self.all_told = Some(ticket);
                let force = Due::ForceFinal {
                    process: self.id,
                    ticket,
                };
                net.after(limits::FINAL_GOAWAY_MAX, force);
            }
            drain::Output::CloseGate => self.gate_open = false,
            drain::Output::EndWatches => self.end_watches(net),
            drain::Output::AwaitInFlight(ticket) => self.idle = Some(ticket),
            drain::Output::Cut => self.cut(net, oracle),
            drain::Output::RunHook(_, ticket) => {
                let step = Step::HookDone(ticket);
                net.after(
                    Duration::ZERO,
                    Due::Step {
                        process: self.id,
                        step,
                    },
                );
            }
            drain::Output::Done(report) => {
                self.alive = false;
                self.end_connections(net);
                self.report = Some(report);
            }
            drain::Output::Answer(..) | drain::Output::Stopping | drain::Output::Sample => {}
        }
    }

    fn set_ready(&mut self, net: &mut Net, ready: bool) {
        self.ready = ready;
        // Marks follow the announcement, which comes after this.
        let (marks, status) = (self.marks(), self.status());
        for (conn, connection) in &self.connections {
            for ticket in &connection.watches {
                net.frame(
                    *conn,
                    false,
                    Frame::Status {
                        ticket: *ticket,
                        status,
                        marks,
                    },
                );
            }
        }
    }

    fn go_away_existing(&mut self, net: &mut Net, pace: Duration) {
        let existing: Vec<ConnId> = self.connections.keys().copied().collect();
        for (position, conn) in existing.iter().enumerate() {
            let pause = pace * position as u32 / existing.len() as u32;
            net.after(
                pause,
                Due::TellToGo {
                    process: self.id,
                    conn: *conn,
                },
            );
        }
    }

    fn end_watches(&mut self, net: &mut Net) {
        self.watches_open = false;
        for (conn, connection) in &mut self.connections {
            for ticket in std::mem::take(&mut connection.watches) {
                net.frame(
                    *conn,
                    false,
                    Frame::WatchEnded {
                        ticket,
                        how: Ended::ByPeer,
                    },
                );
            }
        }
    }

    fn cut(&mut self, net: &mut Net, oracle: &mut Oracle) {
        let abandoned = self.running.len() as u64;
        for (call, conn) in std::mem::take(&mut self.running) {
            net.frame(conn, false, Frame::Reset { call });
        }
        self.end_connections(net);
        self.drain(net, oracle, drain::Input::WasCut { abandoned });
    }

    /// Tells the drain what has become true.
    fn settle(&mut self, net: &mut Net, oracle: &mut Oracle) {
        if self.all_told.is_some()
            && self.connections.values().all(|one| one.last_told)
            && let Some(ticket) = self.all_told.take()
        {
            self.drain(net, oracle, drain::Input::FinalGoAways(ticket));
        }
        if self.idle.is_some()
            && self.running.is_empty()
            && let Some(ticket) = self.idle.take()
        {
            self.drain(net, oracle, drain::Input::InFlightZero(ticket));
        }
        let over =
            |one: &Connection| one.last_told && one.calls.is_empty() && one.watches.is_empty();
        let ended: Vec<ConnId> = self
            .connections
            .iter()
            .filter(|(_, one)| over(one))
            .map(|(conn, _)| *conn)
            .collect();
        for conn in ended {
            self.connections.remove(&conn);
            net.gone(conn, false);
        }
        let all_gone = !self.listening && self.connections.is_empty() && self.alive;
        if all_gone && !std::mem::replace(&mut self.gone_told, true) {
            self.drain(net, oracle, drain::Input::ConnectionsGone);
        }
    }

    fn perform_session(&mut self, net: &mut Net) {
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
                    if let Some((want, ticket)) = self.want
                        && status.reached == Some(want)
                    {
                        self.want = None;
                        let step = Step::Deregistered(ticket);
                        net.after(
                            Duration::ZERO,
                            Due::Step {
                                process: self.id,
                                step,
                            },
                        );
                    }
                    continue;
                }
            };
            net.ask(self.node(), ticket, ask);
        }
    }
}

fn away() -> RegistryError {
    RegistryError {
        class: ErrorClass::Retry,
        message: "the registry did not answer".to_owned(),
    }
}
