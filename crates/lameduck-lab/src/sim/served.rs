//! One accepted connection of a simulated process: the production machine, and what it acts upon.

use std::collections::{BTreeSet, VecDeque};

use lameduck_core::conn::{Bounds, Conn, Input, Look, Reason};
use lameduck_core::effects::connection::{self, Edge};
use lameduck_core::instance::Life;
use lameduck_core::machine::{Machine, Ticket};
use lameduck_core::time::Timestamp;

use super::net::Net;
use super::wire::{CallId, ConnId, Frame, Marks};

/// The connection.
pub(super) struct Connection {
    pub(super) machine: Conn,
    pub(super) number: u64,
    /// Who has dialled.
    pub(super) caller: usize,
    /// The first GOAWAY is out.
    pub(super) told: bool,
    /// The final one is.
    pub(super) last_told: bool,
    pub(super) settled: bool,
    pub(super) last_stream: u64,
    pub(super) calls: BTreeSet<CallId>,
    pub(super) watches: BTreeSet<Ticket>,
    /// Calls whose answers were just ended.
    pub(super) ended: BTreeSet<CallId>,
    pub(super) over: bool,
    /// Who it has said to be answering.
    named: Option<Life>,
    /// What was seen on the wire, in order.
    noticed: VecDeque<Input>,
}

impl Connection {
    pub(super) fn new(now: Timestamp, number: u64, caller: usize) -> Self {
        Self {
            machine: Conn::new(now, Bounds::default()),
            number,
            caller,
            told: false,
            last_told: false,
            settled: false,
            last_stream: 0,
            calls: BTreeSet::new(),
            watches: BTreeSet::new(),
            ended: BTreeSet::new(),
            over: false,
            named: None,
            noticed: VecDeque::new(),
        }
    }

    /// What the next answer of `life` says beside its content.
    pub(super) fn marks(&mut self, life: Life, closing: bool) -> Marks {
        let names = self.named.replace(life) != Some(life);
        Marks {
            life,
            names,
            closing,
        }
    }

    /// Nothing will come, nothing is open: it ends by itself.
    pub(super) fn is_done(&self) -> bool {
        self.last_told && self.calls.is_empty() && self.watches.is_empty()
    }

    /// The PING of the first GOAWAY was answered, or counts as answered.
    pub(super) fn pong(&mut self, net: &mut Net, id: ConnId) {
        if self.told && !std::mem::replace(&mut self.last_told, true) {
            let last = self.last_stream;
            net.frame(id, false, Frame::FinalGoAway { last });
            self.noticed.push_back(Input::FinalOut);
        }
    }

    pub(super) fn perform(&mut self, net: &mut Net, id: ConnId) {
        loop {
            while let Some(output) = self.machine.poll() {
                let mut edge = Wire {
                    connection: self,
                    net,
                    id,
                };
                if let Some(input) = connection::perform(&mut edge, output) {
                    self.machine.handle(net.now, input);
                }
            }
            let Some(input) = self.noticed.pop_front() else {
                return;
            };
            self.machine.handle(net.now, input);
        }
    }
}

struct Wire<'a> {
    connection: &'a mut Connection,
    net: &'a mut Net,
    id: ConnId,
}

impl Edge for Wire<'_> {
    fn graceful(&mut self) {
        if !std::mem::replace(&mut self.connection.told, true) {
            self.net.frame(self.id, false, Frame::GoAway);
            self.connection.noticed.push_back(Input::GoAwayOut);
        }
    }

    fn inject_pong(&mut self) {
        self.connection.pong(self.net, self.id);
    }

    fn look(&mut self) -> Look {
        unreachable!("these worlds speak HTTP/2, without an idle time")
    }

    fn last_answer(&mut self) {
        unreachable!("only HTTP/1 ages in this way, and these worlds speak HTTP/2")
    }

    fn settled(&mut self) {
        self.connection.settled = true;
    }

    fn end_answers(&mut self) {
        let ended = std::mem::take(&mut self.connection.calls);
        for call in &ended {
            self.net.frame(self.id, false, Frame::Reset { call: *call });
        }
        self.connection.ended.extend(ended);
    }

    fn reset(&mut self) {
        self.connection.watches.clear();
    }

    fn drop_it(&mut self, _: Reason) {
        self.connection.over = true;
    }
}
