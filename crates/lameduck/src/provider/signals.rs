//! What signals mean to a process: one listener for all of its providers.
//!
//! SIGTERM, SIGINT, SIGQUIT and SIGHUP begin a stop in every provider that catches signals; further ones
//! change nothing, but the second SIGINT ends the process with exit code 11. A signal ends the
//! process at once, with code 0, only where no provider runs and none ever ran. Once the last
//! provider has ended, signals do what they do in a program without lameduck: they end it, unless
//! the program catches them itself. A stop that has not ended with its budget, because its runtime
//! is blocked, is ended with exit code 10. This is the only place that ends the process.
//!
//! The dispositions of signals belong to the whole process, so this is the one thing in lameduck that is
//! global.

mod listener;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use lameduck_core::drain::{Input, Reason};
use lameduck_core::limits::{ABORT_MAX, FAREWELL_MIN};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::handle::Shared;
use super::report;
use listener::{Listener, Own};

/// The signals that begin a stop. Where several wait, nobody knows which came first: the first of these
/// is the reason.
const SIGNALS: [i32; 4] = [SIGTERM, SIGINT, SIGQUIT, SIGHUP];

/// Exit code of a process that never served.
const UNSERVED: u8 = 0;
/// Exit code of a stop that was forced.
const FORCED: u8 = 11;
/// Exit code of a stop that is incomplete when its budget is used up.
const INCOMPLETE: u8 = 10;

static PROCESS: Process = Process {
    state: Mutex::new(State::new()),
    changed: Condvar::new(),
};

struct Process {
    state: Mutex<State>,
    /// A provider has ended.
    changed: Condvar,
}

/// The providers of the process that have not ended, and what was so far.
struct State {
    members: BTreeMap<u64, Member>,
    next: u64,
    /// Whether any provider ever ran.
    ran: bool,
    /// Whether the program said that it catches signals itself.
    programs: bool,
    /// Whether the last that caught signals had been asked by one.
    asked: bool,
    listener: Option<Listener>,
    /// What was there before the first listener.
    own: Option<Own>,
}

/// A provider that is built and has not ended.
struct Member {
    shared: Arc<Shared>,
    service: String,
    budget: Duration,
    catches: bool,
    running: bool,
    /// Since when a signal asks it to stop.
    asked: Option<Instant>,
    interrupted: bool,
}

impl Member {
    fn is_overdue(&self, now: Instant) -> bool {
        let due = self.asked.and_then(|asked| asked.checked_add(self.budget));
        due.is_some_and(|due| due <= now)
    }

    fn begin(&mut self, reason: Reason) {
        self.asked.get_or_insert_with(Instant::now);
        let commands = &self.shared.commands;
        drop(commands.send(|command| Input::Begin(command, reason)));
    }
}

/// What a signal does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// It begins a stop in all that catch signals.
    Stop,
    /// It ends the process, which never served.
    Exit,
    /// What it does in a program without lameduck.
    Default,
    /// Nothing: the program catches it itself, or serves on.
    Nothing,
}

/// A provider's place among those of the process; left when dropped.
pub(super) struct Membership {
    number: u64,
}

/// Adds a provider. From here on signals are caught, where it `catches` them.
///
/// # Errors
///
/// What the system says of the thread, the descriptors or the handlers.
pub(super) fn enter(
    shared: Arc<Shared>,
    service: String,
    budget: Duration,
    catches: bool,
) -> io::Result<Membership> {
    let mut state = PROCESS.lock();
    if catches && state.listener.is_none() {
        let own = state.own.get_or_insert_with(Own::read).clone();
        state.listener = Some(Listener::start(own)?);
        state.asked = false;
    }
    state.programs |= !catches;
    let number = state.next;
    state.next += 1;
    let member = Member {
        shared,
        service,
        budget,
        catches,
        running: false,
        asked: None,
        interrupted: false,
    };
    state.members.insert(number, member);
    state.settle();
    Ok(Membership { number })
}

impl Membership {
    /// `run` has begun. Waits for ever where a signal is just ending the process.
    pub(super) fn run(&self) {
        let mut state = PROCESS.lock();
        state.ran = true;
        if let Some(member) = state.members.get_mut(&self.number) {
            member.running = true;
            // Its budget begins now.
            member.asked = member.asked.map(|_| Instant::now());
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = PROCESS.lock();
        let left = state.members.remove(&self.number);
        if let Some(left) = left.as_ref().filter(|left| left.catches) {
            state.asked = left.asked.is_some();
        }
        state.settle();
        drop(state);
        PROCESS.changed.notify_all();
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Membership({})", self.number)
    }
}

impl Process {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every step on it leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A signal has come, `count` times.
    fn heard(&self, signal: i32, count: usize) {
        let mut state = self.lock();
        for _ in 0..count {
            let again = signal == SIGINT && state.is_interrupted();
            match state.effect() {
                Effect::Stop if again => state = self.force(state),
                Effect::Stop => state.stop(signal),
                Effect::Exit => {
                    let service = state.services(|_| true);
                    let what = format!("stopped ({}) before it served", reason(signal));
                    // The lock is held: `run` cannot begin, and register, in between.
                    exit(UNSERVED, &service, &what)
                }
                Effect::Default => state.default_action(signal),
                Effect::Nothing => {}
            }
        }
    }

