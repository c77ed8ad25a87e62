//! From an address to a connection that may be used.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::ready;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::uri::Authority;
use lameduck_core::limits;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::io::Watched;
use super::{Connection, End, Inner};
use crate::cell::link::Link;
use crate::consumer::descriptors::{is_among_last, is_starved};

/// How to dial.
#[derive(Clone, Debug)]
pub struct DialConfig {
    /// `:authority` of every request: one per service, whatever the endpoint, so that servers and
    /// proxies see the same name wherever a call ends up.
    pub authority: Authority,
    /// From connect to the peer's SETTINGS.
    pub deadline: Duration,
    /// Streams that this side opens at most, whatever the peer allows.
    pub streams_max: u32,
    /// Calls that it opens before as many were answered; `None` is no such bound. For a peer whose last
    /// connection ended after so many requests: what came after them was sent in vain.
    pub calls_at_first: Option<u32>,
    /// How long sent bytes may stay unacknowledged by the peer's kernel before the connection ends
    /// (TCP_USER_TIMEOUT, where the system has it). `None`: the system's default, minutes.
    pub unacknowledged_max: Option<Duration>,
    /// Descriptors that are left to the rest of the process: where the new socket is one of the last so
    /// many that the process may have, the dial is given up ([`DialFailure::NoDescriptor`]).
    pub descriptors_kept: u64,
}

impl DialConfig {
    /// The defaults of [`limits`] for a service.
    #[must_use]
    pub fn new(authority: Authority) -> Self {
        Self {
            authority,
            deadline: limits::DIAL_MAX,
            streams_max: limits::CLIENT_STREAMS_MAX,
            calls_at_first: None,
            unacknowledged_max: Some(limits::TCP_UNACKNOWLEDGED_MAX),
            descriptors_kept: 0,
        }
    }
}

/// What went wrong with a dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DialFailure {
    /// Nothing listens there.
    Refused,
    /// No connection within the deadline: packets are lost, or the accept queue is full.
    NoConnection,
    /// Connected, but no SETTINGS within the deadline: frozen, or not an HTTP/2 server.
    Silent,
    /// Connected, and ended before the peer's SETTINGS: reset, closed, or not HTTP/2.
    Ended(End),
    /// Connected, and the peer answers like a TLS server.
    Tls,
    /// No descriptor is left, or none that this dial may take.
    NoDescriptor,
    /// Any other failure to connect: no route, …
    Failed(io::ErrorKind),
}

/// A dial that failed. No request was ever involved.
#[derive(Debug)]
pub struct DialError {
    /// Who was dialled.
    pub address: SocketAddr,
    /// What went wrong.
    pub failure: DialFailure,
    source: Option<io::Error>,
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address;
        match self.failure {
            DialFailure::Refused => write!(f, "nothing listens on {address}"),
            DialFailure::NoConnection => write!(f, "{address} did not answer in time"),
            DialFailure::Silent => write!(
                f,
                "{address} accepts connections but sent no HTTP/2 settings in time: is it frozen, or not an HTTP/2 server?"
            ),
            DialFailure::Ended(End::Protocol(_)) => {
                write!(f, "{address} does not speak HTTP/2 in clear text")
            }
            DialFailure::Ended(End::PeerClosed) => write!(
                f,
                "{address} ended the new connection at once ({}): does it expect TLS, or another protocol than HTTP/2?",
                End::PeerClosed
            ),
            DialFailure::Ended(end) => {
                write!(f, "{address} ended the new connection at once ({end})")
            }
            DialFailure::Tls => write!(
                f,
                "{address} speaks TLS, and is called in clear text: dial a port without TLS"
            ),
            // The kind of an error that has none of its own says nothing ("uncategorized error").
            DialFailure::NoDescriptor | DialFailure::Failed(_) => match &self.source {
                Some(error) => write!(f, "cannot connect to {address}: {error}"),
                None => write!(f, "cannot connect to {address}"),
            },
        }
    }
}

impl Error for DialError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl Connection {
    /// Dials `address`. Resolves once the peer's SETTINGS are in: earlier, a burst of calls would
    /// go out against a stream limit that is not known yet, and a frozen peer would look alive.
    ///
    /// The connection may already be unusable (a peer that is draining says so at once); look at
    /// [`Connection::state`].
    ///
    /// # Errors
    /// [`DialError`]; retrying later is right in every case.
    pub async fn dial(address: SocketAddr, config: &DialConfig) -> Result<Self, DialError> {
        let failed = |failure, source| DialError {
            address,
            failure,
            source,
        };
        // Both phases share the one deadline, and a socket that is there tells them apart.
        let mut connected = false;
        let dialled = timeout(config.deadline, async {
            let socket = connect(address, config)
                .await
                .map_err(|error| failed(classify(&error), Some(error)))?;
            connected = true;
            handshake(socket, address, config)
                .await
                .map_err(|failure| failed(failure, None))
        });
        match dialled.await {
            Ok(outcome) => outcome,
            Err(_) if connected => Err(failed(DialFailure::Silent, None)),
            Err(_) => Err(failed(DialFailure::NoConnection, None)),
        }
    }
}

async fn connect(address: SocketAddr, config: &DialConfig) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    if is_among_last(&socket, config.descriptors_kept) {
        let kept = config.descriptors_kept;
        let why = format!("the last {kept} descriptors of the process are left to others");
        return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
    }
    let socket = socket.connect(address).await?;
    // Without it small writes wait for the peer's delayed acknowledgement: 40 ms a wave of calls.
    socket.set_nodelay(true)?;
    bound_unacknowledged(&socket, config.unacknowledged_max)?;
    Ok(socket)
}

