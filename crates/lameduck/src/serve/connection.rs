//! The task of one connection: runs its machine, drives hyper, ends it.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use lameduck_core::conn::{Bounds, Conn, Input, Look, Protocol, Reason};
use lameduck_core::machine::Machine;
use rustix::net::RecvFlags;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep_until};

use super::http::{Http, Parts, Progress};
use super::io::{Io, Socket};
use super::peer::Peer;
use super::shared::{Crowd, Shared};
use crate::cell::tally::Gauge;
use crate::cell::wire::Flag;
use lameduck_core::effects;
use lameduck_core::effects::connection::Orders;
use lameduck_registry::driver::Clock;

/// Takes one accepted socket on, and gives what serves it until it has ended. `None` where the peer
/// is gone by now. Counted from this call on, not from the first poll.
pub(super) fn serve(
    stream: TcpStream,
    shared: Arc<Shared>,
    router: Router,
    crowd: Crowd,
) -> Option<impl Future<Output = ()> + Send> {
    stream.set_nodelay(true).ok()?;
    // HTTP/1 has no PING: the kernel asks for it, so that a peer that is gone is noticed even where
    // nothing is to be written to it.
    if let Some(interval) = shared.limits.ping_interval {
        let asking = TcpKeepalive::new()
            .with_time(interval)
            .with_interval(shared.limits.ping_timeout);
        SockRef::from(&stream).set_tcp_keepalive(&asking).ok()?;
    }
    let (local, remote) = (stream.local_addr().ok()?, stream.peer_addr().ok()?);
    let orders = shared.orders.subscribe();
    let peer = Arc::new(Peer::new(shared, local, remote));
    let bounds = peer.shared.bounds(peer.number, crowd);
    Some(Connection::new(stream, peer, router, bounds).run(orders))
}

struct Connection {
    machine: Conn,
    clock: Clock,
    http: Http,
    parts: Parts,
    socket: Arc<Socket>,
    noticed: Noticed,
    accounts: Accounts,
    over: bool,
}

/// What the machine has been told of already.
#[derive(Default)]
struct Noticed {
    begun: bool,
    spoken: bool,
    go_away: bool,
    last: bool,
    /// HTTP/2: requests at the last look.
    requests: u32,
}

enum Wake {
    Progress(Progress),
    Noticed(Input),
    Orders,
    Deadline,
    /// Nothing can be said or heard on it any more.
    SocketGone,
}

impl Connection {
    fn new(stream: TcpStream, peer: Arc<Peer>, router: Router, bounds: Bounds) -> Self {
        let clock = Clock::start();
        let (read, socket) = Socket::split(stream);
        let io = Io::new(read, Arc::clone(&socket), Arc::clone(&peer));
        Self {
            machine: Conn::new(clock.now(), bounds),
            clock,
            http: Http::Undecided(io),
            accounts: Accounts::open(Arc::clone(&peer.shared)),
            parts: Parts { peer, router },
            socket,
            noticed: Noticed::default(),
            over: false,
        }
    }

    async fn run(mut self, mut orders: watch::Receiver<Orders>) {
        let now = *orders.borrow_and_update();
        self.obey(now);
        let mut sleep = pin!(sleep_until(tokio::time::Instant::now()));
        while !self.over {
            let due = self
                .machine
                .deadline()
                .map(|(at, _)| self.clock.instant(at));
            if let Some(due) = due {
                sleep.as_mut().reset(due);
            }
            let sleep = due.map(|_| sleep.as_mut());
            match self.wait(&mut orders, sleep).await {
                Wake::Progress(progress) => self.progress(&progress),
                Wake::Noticed(input) => self.handle(input),
                Wake::Orders => {
                    let now = *orders.borrow_and_update();
                    self.obey(now);
                }
                Wake::Deadline => {
                    self.machine.handle_timeout(self.clock.now());
                    self.perform();
                }
                Wake::SocketGone => self.over = true,
            }
        }
    }