    /// Ends the process where a stop that a signal began has not ended with its budget. The drain keeps
    /// its budget by itself, but not where its runtime does not run it.
    fn look(&self) {
        let (state, over) = self.wait_while(self.lock(), |state| {
            state.all_overdue(Instant::now()).is_some()
        });
        let Some(abandoned) = state.all_overdue(Instant::now()).filter(|_| over) else {
            return;
        };
        let service = state.services(|member| member.running);
        let what = format!("is stuck: its runtime is blocked, abandoned {abandoned}");
        exit(INCOMPLETE, &service, &what);
    }

    /// The runtime gets a moment to cut and to say what it abandons; a stuck one gets no more.
    fn force<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let forced = |member: &Member| member.catches && member.running;
        for member in state.members.values().filter(|member| forced(member)) {
            let _ = member.shared.commands.inputs.send(Input::Abort);
        }
        let services = state.services(forced);
        let runs = move |state: &State| state.members.values().any(forced);
        let (state, over) = self.wait_while(state, runs);
        if state
            .members
            .values()
            .any(|member| member.running && !member.catches)
        {
            // The program's own are the program's business.
            return state;
        }
        if over {
            let abandoned = state.in_flight();
            let what = format!("was forced to stop, abandoned {abandoned}");
            exit(FORCED, &services, &what);
        }
        exit_silently(FORCED)
    }

    /// Waits, but not longer than a forced stop may take; whether it was that long.
    fn wait_while<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        waits: impl Fn(&State) -> bool,
    ) -> (MutexGuard<'a, State>, bool) {
        let waited = self
            .changed
            .wait_timeout_while(state, ABORT_MAX * 2, |state| waits(state));
        let (state, over) = waited.unwrap_or_else(PoisonError::into_inner);
        (state, over.timed_out())
    }
}

impl State {
    const fn new() -> Self {
        Self {
            members: BTreeMap::new(),
            next: 0,
            ran: false,
            programs: false,
            asked: false,
            listener: None,
            own: None,
        }
    }

    fn catching(&self) -> impl Iterator<Item = &Member> {
        self.members.values().filter(|member| member.catches)
    }

    fn effect(&self) -> Effect {
        let mut members = self.members.values();
        if self.catching().any(|member| member.running) {
            return Effect::Stop;
        }
        let others_run = members.any(|member| member.running);
        let waits = self.catching().any(|member| member.asked.is_none());
        let built = self.catching().next().is_some();
        match () {
            // One that is built begins its stop when it runs.
            () if built && (self.ran || self.programs) && waits => Effect::Stop,
            () if built && !self.ran && !self.programs => Effect::Exit,
            () if others_run || self.programs => Effect::Nothing,
            () => Effect::Default,
        }
    }

    fn stop(&mut self, signal: i32) {
        let reason = reason(signal);
        let catching = self.members.values_mut().filter(|member| member.catches);
        for member in catching {
            member.interrupted |= signal == SIGINT;
            member.begin(reason.clone());
        }
    }

    fn is_interrupted(&self) -> bool {
        self.catching()
            .any(|member| member.running && member.interrupted)
    }

    /// What is in flight where all that run have used up their budgets.
    fn all_overdue(&self, now: Instant) -> Option<u64> {
        let mut running = self.members.values().filter(|member| member.running);
        let overdue = running.all(|member| member.is_overdue(now));
        let any = self.catching().any(|member| member.running);
        (overdue && any).then(|| self.in_flight())
    }

    /// When to look whether a stop is overdue.
    fn due(&self) -> Option<Instant> {
        let due = self
            .catching()
            .map(|member| member.asked?.checked_add(member.budget));
        due.flatten().max()
    }

    fn in_flight(&self) -> u64 {
        let running = self.members.values().filter(|member| member.running);
        running
            .map(|member| member.shared.gate.in_flight().total)
            .sum()
    }

    fn services(&self, which: impl Fn(&Member) -> bool) -> String {
        let named = self.catching().filter(|member| which(member));
        let named: Vec<&str> = named.map(|member| member.service.as_str()).collect();
        named.join("+")
    }

    /// Listens no more once no provider is left that catches signals.
    fn settle(&mut self) {
        let catches = self.catching().next().is_some();
        let left = if catches { None } else { self.listener.take() };
        // The handlers read it: a signal then ends the process as it would without us. First this, then
        // the listener's end: in between, no signal is lost.
        let default = self.listener.is_none() && self.effect() == Effect::Default;
        if let Some(own) = &self.own {
            own.restore(default);
        }
        if let Some(listener) = left {
            listener.stop();
        }
    }

    fn default_action(&self, signal: i32) {
        let late = self.listener.is_none() && self.asked;
        if !late && let Some(own) = &self.own {
            own.act(signal);
        }
    }
}

fn reason(signal: i32) -> Reason {
    match signal {
        SIGINT if io::stdin().is_terminal() => Reason::Terminal,
        SIGINT => Reason::Sigint,
        SIGQUIT => Reason::Sigquit,
        SIGHUP => Reason::Sighup,
        _ => Reason::Sigterm,
    }
}

/// Ends the process, with a line about it where stderr takes one.
fn exit(code: u8, service: &str, what: &dyn fmt::Display) -> ! {
    report::say(service, what, FAREWELL_MIN);
    exit_silently(code)
}

/// Ends the process as `std::process::exit` does; where that does not end, since somebody holds a lock
/// that an exit handler needs, without exit handlers.
fn exit_silently(code: u8) -> ! {
    let orderly = move || std::process::exit(code.into());
    if std::thread::Builder::new().spawn(orderly).is_ok() {
        let (_held, never) = mpsc::channel::<()>();
        let _ = never.recv_timeout(FAREWELL_MIN);
    }
    signal_hook::low_level::exit(code.into())
}
