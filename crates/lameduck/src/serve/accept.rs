//! The listener, and the loop that takes connections from it.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use axum::Router;
use lameduck_core::instance::Life;
use lameduck_core::limits::{ACCEPT_LAST_MAX, ACCEPT_PAUSE, LISTEN_BACKLOG};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::connection::serve;
use super::control::Control;
use super::limits::Limits;
use super::pause::Pause;
use super::shared::{Crowd, Extend, Listening, Shared};
use crate::cell::gate::Gate;
use crate::foreign::{discard, quietly_await};
use crate::mark::ShowLife;
use crate::observe::Events;

/// A listener with a backlog that survives a burst of connects: std's 128 overflow, and each overflow
/// is a second's delay for a client. Port 0 takes any free port. Needs no runtime.
///
/// # Errors
/// Where the address is in use, not of this host, or not permitted: choose another, or find who holds it.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    listen(address, false)
}

/// The same on a port that other processes of this user may listen on too, each with its own queue
/// (SO_REUSEPORT): the kernel spreads new connections over those that listen.
///
/// # Errors
/// As [`bind`]; also where a socket listens there that does not share its port.
pub fn bind_shared(address: SocketAddr) -> io::Result<TcpListener> {
    listen(address, true)
}

fn listen(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // A successor binds while old connections of the same port still wait out their time.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.bind(&address.into())?;
    socket.listen(LISTEN_BACKLOG)?;
    Ok(socket.into())
}

/// What a [`Server`] is made of.
#[derive(Default)]
pub struct ServerBuilder {
    gate: Option<Gate>,
    life: Option<Life>,
    services: Vec<String>,
    listener: Option<TcpListener>,
    router: Router,
    events: Events,
    limits: Limits,
    shows: ShowLife,
    extend: Option<Extend>,
    unobserved: Vec<String>,
}

impl ServerBuilder {
    /// The gate that admits requests; its own if none is given.
    #[must_use]
    pub fn gate(mut self, gate: Gate) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Which life answers. Needed.
    #[must_use]
    pub fn life(mut self, life: Life) -> Self {
        self.life = Some(life);
        self
    }

    /// The services that the answers name.
    #[must_use]
    pub fn services(mut self, services: Vec<String>) -> Self {
        self.services = services;
        self
    }

    /// Where connections come from. Needed; see [`bind`].
    #[must_use]
    pub fn listener(mut self, listener: TcpListener) -> Self {
        self.listener = Some(listener);
        self
    }

    /// What answers the requests that are admitted.
    #[must_use]
    pub fn router(mut self, router: Router) -> Self {
        self.router = router;
        self
    }

    /// The bounds of the server and of its connections. Default: [`Limits::default`].
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// To whom answers say which life answers. Default: to all.
    #[must_use]
    pub fn show_life(mut self, to: ShowLife) -> Self {
        self.shows = to;
        self
    }

    /// Adds to the extensions of every request that is admitted.
    #[must_use]
    pub(crate) fn extend(mut self, extend: Extend) -> Self {
        self.extend = Some(extend);
        self
    }

    /// Requests of these paths are nobody's work: they get no permit.
    #[must_use]
    pub(crate) fn unobserved(mut self, paths: Vec<String>) -> Self {
        self.unobserved = paths;
        self
    }

    /// Who hears of accepting that does not go on. The log alone if nobody is given.
    #[must_use]
    pub(crate) fn events(mut self, events: Events) -> Self {
        self.events = events;
        self
    }

