//! What a stop leaves behind to read: one value, in which errors are entries.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::instance::Life;

/// Why a process was asked to leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// SIGTERM.
    Sigterm,
    /// SIGINT from elsewhere than a terminal.
    Sigint,
    /// SIGQUIT.
    Sigquit,
    /// SIGHUP.
    Sighup,
    /// Ctrl-C at a terminal: somebody is waiting, so Closing has no floor.
    Terminal,
    /// The program itself, or an operator through it, in its words.
    Asked(String),
    /// The server's accept loop ended by itself.
    ServerEnded,
    /// There was no graceful stop before the forced one.
    Abort,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sigterm => "sigterm",
            Self::Sigint => "sigint",
            Self::Sigquit => "sigquit",
            Self::Sighup => "sighup",
            Self::Terminal => "ctrl-c",
            Self::Asked(why) => why,
            Self::ServerEnded => "the server ended",
            Self::Abort => "abort",
        })
    }
}

/// What ended Closing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClosingEnd {
    /// The floor had passed, and no request came during the quiet window.
    Quiet,
    /// The cap, before a whole quiet window was seen: requests kept coming, or the process was frozen.
    Cap,
    /// There was no Closing: the process had not served yet, or was forced to end.
    #[default]
    Skipped,
}

/// One thing that did not go as it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A registry did not confirm that the registration is gone; it may last until its lease ends.
    Registration(String),
    /// The process served, and this registry never confirmed that it is listed: callers may not have
    /// found it. Nothing is left behind.
    NeverRegistered(String),
    /// Closing the listener took too long, and the stop went on.
    Listener,
    /// Not every connection confirmed its final GOAWAY in time, and the stop went on.
    GoAways,
    /// Connections still had bytes to send, or requests in flight, and were cut.
    Connections,
    /// A hook failed.
    HookFailed {
        /// Its name.
        name: String,
        /// What it said.
        why: String,
    },
    /// A hook did not end in time, and was left behind.
    HookLeft {
        /// Its name.
        name: String,
    },
    /// The server ended by itself.
    ServerEnded,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registration(why) => {
                write!(f, "a registration may be left until its lease ends: {why}")
            }
            Self::NeverRegistered(registry) => {
                write!(f, "never registered in {registry}, as far as is known")
            }
            Self::Listener => f.write_str("closing the listener took too long"),
            Self::GoAways => f.write_str("not every connection confirmed its final GOAWAY"),
            Self::Connections => f.write_str("connections had to be cut"),
            Self::HookFailed { name, why } => write!(f, "hook {name} failed: {why}"),
            Self::HookLeft { name } => write!(f, "hook {name} took too long and was left behind"),
            Self::ServerEnded => f.write_str("the server ended by itself"),
        }
    }
}

/// How a stop went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Which life left.
    pub life: Life,
    /// Why.
    pub reason: Reason,
    /// How long it stood in Closing, holding included.
    pub closing: Duration,
    /// What ended Closing.
    pub closing_end: ClosingEnd,
    /// From the request to stop to this report.
    pub total: Duration,
    /// From the start of Closing until no registry led callers here any more: it confirmed that, or had
    /// never listed the process. `None` where one did not confirm.
    pub deregistered: Option<Duration>,
    /// Requests in flight when the stop began.
    pub in_flight: u64,
    /// Requests that were cut.
    pub abandoned: u64,
    /// Whether the stop was forced (second SIGINT, abort).
    pub forced: bool,
    /// What did not go as it should.
    pub problems: Vec<Problem>,
}

impl Report {
    /// The exit code that says this: 0 nothing abandoned, 1 an error, 10 abandoned or incomplete
    /// at the cap, 11 forced.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        let incomplete = |problem: &Problem| {
            matches!(
                problem,
                Problem::Connections | Problem::Registration(_) | Problem::HookLeft { .. }
            )
        };
        let failed = |problem: &Problem| {
            matches!(problem, Problem::HookFailed { .. } | Problem::ServerEnded)
        };
        if self.forced {
            11
        } else if self.abandoned > 0 || self.problems.iter().any(incomplete) {
            10
        } else {
            u8::from(self.problems.iter().any(failed))
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.forced {
            "was forced to stop"
        } else {
            "stopped"
        };
        write!(
            f,
            "{how} ({}) in {} ms: closing {} ms",
            self.reason,
            self.total.as_millis(),
            self.closing.as_millis()
        )?;
        if self.closing_end == ClosingEnd::Cap {
            f.write_str(" (ended by its cap)")?;
        }
        write!(
            f,
            ", in flight at the start {}, abandoned {}",
            self.in_flight, self.abandoned
        )?;
        self.problems
            .iter()
            .try_for_each(|problem| write!(f, "; {problem}"))
    }
}
