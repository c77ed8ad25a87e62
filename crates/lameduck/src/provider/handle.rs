//! What a program may ask of its provider while it runs.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};

use lameduck_core::drain::{Command, Input, Reason};
use lameduck_core::event::Phase;
use lameduck_core::instance::Life;
use lameduck_core::limits::COMMANDS_MAX;
use tokio::sync::{mpsc, oneshot, watch};

use super::readiness::Readiness;
use super::registration::RegistrationStatus;
use crate::cell::gate::{Admission, Gate};
use crate::health::Health;
use crate::serve::Control;

/// Where a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its phase.
    pub phase: Phase,
    /// Its life: after a Resume, the next one.
    pub life: Life,
    /// Whether it will stop: there is no way back.
    pub stopping: bool,
}

/// Asks things of a provider. Clones ask the same one.
///
/// Handlers take it as an argument or find it among the extensions of their request.
/// [`Builder::handle`](super::Builder::handle) gives it before the provider is built.
#[derive(Clone)]
pub struct Handle {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) commands: Commands,
    pub(super) status: watch::Sender<Status>,
    pub(super) gate: Gate,
    pub(super) health: Health,
    pub(super) readiness: Readiness,
    /// Empty before `build`.
    pub(super) bound: OnceLock<Bound>,
}

/// What only a provider that is built has.
pub(super) struct Bound {
    pub(super) control: Control,
    pub(super) local_addr: SocketAddr,
    pub(super) registrations: Vec<watch::Receiver<RegistrationStatus>>,
}

impl Shared {
    /// The server's levers, of a provider that is built.
    pub(super) fn control(&self) -> &Control {
        &self.bound.get().expect("the provider is built").control
    }

    /// What is left where `run` ends without a stop: everything is cut, and whoever waits hears of it.
    pub(super) fn end(&self) {
        self.health.leave();
        self.health.end();
        self.gate.close();
        if let Some(bound) = self.bound.get() {
            bound.control.end_health();
            bound.control.cut();
        }
        self.status.send_modify(|status| {
            status.stopping = true;
            status.phase = Phase::Stopped;
        });
        self.commands.close();
    }
}

/// Sends inputs to the machine; the answers of those that are requests find their way back here.
pub(super) struct Commands {
    pub(super) inputs: mpsc::UnboundedSender<Input>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    last: u64,
    answers: BTreeMap<u64, oneshot::Sender<bool>>,
}

impl Commands {
    pub(super) fn new(inputs: mpsc::UnboundedSender<Input>) -> Self {
        Self {
            inputs,
            waiting: Mutex::default(),
        }
    }

    /// Sends a request. At most so many are under way at once: further ones are refused.
    pub(super) fn send(&self, request: impl FnOnce(Command) -> Input) -> Answer {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.answers.len() < COMMANDS_MAX {
            waiting.last += 1;
            let number = waiting.last;
            if self.inputs.send(request(Command(number))).is_ok() {
                waiting.answers.insert(number, sender);
            }
        }
        Answer { receiver }
    }

    pub(super) fn answer(&self, command: Command, granted: bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = waiting.answers.remove(&command.0) {
            // Who asked need not wait for the answer.
            let _ = sender.send(granted);
        }
    }

    /// Nobody will answer any more.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.answers.clear();
    }
}

/// Whether a request was granted. The request is made already: waiting for this is up to you.
#[derive(Debug)]
pub struct Answer {
    receiver: oneshot::Receiver<bool>,
}

impl Future for Answer {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        Pin::new(&mut self.receiver)
            .poll(context)
            .map(|answer| answer.unwrap_or(false))
    }
}

impl Handle {
    /// Which life serves.
    #[must_use]
    pub fn life(&self) -> Life {
        self.status().life
    }

