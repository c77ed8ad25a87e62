//! What the machine is told, what it says, and its plan.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Reason, Report};
use crate::event::Phase;
use crate::instance::Life;
use crate::limits;
use crate::machine::Ticket;
use crate::registry::Want;

/// How long what may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The whole stop, from the request to the report.
    pub budget: Duration,
    /// What of the budget is kept for the cut, the hooks and the report; at most half of it is.
    pub margin: Duration,
    /// Closing lasts at least this long: how long news of it takes to reach every caller.
    pub floor: Duration,
    /// Closing ends once no caller's request was admitted for this long. Requests of peers that were told
    /// to go and came back do not count.
    pub quiet: Duration,
    /// Closing ends after this long whatever comes, counted from the request to stop.
    pub cap: Duration,
    /// The hooks, which are run one after another.
    pub hooks: Vec<HookPlan>,
}

/// What is known of a hook before it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookPlan {
    /// Its name, as the report has it.
    pub name: String,
    /// How long it may take at most; less where the budget has less left for it.
    pub max: Duration,
}

impl Default for Plan {
    /// The defaults of [`limits`], with the floor of a registry that pushes.
    fn default() -> Self {
        Self {
            budget: limits::STOP_BUDGET,
            margin: limits::STOP_MARGIN,
            floor: limits::FLOOR_PUSH,
            quiet: limits::QUIET_WINDOW,
            cap: limits::STOP_BUDGET * limits::CLOSING_CAP_PERCENT / 100,
            hooks: Vec::new(),
        }
    }
}

/// Numbers a request of the program or its operator, so that its answer finds the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Command(pub u64);

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The server accepts connections.
    Started,
    /// Leave, and do not come back. Answered: granted until the process has stopped. A second one
    /// changes nothing.
    Begin(Command, Reason),
    /// Enter Closing and stay there, serving, until Begin or Resume. Answered: granted where it serves
    /// or is held already.
    Hold(Command),
    /// Serve again, as a new life. Answered: only a held drain can be taken back.
    Resume(Command),
    /// Whether the program's own conditions hold. Ready at first. Counts while it serves: a process that
    /// leaves is not ready whatever is said, and what is said then counts after a Resume.
    Ready(bool),
    /// End now; what is in flight is cut.
    Abort,
    /// The gate's counters, as [`Output::Sample`] asked for them.
    Sampled {
        /// Requests of callers ever admitted, modulo 2^32.
        admitted: u64,
        /// Those among them of peers that were told to go and came back on a new connection, modulo 2^32.
        /// They cannot learn by waiting, so they keep Closing from being quiet only until every
        /// connection has been told.
        returning: u64,
        /// Requests in flight now.
        in_flight: u64,
    },
    /// Every registry has confirmed what was wanted, or one of them says why not.
    Deregistered(Ticket, Result<(), String>),
    /// The listener has been run dry and is closed.
    ListenerClosed(Ticket),
    /// Every connection has sent its final GOAWAY (HTTP/1: its last answer, or it was idle).
    FinalGoAways(Ticket),
    /// No request is in flight any more.
    InFlightZero(Ticket),
    /// Every connection task has ended, all bytes flushed.
    ConnectionsGone,
    /// The cut is made; so many requests were in flight.
    WasCut {
        /// How many.
        abandoned: u64,
    },
    /// A hook has ended.
    HookDone(Ticket, Result<(), String>),
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A phase begins.
    Enter(Phase),
    /// A request was granted (`true`), or it came too late or too early.
    Answer(Command, bool),
    /// From here on there is no way back: tell handlers that wait for it.
    Stopping,
    /// Registrations are to be like this; the completion is [`Input::Deregistered`] where the want
    /// is closing or gone.
    Want(Want, Ticket),
    /// Readiness true, also where it was before: health as its owners set it.
    Ready,
    /// Readiness false, also where it was before: NOT_SERVING to every Watch.
    Unready,
    /// Mark every answer as coming from a closing life.
    Announce,
    /// Marks off: this life serves.
    Unmark(Life),
    /// First GOAWAY to the connections that exist now, spread over `pace`.
    GoAwayExisting {
        /// How long the telling may be spread; zero means at once.
        pace: Duration,
    },
    /// Read the gate's counters: [`Input::Sampled`].
    Sample,
    /// Accept what waits, then close the listener: [`Input::ListenerClosed`].
    CloseListener(Ticket),
    /// GOAWAY to all connections, up to the final one: [`Input::FinalGoAways`].
    GoAwayAll(Ticket),
    /// Refuse what is new.
    CloseGate,
    /// End the health streams; they are nobody's work.
    EndWatches,
    /// Wait until nothing is in flight: [`Input::InFlightZero`].
    AwaitInFlight(Ticket),
    /// End what is left, visibly: [`Input::WasCut`].
    Cut,
    /// Run a hook, by its position: [`Input::HookDone`].
    RunHook(usize, Ticket),
    /// The end.
    Done(Report),
}