#[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
fn bound_unacknowledged(socket: &TcpStream, max: Option<Duration>) -> io::Result<()> {
    socket2::SockRef::from(socket).set_tcp_user_timeout(max)
}

#[cfg(not(any(target_os = "android", target_os = "fuchsia", target_os = "linux")))]
fn bound_unacknowledged(_socket: &TcpStream, _max: Option<Duration>) -> io::Result<()> {
    Ok(())
}

fn classify(error: &io::Error) -> DialFailure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => DialFailure::Refused,
        io::ErrorKind::TimedOut => DialFailure::NoConnection,
        io::ErrorKind::QuotaExceeded => DialFailure::NoDescriptor,
        _ if is_starved(error) => DialFailure::NoDescriptor,
        kind => DialFailure::Failed(kind),
    }
}

async fn handshake(
    socket: TcpStream,
    address: SocketAddr,
    config: &DialConfig,
) -> Result<Connection, DialFailure> {
    let lost = |error: io::Error| DialFailure::Ended(End::Lost(error.kind()));
    let local = socket.local_addr().map_err(lost)?;
    let link = Link::new(config.streams_max).with_allowance(config.calls_at_first);
    let link = Arc::new(link);
    let watched = Watched::new(socket, Arc::clone(&link));
    let (send, connection) = builder()
        .handshake::<_, Bytes>(watched)
        .await
        .map_err(|error| DialFailure::Ended(end_of(&error, &link)))?;
    let task = tokio::spawn(run(connection, Arc::clone(&link))).abort_handle();
    let connection = Connection {
        inner: Arc::new(Inner {
            link: Arc::clone(&link),
            send: ArcSwapOption::from_pointee(send),
            task,
            authority: config.authority.clone(),
            address,
            local,
        }),
    };
    // Given up by the deadline or by the caller, the connection must not linger half made.
    let unfinished = AbortUnlessMade(Some(connection));
    link.until(|state| (state.settings > 0 || state.ended).then_some(()))
        .await;
    if link.state().settings == 0 {
        let end = link.ended().await;
        return Err(if link.speaks_tls() {
            DialFailure::Tls
        } else {
            DialFailure::Ended(end)
        });
    }
    Ok(unfinished.made())
}

fn builder() -> h2::client::Builder {
    let mut builder = h2::client::Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(limits::CLIENT_WINDOW_BYTES)
        .initial_connection_window_size(limits::CLIENT_CONNECTION_WINDOW_BYTES)
        .max_header_list_size(limits::CLIENT_HEADER_BYTES_MAX)
        .max_concurrent_reset_streams(limits::CLIENT_RESETS_REMEMBERED)
        .reset_stream_duration(limits::CLIENT_RESET_MEMORY)
        // Late answers to calls that were given up must not cost the calls beside them. h2 counts
        // small DATA frames and never takes back what came for a stream given up, and it counts
        // each frame for a stream that it has forgotten; at its own limits it ends the connection.
        // The windows above bound what an unread answer can hold.
        .data_frame_budget(usize::MAX)
        .max_local_error_reset_streams(None);
    builder
}

struct AbortUnlessMade(Option<Connection>);

impl AbortUnlessMade {
    fn made(mut self) -> Connection {
        self.0.take().expect("it is taken here and on drop alone")
    }
}

impl Drop for AbortUnlessMade {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.abort();
        }
    }
}

type Driven = h2::client::Connection<Watched<TcpStream>, Bytes>;

/// The connection's task.
async fn run(mut connection: Driven, link: Arc<Link>) {
    // Dropped before `connection`, so that a call that fails because of the drop finds the end.
    let told = EndIsTold(&link);
    let outcome = poll_fn(|cx| {
        // h2 does not always wake its connection when the last handle goes.
        link.register(cx.waker());
        let outcome = ready!(Pin::new(&mut connection).poll(cx));
        std::task::Poll::Ready(outcome)
    })
    .await;
    link.note_end(match &outcome {
        Ok(()) => end_without_error(&link),
        Err(error) => end_of(error, &link),
    });
    drop(told);
}

struct EndIsTold<'a>(&'a Link);

impl Drop for EndIsTold<'_> {
    fn drop(&mut self) {
        self.0.note_end(End::Aborted);
    }
}

fn end_without_error(link: &Link) -> End {
    let state = link.state();
    match state.going_away {
        Some(said) => End::GoneAway(said),
        None if state.closed => End::Closed,
        None => End::PeerClosed,
    }
}

fn end_of(error: &h2::Error, link: &Link) -> End {
    if let Some(io) = error.get_io() {
        return link.goaway().map_or(End::Lost(io.kind()), End::GoneAway);
    }
    let code = error.reason().map_or(0, u32::from);
    match link.goaway() {
        Some(said) if error.is_remote() => End::GoneAway(said),
        _ => End::Protocol(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sockets_send_at_once_and_do_not_wait_for_ever() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let config = DialConfig::new(Authority::from_static("orders"));
        let socket = connect(address, &config).await.expect("it listens");
        assert!(socket.nodelay().expect("a socket"));
        #[cfg(target_os = "linux")]
        assert_eq!(
            socket2::SockRef::from(&socket)
                .tcp_user_timeout()
                .expect("a socket"),
            config.unacknowledged_max
        );
    }
}
