//! What goes from one actor to another.

use std::time::Duration;

use lameduck_core::instance::{Life, State};
use lameduck_core::machine::Ticket;
use lameduck_core::mirror;
use lameduck_core::watch::{Ended, Name, Status};

use super::scenario::Back;

/// Names one connection, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConnId(pub(super) u64);

/// Names one call, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CallId(pub(super) u64);

/// Who is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    Process(usize),
    Caller(usize),
}

/// What a registration says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) slot: usize,
    pub(super) life: Life,
    pub(super) state: State,
    pub(super) ready: bool,
}

/// A request to the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Grant,
    Put { lease: i64, record: Record },
    PutClosing { lease: i64, record: Record },
    Renew { lease: i64 },
    Check { lease: i64 },
    Revoke { lease: i64 },
    List,
    Watch { from: u64 },
}

/// What the registry answers, or pushes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tell {
    Granted {
        lease: i64,
        ttl: Duration,
    },
    Renewed {
        ttl: Duration,
    },
    Done,
    Checked {
        intact: bool,
    },
    LeaseGone,
    Failed,
    Listed {
        origin: mirror::Origin,
        items: Vec<mirror::Item<i64, Record>>,
    },
    Opened {
        origin: mirror::Origin,
    },
    Changed {
        revision: u64,
        changes: Vec<mirror::Change<i64, Record>>,
    },
    Compacted,
}

/// What an answer of a server says beside its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) life: Life,
    /// It says who answers: the first on a connection, and the first after a Resume.
    pub(super) names: bool,
    pub(super) closing: bool,
}

/// One frame on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    // to the server
    Watch {
        ticket: Ticket,
        name: Name,
    },
    Cancel {
        ticket: Ticket,
    },
    Check {
        ticket: Ticket,
    },
    Request {
        call: CallId,
        stream: u64,
        work: Duration,
    },
    Pong,
    // to the caller
    Status {
        ticket: Ticket,
        status: Status,
        /// Only the first message of a stream comes with headers.
        marks: Option<Marks>,
    },
    WatchEnded {
        ticket: Ticket,
        how: Ended,
    },
    Checked {
        ticket: Ticket,
        status: Status,
        marks: Marks,
    },
    Answer {
        call: CallId,
        marks: Marks,
    },
    Refused {
        call: CallId,
        marks: Marks,
    },
    Reset {
        call: CallId,
    },
    GoAway,
    FinalGoAway {
        last: u64,
    },
}

/// One thing that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Ask {
        from: Node,
        ticket: Ticket,
        ask: Ask,
    },
    Tell {
        to: Node,
        ticket: Ticket,
        tell: Tell,
    },
    Dial {
        conn: ConnId,
    },
    Dialled {
        conn: ConnId,
        ok: bool,
    },
    ToServer {
        conn: ConnId,
        frame: Frame,
    },
    ToCaller {
        conn: ConnId,
        frame: Frame,
    },
    GoneAtServer {
        conn: ConnId,
    },
    GoneAtCaller {
        conn: ConnId,
    },
    Wake {
        node: Node,
    },
    LeaseEnds,
    Finish {
        process: usize,
        call: CallId,
    },
    NewCall {
        caller: usize,
    },
    Place {
        caller: usize,
        call: CallId,
    },
    Deadline {
        caller: usize,
        call: CallId,
    },
    Act {
        index: usize,
    },
    Start {
        slot: usize,
    },
    Resume {
        process: usize,
    },
    RegistryBack {
        back: Back,
    },
    /// The foreign client makes its next call.
    Foreign,
    /// Everybody connected must know by now that this process is closing.
    SeeClosing {
        process: usize,
    },
    /// This life must not be registered any more.
    SeeLeft {
        life: Life,
    },
    /// Everybody connected must know by now that this life serves.
    SeeResumed {
        process: usize,
        life: Life,
        caller: usize,
    },
}
