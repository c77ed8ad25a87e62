//! One HTTP/2 connection to whichever of etcd's hosts answers.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::HeaderValue;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use lameduck_core::limits;
use lameduck_core::name::{Address, Host};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

/// The hosts, and the connection to one of them.
pub(super) struct Pool {
    hosts: Vec<Address>,
    current: Mutex<Current>,
    /// Held while dialling: the others wait for the one connection.
    dialling: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Current {
    connection: Option<Connection>,
    /// How many connections there have been.
    generation: u64,
    /// Which host is tried first.
    first: usize,
}

#[derive(Clone)]
struct Connection {
    sender: SendRequest<Body>,
    authority: Authority,
    host: usize,
    generation: u64,
    task: AbortHandle,
}

impl Pool {
    pub(super) fn new(hosts: Vec<Address>, first: usize) -> Self {
        let first = first % hosts.len().max(1);
        Self {
            hosts,
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
        let first = self.current().first;
        let (host, sender, authority, task) = dial_any(&self.hosts, first).await?;
        let mut current = self.current();
        current.generation += 1;
        current.first = host;
        let connection = Connection {
            sender,
            authority,
            host,
            generation: current.generation,
            task,
        };
        current.connection = Some(connection.clone());
        Ok(connection)
    }

    /// The connection `generation` has not answered in time, or says that its host is of no use:
    /// everything on it fails now, and the next call goes to the next host.
    pub(super) fn abandon(&self, generation: u64) {
        let mut current = self.current();
        if let Some(connection) = &current.connection
            && connection.generation == generation
        {
            connection.task.abort();
            current.first = (connection.host + 1) % self.hosts.len().max(1);
            current.connection = None;
        }
    }

    /// Whether there is another host to go to.
    pub(super) const fn has_choice(&self) -> bool {
        self.hosts.len() > 1
    }
}

type Dialled = (usize, SendRequest<Body>, Authority, AbortHandle);

/// The first host that takes a connection. One that says no is followed by the next at once, one
/// that says nothing has the next tried beside it.
async fn dial_any(hosts: &[Address], first: usize) -> Result<Dialled, Status> {
    let mut waiting = (0..hosts.len()).map(|n| (first + n) % hosts.len());
    let mut dials = FuturesUnordered::new();
    let mut failure = Status::unavailable("etcd: no host is known");
    loop {
        if let Some(host) = waiting.next() {
            dials.push(dial(&hosts[host], host));
        }
        let next = tokio::select! {
            next = dials.next() => next,
            () = sleep(limits::REGISTRY_DIAL_STAGGER), if waiting.len() > 0 => continue,
        };
        match next {
            Some(Ok(dialled)) => return Ok(dialled),
            Some(Err(error)) => failure = error,
            None => return Err(failure),
        }
    }
}

async fn dial(address: &Address, host: usize) -> Result<Dialled, Status> {
    let away = |why: &dyn fmt::Display| Status::unavailable(format!("etcd {address}: {why}"));
    let connect = async {
        let stream = match address.host() {
            Host::Ip(ip) => TcpStream::connect((*ip, address.port())).await,
            Host::Name(name) => TcpStream::connect((name.as_str(), address.port())).await,
        };
        let stream = stream.map_err(|error| away(&error))?;
        stream.set_nodelay(true).map_err(|error| away(&error))?;
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(limits::WINDOW_BYTES)
            .initial_connection_window_size(limits::WINDOW_BYTES)
            .keep_alive_interval(limits::REGISTRY_PING_INTERVAL)
            .keep_alive_timeout(limits::REGISTRY_PING_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| away(&error))
    };
    let (sender, connection) = match timeout(limits::REGISTRY_DIAL_MAX, connect).await {
        Ok(connected) => connected?,
        Err(_) => {
            let why = format!("no connection within {:?}", limits::REGISTRY_DIAL_MAX);
            return Err(away(&why));
        }
    };
    let authority = Authority::try_from(address.to_string()).map_err(|error| away(&error))?;
    // Ends with the last sender and the last stream; its error is told by each of its streams.
    let task = tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok((host, sender, authority, task.abort_handle()))
}

/// Which connection carried a call, so that it can be abandoned.
#[derive(Clone, Default)]
pub(super) struct Used(Arc<Mutex<Option<u64>>>);

impl Used {
    pub(super) fn get(&self) -> Option<u64> {
        *self.slot()
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<u64>> {
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

    async fn send(self, request: http::Request<Body>) -> Result<http::Response<Incoming>, Status> {
        let mut connection = self.pool.connection().await?;
        *self.used.slot() = Some(connection.generation);
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
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    async fn listener() -> (TcpListener, Address) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").into();
        (listener, address)
    }

    #[tokio::test]
    async fn b5_one_dead_host_of_two_is_no_failure() {
        // Bound and not listening: refused, and nobody else's.
        let dead = tokio::net::TcpSocket::new_v4().expect("a socket");
        let any = "127.0.0.1:0".parse().expect("an address");
        dead.bind(any).expect("a port");
        let gone: Address = dead.local_addr().expect("bound").into();
        let (_alive, address) = listener().await;
        let hosts = [gone, address.clone()];
        let (host, _, authority, _) = dial_any(&hosts, 0).await.expect("the second answers");
        assert_eq!(
            (host, authority.as_str()),
            (1, address.to_string().as_str())
        );
        let error = dial_any(&hosts[..1], 0).await.expect_err("nobody answers");
        assert!(error.message().contains("etcd 127.0.0.1:"), "{error}");
    }

    #[tokio::test]
    async fn an_abandoned_connection_is_replaced_by_one_to_the_next_host() {
        let (_first, one) = listener().await;
        let (_second, two) = listener().await;
        let pool = Pool::new(vec![one, two], 2);
        let first = pool.connection().await.expect("connected");
        assert_eq!((first.host, first.generation), (0, 1));
        pool.abandon(7);
        assert_eq!(pool.connection().await.expect("the same").generation, 1);
        pool.abandon(1);
        let second = pool.connection().await.expect("connected");
        assert_eq!((second.host, second.generation), (1, 2));
    }
}
