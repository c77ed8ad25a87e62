//! What one would write by hand: the less loaded of two hyper connections.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tonic::body::Body;
use tower_service::Service;

/// The connections.
#[derive(Clone)]
pub struct ByHand {
    peers: Arc<Vec<Peer>>,
    turn: Arc<AtomicUsize>,
}

struct Peer {
    send: http2::SendRequest<Body>,
    authority: Authority,
    open: Arc<AtomicUsize>,
}

/// One open call.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ByHand {
    /// Connects to all.
    pub async fn connect(addresses: &[SocketAddr]) -> Self {
        let mut peers = Vec::new();
        for address in addresses {
            let socket = TcpStream::connect(address).await.expect("it listens");
            socket.set_nodelay(true).expect("a socket");
            let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(socket));
            let (send, connection) = handshake.await.expect("it speaks HTTP/2");
            tokio::spawn(connection);
            peers.push(Peer {
                send,
                authority: address.to_string().parse().expect("an authority"),
                open: Arc::default(),
            });
        }
        Self {
            peers: Arc::new(peers),
            turn: Arc::default(),
        }
    }

    fn pick(&self) -> &Peer {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let random = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let count = self.peers.len();
        let first = random % count;
        let second = (first + 1 + random / count % (count - 1)) % count;
        let load = |index: &usize| self.peers[*index].open.load(Ordering::Relaxed);
        let better = [first, second].into_iter().min_by_key(load);
        &self.peers[better.expect("there are two")]
    }
}

impl Service<Request<Body>> for ByHand {
    type Response = Response<Counted>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Counted>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let peer = self.pick();
        peer.open.fetch_add(1, Ordering::Relaxed);
        let open = Open(Arc::clone(&peer.open));
        let mut send = peer.send.clone();
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(peer.authority.clone());
        let path = request.uri().path_and_query().cloned();
        parts.path_and_query = path.or(Some(PathAndQuery::from_static("/")));
        *request.uri_mut() = Uri::from_parts(parts).expect("all three are there");
        Box::pin(async move {
            send.ready().await?;
            let response = send.send_request(request).await?;
            Ok(response.map(|body| Counted { body, _open: open }))
        })
    }
}

/// An answer that counts as open until it is dropped.
pub struct Counted {
    body: Incoming,
    _open: Open,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
