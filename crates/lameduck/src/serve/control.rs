//! The levers of a running server, in the order in which leaving pulls them.

use std::sync::Arc;
use std::time::Duration;

use lameduck_core::instance::Life;
use lameduck_core::limits::{CUT_FLUSH, FINAL_GOAWAY_MAX};

use super::shared::{Announcement, Listening, Shared};
use crate::cell::tally::Gauge;
use lameduck_core::effects::connection::Orders;

/// Tells a running [`Server`](super::Server) what to do. Clones tell the same server.
#[derive(Clone)]
pub struct Control {
    pub(super) shared: Arc<Shared>,
}

/// How many connections there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Accepted and not yet ended.
    pub open: usize,
    /// Open, without a request in flight.
    pub idle: usize,
    /// Open, and told to go.
    pub told: usize,
    /// Idle, with bytes of an answer that the peer has not got.
    pub owing: usize,
}

impl Control {
    /// Closing: from here on answers carry `lameduck-closing` (in their head, and in their trailers
    /// where there are any), and HTTP/1.1 answers say `Connection: close`.
    pub fn announce(&self) {
        self.shared
            .announcement
            .rcu(|now| Announcement::closing(now));
        let next = self.shared.numbers.taken();
        self.shared.farewell.begin(next);
        self.shared.orders.send_if_modified(|orders| {
            orders.announced(next);
            // Noted for later: nobody has to do anything about it now.
            false
        });
    }

    /// Takes the closing back: answers are not marked any more, and `life`, which is the old one
    /// with a higher epoch, is told in each connection's next answer. Connections that were told to
    /// go still end; the listener must be open.
    pub fn resume(&self, life: Life) {
        self.shared.orders.send_modify(Orders::resumed);
        self.shared.farewell.take_back();
        self.shared.announcement.rcu(|now| {
            Announcement::of(life, &self.shared.services, now.generation.wrapping_add(1))
        });
    }

    /// Sends the first GOAWAY to the HTTP/2 connections that existed when the closing was
    /// [announced](Self::announce) (that exist now, where it was not), spread over `pace` (zero: at
    /// once). Those accepted later are not told: a client with one static address would redial in a
    /// loop. HTTP/1.1 is told by its answers.
    pub fn go_away_existing(&self, pace: Duration) {
        let next = self.shared.numbers.taken();
        self.shared
            .orders
            .send_modify(|orders| orders.go_away(next, pace));
    }

    /// Takes what waits in the kernel's accept queue, then closes the listener. Resolves when that
    /// is done; needs [`Server::run`](super::Server::run) to be running.
    pub async fn close_listener(&self) {
        self.shared.listening.send_if_modified(|listening| {
            let open = *listening == Listening::Open;
            if open {
                *listening = Listening::Closing;
            }
            open
        });
        self.listener_closed().await;
    }

    /// Resolves once the listener is closed, whoever closed it: it closes by itself where accepting
    /// fails.
    pub(crate) async fn listener_closed(&self) {
        let mut listening = self.shared.listening.subscribe();
        // The sender is in `shared`, so there is no error to see.
        let _ = listening.wait_for(|now| *now == Listening::Closed).await;
    }

    /// Tells every connection to go, without waiting. See [`final_goaways`](Self::final_goaways).
    pub fn go_away_all(&self, max: Duration) {
        self.shared
            .orders
            .send_modify(|orders| orders.go_away_all(max));
    }

    /// Tells every connection to go, and resolves when, as far as can be known, no new request will
    /// come on any: HTTP/2 has sent its final GOAWAY (after `max`, at most
    /// [`FINAL_GOAWAY_MAX`], without the peer's PING answer), HTTP/1 is in its last answer or closed
    /// after a linger. Always resolves, shortly after `max` at the latest.
    pub async fn final_goaways(&self, max: Duration) {
        self.go_away_all(max);
        // Each connection bounds itself; this bounds one whose task a handler keeps from running.
        let most = max.min(FINAL_GOAWAY_MAX) + 2 * CUT_FLUSH;
        let _ = tokio::time::timeout(most, self.shared.tally.all_settled()).await;
    }

    /// From here on requests are refused: HTTP/2 by RST_STREAM(REFUSED_STREAM), HTTP/1.1 by 503 with
    /// `lameduck-refused` and a half-close. The same as closing the gate.
    pub fn close_gate(&self) {
        self.shared.gate.close();
    }

    /// Ends the streams of `grpc.health.v1`, whoever serves them on this port, by status 14. They
    /// take no permit, so nobody waits for them, and their connections would stay for them alone.
    pub fn end_health(&self) {
        self.shared.health_ends.cancel();
    }

    /// Ends what is left, visibly: gRPC answers by status 14 where they wait for more to send, open
    /// streams by a reset, HTTP/1 by a broken message. Connections are gone within
    /// [`CUT_FLUSH`].
    pub fn cut(&self) {
        self.shared.orders.send_modify(Orders::cut);
    }

    /// How many connections there are.
    #[must_use]
    pub fn connections(&self) -> Connections {
        let tally = &self.shared.tally;
        let open = tally.count(Gauge::Open);
        Connections {
            open,
            idle: open.saturating_sub(tally.count(Gauge::Busy)),
            told: tally.count(Gauge::Told),
            owing: tally.count(Gauge::Owing),
        }
    }
}
