//! Says that accepting does not go on, once, and that it does again, once.

use std::fmt::Display;
use std::net::SocketAddr;

use lameduck_core::event::Event;
use lameduck_core::limits::ACCEPT_SETTLED;
use tokio::time::Instant;

use crate::observe::Events;

/// A pause of accepting, as others are told of it.
pub(super) struct Pause {
    events: Events,
    address: SocketAddr,
    /// Since when there is one.
    since: Option<Instant>,
    /// When it will be over, where accepting goes on until then.
    settles: Option<Instant>,
}

impl Pause {
    pub(super) fn new(events: Events, address: SocketAddr) -> Self {
        Self {
            events,
            address,
            since: None,
            settles: None,
        }
    }

    /// Nothing can be accepted just now.
    pub(super) fn begin(&mut self, why: &impl Display) {
        self.settles = None;
        if self.since.is_none() {
            self.since = Some(Instant::now());
            self.events.emit(&Event::AcceptPaused {
                address: self.address.into(),
                why: why.to_string(),
            });
        }
    }

    /// Accepting goes on: when the pause will be over, if there is one.
    pub(super) fn settles(&mut self) -> Option<Instant> {
        self.since?;
        let settles = || Instant::now() + ACCEPT_SETTLED;
        Some(*self.settles.get_or_insert_with(settles))
    }

    /// The pause is over.
    pub(super) fn end(&mut self) {
        self.settles = None;
        if let Some(since) = self.since.take() {
            self.events.emit(&Event::AcceptResumed {
                address: self.address.into(),
                after: since.elapsed(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[tokio::test(start_paused = true)]
    async fn a_pause_with_a_gap_is_one_pause() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&said);
        let events = Events::new(vec![Arc::new(move |event: &Event| {
            notes.lock().expect("no panic").push(event.clone());
        })]);
        let address: SocketAddr = "127.0.0.1:80".parse().expect("an address");
        let mut pause = Pause::new(events, address);
        assert_eq!(pause.settles(), None, "there is none");
        pause.begin(&"no descriptor");
        let settles = pause.settles().expect("it goes on");
        assert_eq!(pause.settles(), Some(settles), "it still goes on");
        pause.begin(&"no descriptor again");
        tokio::time::advance(ACCEPT_SETTLED / 2).await;
        let later = pause.settles().expect("it goes on");
        assert_eq!(later, settles + ACCEPT_SETTLED / 2);
        pause.end();
        pause.end();
        let expected = [
            Event::AcceptPaused {
                address: address.into(),
                why: "no descriptor".to_owned(),
            },
            Event::AcceptResumed {
                address: address.into(),
                after: ACCEPT_SETTLED / 2,
            },
        ];
        assert_eq!(*said.lock().expect("no panic"), expected);
    }
}