    /// The server, which accepts nothing before it is [run](Server::run). Needs no runtime.
    ///
    /// # Errors
    /// Where the listener or the life is missing, the listener has no address, or
    /// [a limit](Limits::check) cannot work.
    pub fn build(self) -> io::Result<Server> {
        let missing = |what| {
            let text = format!("a server needs a {what}: call `.{what}(..)` before `.build()`");
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        let listener = self.listener.ok_or_else(|| missing("listener"))?;
        let life = self.life.ok_or_else(|| missing("life"))?;
        self.limits
            .check()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        listener.set_nonblocking(true)?;
        Ok(Server {
            local_addr: listener.local_addr()?,
            listener,
            router: self.router,
            shared: Arc::new(
                Shared::new(
                    self.gate.unwrap_or_default(),
                    life,
                    self.services,
                    self.events.clone(),
                    self.limits,
                )
                .showing(self.shows)
                .extending(self.extend)
                .unobserving(self.unobserved),
            ),
            events: self.events,
        })
    }
}

/// An accept loop and its connections.
pub struct Server {
    listener: TcpListener,
    local_addr: SocketAddr,
    router: Router,
    events: Events,
    shared: Arc<Shared>,
}

impl Server {
    /// Begins one.
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The levers.
    #[must_use]
    pub fn control(&self) -> Control {
        Control {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Accepts and serves. Resolves when the listener is closed (see
    /// [`Control::close_listener`]) and every connection has ended, with all that it had to say
    /// written. Dropped earlier, it drops the connections with it.
    pub async fn run(self) {
        let mut tasks = JoinSet::new();
        let closed = Closed(Arc::clone(&self.shared));
        let accepting = Accepting {
            router: &self.router,
            shared: &self.shared,
            tasks: &mut tasks,
            pause: Pause::new(self.events, self.local_addr),
        };
        // A panic of accepting, as on a runtime without IO, must not take the connections with it.
        drop(quietly_await(|| accepting.run(self.listener)).await);
        drop(closed);
        // A handler's panic ends an HTTP/1 connection's task; its guards have given everything back.
        while let Some(ended) = tasks.join_next().await {
            discard(ended);
        }
    }
}

/// Says that the listener is closed, whichever way that came about.
struct Closed(Arc<Shared>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.listening.send_replace(Listening::Closed);
    }
}

struct Accepting<'a> {
    router: &'a Router,
    shared: &'a Arc<Shared>,
    tasks: &'a mut JoinSet<()>,
    pause: Pause,
}

impl Accepting<'_> {
    async fn run(mut self, listener: TcpListener) {
        let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
            return;
        };
        let mut listening = self.shared.listening.subscribe();
        while *listening.borrow_and_update() == Listening::Open {
            let most = self.shared.limits.connections;
            let room = self.tasks.len() < most;
            let settled = if room {
                self.pause.settles()
            } else {
                self.pause.begin(&Full(most));
                None
            };
            tokio::select! {
                accepted = listener.accept(), if room => match accepted {
                    Ok((stream, _)) => self.spawn(stream),
                    Err(error) if is_of_one_connection(&error) => {}
                    Err(error) => {
                        self.pause.begin(&error);
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(ended) = self.tasks.join_next() => discard(ended),
                _ = listening.changed() => {}
                () = sleep_until(settled.unwrap_or_else(Instant::now)), if settled.is_some() => {
                    self.pause.end();
                }
            }
        }
        self.run_dry(listener).await;
    }

    /// Takes every connection that the kernel has completed: closing the listener would reset them.
    /// Not by tokio's accept, whose "would block" is the reactor's opinion.
    async fn run_dry(&mut self, listener: tokio::net::TcpListener) {
        let Ok(listener) = listener.into_std() else {
            return;
        };
        let end = Instant::now() + ACCEPT_LAST_MAX;
        // The queue, and as many again that come meanwhile: a flood must not keep it open.
        for _ in 0..2 * LISTEN_BACKLOG {
            match listener.accept() {
                Ok((stream, _)) => {
                    let stream = stream
                        .set_nonblocking(true)
                        .and_then(|()| TcpStream::from_std(stream));
                    if let Ok(stream) = stream {
                        self.spawn(stream);
                    }
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.pause.begin(&error);
                    if Instant::now() >= end {
                        return;
                    }
                    sleep(ACCEPT_PAUSE).await;
                    while let Some(ended) = self.tasks.try_join_next() {
                        discard(ended);
                    }
                }
            }
        }
    }

    fn spawn(&mut self, stream: TcpStream) {
        let shared = Arc::clone(self.shared);
        let crowd = if self.tasks.len() > shared.limits.connections / 2 {
            Crowd::Many
        } else {
            Crowd::Few
        };
        if let Some(serving) = serve(stream, shared, self.router.clone(), crowd) {
            self.tasks.spawn(serving);
        }
    }
}

/// Why no connection is accepted where there is no room for one.
struct Full(usize);

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(most) = self;
        write!(f, "{most} connections are open, which is the bound")
    }
}

/// Errors that accept(2) passes on from the connection that it would have given.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}
