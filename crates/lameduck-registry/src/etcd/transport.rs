//! One HTTP/2 connection to whichever of etcd's hosts answers.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use http::HeaderValue;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use lameduck_core::name::Address;
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

use super::dial::{Life, Lookup, dial_any, system};

/// The hosts, and the connection to one of them.
pub(super) struct Pool {
    hosts: Vec<Address>,
    lookup: Lookup,
    current: Mutex<Current>,
    /// Held while dialling: the others wait for the one connection.
    dialling: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Current {
    connection: Option<Connection>,
    /// How many connections there have been.
    generation: u64,
    /// Which host is tried first, and which address last.
    first: usize,
    shunned: Option<SocketAddr>,
    /// How many addresses the last dial has found.
    choice: usize,
}

#[derive(Clone)]
struct Connection {
    sender: SendRequest<Body>,
    authority: Authority,
    host: usize,
    address: SocketAddr,
    generation: u64,
    life: Life,
}

impl Pool {
    pub(super) fn new(hosts: Vec<Address>, first: usize) -> Self {
        Self::looked_up_by(system(), hosts, first)
    }

    fn looked_up_by(lookup: Lookup, hosts: Vec<Address>, first: usize) -> Self {
        let first = first % hosts.len().max(1);
        Self {
            hosts,
            lookup,
            current: Mutex::new(Current {
                first,
                ..Current::default()
            }),
            dialling: tokio::sync::Mutex::default(),
        }
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Option<Connection> {
        let current = self.current();
        let connection = current.connection.as_ref()?;
        (!connection.sender.is_closed()).then(|| connection.clone())
    }

    async fn connection(&self) -> Result<Connection, Status> {
        if let Some(connection) = self.open() {
            return Ok(connection);
        }
        let _guard = self.dialling.lock().await;
        if let Some(connection) = self.open() {
            return Ok(connection);
        }
        let (first, shunned) = {
            let current = self.current();
            (current.first, current.shunned)
        };
        let (dialled, choice) = dial_any(&self.hosts, &self.lookup, first, shunned).await?;
        let mut current = self.current();
        current.generation += 1;
        current.first = dialled.host;
        current.choice = choice;
        let connection = Connection {
            sender: dialled.sender,
            authority: dialled.authority,
            host: dialled.host,
            address: dialled.address,
            generation: current.generation,
            life: dialled.life,
        };
        current.connection = Some(connection.clone());
        Ok(connection)
    }

    /// The connection `generation` has not answered in time, or says that its host is of no use:
    /// it is closed, everything on it fails now, and the next call goes to another host or another
    /// address.
    pub(super) fn abandon(&self, generation: u64) {
        let mut current = self.current();
        if let Some(connection) = &current.connection
            && connection.generation == generation
        {
            connection.life.end();
            let (host, address) = (connection.host, connection.address);
            current.first = (host + 1) % self.hosts.len().max(1);
            current.shunned = Some(address);
            current.connection = None;
        }
    }

    /// Whether there is another host or another address to go to.
    pub(super) fn has_choice(&self) -> bool {
        self.hosts.len() > 1 || self.current().choice > 1
    }
}

/// Which connection carried a call, so that it can be abandoned.
#[derive(Clone, Default)]
pub(super) struct Used(Arc<Mutex<Carrier>>);

#[derive(Clone, Default)]
enum Carrier {
    #[default]
    None,
    /// This connection.
    Generation(u64),
    /// The one that carries something else, in which the call takes part.
    Like(Used),
}

impl Used {
    pub(super) fn get(&self) -> Option<u64> {
        let carrier = self.slot().clone();
        match carrier {
            Carrier::None => None,
            Carrier::Generation(generation) => Some(generation),
            Carrier::Like(other) => other.get(),
        }
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Carrier> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The transport of one call: what generated clients send their requests through.
#[derive(Clone)]
pub(super) struct Transport {
    pool: Arc<Pool>,
    token: Option<HeaderValue>,
    used: Used,
}

impl Transport {
    pub(super) const fn new(pool: Arc<Pool>, token: Option<HeaderValue>, used: Used) -> Self {
        Self { pool, token, used }
    }

    /// The same, for something that outlives the call.
    pub(super) fn apart(&self, used: Used) -> Self {
        Self::new(self.pool.clone(), self.token.clone(), used)
    }

    /// The call takes part in what `used` stands for.
    pub(super) fn follow(&self, used: &Used) {
        *self.used.slot() = Carrier::Like(used.clone());
    }

    pub(super) const fn token(&self) -> Option<&HeaderValue> {
        self.token.as_ref()
    }

    /// Whether calls go over the connection `generation` now.
    pub(super) fn is_open(&self, generation: u64) -> bool {
        let open = self.pool.open();
        open.is_some_and(|connection| connection.generation == generation)
    }

    async fn send(self, request: http::Request<Body>) -> Result<http::Response<Incoming>, Status> {
        let mut connection = self.pool.connection().await?;
        *self.used.slot() = Carrier::Generation(connection.generation);
        let (mut head, body) = request.into_parts();
        head.uri = absolute(&head.uri, &connection.authority);
        if let Some(token) = self.token {
            head.headers.insert("token", token);
        }
        let request = http::Request::from_parts(head, body);
        let answer = connection.sender.send_request(request).await;
        answer
            .map_err(|error| Status::unavailable(format!("etcd {}: {error}", connection.authority)))
    }
}

fn absolute(uri: &Uri, authority: &Authority) -> Uri {
    let path = uri.path_and_query().cloned();
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(authority.clone());
    parts.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    Uri::from_parts(parts).expect("scheme, authority and path make a URI")
}

impl Service<http::Request<Body>> for Transport {
    type Response = http::Response<Incoming>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}

#[cfg(test)]
mod tests;
