//! Health as others see it: one board of statuses, and the gRPC service that shows it.
//!
//! Two things decide what is shown, and they never share a variable: what the program says of its
//! services ([`Health::set`]), and whether this process is ready at all, which belongs to the drain.
//! While it is leaving everything is NOT_SERVING; what the program says meanwhile is remembered,
//! and shows again after a Resume.

pub mod grpc;
pub mod messages;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

pub use messages::ServingStatus;

/// The board of statuses. Clones share it.
#[derive(Clone)]
pub struct Health {
    board: Arc<watch::Sender<Board>>,
}

#[derive(Debug, Default)]
struct Board {
    ready: bool,
    ended: bool,
    said: BTreeMap<String, ServingStatus>,
}

impl Board {
    /// What is shown for a service; `None` where nobody has said anything of it.
    fn shown(&self, service: &str) -> Option<ServingStatus> {
        let said = self.said.get(service).copied()?;
        Some(if self.ready {
            said
        } else {
            ServingStatus::NotServing
        })
    }

    /// What a Watch is sent: for unknown services too, since a watcher waits for its service.
    fn watched(&self, service: &str) -> ServingStatus {
        match self.said.get(service) {
            _ if !self.ready => ServingStatus::NotServing,
            Some(said) => *said,
            None => ServingStatus::ServiceUnknown,
        }
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// A board of a process that is not ready yet, with the status of the whole process (`""`)
    /// set to SERVING for the time when it is.
    #[must_use]
    pub fn new() -> Self {
        let mut board = Board::default();
        board.said.insert(String::new(), ServingStatus::Serving);
        Self {
            board: Arc::new(watch::Sender::new(board)),
        }
    }

    /// Says how a service does; `""` is the process as a whole. Watchers are told at once where
    /// that changes what they see. While the process is leaving it stays NOT_SERVING for them.
    pub fn set(&self, service: &str, status: ServingStatus) {
        self.board.send_if_modified(|board| {
            let before = board.said.insert(service.to_owned(), status);
            before != Some(status)
        });
    }

    /// Forgets a service: it is unknown from here on.
    pub fn clear(&self, service: &str) {
        self.board
            .send_if_modified(|board| board.said.remove(service).is_some());
    }

    /// What is shown now; `None` for an unknown service.
    #[must_use]
    pub fn status(&self, service: &str) -> Option<ServingStatus> {
        self.board.borrow().shown(service)
    }

    /// The gRPC service that shows this board, to be added to tonic routes.
    #[must_use]
    pub fn service(&self) -> grpc::HealthServer {
        grpc::HealthServer::new(self.clone())
    }

    /// Watch streams open now.
    #[must_use]
    pub fn watchers(&self) -> usize {
        self.board.receiver_count()
    }

    /// The process is ready: statuses show as they were said. A provider's drain calls this, and
    /// the two below.
    pub fn open(&self) {
        self.modify(|board| !std::mem::replace(&mut board.ready, true));
    }

    /// The process is leaving: NOT_SERVING to all.
    pub fn leave(&self) {
        self.modify(|board| std::mem::replace(&mut board.ready, false));
    }

    /// Watch streams end, now and from here on.
    pub fn end(&self) {
        self.modify(|board| !std::mem::replace(&mut board.ended, true));
    }

    fn modify(&self, change: impl FnOnce(&mut Board) -> bool) {
        self.board.send_if_modified(change);
    }

    fn list(&self) -> BTreeMap<String, ServingStatus> {
        let board = self.board.borrow();
        let shown = |service: &String| board.shown(service).unwrap_or_default();
        board
            .said
            .keys()
            .map(|service| (service.clone(), shown(service)))
            .collect()
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.board.borrow(), f)
    }
}
