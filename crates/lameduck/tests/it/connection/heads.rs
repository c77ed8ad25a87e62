//! Answers with heads and trailers of any size.

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::routing::post;
use http_body_util::BodyExt;
use lameduck::consumer::connection::Cause;
use lameduck::core::failover::Proof;
use tokio::sync::Semaphore;
use tonic::{Code, Status};

use super::{dial, head, pair, whole};
use crate::serve::start::within;
use crate::tonic_server;

/// A server that writes what it is given, whatever its peer takes.
fn careless(go_on: &Arc<Semaphore>) -> Router {
    let go_on = Arc::clone(go_on);
    let failing = |Path(size): Path<usize>| async move {
        Status::aborted("x".repeat(size)).into_http::<axum::body::Body>()
    };
    let waiting = move || async move {
        go_on.acquire().await.expect("never closed").forget();
        "innocent"
    };
    Router::new()
        .route("/head/{size}", post(failing))
        .route("/innocent", post(waiting))
}

#[tokio::test]
async fn d03_a_peers_long_text_arrives_and_no_other_call_is_lost() {
    let go_on = Arc::new(Semaphore::new(0));
    let (address, server) = tonic_server::start(careless(&go_on)).await;
    let connection = dial(address).await;
    let call = |path: String| {
        let slot = connection.reserve().expect("there is room");
        let mut head = head();
        head.uri = path.parse().expect("a path");
        connection.call(slot, &head, whole(b""))
    };
    for size in [15_000, 20_000, 60_000, 100_000, 500_000, 3_000_000] {
        let beside = call("/innocent".to_owned());
        let answer = within(call(format!("/head/{size}"))).await;
        let answer = answer.expect("an answer");
        let status = Status::from_header_map(answer.headers()).expect("a status");
        assert_eq!(
            (status.code(), status.message().len()),
            (Code::Aborted, size)
        );
        go_on.add_permits(1);
        let answer = within(beside).await.expect("it has done nothing");
        let body = within(answer.into_body().collect()).await;
        assert_eq!(body.expect("a body").to_bytes(), "innocent");
    }
    assert!(connection.reserve().is_some(), "{:?}", connection.state());
    drop(connection);
    server.stop().await;
}

/// SETTINGS_MAX_HEADER_LIST_SIZE
const MAX_HEADER_LIST_SIZE: u16 = 6;

#[tokio::test]
async fn d03_metadata_that_the_server_does_not_take_is_not_sent() {
    let go_on = Arc::new(Semaphore::new(0));
    // Announces 16 KiB, and ends a connection for six frames of headers.
    let (address, server) = tonic_server::start(careless(&go_on)).await;
    let connection = dial(address).await;
    let call = |path: &'static str, metadata: usize| {
        let slot = connection.reserve().expect("there is room");
        let mut head = head();
        head.uri = path.parse().expect("a path");
        let value = http::HeaderValue::try_from("m".repeat(metadata)).expect("ASCII");
        head.headers.insert("mine", value);
        connection.call(slot, &head, whole(b""))
    };
    for size in [17_000, 100_000, 3_000_000] {
        let beside = call("/innocent", 15_000);
        let failure = within(call("/head/1", size)).await.expect_err("too large");
        let Cause::HeadersTooLarge { size: all, most } = failure.error.cause else {
            panic!("{failure}");
        };
        assert!((size..size + 1_000).contains(&all), "{all}");
        assert_eq!((most, failure.error.proof), (16_384, Proof::NeverLeft));
        assert!(failure.error.is_own_fault(), "no other endpoint is tried");
        let status = failure.error.into_status();
        assert_eq!(status.code(), Code::ResourceExhausted);
        go_on.add_permits(1);
        let answer = within(beside).await.expect("it has done nothing");
        assert_eq!(answer.status(), 200);
    }
    assert!(connection.reserve().is_some(), "{:?}", connection.state());
    drop(connection);
    server.stop().await;
}

#[tokio::test]
async fn d03_a_peer_that_announces_nothing_is_sent_any_metadata() {
    for (settings, taken) in [
        (&[][..], true),
        (&[(MAX_HEADER_LIST_SIZE, 300_000)], true),
        (&[(MAX_HEADER_LIST_SIZE, 200_000)], false),
    ] {
        let (connection, _peer, _listener) = pair(settings).await;
        let slot = connection.reserve().expect("there is room");
        let mut head = head();
        let value = http::HeaderValue::try_from("m".repeat(200_000)).expect("ASCII");
        head.headers.insert("mine", value);
        let mut call = Box::pin(connection.call(slot, &head, whole(b"")));
        let now = futures_util::FutureExt::now_or_never(&mut call);
        assert_eq!(now.is_none(), taken, "{settings:?}");
    }
}