    async fn wait(
        &mut self,
        orders: &mut watch::Receiver<Orders>,
        mut sleep: Option<Pin<&mut Sleep>>,
    ) -> Wake {
        let peer = Arc::clone(&self.parts.peer);
        let mut changed = pin!(orders.changed());
        let mut gone = pin!(peer.dropped.notified());
        let socket = Arc::clone(&self.socket);
        let mut reset = pin!(socket.stream().ready(Interest::ERROR));
        poll_fn(|context| {
            let wake = self.poll_http(context);
            if wake.is_ready() {
                return wake;
            }
            // The server that gives orders outlives its connections; without it there are none.
            if let Poll::Ready(Ok(())) = changed.as_mut().poll(context) {
                return Poll::Ready(Wake::Orders);
            }
            if matches!(self.http, Http::Ended) && gone.as_mut().poll(context).is_ready() {
                return Poll::Ready(Wake::SocketGone);
            }
            // hyper lets an HTTP/1 peer shut down its side, and so does not read while a handler works.
            if matches!(self.http, Http::One(_)) && reset.as_mut().poll(context).is_ready() {
                return Poll::Ready(Wake::SocketGone);
            }
            match &mut sleep {
                Some(sleep) => sleep.as_mut().poll(context).map(|()| Wake::Deadline),
                None => Poll::Pending,
            }
        })
        .await
    }

    fn poll_http(&mut self, context: &mut Context<'_>) -> Poll<Wake> {
        let progress = self.http.poll(context, &self.parts);
        self.accounts.owe(self.parts.peer.wire.owes());
        // What was seen on the wire came before the end.
        if let Some(input) = self.notice() {
            if progress.is_pending() {
                return Poll::Ready(Wake::Noticed(input));
            }
            self.handle(input);
        }
        progress.map(Wake::Progress)
    }

    /// What the parts of the connection have seen since the last look.
    fn notice(&mut self) -> Option<Input> {
        let wire = &self.parts.peer.wire;
        let noticed = &mut self.noticed;
        if !noticed.begun && wire.has(Flag::Begun) {
            noticed.begun = true;
            return Some(Input::Begun);
        }
        if !noticed.spoken && wire.has(Flag::Spoken) {
            noticed.spoken = true;
            return Some(Input::Spoken(match self.http {
                Http::Two(..) => Protocol::Http2,
                Http::Undecided(_) | Http::One(_) | Http::Ended => Protocol::Http1,
            }));
        }
        if !noticed.go_away && wire.has(Flag::GoAwayOut) {
            noticed.go_away = true;
            self.parts.peer.is_told();
            return Some(Input::GoAwayOut);
        }
        if !noticed.last && wire.has(Flag::FinalOut) {
            noticed.last = true;
            return Some(Input::FinalOut);
        }
        None
    }

    fn progress(&mut self, progress: &Progress) {
        let wire = &self.parts.peer.wire;
        match progress {
            Progress::Decided => {}
            Progress::Ended if wire.has(Flag::Upgraded) => {
                self.http = Http::Ended;
                self.handle(Input::Upgraded);
                self.over = self.parts.peer.wire.has(Flag::Dropped);
            }
            Progress::Ended => self.over = true,
            Progress::Broken => {
                if wire.has(Flag::CloseDelimited) {
                    self.end_without_fin();
                }
                self.over = true;
            }
        }
    }

    fn obey(&mut self, orders: Orders) {
        for input in orders.inputs(self.parts.peer.number) {
            self.handle(input);
        }
    }

    fn handle(&mut self, input: Input) {
        self.machine.handle(self.clock.now(), input);
        self.perform();
    }

    fn perform(&mut self) {
        while let Some(output) = self.machine.poll() {
            if let Some(input) = effects::connection::perform(self, output) {
                self.machine.handle(self.clock.now(), input);
            }
        }
        if self.machine.is_told() {
            self.accounts.tell();
        }
    }

    /// Whether the end of the connection is the end of an answer that is not complete.
    fn is_unfinished(&self) -> bool {
        let wire = &self.parts.peer.wire;
        wire.has(Flag::CloseDelimited) && wire.busy()
    }

    /// Its owner has the socket still, and wakes to an error.
    fn end_upgraded(&self) {
        self.parts.peer.wire.set(Flag::Cut);
        let _ = SockRef::from(self.socket.stream()).shutdown(std::net::Shutdown::Both);
    }

    /// Where the end of the connection is the end of the answer, a FIN would look complete.
    fn end_without_fin(&self) {
        // Fails only on a socket that is gone, whose peer has seen an error by now.
        let _ = SockRef::from(self.socket.stream()).set_linger(Some(Duration::ZERO));
    }
}

impl effects::connection::Edge for Connection {
    fn graceful(&mut self) {
        self.http.graceful();
    }

