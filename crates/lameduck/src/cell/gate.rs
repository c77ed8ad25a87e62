//! What admits a request or refuses it, and counts those in flight.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::FromRequestParts;
use http::StatusCode;
use http::request::Parts;
use tokio::sync::Notify;

use super::word::Word;

/// What a permit was given for; only for the eyes of people, all kinds hold the drain alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A request that is answered in one go.
    #[default]
    Unary,
    /// A request whose answer has made its reader wait: a stream.
    Stream,
    /// A connection that was upgraded to another protocol.
    Upgraded,
    /// Background work that the process must finish.
    Task,
}

/// How many permits are out, by kind. The kinds are counted one by one, so under load their sum
/// can be off by those that come and go during the look; `total` is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Requests answered in one go.
    pub unary: u64,
    /// Streams.
    pub streams: u64,
    /// Upgraded connections.
    pub upgraded: u64,
    /// Background work.
    pub tasks: u64,
    /// All of them.
    pub total: u64,
}

/// Admits or refuses, and counts. Clones share one count.
///
/// Admission is one `fetch_add`, undone where the gate is closed: no lock, no queue, no allocation.
#[derive(Clone)]
pub struct Gate {
    cell: Arc<Cell>,
}

struct Cell {
    word: Word,
    streams: AtomicU64,
    upgraded: AtomicU64,
    tasks: AtomicU64,
    lost: AtomicU64,
    /// How many tasks were ever admitted.
    background: AtomicU64,
    /// How many requests were admitted of peers that were told to go and came back.
    returning: AtomicU64,
    idle: Notify,
}

impl Cell {
    fn kind(&self, kind: Kind) -> Option<&AtomicU64> {
        match kind {
            Kind::Unary => None,
            Kind::Stream => Some(&self.streams),
            Kind::Upgraded => Some(&self.upgraded),
            Kind::Task => Some(&self.tasks),
        }
    }
}

impl Gate {
    /// An open gate with nobody inside.
    #[must_use]
    pub fn new() -> Self {
        Self {
            cell: Arc::new(Cell {
                word: Word::new(),
                streams: AtomicU64::new(0),
                upgraded: AtomicU64::new(0),
                tasks: AtomicU64::new(0),
                lost: AtomicU64::new(0),
                background: AtomicU64::new(0),
                returning: AtomicU64::new(0),
                idle: Notify::new(),
            }),
        }
    }

    /// Asks to be let in. `None` once the gate is closed.
    ///
    /// The permit holds a clone of the gate. Who has the gate at hand anyway is let in for less by
    /// [`Permit::ask`].
    #[must_use]
    pub fn enter(&self) -> Option<Permit> {
        Permit::ask(self.clone())
    }

    /// Asks to be let in with work of the program's own: [`Kind::Task`]. It is in flight, so a stop waits for
    /// it, but no caller sent it: it does not keep Closing from being quiet.
    ///
    /// In Closing it is still let in. A worker that is to begin nothing new then looks at
    /// [`closing`](crate::provider::Handle::closing). `None` once the gate is closed, in Draining; see
    /// [`Admitted`] for what a request in flight hands over.
    #[must_use = "a permit that is dropped at once counts nothing"]
    pub fn enter_task(&self) -> Option<Permit> {
        let word = &self.cell.word;
        // One that joins just as the gate closes is waited for like one that came before.
        (!word.is_closed() && word.join()).then(|| Permit::task(self.clone()))
    }

