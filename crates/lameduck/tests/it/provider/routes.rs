//! gRPC and HTTP behind one port, through a stock tonic client.

use axum::Router;
use axum::routing::get;
use lameduck::Provider;
use lameduck::env::Environment;
use lameduck::provider::{Builder, Handle};
use tokio::net::TcpStream;
use tonic::service::Routes;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::greeter::greeter_client::GreeterClient;
use crate::greeter::greeter_server::{Greeter, GreeterServer};
use crate::greeter::{HelloReply, HelloRequest};
use crate::serve::start::{rest, say, within};

pub struct Polite;

#[tonic::async_trait]
impl Greeter for Polite {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let text = format!("Hello, {}!", request.into_inner().name);
        Ok(Response::new(HelloReply { text }))
    }
}

fn grpc() -> Routes {
    Routes::new(GreeterServer::new(Polite))
}

fn web() -> Router {
    let fallback = async || (http::StatusCode::IM_A_TEAPOT, "not here");
    Router::new()
        .route("/", get(async || "hello"))
        .fallback(fallback)
}

async fn start(builder: Builder) -> Handle {
    let provider = builder
        .listen("127.0.0.1:0")
        // In a cluster the floor would be another.
        .environment(Environment::default())
        .signals(false)
        .build()
        .expect("it builds");
    let handle = provider.handle();
    tokio::spawn(provider.run());
    within(handle.serving()).await;
    handle
}

async fn status_line(handle: &Handle, path: &str) -> String {
    let mut socket = TcpStream::connect(handle.local_addr())
        .await
        .expect("it listens");
    say(
        &mut socket,
        &format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n"),
    )
    .await;
    let answer = rest(&mut socket).await.expect("no reset");
    let text = String::from_utf8_lossy(&answer);
    text.lines().next().unwrap_or_default().to_owned()
}

async fn channel(handle: &Handle) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{}", handle.local_addr()));
    endpoint
        .expect("an address")
        .connect()
        .await
        .expect("it listens")
}

async fn hello(channel: &Channel) -> Result<String, Code> {
    let request = HelloRequest {
        name: "duck".to_owned(),
    };
    let answer = GreeterClient::new(channel.clone()).hello(request).await;
    answer
        .map(|reply| reply.into_inner().text)
        .map_err(|status| status.code())
}

/// A Check of the health of `service` by hand: only its outcome matters.
async fn check(channel: &Channel, service: &str) -> Result<(), Code> {
    use lameduck::health::messages::{CHECK_PATH, HealthCheckRequest, HealthCheckResponse};
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.expect("connected");
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let request = Request::new(HealthCheckRequest {
        service: service.to_owned(),
    });
    let path = http::uri::PathAndQuery::from_static(CHECK_PATH);
    let answer = grpc.unary(request, path, codec).await;
    answer.map(drop).map_err(|status| status.code())
}

#[tokio::test]
async fn both_on_one_port_each_with_its_own_answer_to_what_it_does_not_know() {
    let handle = start(Provider::builder("greeter").grpc(grpc()).router(web())).await;
    let channel = channel(&handle).await;
    assert_eq!(hello(&channel).await, Ok("Hello, duck!".to_owned()));
    assert_eq!(status_line(&handle, "/").await, "HTTP/1.1 200 OK");
    assert_eq!(
        status_line(&handle, "/none").await,
        "HTTP/1.1 418 I'm a teapot"
    );
    assert_eq!(check(&channel, "greeter").await, Ok(()));
    assert_eq!(check(&channel, "").await, Ok(()));
    assert_eq!(check(&channel, "unknown").await, Err(Code::NotFound));
    handle.abort();
}

#[tokio::test]
async fn health_lists_all_names_and_how_they_do() {
    use lameduck::health::ServingStatus::{self, NotServing, Serving};
    use lameduck::health::messages::{HealthListRequest, HealthListResponse, LIST_PATH};
    let handle = start(Provider::builder("greeter").service("more").grpc(grpc())).await;
    handle.health().set("own", NotServing);
    let channel = channel(&handle).await;
    let list = async || {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.expect("connected");
        let codec = tonic_prost::ProstCodec::<HealthListRequest, HealthListResponse>::default();
        let path = http::uri::PathAndQuery::from_static(LIST_PATH);
        let answer = grpc.unary(Request::new(HealthListRequest {}), path, codec);
        let statuses = answer.await.expect("a list").into_inner().statuses;
        let mut list: Vec<(String, ServingStatus)> = statuses
            .into_iter()
            .map(|(name, health)| (name, health.status()))
            .collect();
        list.sort();
        list
    };
    let names = |statuses: [ServingStatus; 4]| {
        let names = ["", "greeter", "more", "own"].map(str::to_owned);
        names.into_iter().zip(statuses).collect::<Vec<_>>()
    };
    assert_eq!(list().await, names([Serving, Serving, Serving, NotServing]));
    assert!(handle.hold().await);
    assert_eq!(list().await, names([NotServing; 4]));
    handle.abort();
}

