//! A server to be tested, and HTTP/1 spoken by hand.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use lameduck::cell::gate::Gate;
use lameduck::core::instance::{BootId, Life};
use lameduck::serve::{Control, Limits, Server, bind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::raw::nowhere;

/// Longer than anything here may take; a test that reaches it has hung. Below the budget of a stop, so
/// that a stop which waits in vain has hung too.
pub const HANG: Duration = Duration::from_secs(20);

pub fn life() -> Life {
    Life::first(BootId::from_bits(0xfeed))
}

/// A running server.
pub struct Running {
    pub gate: Gate,
    pub control: Control,
    pub address: SocketAddr,
    pub ended: JoinHandle<()>,
    /// Keeps its port from others once it is closed.
    _port: socket2::Socket,
}

pub fn start(router: Router) -> Running {
    start_with(router, |_| {})
}

/// The same with limits of its own.
pub fn start_with(router: Router, change: impl FnOnce(&mut Limits)) -> Running {
    let mut limits = Limits::default();
    change(&mut limits);
    let gate = Gate::new();
    let (port, address) = nowhere();
    let server = Server::builder()
        .gate(gate.clone())
        .life(life())
        .services(vec!["greeter".to_owned()])
        .listener(bind(address).expect("a free port"))
        .router(router)
        .limits(limits)
        .build()
        .expect("all is given");
    Running {
        gate,
        control: server.control(),
        address: server.local_addr(),
        ended: tokio::spawn(server.run()),
        _port: port,
    }
}

impl Running {
    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("it listens")
    }

    /// Resolves when nothing is in flight.
    pub async fn idle(&self) {
        within(self.gate.idle()).await;
    }

    /// Resolves when `count` requests were admitted and none of them is in flight.
    pub async fn idle_after(&self, count: u64) {
        within(async {
            while self.gate.admitted() < count {
                tokio::task::yield_now().await;
            }
        })
        .await;
        self.idle().await;
    }

    /// Waits for the server's end.
    pub async fn end(self) {
        within(self.ended).await.expect("the server does not panic");
    }
}

/// Waits for what must come.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, future)
        .await
        .expect("it comes in time")
}

pub async fn say(socket: &mut TcpStream, text: &str) {
    socket
        .write_all(text.as_bytes())
        .await
        .expect("the server reads");
}

/// Reads one answer's head.
pub async fn head(socket: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = within(socket.read_u8()).await.expect("an answer");
        head.push(byte);
    }
    String::from_utf8(head).expect("ASCII").to_ascii_lowercase()
}

/// Reads to the end of the connection.
pub async fn rest(socket: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut rest = Vec::new();
    within(socket.read_to_end(&mut rest)).await.map(|_| rest)
}
