//! A client of the generated kind on one plain connection.

use std::net::SocketAddr;
use std::task::{Context, Poll};

use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lameduck_etcd_proto::etcdserverpb as pb;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

/// One connection, as the service that generated clients call.
#[derive(Clone)]
pub(crate) struct Wire(SendRequest<tonic::body::Body>);

impl Wire {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        let mut builder = http2::Builder::new(TokioExecutor::new());
        // Small windows, so that one who does not read is soon felt.
        builder
            .initial_stream_window_size(1 << 16)
            .initial_connection_window_size(1 << 16);
        let (sender, connection) = builder
            .handshake(TokioIo::new(stream))
            .await
            .expect("it speaks HTTP/2");
        tokio::spawn(connection);
        Self(sender)
    }

    pub(crate) fn kv(&self) -> KvClient<Self> {
        KvClient::new(self.clone())
    }

    pub(crate) fn lease(&self) -> LeaseClient<Self> {
        LeaseClient::new(self.clone())
    }

    pub(crate) fn raw(&self) -> SendRequest<tonic::body::Body> {
        self.0.clone()
    }

    pub(crate) async fn watch(&self) -> WatchStream {
        self.watch_with(None).await
    }

    /// A stream whose first request goes before the answer's head: etcd sends that no earlier than
    /// its first answer.
    pub(crate) async fn watch_with(
        &self,
        first: impl IntoIterator<Item = pb::WatchCreateRequest>,
    ) -> WatchStream {
        let (requests, received) = mpsc::unbounded_channel();
        for create in first {
            let request_union = Some(RequestUnion::CreateRequest(create));
            requests
                .send(pb::WatchRequest { request_union })
                .expect("it is held here");
        }
        let stream = UnboundedReceiverStream::new(received);
        let answers = WatchClient::new(self.clone())
            .watch(stream)
            .await
            .expect("a stream");
        WatchStream {
            requests,
            answers: answers.into_inner(),
        }
    }
}

impl tower_service::Service<http::Request<tonic::body::Body>> for Wire {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<tonic::body::Body>) -> Self::Future {
        let uri = format!("http://lameduck.test{}", request.uri().path());
        *request.uri_mut() = uri.parse().expect("a URI");
        Box::pin(self.0.send_request(request))
    }
}

/// One stream of watches.
pub(crate) struct WatchStream {
    requests: mpsc::UnboundedSender<pb::WatchRequest>,
    answers: Streaming<pb::WatchResponse>,
}

impl WatchStream {
    pub(crate) fn ask(&self, request: RequestUnion) {
        let request = pb::WatchRequest {
            request_union: Some(request),
        };
        self.requests.send(request).expect("the stream is open");
    }

    pub(crate) fn create(&self, create: pb::WatchCreateRequest) {
        self.ask(RequestUnion::CreateRequest(create));
    }

    pub(crate) async fn next(&mut self) -> pb::WatchResponse {
        self.answers
            .message()
            .await
            .expect("no error")
            .expect("not the end")
    }

    /// The stream's last word after the client has ended it.
    pub(crate) async fn end(mut self) -> Result<Option<pb::WatchResponse>, Status> {
        drop(self.requests);
        self.answers.message().await
    }
}
