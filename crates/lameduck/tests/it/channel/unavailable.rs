//! Servers that answer UNAVAILABLE themselves, and calls that are declared idempotent.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body as ServerBody;
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use lameduck::core::event::Tier;
use lameduck::{Channel, Hub, Policy};
use tokio::task::JoinSet;
use tonic::Code;

use super::node::{Deed, Node};
use super::*;
use crate::raw::{HEADERS, Peer, listen};
use crate::tonic_server::{self, Running};

/// Says in the end that the server cannot serve: within the head, or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    TrailersAlone,
    HeadThenTrailers,
    /// As a proxy does that speaks no gRPC.
    Http(u16),
    /// With a word to come back later.
    Pushback,
}

fn answer(way: Way) -> Response<ServerBody> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("14"));
    trailers.insert("grpc-message", HeaderValue::from_static("no database"));
    trailers.insert("which", HeaderValue::from_static("its own"));
    let mut response = Response::new(ServerBody::empty());
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", kind);
    match way {
        Way::TrailersAlone => response.headers_mut().extend(trailers),
        Way::Pushback => {
            trailers.insert("grpc-retry-pushback-ms", HeaderValue::from_static("-1"));
            response.headers_mut().extend(trailers);
        }
        Way::HeadThenTrailers => {
            let frame = Ok::<_, std::convert::Infallible>(Frame::<Bytes>::trailers(trailers));
            *response.body_mut() = ServerBody::new(StreamBody::new(tokio_stream::once(frame)));
        }
        Way::Http(status) => {
            response = Response::builder()
                .status(status)
                .header("content-type", "text/html")
                .body(ServerBody::from("<html>no upstream</html>"))
                .expect("well formed");
        }
    }
    response
}

/// A server that answers each call so, and how many it had.
async fn unavailable(way: Way) -> (SocketAddr, Running, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let handler = move || async move {
        counted.fetch_add(1, SeqCst);
        answer(way)
    };
    let router = axum::Router::new().route(HELLO, axum::routing::post(handler));
    let (address, running) = tonic_server::start(router).await;
    (address, running, calls)
}

/// A channel that takes each of these in turn, once all are connected.
async fn in_turn(addresses: &[SocketAddr], attempts: u32, log: &Log) -> Channel {
    let builder = log.hub().channel_builder(&direct(addresses));
    let builder = builder.policy(Policy::RoundRobin).attempts(attempts);
    let channel = builder.idempotent(HELLO).build().expect("a target");
    let all = || {
        log.count(|event| {
            matches!(
                event,
                Event::TierChanged {
                    tier: Tier::Ready,
                    ..
                }
            )
        })
    };
    until("all are connected", || all() == addresses.len()).await;
    ready(&channel).await;
    channel
}

#[tokio::test]
async fn r27_an_idempotent_call_that_ends_unavailable_is_placed_elsewhere() {
    for way in [
        Way::TrailersAlone,
        Way::HeadThenTrailers,
        Way::Http(502),
        Way::Http(503),
    ] {
        let (failing, _running, calls) = unavailable(way).await;
        let well = Node::start("well", None).await;
        let log = Log::default();
        let channel = in_turn(&[failing, well.address], 3, &log).await;
        for _ in 0..20 {
            let answer = hello(&channel).await;
            assert_eq!(answer.expect("another one serves"), "well", "{way:?}");
        }
        let failed = calls.load(SeqCst) as usize;
        assert!(failed > 0, "{way:?}: its turn came");
        let unproven = |event: &Event| matches!(event, Event::Replaced { proven: false, .. });
        assert_eq!(log.count(unproven), failed, "{way:?}");
    }
}