    /// Where the process listens: with port 0 asked for, the port that it got. `0.0.0.0:0` before
    /// `build`, which opens the port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        let bound = self.shared.bound.get();
        bound.map_or((Ipv4Addr::UNSPECIFIED, 0).into(), |bound| bound.local_addr)
    }

    /// Its phase now.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.status().phase
    }

    /// Phase, life, and whether it is stopping, at one moment.
    #[must_use]
    pub fn status(&self) -> Status {
        *self.shared.status.borrow()
    }

    /// The status as it changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.shared.status.subscribe()
    }

    /// Enters Closing and stays there, serving, until [`resume`](Self::resume) or a stop. Granted
    /// while the process serves, and where it is held already; not before it serves, and not once a stop
    /// has begun. What is asked before `run` is answered when that begins.
    pub fn hold(&self) -> Answer {
        self.shared.commands.send(Input::Hold)
    }

    /// Takes a held drain back: the process serves on as its next life. Not granted once a stop has
    /// begun.
    pub fn resume(&self) -> Answer {
        self.shared.commands.send(Input::Resume)
    }

    /// Leaves and stops, for this reason, which is the first one's where several ask: all of them are
    /// granted the one stop. Not granted once it is over. Asked before `run`, it stops the process when
    /// that begins, and nothing is registered.
    pub fn stop(&self, reason: impl Into<String>) -> Answer {
        let reason = Reason::Asked(reason.into());
        self.shared
            .commands
            .send(|command| Input::Begin(command, reason))
    }

    /// Stops now: what is in flight is cut. Before `run`, see [`stop`](Self::stop).
    pub fn abort(&self) {
        // Where nobody listens, it has stopped already.
        let _ = self.shared.commands.inputs.send(Input::Abort);
    }

    /// Says whether a condition of readiness holds, such as that the database answers. The process is
    /// ready while it serves and every condition that was named holds; one that was never named does.
    ///
    /// Where it is not ready, gRPC health answers NOT_SERVING to every name, its record in a registry says
    /// so, and go-zero's key is absent. Callers give it no new call, and keep its entry and connections;
    /// what arrives is served. Nothing is cut and nothing stops: liveness is another matter. A process that
    /// leaves is not ready whatever is said; what is said meanwhile counts after [`resume`](Self::resume).
    pub fn ready(&self, condition: &str, holds: bool) {
        let Shared {
            readiness,
            commands,
            ..
        } = &*self.shared;
        readiness.set(condition, holds, commands);
    }

    /// Whether it serves and every condition of readiness holds.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase() == Phase::Serving && self.unmet().is_empty()
    }

    /// The conditions of readiness that do not hold, in the order of their names.
    #[must_use]
    pub fn unmet(&self) -> Vec<String> {
        self.shared.readiness.unmet()
    }

    /// The gate: what is in flight, and permits for background work that a stop should wait for. It is closed
    /// by a stop alone.
    #[must_use]
    pub fn gate(&self) -> Admission {
        Admission::new(self.shared.gate.clone())
    }

    /// The board of health statuses.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.shared.health
    }

    /// The server's connections, as they are now.
    #[must_use]
    pub fn connections(&self) -> crate::serve::Connections {
        let bound = self.shared.bound.get();
        bound.map_or_else(Default::default, |bound| bound.control.connections())
    }

    /// How the registrations stand, one per registry; none before `build`.
    #[must_use]
    pub fn registrations(&self) -> Vec<RegistrationStatus> {
        let bound = self.shared.bound.get();
        let registrations = bound.map_or(&[][..], |bound| &bound.registrations);
        registrations
            .iter()
            .map(|status| status.borrow().clone())
            .collect()
    }

    /// Resolves once a stop has begun, from which there is no way back (a held drain can be taken
    /// back, and does not count). For handlers that would otherwise run on: say goodbye and end.
    pub fn closing(&self) -> impl Future<Output = ()> + Send + use<> {
        let status = self.shared.status.subscribe();
        reaches(status, |status| status.stopping)
    }

    /// Resolves once the process serves, or has gone beyond.
    pub fn serving(&self) -> impl Future<Output = ()> + Send + use<> {
        let status = self.shared.status.subscribe();
        reaches(status, |status| status.phase != Phase::Starting)
    }
}

/// Also resolves where the provider is gone: what is waited for will not come.
async fn reaches(mut status: watch::Receiver<Status>, when: fn(&Status) -> bool) {
    let _ = status.wait_for(when).await;
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.status(), f)
    }
}