    /// How many were ever admitted, modulo 2^32. Exact while the gate is open; who knocks at a closed gate
    /// counts for a moment.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.cell.word.admitted()
    }

    /// How many of them callers sent, modulo 2^32: unchanged between two looks means quiet. Tasks do not
    /// count, neither by [`enter_task`](Self::enter_task) nor handed over.
    #[must_use]
    pub fn traffic(&self) -> u64 {
        let background = self.cell.background.load(Ordering::Relaxed);
        self.admitted().wrapping_sub(background) & u64::from(u32::MAX)
    }

    /// How many requests of that traffic came of peers that were told to go and came back, modulo 2^32.
    #[must_use]
    pub fn returning(&self) -> u64 {
        self.cell.returning.load(Ordering::Relaxed) & u64::from(u32::MAX)
    }

    /// The request that was admitted just now is of such a peer.
    pub(crate) fn note_returning(&self) {
        self.cell.returning.fetch_add(1, Ordering::Relaxed);
    }

    /// How many hand-overs were refused: see [`Admitted::another`].
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.cell.lost.load(Ordering::Relaxed)
    }

    /// How many permits are out.
    #[must_use]
    pub fn in_flight(&self) -> InFlight {
        let streams = self.cell.streams.load(Ordering::Relaxed);
        let upgraded = self.cell.upgraded.load(Ordering::Relaxed);
        let tasks = self.cell.tasks.load(Ordering::Relaxed);
        let total = self.cell.word.count();
        InFlight {
            unary: total.saturating_sub(streams + upgraded + tasks),
            streams,
            upgraded,
            tasks,
            total,
        }
    }

    /// Refuses from here on. Those inside stay.
    pub fn close(&self) {
        self.cell.word.close();
    }

    /// Whether it refuses.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.cell.word.is_closed()
    }

    /// Admits again. False (and still closed) once [`drain`](Self::drain) has been called.
    pub fn reopen(&self) -> bool {
        self.cell.word.reopen()
    }

    /// Refuses from here on, and waits until the last permit is back, for `budget` at most.
    ///
    /// True where the count reached 0; false where the budget ran out first, or where a drain had
    /// been called before: there is one drain, and who began it hears how it ended.
    pub async fn drain(&self, budget: Duration) -> bool {
        self.cell.word.begin_drain() && tokio::time::timeout(budget, self.idle()).await.is_ok()
    }

    /// Resolves when no permit is out. On an open gate that says nothing about the next moment.
    pub async fn idle(&self) {
        loop {
            let mut idle = std::pin::pin!(self.cell.idle.notified());
            // Registered before the look, so that a permit given back in between is not missed.
            idle.as_mut().enable();
            if self.cell.word.watch() == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("closed", &self.is_closed())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// A gate that belongs to a provider, as its program sees it: who may enter and who is in. To close it is the
/// provider's: one that is listed and refuses everything loses calls.
///
/// ```compile_fail,E0599
/// fn close(handle: lameduck::provider::Handle) {
///     handle.gate().close();
/// }
/// ```
///
/// ```compile_fail,E0599
/// async fn drain(handle: lameduck::provider::Handle) {
///     handle.gate().drain(std::time::Duration::from_secs(1)).await;
/// }
/// ```
///
/// ```compile_fail,E0624
/// fn close(handle: lameduck::provider::Handle) {
///     let permit = handle.gate().enter().expect("it serves");
///     permit.holder().close();
/// }
/// ```
#[derive(Clone)]
pub struct Admission {
    gate: Gate,
}

impl Admission {
    pub(crate) const fn new(gate: Gate) -> Self {
        Self { gate }
    }

    /// A permit for a request of a caller that the program takes in by itself, as from a port of its own. A
    /// stop waits for it, and Closing lasts while such requests come: for work of the program's own there is
    /// [`enter_task`](Self::enter_task). `None` once the process takes nothing new.
    #[must_use]
    pub fn enter(&self) -> Option<Permit> {
        self.gate.enter()
    }

    /// A permit for work of the program's own, such as a job of a worker: see [`Gate::enter_task`].
    #[must_use = "a permit that is dropped at once counts nothing"]
    pub fn enter_task(&self) -> Option<Permit> {
        self.gate.enter_task()
    }

    /// How many were ever admitted: see [`Gate::admitted`].
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.gate.admitted()
    }

    /// How many hand-overs were refused: see [`Admitted::another`].
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.gate.lost()
    }

    /// How many permits are out.
    #[must_use]
    pub fn in_flight(&self) -> InFlight {
        self.gate.in_flight()
    }

    /// Whether the process takes nothing new.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }

    /// Resolves when no permit is out. On an open gate that says nothing about the next moment.
    pub async fn idle(&self) {
        self.gate.idle().await;
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.gate, f)
    }
}

/// What leads to a gate, and can be kept by a permit to lead back there.
pub trait Holder {
    /// The gate; the same one at each call.
    fn gate(&self) -> &Gate;
}

impl Holder for Gate {
    fn gate(&self) -> &Gate {
        self
    }
}

impl<T: Holder + ?Sized> Holder for &T {
    fn gate(&self) -> &Gate {
        (**self).gate()
    }
}

impl<T: Holder + ?Sized> Holder for Arc<T> {
    fn gate(&self) -> &Gate {
        (**self).gate()
    }
}

