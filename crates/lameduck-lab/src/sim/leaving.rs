//! What a simulated process can do about leaving.

use std::time::Duration;

use lameduck_core::drain::{Command, Input, Report};
use lameduck_core::effects::leaving::{Count, Edge};
use lameduck_core::event::Phase;
use lameduck_core::instance::Life;
use lameduck_core::machine::Ticket;
use lameduck_core::registry::Want;
use lameduck_core::session;
use lameduck_core::time::Timestamp;
use lameduck_core::watch::Ended;

use super::net::Net;
use super::process::Process;
use super::scenario::Flaw;
use super::wire::Frame;

/// The process, in its world.
pub(super) struct Leaving<'a> {
    pub(super) process: &'a mut Process,
    pub(super) net: &'a mut Net,
}

impl Edge for Leaving<'_> {
    fn input(&mut self, input: Input) {
        self.process.inputs.push_back(input);
    }

    fn enter(&mut self, phase: Phase) {
        self.process.serving_since = (phase == Phase::Serving).then_some(self.net.now);
    }

    fn answer(&mut self, _: Command, _: bool) {}

    fn stopping(&mut self) {}

    fn want(&mut self, want: Want, confirm: Option<Ticket>) {
        self.process.want = confirm.map(|ticket| (want, ticket));
        self.process
            .tell_session(self.net, session::Input::Want(want));
    }

    fn set_ready(&mut self, ready: bool) {
        self.process.ready = ready;
        let status = self.process.status();
        for (conn, connection) in &self.process.connections {
            for ticket in &connection.watches {
                let marks = None;
                let frame = Frame::Status {
                    ticket: *ticket,
                    status,
                    marks,
                };
                self.net.frame(*conn, false, frame);
            }
        }
    }

    fn mark(&mut self) {
        self.process.closing = true;
        self.process.orders.announced(self.process.accepted);
        self.process.announced = Some(self.process.accepted);
        if self.process.flaw == Some(Flaw::DropsAtAnnouncement) {
            for (call, conn) in std::mem::take(&mut self.process.running) {
                self.net.frame(conn, false, Frame::Reset { call });
            }
            self.process.end_connections(self.net);
        }
    }

    fn unmark(&mut self, life: Life) {
        self.process.life = life;
        self.process.closing = self.process.flaw == Some(Flaw::StaysMarked);
        self.process.orders.resumed();
        self.process.announced = None;
        self.process.told_by = Timestamp::MAX;
        self.process.told_callers.clear();
    }

    fn go_away(&mut self, pace: Duration) {
        self.process.told_by = self.net.now + pace;
        self.process.orders.go_away(self.process.accepted, pace);
        self.process.obey(self.net);
    }

    fn count(&self) -> Count {
        Count {
            admitted: self.process.admitted,
            returning: self.process.returning,
            in_flight: self.process.running.len() as u64,
            owing: 0,
        }
    }

    fn close_listener(&mut self, ticket: Ticket) {
        self.process.listening = false;
        self.input(Input::ListenerClosed(ticket));
    }

    fn go_away_all(&mut self, ticket: Ticket, within: Duration) {
        self.process.all_told = Some(ticket);
        self.process.orders.go_away_all(within);
        self.process.obey(self.net);
    }

    fn close_gate(&mut self) {
        self.process.gate_open = false;
    }

    fn end_watches(&mut self) {
        self.process.watches_open = false;
        for (conn, connection) in &mut self.process.connections {
            for ticket in std::mem::take(&mut connection.watches) {
                let how = Ended::ByPeer;
                self.net
                    .frame(*conn, false, Frame::WatchEnded { ticket, how });
            }
        }
    }

    fn await_in_flight(&mut self, ticket: Ticket) {
        self.process.idle = Some(ticket);
    }

    fn cut(&mut self) {
        self.process.orders.cut();
        self.process.obey(self.net);
    }

    fn run_hook(&mut self, _: usize, ticket: Ticket) {
        self.input(Input::HookDone(ticket, Ok(())));
    }

    fn done(&mut self, report: Report) {
        self.process.alive = false;
        self.process.end_connections(self.net);
        self.process.report = Some(report);
    }
}
