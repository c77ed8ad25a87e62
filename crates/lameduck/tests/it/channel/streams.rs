//! Answers that go on for a while.

use std::convert::Infallible;
use std::error::Error as _;
use std::time::Duration;

use axum::body::Body as ServerBody;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use lameduck::Hub;
use lameduck::consumer::{CallFailed, Leaving};
use lameduck::core::failover::Proof;
use lameduck::core::limits::LINGER_REMOVED;
use lameduck::core::registry::EntryId;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::IntervalStream;
use tonic::body::Body;
use tower::ServiceExt;

use super::*;
use crate::tonic_server::{self, Running};

const STREAM: &str = "/pkg.Svc/Stream";

/// A server whose answers never end.
async fn endless() -> (SocketAddr, Running) {
    let answer = || async {
        let ticks = IntervalStream::new(tokio::time::interval(Duration::from_millis(5)));
        let messages = ticks.map(|_| Ok::<_, Infallible>(Bytes::from_static(b"\0\0\0\0\x01x")));
        Response::builder()
            .header("content-type", "application/grpc")
            .body(ServerBody::from_stream(messages))
            .expect("well formed")
    };
    tonic_server::start(axum::Router::new().route(STREAM, axum::routing::post(answer))).await
}

/// Asks for a stream.
async fn ask(channel: &Channel, timeout: Option<&str>) -> Response<Body> {
    let mut request = Request::post(STREAM).header("content-type", "application/grpc");
    if let Some(timeout) = timeout {
        request = request.header("grpc-timeout", timeout);
    }
    let request = request.body(Body::empty()).expect("well formed");
    channel.clone().oneshot(request).await.expect("it serves")
}

/// Begins a stream and reads its first message.
async fn begin(channel: &Channel, timeout: Option<&str>) -> Body {
    let mut body = ask(channel, timeout).await.into_body();
    body.frame().await.expect("it goes on").expect("it goes on");
    body
}

/// Reads until the stream ends with an error.
async fn error_of(body: &mut Body) -> tonic::Status {
    let read = async {
        loop {
            match body.frame().await {
                Some(Ok(_)) => {}
                Some(Err(status)) => return status,
                None => panic!("a forced end must not look like a normal one"),
            }
        }
    };
    timeout(SOON, read).await.expect("it breaks off")
}

#[tokio::test]
async fn one_that_breaks_off_says_where() {
    let (address, server) = endless().await;
    let channel = Hub::new().channel(&direct(&[address])).expect("a target");
    let mut body = begin(&channel, None).await;
    server.kill();
    let status = error_of(&mut body).await;
    assert_eq!(status.code(), tonic::Code::Unavailable);
    let failed = status
        .source()
        .and_then(|source| source.downcast_ref::<CallFailed>());
    let failed = failed.expect("our own error");
    assert_eq!(failed.proof, Proof::Unknown);
    assert_eq!(
        failed.endpoint.as_ref().map(|(at, _)| at.clone()),
        Some(address.into())
    );
}

#[tokio::test]
async fn a_deadline_ends_it_too() {
    let (address, _server) = endless().await;
    let channel = Hub::new().channel(&direct(&[address])).expect("a target");
    ready(&channel).await;
    let mut body = begin(&channel, Some("1500m")).await;
    assert_eq!(
        error_of(&mut body).await.code(),
        tonic::Code::DeadlineExceeded
    );
}

#[tokio::test]
async fn it_outlives_its_channel_and_its_registration() {
    let (hub, memory) = (Hub::new(), Memory::new());
    let (address, _server) = endless().await;
    let spare = super::node::Node::start("spare", None).await;
    let life = super::node::life;
    register(&memory, 1, address, life(1));
    let channel = in_memory(&hub, &memory).build().expect("a service");
    let mut body = begin(&channel, None).await;
    register(&memory, 2, spare.address, life(2));
    memory.withdraw(&orders(), EntryId(1));
    let gone = async { while hello(&channel).await.is_err() {} };
    timeout(SOON, gone).await.expect("the spare one serves");
    drop(channel);
    for _ in 0..20 {
        body.frame().await.expect("it goes on").expect("it goes on");
    }
}

#[tokio::test]
async fn c34_the_stream_of_a_removed_endpoint_is_told_and_cut_after_the_linger() {
    let (hub, memory) = (Hub::new(), Memory::new());
    let (address, _server) = endless().await;
    let spare = super::node::Node::start("spare", None).await;
    let life = super::node::life;
    register(&memory, 1, address, life(1));
    let builder = in_memory(&hub, &memory).tell_leaving(true);
    let channel = builder.build().expect("a service");
    let mut answer = ask(&channel, None).await;
    let leaving = answer
        .extensions_mut()
        .remove::<Leaving>()
        .expect("asked for");
    assert!(!leaving.is_told());
    let mut body = answer.into_body();
    register(&memory, 2, spare.address, life(2));
    memory.withdraw(&orders(), EntryId(1));
    timeout(SOON, leaving.told()).await.expect("it is told");
    assert!(leaving.is_told());
    // It goes on; then ten minutes pass at once.
    for _ in 0..20 {
        body.frame().await.expect("it goes on").expect("it goes on");
    }
    tokio::time::pause();
    tokio::time::advance(LINGER_REMOVED).await;
    tokio::time::resume();
    assert_eq!(error_of(&mut body).await.code(), tonic::Code::Unavailable);
    drop(channel);
}