    fn inject_pong(&mut self) {
        self.parts.peer.wire.set(Flag::InjectPong);
    }

    fn settled(&mut self) {
        self.accounts.settle();
    }

    fn end_answers(&mut self) {
        self.parts.peer.cut.cancel();
    }

    fn reset(&mut self) {
        self.http.reset();
    }

    fn look(&mut self) -> Look {
        let wire = &self.parts.peer.wire;
        if matches!(self.http, Http::Two(..)) {
            let before = std::mem::replace(&mut self.noticed.requests, wire.begun());
            let busy = wire.busy() || wire.owes() || before != self.noticed.requests;
            return if busy { Look::Busy } else { Look::Quiet };
        }
        if wire.busy() || wire.owes() {
            return Look::Busy;
        }
        if wire.has(Flag::HeadBegun) {
            return Look::HalfHead;
        }
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(self.socket.stream(), &mut [0_u8; 1], flags) {
            Ok((_, 1..)) => Look::Waiting,
            // Nothing there, its end, or its error: nothing that a request could come of.
            Ok(_) | Err(_) => Look::Quiet,
        }
    }

    fn last_answer(&mut self) {
        self.parts.peer.wire.set(Flag::LastAnswer);
    }

    fn drop_it(&mut self, reason: Reason) {
        let wire = &self.parts.peer.wire;
        if reason == Reason::Cut && (self.is_unfinished() || wire.has(Flag::Upgraded)) {
            self.end_without_fin();
        }
        if wire.has(Flag::Upgraded) {
            self.end_upgraded();
        }
        self.over = true;
    }
}

impl Drop for Connection {
    /// A body that panics takes the task with it, and so does a server that is dropped.
    fn drop(&mut self) {
        let upgraded = self.parts.peer.wire.has(Flag::Upgraded) && !self.over;
        if self.is_unfinished() || upgraded {
            self.end_without_fin();
        }
        if upgraded {
            self.end_upgraded();
        }
    }
}

/// What this connection adds to the server's gauges; taken off again however it ends.
struct Accounts {
    shared: Arc<Shared>,
    told: bool,
    settled: bool,
    owes: bool,
}

impl Accounts {
    fn open(shared: Arc<Shared>) -> Self {
        shared.tally.up(Gauge::Unsettled);
        shared.tally.up(Gauge::Open);
        Self {
            shared,
            told: false,
            settled: false,
            owes: false,
        }
    }

    fn tell(&mut self) {
        if !std::mem::replace(&mut self.told, true) {
            self.shared.tally.up(Gauge::Told);
        }
    }

    fn owe(&mut self, owes: bool) {
        match (std::mem::replace(&mut self.owes, owes), owes) {
            (false, true) => self.shared.tally.up(Gauge::Owing),
            (true, false) => self.shared.tally.down(Gauge::Owing),
            _ => {}
        }
    }

    fn settle(&mut self) {
        if !std::mem::replace(&mut self.settled, true) {
            self.shared.tally.down(Gauge::Unsettled);
        }
    }
}

impl Drop for Accounts {
    fn drop(&mut self) {
        self.settle();
        self.owe(false);
        if self.told {
            self.shared.tally.down(Gauge::Told);
        }
        self.shared.tally.down(Gauge::Open);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::gate::Gate;
    use crate::serve::Limits;
    use lameduck_core::instance::{BootId, Life};
    use lameduck_core::limits::SERVER_PING_INTERVAL;

    #[tokio::test]
    async fn sockets_send_at_once_and_the_kernel_asks_for_peers_that_may_be_gone() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let _client = TcpStream::connect(address).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("a client");
        // The same socket, by another descriptor.
        let seen = SockRef::from(&stream).try_clone().expect("a descriptor");
        let life = Life::first(BootId::from_bits(1));
        let events = crate::observe::Events::default();
        let limits = Limits::default();
        let shared = Shared::new(Gate::new(), life, Vec::new(), events, limits);
        let serving = serve(stream, Arc::new(shared), Router::new(), Crowd::Few);
        let serving = serving.expect("the peer is there");
        assert!(seen.tcp_nodelay().expect("a socket"));
        assert!(seen.keepalive().expect("a socket"));
        assert_eq!(
            seen.tcp_keepalive_time().expect("a socket"),
            SERVER_PING_INTERVAL
        );
        drop(serving);
    }
}
