//! What tonic services get from us that tonic's own server would give, and what we add.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use lameduck::core::conn::Protocol;
use lameduck::mark;
use lameduck::serve::ConnectionInfo;
use tokio::net::TcpStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::start::{Running, life, start, within};
use crate::greeter::greeter_server::{Greeter, GreeterServer};
use crate::greeter::{HelloReply, HelloRequest};

/// What the service saw of its last request.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Option<Sight>>>);

struct Sight {
    headers: HeaderMap,
    remote: Option<SocketAddr>,
    info: Option<ConnectionInfo>,
}

#[tonic::async_trait]
impl Greeter for Seen {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        *self.0.lock().expect("no panic") = Some(Sight {
            headers: request.metadata().clone().into_headers(),
            remote: request.remote_addr(),
            info: request.extensions().get::<ConnectionInfo>().copied(),
        });
        if request.get_ref().name == "slow" {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(HelloReply {
            text: "hello".to_owned(),
        }))
    }
}

fn greeter(seen: &Seen) -> Running {
    let routes = Routes::new(GreeterServer::new(seen.clone()));
    start(routes.prepare().into_axum_router())
}

struct Caller {
    sender: h2::client::SendRequest<Bytes>,
    local: SocketAddr,
}

/// The head, and the trailers where there are any.
struct Answer {
    head: HeaderMap,
    trailers: Option<HeaderMap>,
}

impl Caller {
    async fn dial(server: &Running) -> Self {
        let socket = TcpStream::connect(server.address).await.expect("listens");
        let local = socket.local_addr().expect("a socket");
        let (sender, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
        tokio::spawn(connection);
        Self { sender, local }
    }

    async fn hello(&mut self, name: &str, headers: &[(&'static str, &str)]) -> Answer {
        let mut request = http::Request::post("http://test/greeter.v1.Greeter/Hello")
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (header, value) in headers {
            request = request.header(*header, *value);
        }
        let request = request.body(()).expect("a request");
        let length = u8::try_from(name.len()).expect("short");
        // A message of one string, in its frame.
        let mut message = vec![0, 0, 0, 0, length + 2, 0x0a, length];
        message.extend(name.as_bytes());
        let (answer, mut body) = self.sender.send_request(request, false).expect("open");
        body.send_data(message.into(), true).expect("open");
        let (head, mut body) = within(answer).await.expect("an answer").into_parts();
        while let Some(data) = within(body.data()).await {
            let size = data.expect("data").len();
            body.flow_control().release_capacity(size).expect("open");
        }
        let trailers = within(body.trailers()).await.expect("an end");
        Answer {
            head: head.headers,
            trailers,
        }
    }
}

#[tokio::test]
async fn the_service_knows_the_connection_and_no_foreign_marks() {
    let seen = Seen::default();
    let server = greeter(&seen);
    let mut caller = Caller::dial(&server).await;
    let other = life().resumed().to_string();
    caller
        .hello(
            "x",
            &[
                ("lameduck-closing", &other),
                ("lameduck-life", &other),
                ("kept", "yes"),
            ],
        )
        .await;
    let sight = seen.0.lock().expect("no panic").take();
    let Sight {
        headers,
        remote,
        info,
    } = sight.expect("a request");
    assert_eq!(headers.get("kept").expect("kept"), "yes");
    assert!(
        headers
            .keys()
            .all(|name| !name.as_str().starts_with("lameduck"))
    );
    assert_eq!(remote, Some(caller.local));
    let expected = ConnectionInfo {
        number: 0,
        local: server.address,
        remote: caller.local,
        protocol: Protocol::Http2,
    };
    assert_eq!(info, Some(expected));
}

#[tokio::test]
async fn marks_in_heads_and_trailers() {
    let server = greeter(&Seen::default());
    let mut caller = Caller::dial(&server).await;
    let first = caller.hello("x", &[]).await;
    let identity = mark::Identity::from_value(&first.head[mark::LIFE]).expect("a mark");
    assert_eq!(
        (identity.life, &identity.services[..]),
        (life(), &["greeter".to_owned()][..])
    );
    let second = caller.hello("x", &[]).await;
    for headers in [&second.head, &second.trailers.expect("trailers")] {
        assert!(!headers.contains_key(mark::LIFE), "once a connection");
        assert!(!headers.contains_key(mark::CLOSING));
    }
    server.control.announce();
    let third = caller.hello("x", &[]).await;
    assert_eq!(mark::life(&third.head, &mark::CLOSING), Some(life()));
    let trailers = third.trailers.expect("trailers");
    assert_eq!(mark::life(&trailers, &mark::CLOSING), Some(life()));
    assert_eq!(trailers["grpc-status"], "0");
    server.control.resume(life().resumed());
    let fourth = caller.hello("x", &[]).await;
    assert_eq!(mark::life(&fourth.head, &mark::CLOSING), None);
    let identity = mark::Identity::from_value(&fourth.head[mark::LIFE]).expect("a mark");
    assert_eq!(identity.life, life().resumed());
}

#[tokio::test]
async fn grpc_timeout_is_kept_with_a_status() {
    let server = greeter(&Seen::default());
    let mut caller = Caller::dial(&server).await;
    let answer = caller.hello("slow", &[("grpc-timeout", "50m")]).await;
    assert_eq!(answer.head["grpc-status"], "4", "DEADLINE_EXCEEDED");
    within(server.gate.idle()).await;
    let answer = caller.hello("fast", &[("grpc-timeout", "1H")]).await;
    assert_eq!(answer.trailers.expect("trailers")["grpc-status"], "0");
    // What cannot be read limits nothing.
    let answer = caller.hello("fast", &[("grpc-timeout", "soon")]).await;
    assert_eq!(answer.trailers.expect("trailers")["grpc-status"], "0");
}

#[tokio::test]
async fn a_tonic_client_is_moved_by_the_goaway_and_loses_nothing() {
    use crate::greeter::greeter_client::GreeterClient;
    let server = greeter(&Seen::default());
    let target = format!("http://{}", server.address);
    let endpoint = tonic::transport::Endpoint::from_shared(target).expect("an address");
    let mut client = GreeterClient::new(endpoint.connect_lazy());
    for round in 0..20 {
        let reply = within(client.hello(HelloRequest::default())).await;
        assert_eq!(reply.expect("an answer").get_ref().text, "hello");
        if round % 4 == 3 {
            server.control.go_away_existing(Duration::ZERO);
            // The idle connection ends; the client dials anew.
            within(async {
                while server.control.connections().open > 0 {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        }
    }
    assert_eq!(server.gate.admitted(), 20);
}
