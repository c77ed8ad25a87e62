//! Choices without a network, for benches. No part of what this crate promises.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use http::uri::Authority;
use lameduck_core::directory::EndpointId;
use lameduck_core::limits::CLIENT_STREAMS_MAX;

use super::Policy;
use super::connection::Connection;
use super::directory::{Shared, View};
use super::endpoint::Endpoint;
use super::pick::{Pick, likely};
use crate::hub::Hub;

/// A directory whose instances are all ready, with one connection each that leads nowhere.
#[derive(Debug)]
pub struct Workbench {
    shared: Arc<Shared>,
}

impl Workbench {
    /// With so many instances. Must be called within a tokio runtime.
    #[must_use]
    pub fn new(instances: u16) -> Self {
        let (shared, _) = Shared::new(Hub::new().handle(), "workbench".to_owned(), None, true);
        let endpoint = |port: u16| {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let authority = Authority::from_static("workbench");
            let connection = Connection::to_nowhere(address, authority, CLIENT_STREAMS_MAX);
            let id = EndpointId(port.into());
            let address = address.to_string().parse().expect("it is one");
            Endpoint::fixed(Arc::clone(&shared), id, address, connection)
        };
        let ready: Vec<_> = (1..=instances).map(endpoint).collect();
        shared.view.store(Arc::new(View {
            cells: ready.iter().map(|one| one.cell.clone()).collect(),
            spare: ready.clone(),
            all: ready.clone(),
            ready,
            ..View::default()
        }));
        Self { shared }
    }

    /// Loads the snapshot and chooses an instance, as a call does. True where there was one.
    #[must_use]
    pub fn choose(&self) -> bool {
        let turn = self.shared.waiters.turn();
        likely(&self.shared.view.load(), Policy::P2c, turn).is_some()
    }

    /// Chooses, takes a stream there, and gives it back. True where there was one.
    #[must_use]
    pub fn choose_and_take(&self) -> bool {
        matches!(self.shared.pick(Policy::P2c, &[]), Pick::Place(_))
    }
}