#[tokio::test]
async fn either_alone_has_health_and_neither_has_it_where_it_is_switched_off() {
    let only_web = start(Provider::builder("orders").router(web())).await;
    assert_eq!(
        status_line(&only_web, "/none").await,
        "HTTP/1.1 418 I'm a teapot"
    );
    assert_eq!(check(&channel(&only_web).await, "orders").await, Ok(()));
    let only_grpc = start(Provider::builder("greeter").grpc(grpc())).await;
    assert_eq!(check(&channel(&only_grpc).await, "greeter").await, Ok(()));
    let neither = start(Provider::builder("greeter").grpc(grpc()).health(false)).await;
    let channel = channel(&neither).await;
    assert_eq!(hello(&channel).await, Ok("Hello, duck!".to_owned()));
    assert_eq!(check(&channel, "greeter").await, Err(Code::Unimplemented));
    [only_web, only_grpc, neither]
        .iter()
        .for_each(Handle::abort);
}

/// A health service that never says more, and never ends its streams.
async fn foreign_watch() -> http::Response<axum::body::Body> {
    let endless = futures_util::stream::pending::<Result<axum::body::Bytes, std::io::Error>>();
    http::Response::builder()
        .header("content-type", "application/grpc")
        .body(axum::body::Body::from_stream(endless))
        .expect("a response")
}

#[tokio::test]
async fn c12_a_foreign_health_stream_holds_nothing_either() {
    use lameduck::health::messages::{HealthCheckRequest, HealthCheckResponse, WATCH_PATH};
    let router = Router::new().route(WATCH_PATH, axum::routing::post(foreign_watch));
    let builder = Provider::builder("orders").router(router).health(false);
    let handle = start(builder).await;
    let mut grpc = tonic::client::Grpc::new(channel(&handle).await);
    grpc.ready().await.expect("connected");
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let path = http::uri::PathAndQuery::from_static(WATCH_PATH);
    let request = Request::new(HealthCheckRequest::default());
    let answer = grpc.server_streaming(request, path, codec).await;
    let mut watch = answer.expect("a stream").into_inner();
    assert_eq!(handle.gate().in_flight().total, 0);
    assert!(handle.stop("test").await);
    let end = within(watch.message())
        .await
        .expect_err("ended by the server");
    assert_eq!(end.code(), Code::Unavailable);
    let mut status = handle.watch();
    let stopped = status.wait_for(|now| now.phase == lameduck::core::event::Phase::Stopped);
    within(stopped).await.expect("it stops");
}

/// What a browser's preflight hears, of a page that wants to send `wants` there.
async fn preflight(handle: &Handle, path: &str, wants: &str) -> String {
    let mut socket = TcpStream::connect(handle.local_addr())
        .await
        .expect("it listens");
    let request = format!(
        "OPTIONS {path} HTTP/1.1\r\nhost: a\r\norigin: http://shop.example\r\n\
         access-control-request-method: POST\r\n{wants}connection: close\r\n\r\n"
    );
    say(&mut socket, &request).await;
    let answer = rest(&mut socket).await.expect("an answer");
    String::from_utf8(answer).expect("ASCII")
}

#[tokio::test]
async fn s16_a_preflight_for_grpc_web_reaches_the_grpc_side() {
    let only_for = |origin: &'static str| {
        let origin = http::HeaderValue::from_static(origin);
        tower_http::cors::CorsLayer::new().allow_origin(origin)
    };
    let grpc = grpc().prepare().into_axum_router();
    let grpc = grpc
        .layer(tonic_web::GrpcWebLayer::new())
        .layer(only_for("http://grpc.example"));
    // The web side has no fallback of its own, and a policy for its one route.
    let web = Router::new()
        .route("/", get(async || "hello"))
        .layer(only_for("http://web.example"))
        .fallback(async || http::StatusCode::NOT_FOUND);
    let builder = Provider::builder("orders").router(web).grpc(grpc.into());
    let handle = start(builder).await;
    let hello = "/greeter.v1.Greeter/Hello";
    let asks = |names: &str| format!("access-control-request-headers: {names}\r\n");
    for (path, wants, policy) in [
        (hello, asks("content-type,x-grpc-web,x-user-agent"), "grpc"),
        (hello, asks("content-type, X-Grpc-Web"), "grpc"),
        (hello, asks("content-type"), "grpc"),
        (hello, String::new(), "grpc"),
        ("/", asks("content-type"), "web"),
        ("/", String::new(), "web"),
    ] {
        let answer = preflight(&handle, path, &wants).await;
        let allows = format!("access-control-allow-origin: http://{policy}.example\r\n");
        assert!(
            answer.starts_with("HTTP/1.1 200 "),
            "{path} {wants}: {answer}"
        );
        assert!(answer.contains(&allows), "{path} {wants}: {answer}");
    }
    // What is no preflight is the web side's.
    assert_eq!(status_line(&handle, hello).await, "HTTP/1.1 404 Not Found");
    handle.abort();
}
