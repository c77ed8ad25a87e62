//! What is known about one outgoing HTTP/2 connection, shared by its task and its calls.
//!
//! The task's side writes what frames say; the calls' side takes and gives back stream slots. The
//! hot path (take a slot, give it back) is two read-modify-writes and no lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use lameduck_core::limits::STREAM_ID_LAST;
use lameduck_core::time::Timestamp;
use lameduck_registry::driver::Clock;
use tokio::sync::Notify;

use crate::consumer::connection::{End, GoAway, State};

const GOING_AWAY: u32 = 1;
const CLOSED: u32 = 1 << 1;
const READ_ENDED: u32 = 1 << 2;
const ENDED: u32 = 1 << 3;

/// No GOAWAY yet: no frame can say this, for the top bit of a stream id is reserved.
const NO_GOAWAY: u64 = u64::MAX;

/// Health streams whose ids are remembered; the oldest is forgotten. A connection has one Watch or two,
/// and a Check every few seconds while its peer is closing.
const HEALTH_STREAMS: usize = 32;

/// As many as there are: nothing is held back.
const ALL: u32 = u32::MAX;

/// The shared facts of one connection.
#[derive(Debug)]
pub(crate) struct Link {
    streams: AtomicU32,
    limit: AtomicU32,
    flags: AtomicU32,
    streams_max: u32,
    /// Calls that may be opened before it is known how so many others end; [`ALL`] once it is.
    admitted: AtomicU32,
    /// How many that were at first.
    allowance: u32,
    /// Calls of which it is known: answered, or given up.
    settled: AtomicU32,
    goaway: AtomicU64,
    sent: AtomicU32,
    settings: AtomicU32,
    headers_max: AtomicU32,
    resets: AtomicU32,
    bytes: AtomicU64,
    served: AtomicBool,
    tls: AtomicBool,
    /// Ids of streams that are no calls. Taken for each health stream, and for each head that is read
    /// until the first call is answered.
    health: Mutex<VecDeque<u32>>,
    last_read: AtomicU64,
    clock: Clock,
    end: OnceLock<End>,
    task: AtomicWaker,
    changed: Notify,
    asked: AtomicBool,
}

impl Link {
    /// A connection that allows `streams_max` streams until its peer says less.
    pub(crate) fn new(streams_max: u32) -> Self {
        Self {
            streams: AtomicU32::new(0),
            limit: AtomicU32::new(streams_max),
            flags: AtomicU32::new(0),
            streams_max,
            admitted: AtomicU32::new(ALL),
            allowance: ALL,
            settled: AtomicU32::new(0),
            goaway: AtomicU64::new(NO_GOAWAY),
            sent: AtomicU32::new(0),
            settings: AtomicU32::new(0),
            headers_max: AtomicU32::new(u32::MAX),
            resets: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            served: AtomicBool::new(false),
            tls: AtomicBool::new(false),
            health: Mutex::default(),
            last_read: AtomicU64::new(0),
            clock: Clock::start(),
            end: OnceLock::new(),
            task: AtomicWaker::new(),
            changed: Notify::new(),
            asked: AtomicBool::new(false),
        }
    }

    /// The same, which opens no more than `calls` before so many were answered or given up.
    pub(crate) fn with_allowance(mut self, calls: Option<u32>) -> Self {
        self.allowance = calls.map_or(ALL, |calls| calls.max(1));
        self.admitted = AtomicU32::new(self.allowance);
        self
    }

    // --- the calls' side -------------------------------------------------------------------------