/// One admitted request. Given back when dropped, whichever way that comes about.
///
/// It keeps the `holder` through which it asked, so that a request that holds its connection anyway
/// counts at no other word than the gate's.
#[must_use = "a permit that is dropped at once counts nothing"]
pub struct Permit<H: Holder = Gate> {
    holder: H,
    kind: Kind,
}

impl<H: Holder> Permit<H> {
    /// Asks the holder's gate to be let in. `None` once it is closed.
    #[must_use]
    pub fn ask(holder: H) -> Option<Self> {
        let cell = &holder.gate().cell;
        match cell.word.enter() {
            Ok(()) => Some(Self {
                holder,
                kind: Kind::Unary,
            }),
            Err(wake) => {
                if wake {
                    cell.idle.notify_waiters();
                }
                None
            }
        }
    }

    /// A permit more, for work that the holder of this one hands over (its kind is [`Kind::Task`]). Also
    /// where the gate is closed: what has been let in may finish what it began.
    pub fn another(&self) -> Permit {
        let gate = self.holder.gate().clone();
        gate.cell.word.join_held();
        Permit::task(gate)
    }

    /// Through what it asked. Not for programs: a provider's permit would lead to its gate.
    #[must_use]
    pub(crate) fn holder(&self) -> &H {
        &self.holder
    }

    /// What it is for.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Says what it is for, once that is known.
    pub fn set_kind(&mut self, kind: Kind) {
        if kind == self.kind {
            return;
        }
        // Statistics: ordered with nothing.
        let cell = &self.holder.gate().cell;
        if let Some(counter) = cell.kind(kind) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(counter) = cell.kind(self.kind) {
            counter.fetch_sub(1, Ordering::Relaxed);
        }
        self.kind = kind;
    }
}

impl Permit {
    /// One that is counted already. It is no traffic: no caller sent it.
    fn task(holder: Gate) -> Self {
        holder.cell.background.fetch_add(1, Ordering::Relaxed);
        let mut permit = Self {
            holder,
            kind: Kind::Unary,
        };
        permit.set_kind(Kind::Task);
        permit
    }
}

/// A request that was let in, as its handler sees it: an axum extractor, and a request extension for
/// tonic. It takes permits for what the handler hands over, as to a worker that outlives the answer.
///
/// ```
/// use lameduck::cell::gate::Admitted;
///
/// async fn order(request: Admitted) -> &'static str {
///     if let Some(permit) = request.another() {
///         tokio::spawn(async move {
///             // The stop waits for this, in Draining too.
///             drop(permit);
///         });
///     }
///     "accepted"
/// }
/// let router: axum::Router = axum::Router::new().route("/", axum::routing::post(order));
/// ```
#[derive(Clone, Debug)]
pub struct Admitted {
    gate: Gate,
}

impl Admitted {
    pub(crate) const fn new(gate: Gate) -> Self {
        Self { gate }
    }

