//! How many connections a server has, and how many of them are still to be waited for.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Gauges over all connections of one server.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    open: AtomicUsize,
    busy: AtomicUsize,
    told: AtomicUsize,
    unsettled: AtomicUsize,
    owing: AtomicUsize,
    changed: Notify,
}

/// Which gauge.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gauge {
    /// Connections accepted and not yet ended.
    Open,
    /// Connections with a request in flight.
    Busy,
    /// Connections that were told to go.
    Told,
    /// Connections without a request in flight whose peers have not got all of their answers.
    Owing,
    /// Connections on which, as far as can be known, new requests may still come.
    Unsettled,
}

impl Tally {
    fn cell(&self, gauge: Gauge) -> &AtomicUsize {
        match gauge {
            Gauge::Open => &self.open,
            Gauge::Busy => &self.busy,
            Gauge::Told => &self.told,
            Gauge::Unsettled => &self.unsettled,
            Gauge::Owing => &self.owing,
        }
    }

    pub(crate) fn up(&self, gauge: Gauge) {
        self.cell(gauge).fetch_add(1, Ordering::AcqRel);
        self.wake(gauge);
    }

    pub(crate) fn down(&self, gauge: Gauge) {
        self.cell(gauge).fetch_sub(1, Ordering::AcqRel);
        self.wake(gauge);
    }

    // Requests and bytes come and go without a wake-up: nothing waits for `Busy` or `Owing`.
    fn wake(&self, gauge: Gauge) {
        if !matches!(gauge, Gauge::Busy | Gauge::Owing) {
            self.changed.notify_waiters();
        }
    }

    pub(crate) fn count(&self, gauge: Gauge) -> usize {
        self.cell(gauge).load(Ordering::Acquire)
    }

    /// Resolves when no connection is unsettled.
    pub(crate) async fn all_settled(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.count(Gauge::Unsettled) == 0 {
                return;
            }
            changed.await;
        }
    }
}

/// Gives out numbers: 0, 1, 2, …
#[derive(Debug, Default)]
pub(crate) struct Numbers(AtomicU64);

impl Numbers {
    /// The next one.
    pub(crate) fn take(&self) -> u64 {
        self.0.fetch_add(1, Ordering::AcqRel)
    }

    /// How many were given out: all of them are smaller than this.
    pub(crate) fn taken(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