#[tokio::test]
async fn r27_where_all_answer_unavailable_the_servers_own_answer_is_kept() {
    for way in [Way::TrailersAlone, Way::HeadThenTrailers, Way::Http(503)] {
        let (one, _running, of_one) = unavailable(way).await;
        let (two, _also_running, of_two) = unavailable(way).await;
        let log = Log::default();
        let channel = in_turn(&[one, two], 3, &log).await;
        let status = hello(&channel).await.expect_err("as they say");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        if !matches!(way, Way::Http(_)) {
            assert_eq!(status.message(), "no database", "{way:?}");
            let which = status.metadata().get("which").expect("as it was sent");
            assert_eq!(which, "its own");
        }
        let calls = [of_one.load(SeqCst), of_two.load(SeqCst)];
        assert_eq!(calls.iter().sum::<u32>(), 3, "{way:?}");
        assert!(!calls.contains(&0), "{way:?}: each has had it");
        // Far more than the retry budget has; what it leaves out is an answer of theirs too.
        for _ in 0..200 {
            let status = hello(&channel).await.expect_err("as they say");
            if !matches!(way, Way::Http(_)) {
                assert_eq!(status.message(), "no database", "{way:?}");
            }
        }
        let calls = of_one.load(SeqCst) + of_two.load(SeqCst);
        assert!(
            calls < 3 * 201,
            "{way:?}: {calls} are as if there were no budget"
        );
    }
}

#[tokio::test]
async fn r27_an_answer_is_kept_where_the_next_attempt_has_none() {
    let (failing, _running, calls) = unavailable(Way::TrailersAlone).await;
    // Resets each call that it has taken: nobody knows whether it was processed.
    let (listener, cutting) = listen().await;
    let _cuts = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
        let mut peer = Peer::ready(&listener, &[]).await;
        while let Some(frame) = peer.frame().await {
            if frame.stream == 1 && frame.kind == HEADERS {
                // No health service.
                peer.trailers_only(1).await;
            } else if frame.stream > 1 && frame.ends_stream() {
                peer.reset(frame.stream, 2).await;
            }
        }
    }));
    let log = Log::default();
    let channel = in_turn(&[failing, cutting], 2, &log).await;
    for _ in 0..4 {
        let status = hello(&channel).await.expect_err("none serves");
        assert_eq!(status.message(), "no database", "{status}");
    }
    assert_eq!(calls.load(SeqCst), 4, "each call has met both");
}

#[tokio::test]
async fn r27_one_that_may_not_run_twice_or_is_to_come_back_later_is_not_repeated() {
    for (way, idempotent, expected) in [
        (Way::TrailersAlone, false, 1),
        (Way::Http(503), false, 1),
        (Way::Pushback, true, 1),
        (Way::TrailersAlone, true, 3),
    ] {
        let (address, _running, calls) = unavailable(way).await;
        let mut builder = Hub::new().channel_builder(&direct(&[address]));
        if idempotent {
            builder = builder.idempotent(HELLO);
        }
        let channel = builder.build().expect("a target");
        let status = hello(&channel).await.expect_err("as it says");
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(calls.load(SeqCst), expected, "{way:?} {idempotent}");
    }
}

#[tokio::test]
async fn r16_one_of_five_that_fails_at_once_costs_idempotent_callers_nothing() {
    let mut nodes = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        nodes.push(Node::start(name, None).await);
    }
    for node in &nodes[1..] {
        node.facts.act(Deed::Work(Duration::from_millis(20)));
    }
    nodes[0].facts.act(Deed::Unavailable);
    let addresses: Vec<SocketAddr> = nodes.iter().map(|node| node.address).collect();
    let builder = Hub::new().channel_builder(&direct(&addresses));
    let channel = builder.idempotent(HELLO).build().expect("a target");
    ready(&channel).await;
    let failed = Arc::new(Mutex::new(Vec::new()));
    let mut callers = JoinSet::new();
    for _ in 0..80 {
        let (channel, failed) = (channel.clone(), Arc::clone(&failed));
        callers.spawn(async move {
            for _ in 0..10 {
                if let Err(status) = hello(&channel).await {
                    failed.lock().expect("no panic").push(status);
                }
            }
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller.expect("no panic");
    }
    let failed = failed.lock().expect("no panic");
    assert!(failed.is_empty(), "{} of 800: {}", failed.len(), failed[0]);
}
