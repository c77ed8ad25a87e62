//! The development server: etcd's v3 API on the core's store, in memory, on loopback.
//!
//! What clients of registries use of etcd 3.4 works as there, with the same codes and texts: KV,
//! Lease, Watch, the member list, status. What differs:
//!
//! - Nothing is kept: a restart is an empty store. Its first revision is made from the clock and counts
//!   as compacted, so that a client that resumes a watch of an earlier life is cancelled and lists anew.
//! - Leases end on time (etcd: up to half a second late); the shortest is 2 s, as in etcd.
//! - The past is bounded ([`limits::STORE_HISTORY_MAX`]): older revisions are compacted by themselves.
//! - The member list names the address that the client came in on.
//! - A transaction that deletes "this key and all after it" and puts one of them is refused like any
//!   other that writes a key twice; etcd overlooks it.
//! - Large watch answers are not fragmented; users, snapshots, elections, locks and changes of
//!   members are UNIMPLEMENTED, with a sentence that says so.
//! - Over plain HTTP there are `/health` and `/version`; everything else there is 404, with a sentence.

mod kv;
mod lease;
mod others;
mod plain;
mod state;
mod watch;
mod wire;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use lameduck_core::limits;
use lameduck_etcd_proto::etcdserverpb as pb;
use pb::auth_server::AuthServer;
use pb::cluster_server::ClusterServer;
use pb::kv_server::KvServer;
use pb::lease_server::LeaseServer;
use pb::maintenance_server::MaintenanceServer;
use pb::watch_server::WatchServer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch as signal};
use tokio::task::JoinSet;
use tonic::service::Routes;
use tower_service::Service;

use others::{CameIn, OtherServices};
use state::State;

/// What a program says when it starts this.
pub const NOTICE: &str = "this registry is for development: it keeps everything in memory, asks nobody \
     for a password and listens on loopback only; use etcd in production";

/// One message: the largest write and what is wrapped around it.
const MESSAGE_BYTES_MAX: usize = limits::STORE_REQUEST_BYTES_MAX + (512 << 10);
/// After an error of accept (usually: no descriptors left) nothing is accepted for this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What a client of HTTP/2 says first (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A preface that came in parts is looked at again after this long.
const PREFACE_PAUSE: Duration = Duration::from_millis(10);

/// The server, bound and not yet running.
#[derive(Debug)]
pub struct DevServer {
    listener: TcpListener,
    address: SocketAddr,
    revision: i64,
}

impl DevServer {
    /// Binds to a loopback address. Port 0 takes a free one.
    ///
    /// # Errors
    ///
    /// Any other address ([`io::ErrorKind::InvalidInput`]); an address in use.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        admit(address)?;
        let listener = TcpListener::bind(address).await.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
        })?;
        Self::new(listener)
    }

    /// Takes a listener that is bound to a loopback address.
    ///
    /// # Errors
    ///
    /// Where it is bound to any other ([`io::ErrorKind::InvalidInput`]).
    pub fn new(listener: TcpListener) -> io::Result<Self> {
        let address = listener.local_addr()?;
        admit(address)?;
        let revision = revision_at(SystemTime::now());
        Ok(Self {
            listener,
            address,
            revision,
        })
    }

    /// The same, with an empty store at this revision instead of one made from the clock. All
    /// revisions up to it count as compacted; at 1 there are none, as in a new etcd.
    ///
    /// A client that has heard of higher revisions in an earlier life waits for them in vain.
    #[must_use]
    pub const fn beginning_at(mut self, revision: i64) -> Self {
        self.revision = revision;
        self
    }

    /// Where it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` resolves; then all connections are closed, and what was stored is
    /// gone.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let state = Arc::new(State::new(seed(), self.revision));
        let routes = routes(&state);
        tokio::select! {
            () = accept(&self.listener, &routes, shutdown) => {}
            () = state.keep_time() => {}
        }
    }
}

/// Serves on `listener` until `shutdown` resolves. See [`DevServer`].
///
/// # Errors
///
/// Where `listener` is not bound to a loopback address.
pub async fn serve(listener: TcpListener, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    DevServer::new(listener)?.run(shutdown).await;
    Ok(())
}

fn admit(address: SocketAddr) -> io::Result<()> {
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let message = format!(
        "{address} is not a loopback address: the development registry has no passwords and listens \
         on 127.0.0.1 or [::1] only; use etcd where other machines must reach it"
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// Decides the names of leases, which must not come again after a restart.
fn seed() -> u64 {
    // Without randomness the names repeat, which only a client of the last run would notice.
    getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()))
}