    /// A permit for work that is handed over: a stop waits for it.
    ///
    /// Always `Some` while the request is in flight: from its head until its answer has ended. Kept for
    /// longer than that, it gives permits until the gate is closed and the last permit is back. `None` says
    /// that the work cannot be done any more; it counts as abandoned in the report.
    #[must_use = "a permit that is dropped at once counts nothing"]
    pub fn another(&self) -> Option<Permit> {
        if self.gate.cell.word.join() {
            return Some(Permit::task(self.gate.clone()));
        }
        self.gate.cell.lost.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// Fails where no server of lameduck has let the request in, as in a test that calls a router.
impl<S: Sync> FromRequestParts<S> for Admitted {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        parts.extensions.get::<Self>().cloned().ok_or((
            StatusCode::INTERNAL_SERVER_ERROR,
            "no lameduck server has let this request in, so it takes no further permits",
        ))
    }
}

impl<H: Holder> fmt::Debug for Permit<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl<H: Holder> Drop for Permit<H> {
    fn drop(&mut self) {
        self.set_kind(Kind::Unary);
        let cell = &self.holder.gate().cell;
        if cell.word.leave() {
            cell.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[tokio::test(start_paused = true)]
    async fn a_drain_waits_for_the_last_permit() {
        let gate = Gate::new();
        let permit = gate.enter().expect("open");
        let drain = tokio::spawn({
            let gate = gate.clone();
            async move { gate.drain(Duration::from_secs(5)).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(gate.enter().is_none(), "refuses at once");
        assert!(!drain.is_finished());
        drop(permit);
        assert!(drain.await.expect("no panic"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_gives_up_at_its_budget_and_a_second_one_at_once() {
        let gate = Gate::new();
        let _permit = gate.enter().expect("open");
        assert!(!gate.drain(Duration::from_secs(5)).await);
        let before = tokio::time::Instant::now();
        assert!(!gate.drain(Duration::from_secs(5)).await);
        assert_eq!(before.elapsed(), Duration::ZERO);
        assert!(!gate.reopen());
    }

    #[tokio::test]
    async fn closed_and_reopened() {
        let gate = Gate::new();
        gate.close();
        assert!(gate.enter().is_none());
        gate.idle().await;
        assert!(gate.reopen());
        assert!(gate.enter().is_some());
        assert_eq!(gate.admitted(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_inside_may_hand_work_over_until_the_last_is_back() {
        let gate = Gate::new();
        let request = Admitted::new(gate.clone());
        let permit = gate.enter().expect("open");
        let drain = tokio::spawn({
            let gate = gate.clone();
            async move { gate.drain(Duration::from_secs(5)).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(gate.enter().is_none(), "nothing new");
        let (mut first, second) = (permit.another(), request.another().expect("inside"));
        assert_eq!(gate.in_flight().tasks, 2);
        drop((permit, second));
        first.set_kind(Kind::Unary);
        let last = first.another();
        drop(first);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!drain.is_finished());
        drop(last);
        assert!(drain.await.expect("no panic"));
        assert_eq!((gate.lost(), gate.in_flight().total), (0, 0));
        assert!(request.another().is_none());
        assert_eq!((gate.lost(), gate.in_flight().total), (1, 0));
    }

    #[tokio::test]
    async fn s6_tasks_are_in_flight_and_no_traffic() {
        let gate = Gate::new();
        let request = gate.enter().expect("open");
        let task = gate.enter_task().expect("open");
        let handed_over = (request.another(), Admitted::new(gate.clone()).another());
        assert_eq!(gate.in_flight().tasks, 3);
        assert_eq!((gate.admitted(), gate.traffic()), (4, 1));
        gate.close();
        assert!(gate.enter_task().is_none(), "nothing new, whoever is in");
        drop((request, task, handed_over));
        gate.idle().await;
        assert_eq!((gate.admitted(), gate.traffic()), (4, 1));
    }

    #[tokio::test]
    async fn a_gate_that_reopens_lets_work_be_handed_over_again() {
        let gate = Gate::new();
        let request = Admitted::new(gate.clone());
        drop(request.another().expect("open"));
        gate.close();
        gate.idle().await;
        assert!(request.another().is_none());
        assert!(gate.reopen());
        let permit = request.another().expect("open");
        gate.close();
        assert!(request.another().is_some(), "somebody is in");
        drop(permit);
        assert!(
            request.another().is_none(),
            "nobody has looked, nobody is in"
        );
        assert_eq!(gate.lost(), 2);
    }

    proptest! {
        /// Whatever comes and goes: the counts are those of a plain list.
        #[test]
        fn counts_like_a_list(steps in prop::collection::vec((0_u8..7, any::<prop::sample::Index>()), 0..60)) {
            let gate = Gate::new();
            let (mut held, mut admitted, mut closed) = (Vec::new(), 0, false);
            for (step, index) in steps {
                match step {
                    0 | 1 => match gate.enter() {
                        Some(permit) => {
                            prop_assert!(!closed);
                            admitted += 1;
                            held.push(permit);
                        }
                        None => prop_assert!(closed),
                    },
                    2 if !held.is_empty() => drop(held.swap_remove(index.index(held.len()))),
                    3 if !held.is_empty() => {
                        let at = index.index(held.len());
                        held[at].set_kind([Kind::Unary, Kind::Stream, Kind::Upgraded, Kind::Task][at % 4]);
                    }
                    4 => { gate.close(); closed = true; }
                    5 => { prop_assert!(gate.reopen()); closed = false; }
                    _ => {}
                }
                let of = |kind| held.iter().filter(|p| p.kind() == kind).count() as u64;
                prop_assert_eq!(gate.in_flight(), InFlight {
                    unary: of(Kind::Unary),
                    streams: of(Kind::Stream),
                    upgraded: of(Kind::Upgraded),
                    tasks: of(Kind::Task),
                    total: held.len() as u64,
                });
                prop_assert_eq!(gate.admitted(), admitted);
            }
        }
    }
}
