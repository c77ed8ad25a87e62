//! What a put at the development server costs while 4,000 watches look elsewhere, beside a put with no
//! watch at all.
//!
//! Both servers and their client run on one thread, so that whatever a put wakes is paid for in its
//! time. The watches have a stream each, as those of 4,000 small programs.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lameduck_etcd_proto::etcdserverpb as pb;
use lameduck_pairs::{Side, compare};
use lameduck_registry::etcd::server::DevServer;
use pb::kv_client::KvClient;
use pb::watch_client::WatchClient;
use tokio::net::TcpStream;
use tonic::Streaming;
use tonic::body::Body;

const WATCHES: usize = 4_000;
/// Fewer than a connection of the server takes.
const STREAMS: usize = 500;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let (idle, busy) = runtime.block_on(async { (server().await, server().await) });
    let _watches = runtime.block_on(async {
        let mut watches = Vec::with_capacity(WATCHES);
        for first in (0..WATCHES).step_by(STREAMS) {
            let connection = connect(busy).await;
            for number in first..first + STREAMS {
                watches.push(watch(connection.clone(), number).await);
            }
        }
        watches
    });
    let (idle, busy) = runtime.block_on(async { (connect(idle).await, connect(busy).await) });
    let busy = Side::new("put/4000-elsewhere", |times| {
        runtime.block_on(puts(&busy, times))
    });
    let idle = Side::new("put/0", |times| runtime.block_on(puts(&idle, times)));
    println!("{}", compare(busy, idle));
}

async fn server() -> SocketAddr {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = DevServer::bind(any).await.expect("a free port");
    let address = server.local_addr();
    tokio::spawn(server.run(std::future::pending()));
    address
}

/// One connection, as the service that generated clients call.
#[derive(Clone)]
struct Connection {
    sender: SendRequest<Body>,
    address: SocketAddr,
}

async fn connect(address: SocketAddr) -> Connection {
    let stream = TcpStream::connect(address).await.expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    let connected = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = connected.expect("it speaks HTTP/2");
    tokio::spawn(connection);
    Connection { sender, address }
}

impl tower_service::Service<http::Request<Body>> for Connection {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(
        &mut self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), hyper::Error>> {
        self.sender.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let uri = format!("http://{}{}", self.address, request.uri().path());
        *request.uri_mut() = uri.parse().expect("a URI");
        Box::pin(self.sender.send_request(request))
    }
}

async fn watch(connection: Connection, number: usize) -> impl Sized {
    let create = pb::WatchCreateRequest {
        key: format!("elsewhere/{number}/").into(),
        range_end: format!("elsewhere/{number}0").into(),
        ..Default::default()
    };
    let union = pb::watch_request::RequestUnion::CreateRequest(create);
    let request = pb::WatchRequest {
        request_union: Some(union),
    };
    // A stream of requests that does not end.
    let (requests, received) = tokio::sync::mpsc::channel(1);
    requests.send(request).await.expect("room");
    let received = tokio_stream::wrappers::ReceiverStream::new(received);
    let answer = WatchClient::new(connection).watch(received).await;
    let mut answers: Streaming<pb::WatchResponse> = answer.expect("a stream").into_inner();
    let first = answers.message().await.expect("an answer");
    assert!(first.is_some_and(|first| first.created), "it is watched");
    (requests, answers)
}

async fn puts(connection: &Connection, times: u64) -> Duration {
    let mut client = KvClient::new(connection.clone());
    let start = Instant::now();
    for _ in 0..times {
        let put = pb::PutRequest {
            key: "here".into(),
            value: "1".into(),
            ..Default::default()
        };
        client.put(put).await.expect("put");
    }
    start.elapsed()
}