    /// Whether the peer was asked who it is.
    pub(crate) fn has_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// The peer was asked who it is: a request with the question was opened.
    pub(crate) fn set_asked(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Bytes of the largest header list that the peer has said it takes.
    pub(crate) fn headers_max(&self) -> u32 {
        self.headers_max.load(Ordering::Relaxed)
    }

    /// The peer has said what header list it takes.
    pub(crate) fn note_headers_max(&self, most: u32) {
        self.headers_max.store(most, Ordering::Relaxed);
    }

    /// Takes a stream slot. False where there is none, or where no stream may be opened any more.
    pub(crate) fn take(&self) -> bool {
        if self.flags.load(Ordering::Acquire) != 0 {
            return false;
        }
        let counts = self.admitted.load(Ordering::Acquire) != ALL;
        if counts && !self.admit() {
            return false;
        }
        let limit = self.limit.load(Ordering::Acquire);
        let taken = self
            .streams
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
                (taken < limit).then_some(taken + 1)
            })
            .is_ok();
        if counts && !taken {
            self.not_admitted();
        }
        taken
    }

    /// One call of those that may be opened for now. False where there is none left.
    fn admit(&self) -> bool {
        let less = |left: u32| match left {
            0 => None,
            ALL => Some(ALL),
            left => Some(left - 1),
        };
        self.admitted
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less)
            .is_ok()
    }

    /// What was admitted is no call after all.
    pub(crate) fn not_admitted(&self) {
        let more = |left: u32| (left < self.allowance).then(|| left + 1);
        // Refused where nothing is held back any more.
        let _ = self
            .admitted
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
    }

    /// It is known how one call ended, or that it is answered. As soon as as many are as there were
    /// admitted, nothing is held back any more.
    pub(crate) fn settle(&self) {
        if self.admitted.load(Ordering::Acquire) == ALL {
            return;
        }
        let settled = self.settled.fetch_add(1, Ordering::AcqRel) + 1;
        if settled >= self.allowance && self.flags.load(Ordering::Acquire) == 0 {
            self.admitted.store(ALL, Ordering::Release);
            self.changed.notify_waiters();
        }
    }

    /// How many calls it held where its peer's GOAWAY left others out that had been sent; else the
    /// allowance, where the connection never came to its end.
    pub(crate) fn calls_until_goaway(&self) -> Option<u32> {
        let last = self.goaway()?.last_stream;
        if self.sent() > last {
            let health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
            let health = health.iter().filter(|id| **id <= last).count();
            let calls = last.div_ceil(2);
            return Some(calls.saturating_sub(u32::try_from(health).unwrap_or(calls)));
        }
        let held = self.admitted.load(Ordering::Acquire) != ALL;
        held.then_some(self.allowance)
    }

    /// Gives a slot back that [`Link::take`] gave.
    pub(crate) fn give_back(&self) {
        let before = self.streams.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a slot is given back once");
        let leaving = self.flags.load(Ordering::Acquire) != 0;
        if leaving && before == 1 {
            self.task.wake();
        }
        if leaving || before >= self.limit.load(Ordering::Acquire) {
            self.changed.notify_waiters();
        }
    }

    /// Opens a health stream by `open`, which gives its id: an answer there is none to a call. The lock
    /// keeps the reader from its answer until the id is known.
    pub(crate) fn open_health<T>(&self, open: impl FnOnce() -> (T, Option<u32>)) -> T {
        // A list of numbers is whole whoever panicked.
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let (opened, id) = open();
        health.extend(id);
        if health.len() > HEALTH_STREAMS {
            health.pop_front();
        }
        opened
    }

    /// No new streams; the task is woken to see it.
    pub(crate) fn close(&self) {
        self.raise(CLOSED);
        self.task.wake();
    }

    /// Slots taken.
    pub(crate) fn streams(&self) -> u32 {
        self.streams.load(Ordering::Acquire)
    }

    /// Everything at one look. The parts are read one after the other.
    pub(crate) fn state(&self) -> State {
        let flags = self.flags.load(Ordering::Acquire);
        State {
            going_away: self.goaway(),
            closed: flags & CLOSED != 0,
            ended: flags & (READ_ENDED | ENDED) != 0,
            limit: self.limit.load(Ordering::Acquire),
            streams: self.streams.load(Ordering::Acquire),
            settings: self.settings.load(Ordering::Acquire),
            resets: self.resets.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            served: self.served.load(Ordering::Acquire),
            held: self.admitted.load(Ordering::Acquire) == 0,
        }
    }

    /// What the last GOAWAY said.
    pub(crate) fn goaway(&self) -> Option<GoAway> {
        let packed = self.goaway.load(Ordering::Acquire);
        (packed != NO_GOAWAY).then_some(GoAway {
            last_stream: (packed >> 32) as u32,
            code: packed as u32,
        })
    }

    /// The highest stream id whose HEADERS were handed to the kernel; 0 where none was.
    pub(crate) fn sent(&self) -> u32 {
        self.sent.load(Ordering::Acquire)
    }

    /// Why the connection's task ended, once it has.
    pub(crate) fn end(&self) -> Option<End> {
        self.end.get().copied()
    }

    /// Resolves with what `pick` makes of the facts, as soon as it makes something of them.
    pub(crate) async fn until<T>(&self, pick: impl Fn(&State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(picked) = pick(&self.state()) {
                return picked;
            }
            changed.await;
        }
    }

    /// Resolves when the connection's task has ended.
    pub(crate) async fn ended(&self) -> End {
        self.until(|_| self.end()).await
    }

    /// Time since the last byte was read.
    pub(crate) fn silence(&self) -> Duration {
        let last = Timestamp::from_nanos(self.last_read.load(Ordering::Relaxed));
        self.clock.now().saturating_since(last)
    }

    // --- the task's side -------------------------------------------------------------------------

    /// Remembers whom to wake when the calls' side has news for the task.
    pub(crate) fn register(&self, waker: &Waker) {
        self.task.register(waker);
    }

    /// `count` bytes were read.
    pub(crate) fn note_read(&self, count: usize) {
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        let now = self.clock.now().as_nanos();
        self.last_read.store(now, Ordering::Relaxed);
    }

    /// The peer began with what a TLS server says to those that speak in clear text.
    pub(crate) fn note_tls(&self) {
        self.tls.store(true, Ordering::Relaxed);
    }

    /// Whether it did.
    pub(crate) fn speaks_tls(&self) -> bool {
        self.tls.load(Ordering::Relaxed)
    }

    /// The peer will say no more.
    pub(crate) fn note_read_end(&self) {
        self.raise(READ_ENDED);
    }

    /// A GOAWAY was read. A peer may lower the last id, never raise it (RFC 9113, 6.8).
    pub(crate) fn note_goaway(&self, said: GoAway) {
        let last = self.goaway().map_or(said.last_stream, |earlier| {
            earlier.last_stream.min(said.last_stream)
        });
        let packed = u64::from(last) << 32 | u64::from(said.code);
        self.goaway.store(packed, Ordering::Release);
        self.raise(GOING_AWAY);
    }

    /// SETTINGS were read; `max_streams` where they carried MAX_CONCURRENT_STREAMS.
    pub(crate) fn note_settings(&self, max_streams: Option<u32>) {
        if let Some(theirs) = max_streams {
            self.limit
                .store(theirs.min(self.streams_max), Ordering::Release);
        }
        self.settings.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    /// A head of `stream` was read: the peer answers.
    pub(crate) fn note_head(&self, stream: u32) {
        if self.served.load(Ordering::Acquire) {
            return;
        }
        let health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        if !health.contains(&stream) {
            self.served.store(true, Ordering::Release);
            self.changed.notify_waiters();
        }
    }

    /// RST_STREAM was read.
    pub(crate) fn note_reset(&self) {
        self.resets.fetch_add(1, Ordering::Relaxed);
    }

    /// The head of a HEADERS frame for `stream` went to the kernel. Near the last id the connection
    /// takes no more streams.
    pub(crate) fn note_sent(&self, stream: u32) {
        self.sent.fetch_max(stream, Ordering::AcqRel);
        if stream >= STREAM_ID_LAST {
            self.raise(CLOSED);
        }
    }

    /// The task has ended; the first reason given counts.
    pub(crate) fn note_end(&self, end: End) {
        // A second reason is the guard's, after the task gave its own.
        let _ = self.end.set(end);
        self.raise(ENDED);
    }

    fn raise(&self, flag: u32) {
        self.flags.fetch_or(flag, Ordering::AcqRel);
        self.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_end_at_the_limit_and_come_back() {
        let link = Link::new(2);
        assert!(link.take() && link.take());
        assert!(!link.take());
        link.give_back();
        assert!(link.take());
        assert_eq!(link.state().streams, 2);
    }

    #[test]
    fn a_lowered_limit_counts_those_that_are_open() {
        let link = Link::new(3);
        assert!(link.take() && link.take());
        link.note_settings(Some(1));
        assert!(!link.take());
        link.give_back();
        assert!(!link.take(), "one is open, one is allowed");
        link.give_back();
        assert!(link.take());
        link.note_settings(Some(1_000));
        assert_eq!(link.state().limit, 3, "never above our own");
    }

    #[test]
    fn each_reason_to_leave_stops_new_streams() {
        let goaway = GoAway {
            last_stream: 0x7fff_ffff,
            code: 0,
        };
        let reasons: [&dyn Fn(&Link); 4] = [
            &|link| link.note_goaway(goaway),
            &|link| link.close(),
            &|link| link.note_read_end(),
            &|link| link.note_end(End::Aborted),
        ];
        for reason in reasons {
            let link = Link::new(1);
            reason(&link);
            assert!(!link.take(), "{:?}", link.state());
        }
    }

    #[test]
    fn only_so_many_at_first_and_all_once_they_are_answered() {
        let link = Link::new(10).with_allowance(Some(2));
        assert!(link.take() && link.take() && !link.take());
        assert!(link.state().held);
        // A health stream is no call.
        link.not_admitted();
        assert!(link.take() && !link.take());
        link.settle();
        assert!(!link.take());
        link.settle();
        assert!(link.take() && link.take());
        link.not_admitted();
        assert!(!link.state().held);
        assert_eq!(link.calls_until_goaway(), None);
    }

    #[test]
    fn what_a_goaway_left_out_tells_how_many_a_connection_holds() {
        let said = |last_stream| GoAway {
            last_stream,
            code: 0,
        };
        let link = Link::new(10);
        link.open_health(|| ((), Some(1)));
        link.note_sent(9);
        link.note_goaway(said(0x7fff_ffff));
        assert_eq!(link.calls_until_goaway(), None, "nothing is left out yet");
        link.note_goaway(said(5));
        assert_eq!(link.calls_until_goaway(), Some(2), "3 and 5");
        let whole = Link::new(10).with_allowance(Some(2));
        whole.note_sent(3);
        whole.note_goaway(said(3));
        assert_eq!(whole.calls_until_goaway(), Some(2), "as many as were tried");
        whole.settle();
        whole.settle();
        assert!(!whole.take(), "it is going away");
    }

    #[test]
    fn an_answer_to_a_health_stream_is_none_to_a_call() {
        let link = Link::new(1);
        let opened = link.open_health(|| ("a stream", Some(1)));
        assert_eq!(opened, "a stream");
        link.note_head(1);
        assert!(!link.state().served);
        link.note_head(3);
        assert!(link.state().served);
        for id in (5..1_000).step_by(2) {
            link.open_health(|| ((), Some(id)));
        }
        let remembered = link.health.lock().expect("no panic").len();
        assert_eq!(remembered, HEALTH_STREAMS);
    }

    #[test]
    fn ids_run_out_without_a_failed_call() {
        let link = Link::new(1);
        link.note_sent(STREAM_ID_LAST - 2);
        assert!(link.take());
        link.give_back();
        link.note_sent(STREAM_ID_LAST);
        assert!(!link.take());
        assert!(link.state().closed);
    }

    #[test]
    fn the_last_id_only_falls() {
        let link = Link::new(1);
        assert_eq!(link.goaway(), None);
        for (last_stream, expected) in [(0x7fff_ffff, 0x7fff_ffff), (5, 5), (9, 5), (0, 0)] {
            link.note_goaway(GoAway {
                last_stream,
                code: 2,
            });
            let seen = link.goaway().expect("it was told");
            assert_eq!((seen.last_stream, seen.code), (expected, 2));
        }
    }

    #[tokio::test]
    async fn waiting_ends_with_the_change() {
        let link = Link::new(1);
        assert!(link.take());
        let room = link.until(|state| (state.streams < state.limit).then_some(()));
        let give_back = async { link.give_back() };
        tokio::join!(room, give_back);
        let end = async { link.note_end(End::Closed) };
        let (seen, ()) = tokio::join!(link.ended(), end);
        assert_eq!(seen, End::Closed);
    }
}
