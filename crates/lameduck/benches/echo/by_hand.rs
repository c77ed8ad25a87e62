//! What one would write in an hour: the less loaded of two, on bare hyper connections.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tower_service::Service;

use super::Caller;
use crate::greeter::greeter_client::GreeterClient;

pub async fn client(addresses: Vec<SocketAddr>) -> impl Caller {
    let mut connections = Vec::new();
    for address in addresses {
        connections.push(connect(address).await);
    }
    let balanced = Balanced {
        connections: connections.into(),
        turn: Arc::new(AtomicUsize::new(0)),
    };
    GreeterClient::with_origin(balanced, Uri::from_static("http://greeter"))
}

struct Connection {
    send: SendRequest<tonic::body::Body>,
    in_flight: AtomicUsize,
}

async fn connect(address: SocketAddr) -> Connection {
    let socket = TcpStream::connect(address).await.expect("it listens");
    socket.set_nodelay(true).expect("a socket");
    let made = handshake(TokioExecutor::new(), TokioIo::new(socket)).await;
    let (send, connection) = made.expect("it speaks HTTP/2");
    tokio::spawn(connection);
    Connection {
        send,
        in_flight: AtomicUsize::new(0),
    }
}

#[derive(Clone)]
struct Balanced {
    connections: Arc<[Connection]>,
    turn: Arc<AtomicUsize>,
}

impl Balanced {
    fn pick(&self) -> usize {
        // Two that differ, from the bits of a multiplied counter.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let bits = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let first = bits % self.connections.len();
        let step = 1 + (bits >> 8) % (self.connections.len() - 1);
        let second = (first + step) % self.connections.len();
        let load = |one: usize| self.connections[one].in_flight.load(Ordering::Relaxed);
        if load(first) <= load(second) {
            first
        } else {
            second
        }
    }
}

impl Service<Request<tonic::body::Body>> for Balanced {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let picked = self.pick();
        let connections = Arc::clone(&self.connections);
        connections[picked]
            .in_flight
            .fetch_add(1, Ordering::Relaxed);
        let answer = connections[picked].send.clone().send_request(request);
        Box::pin(async move {
            let answer = answer.await;
            connections[picked]
                .in_flight
                .fetch_sub(1, Ordering::Relaxed);
            answer
        })
    }
}