/// The first revision of a server that starts at `time`: microseconds since 1970.
///
/// It lies beyond all revisions of an earlier life unless that one wrote more than a million times a
/// second on average, or the clock was set back. Until the year 2255 it is below 2^53, which clients
/// keep that hold numbers as floating point.
fn revision_at(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

fn routes(state: &Arc<State>) -> Routes {
    let state = || Arc::clone(state);
    let kv = KvServer::new(kv::KvService(state()));
    let lease = LeaseServer::new(lease::LeaseService(state()));
    let watch = WatchServer::new(watch::WatchService(state()));
    let others = || OtherServices(state());
    Routes::new(kv.max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(lease.max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(watch.max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(ClusterServer::new(others()))
        .add_service(MaintenanceServer::new(others()))
        .add_service(AuthServer::new(others()))
        .prepare()
}

async fn accept(listener: &TcpListener, routes: &Routes, shutdown: impl Future<Output = ()>) {
    let (closing, closed) = signal::channel(());
    let room = Arc::new(Semaphore::new(limits::DEV_CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let next = async {
            let permit = Arc::clone(&room).acquire_owned().await;
            (
                permit.expect("the semaphore is never closed"),
                listener.accept().await,
            )
        };
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            (permit, accepted) = next => match accepted {
                Ok((stream, _)) => {
                    let (routes, closed) = (routes.clone(), closed.clone());
                    connections.spawn(async move {
                        connection(stream, routes, closed).await;
                        drop(permit);
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
        }
    }
    drop(closing);
    while connections.join_next().await.is_some() {}
}

/// Serves one connection until it ends, or for a moment longer than until `closed` does.
async fn connection(stream: TcpStream, routes: Routes, mut closed: signal::Receiver<()>) {
    let Ok(address) = stream.local_addr() else {
        return;
    };
    // Without it the answer of a watch waits for the acknowledgement of the last one.
    let _ = stream.set_nodelay(true);
    tokio::select! {
        // One that says nothing must not hold its place for ever.
        spoken = tokio::time::timeout(limits::HANDSHAKE_MAX, spoken(&stream)) => match spoken {
            Ok(Some(Spoken::Http2)) => {}
            Ok(Some(Spoken::Other)) => return plain_connection(stream, closed).await,
            Ok(None) | Err(_) => return,
        },
        _ = closed.changed() => return,
    }
    let service = service_fn(move |mut request: http::Request<Incoming>| {
        request.extensions_mut().insert(CameIn(address));
        let mut routes = routes.clone();
        async move {
            if !plain::is_call(request.headers()) {
                return Ok::<_, Infallible>(plain::answer(request).await);
            }
            let path = request.uri().path().to_owned();
            let answer = routes.call(request).await;
            let answer = answer.unwrap_or_else(|never| match never {});
            Ok(plain::explain(&path, answer))
        }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits::DEV_STREAMS_MAX)
        .max_header_list_size(limits::HEADER_BYTES_MAX)
        .keep_alive_interval(limits::SERVER_PING_INTERVAL)
        .keep_alive_timeout(limits::SERVER_PING_MAX);
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // Whatever a client does wrong ends its own connection only.
        _ = &mut serving => return,
        _ = closed.changed() => serving.as_mut().graceful_shutdown(),
    }
    // Watches never end by themselves: what is not done by then is cut.
    let _ = tokio::time::timeout(limits::CUT_FLUSH, serving).await;
}

/// One request over HTTP/1.1: health checks, and people with curl. What is no HTTP is 400.
async fn plain_connection(stream: TcpStream, mut closed: signal::Receiver<()>) {
    let service = service_fn(|request: http::Request<Incoming>| async {
        Ok::<_, Infallible>(plain::answer(request).await)
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HANDSHAKE_MAX)
        .keep_alive(false);
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        _ = serving => {}
        _ = closed.changed() => {}
    }
}

/// What a client speaks, by its first bytes.
enum Spoken {
    Http2,
    /// HTTP/1.1, or nothing that is known here.
    Other,
}

/// Waits for the whole preface of HTTP/2, or for the first byte that differs, and leaves all to be
/// read; `None` where the connection ends. hyper itself would wait for the rest of a preface without
/// end.
async fn spoken(stream: &TcpStream) -> Option<Spoken> {
    let mut seen = [0; PREFACE.len()];
    loop {
        match stream.peek(&mut seen).await {
            Ok(0) | Err(_) => return None,
            Ok(count) if seen[..count] != PREFACE[..count] => return Some(Spoken::Other),
            Ok(count) if count == PREFACE.len() => return Some(Spoken::Http2),
            // Nothing wakes for a second part while the first is unread.
            Ok(_) => tokio::time::sleep(PREFACE_PAUSE).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// How long the server bears a client that sends `bytes` and nothing more.
    async fn borne(bytes: &[u8]) -> Duration {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = DevServer::bind(any).await.expect("a free port");
        let address = server.local_addr();
        let running = tokio::spawn(server.run(std::future::pending()));
        let mut client = TcpStream::connect(address).await.expect("it listens");
        let start = tokio::time::Instant::now();
        client.write_all(bytes).await.expect("sent");
        // It ends with the connection, in whatever way.
        let _ = client.read_to_end(&mut Vec::new()).await;
        running.abort();
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_does_not_finish_the_preface_is_let_go() {
        let slack = Duration::from_secs(1);
        for bytes in [&b""[..], &PREFACE[..10], b"GET / HTTP/1.1\r\nhost: "] {
            let time = borne(bytes).await;
            assert!(
                time >= limits::HANDSHAKE_MAX && time < limits::HANDSHAKE_MAX + slack,
                "{time:?}"
            );
        }
    }

    // Not on paused time, which runs on while the bytes are under way.
    #[tokio::test]
    async fn one_who_speaks_something_else_is_not_waited_for() {
        assert!(borne(b"GET / HTTP/1.1\r\n\r\n").await < limits::HANDSHAKE_MAX);
    }

    #[test]
    fn r13_revisions_of_the_clock_grow_and_fit() {
        let at = |seconds| revision_at(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), 0);
        assert_eq!(at(1_700_000_000), 1_700_000_000_000_000);
        // A life of a second with 100,000 writes.
        assert!(at(1_700_000_000) + 100_000 < at(1_700_000_001));
        // 2^53 microseconds are 285 years.
        assert!(at(285 * 365 * 24 * 3_600) < 1 << 53);
        assert_eq!(revision_at(UNIX_EPOCH - Duration::from_secs(1)), 0);
    }
}
