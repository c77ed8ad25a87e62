//! Calls that wait: for a stream, for an instance; and those that have nothing to wait for.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use axum::body::Body as ServerBody;
use http::{Request, Response};
use http_body_util::BodyExt;
use lameduck::core::limits::{CLIENT_WINDOW_BYTES, DIAL_WANTED_AFTER, PICK_WAIT_MAX};
use tokio::sync::{Barrier, Semaphore};
use tokio::task::{JoinHandle, JoinSet};
use tonic::Code;
use tonic::body::Body;
use tower::ServiceExt;

use super::node::{Deed, Node};
use super::*;
use crate::raw::{MAX_CONCURRENT_STREAMS, Peer, listen, nowhere};
use crate::serve::start::within;
use crate::standing::{Standing, TICK};
use crate::tonic_server;

/// An empty message: no flags, no bytes.
const EMPTY: &[u8] = b"\0\0\0\0\0";

fn begin(channel: &Channel) -> JoinHandle<Result<String, tonic::Status>> {
    let channel = channel.clone();
    tokio::spawn(async move { hello(&channel).await })
}

/// Lets everything that can go on without time do so.
async fn settled() {
    for _ in 0..2_000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn r6_five_hundred_calls_at_once_to_one_stock_server() {
    let all = Arc::new(Barrier::new(500));
    let answer = move || async move {
        all.wait().await;
        Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", "12")
            .body(ServerBody::empty())
            .expect("well formed")
    };
    let router = axum::Router::new().route(HELLO, axum::routing::post(answer));
    let (address, _server) = tonic_server::start(router).await;
    let channel = Hub::new().channel(&direct(&[address])).expect("a target");
    ready(&channel).await;
    let mut calls = JoinSet::new();
    for _ in 0..500 {
        let channel = channel.clone();
        calls.spawn(async move { hello(&channel).await });
    }
    while let Some(call) = calls.join_next().await {
        let status = call.expect("no panic").expect_err("as it says");
        assert_eq!(status.code(), Code::Unimplemented, "{status}");
    }
    assert_eq!(channel.waited_for_stream(), 0);
}

/// A server that allows so many streams a connection and answers them one after the other.
fn limited(
    listener: tokio::net::TcpListener,
    streams: u32,
    connections: Arc<AtomicU32>,
) -> tokio_util::task::AbortOnDropHandle<()> {
    let serve = async move {
        let mut serving = JoinSet::new();
        loop {
            let limit = [(MAX_CONCURRENT_STREAMS, streams)];
            let mut peer = Peer::ready(&listener, &limit).await;
            connections.fetch_add(1, SeqCst);
            serving.spawn(async move {
                while let Some(frame) = peer.frame().await {
                    if frame.ends_stream() {
                        peer.answer(frame.stream, EMPTY).await;
                    }
                }
            });
        }
    };
    tokio_util::task::AbortOnDropHandle::new(tokio::spawn(serve))
}

#[tokio::test]
async fn r6_b_few_streams_a_connection_and_many_callers() {
    for (streams, health) in [(1, true), (2, false), (10, false)] {
        let (listener, address) = listen().await;
        let connections = Arc::new(AtomicU32::new(0));
        let _server = limited(listener, streams, Arc::clone(&connections));
        let hub = Hub::builder().health(health).build();
        let channel = hub.channel(&direct(&[address])).expect("a target");
        let mut callers = JoinSet::new();
        for _ in 0..20 {
            let channel = channel.clone();
            callers.spawn(async move {
                for _ in 0..5 {
                    hello(&channel).await.expect("it is answered");
                }
            });
        }
        while let Some(caller) = callers.join_next().await {
            caller.expect("all are answered");
        }
        let connections = connections.load(SeqCst);
        assert!((1..=32).contains(&connections), "{streams}: {connections}");
        assert_eq!(channel.waiting_for_stream(), 0);
    }
}

/// A server that holds its calls, and a channel to it with one stream.
async fn one_stream(log: &Log) -> (Node, Channel) {
    let node = Node::start("a", None).await;
    node.facts.act(Deed::Hold);
    let builder = log.builder().health(false);
    let hub = builder
        .streams_per_connection(1)
        .connections_per_endpoint(1)
        .build();
    let channel = hub.channel(&direct(&[node.address])).expect("a target");
    ready(&channel).await;
    (node, channel)
}

#[tokio::test]
async fn r6_c_who_waits_for_a_stream_can_be_seen_and_its_error_says_whose_bound_it_is() {
    let log = Log::default();
    let (node, channel) = one_stream(&log).await;
    let held = begin(&channel);
    until("it has begun", || node.facts.started() == 1).await;
    let standing = Standing::begin();
    let deadline = Duration::from_secs(3);
    let mut calls = Vec::new();
    for _ in 0..1_000 {
        let channel = channel.clone();
        calls.push(tokio::spawn(async move {
            let mut request = tonic::Request::new(HelloRequest::default());
            request.set_timeout(deadline);
            GreeterClient::new(channel).hello(request).await
        }));
    }
    settled().await;
    assert_eq!(channel.waiting_for_stream(), 1_000);
    standing.advance(PICK_WAIT_MAX).await;
    settled().await;
    assert!(
        calls.iter().all(|call| !call.is_finished()),
        "they wait to their deadline"
    );
    standing.advance(deadline - PICK_WAIT_MAX).await;
    for call in calls {
        let status = within(call)
            .await
            .expect("no panic")
            .expect_err("no stream");
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        let says = status.message();
        let parts = [
            "all streams of all 1 instances are in use",
            "has 1 on 1 connections",
            "HubBuilder::streams_per_connection",
            "HubBuilder::connections_per_endpoint",
        ];
        assert!(parts.iter().all(|part| says.contains(part)), "{says}");
    }
    assert_eq!(channel.waiting_for_stream(), 0);
    assert_eq!(channel.waited_for_stream(), 1_000);
    let told = log.count(|event| matches!(event, Event::StreamsUsedUp { .. }));
    assert_eq!(told, 1, "one condition");
    standing.end();
    node.facts.let_go();
    held.await.expect("no panic").expect("it is answered");
    let next = begin(&channel);
    node.facts.let_go();
    next.await
        .expect("no panic")
        .expect("the stream is free again");
}

/// A caller that calls again at once must not always be faster than one that waits.
#[tokio::test]
async fn r6_d_streams_are_given_in_the_order_in_which_calls_came() {
    let (node, channel) = one_stream(&Log::default()).await;
    let mut calls = Vec::from([begin(&channel)]);
    until("it has begun", || node.facts.started() == 1).await;
    for number in 1..10 {
        calls.push(begin(&channel));
        until("it waits", || channel.waiting_for_stream() == number).await;
    }
    for answered in 1..=10 {
        node.facts.let_one_go();
        let call = calls.remove(0);
        call.await.expect("no panic").expect("it is answered");
        // This one comes last, however fast it is.
        calls.push(begin(&channel));
        until("the next one has begun", || {
            node.facts.started() == answered + 1
        })
        .await;
    }
}

#[tokio::test]
async fn r6_e_a_limit_of_zero_for_a_while_loses_nobody() {
    let (listener, address) = listen().await;
    let hub = Hub::builder().health(false).build();
    let channel = hub.channel(&direct(&[address])).expect("a target");
    let mut first = Peer::ready(&listener, &[]).await;
    ready(&channel).await;
    first.settings(&[(MAX_CONCURRENT_STREAMS, 0)]).await;
    // Its successor is no better, the one after it comes with its SETTINGS late.
    let second = Peer::ready(&listener, &[(MAX_CONCURRENT_STREAMS, 0)]).await;
    let call = begin(&channel);
    let mut third = Peer::accept(&listener).await;
    assert!(!call.is_finished());
    third.settings(&[(MAX_CONCURRENT_STREAMS, 1)]).await;
    let stream = third.request().await;
    third.answer(stream, EMPTY).await;
    call.await.expect("no panic").expect("it is answered");
    drop((first, second));
}

#[tokio::test]
async fn r17_unread_answers_do_not_stop_the_calls_beside_them() {
    const STREAM: &str = "/pkg.Svc/Stream";
    let part = bytes::Bytes::from(vec![0; 1 << 16]);
    let sent = Arc::new(Semaphore::new(0));
    let count = Arc::clone(&sent);
    let endless = move || async move {
        let parts = futures_util::stream::repeat_with(move || {
            count.add_permits(part.len());
            Ok::<_, std::convert::Infallible>(part.clone())
        });
        Response::builder()
            .header("content-type", "application/grpc")
            .body(ServerBody::from_stream(parts))
            .expect("well formed")
    };
    let node = Node::start("a", None).await;
    let router = axum::Router::new()
        .route(STREAM, axum::routing::post(endless))
        .merge(super::node::router(&node.facts));
    let (address, _server) = tonic_server::start(router).await;
    let channel = Hub::new().channel(&direct(&[address])).expect("a target");
    let mut unread = Vec::new();
    for _ in 0..8 {
        let request = Request::post(STREAM).header("content-type", "application/grpc");
        let request = request.body(Body::empty()).expect("well formed");
        unread.push(channel.clone().oneshot(request).await.expect("it serves"));
    }
    // Each of them has all that it takes without being read.
    let windows = unread.len() * CLIENT_WINDOW_BYTES as usize;
    until("nobody reads", || sent.available_permits() >= windows).await;
    for _ in 0..3 {
        assert_eq!(hello(&channel).await.expect("it serves"), "a");
    }
    drop(unread);
}

/// A client that speaks once it has the head, as chats do.
#[tokio::test]
async fn r12_an_idempotent_stream_that_waits_for_its_head_gets_it() {
    const ECHO: &str = "/pkg.Svc/Echo";
    let echo = |request: axum::extract::Request| async {
        Response::builder()
            .header("content-type", "application/grpc")
            .body(ServerBody::new(request.into_body()))
            .expect("well formed")
    };
    let router = axum::Router::new().route(ECHO, axum::routing::post(echo));
    let (address, _server) = tonic_server::start(router).await;
    let builder = Hub::new().channel_builder(&direct(&[address]));
    let channel = builder.idempotent(ECHO).build().expect("a target");
    // Nothing said yet; the beginning of a message; a message, and more to come; more than is kept.
    let beginnings: [Vec<u8>; 4] = [
        Vec::new(),
        vec![0, 0, 0],
        b"\0\0\0\0\x02a".to_vec(),
        vec![0; (1 << 20) + 1],
    ];
    for beginning in beginnings {
        let (say, said) = tokio::sync::mpsc::channel::<bytes::Bytes>(4);
        let frames = tokio_stream::wrappers::ReceiverStream::new(said);
        let frames = tokio_stream::StreamExt::map(frames, |data| {
            Ok::<_, tonic::Status>(http_body::Frame::data(data))
        });
        let count = beginning.len();
        if !beginning.is_empty() {
            say.try_send(beginning.into()).expect("there is room");
        }
        let request = Request::post(ECHO).header("content-type", "application/grpc");
        let body = Body::new(http_body_util::StreamBody::new(frames));
        let request = request.body(body).expect("well formed");
        let answer = within(channel.clone().oneshot(request)).await;
        let mut body = answer.expect("it serves").into_body();
        say.send(bytes::Bytes::from_static(b"end"))
            .await
            .expect("it is read");
        drop(say);
        let mut read = 0;
        while let Some(frame) = within(body.frame()).await {
            read += frame
                .expect("it goes on")
                .into_data()
                .map_or(0, |data| data.len());
        }
        assert_eq!(read, count + 3);
    }
}

/// Away for long, so that its pauses have grown: the next call meets it when it is back.
#[tokio::test]
async fn r20_a_server_that_is_back_is_met_by_the_next_call() {
    let (port, address) = nowhere();
    let standing = Standing::begin();
    let hub = Hub::builder().health(false).build();
    let channel = hub.channel(&direct(&[address])).expect("a target");
    for _ in 0..60 {
        settled().await;
        standing.advance(Duration::from_secs(1)).await;
    }
    settled().await;
    hello(&channel).await.expect_err("nobody listens");
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .expect("it is ours");
    // No sooner: a loop of calls must not be a loop of dials.
    standing.advance(DIAL_WANTED_AFTER).await;
    let begun = tokio::time::Instant::now();
    let call = begin(&channel);
    let mut peer = Peer::ready(&listener, &[]).await;
    let stream = peer.request().await;
    peer.answer(stream, EMPTY).await;
    call.await.expect("no panic").expect("it is back");
    assert_eq!(begun.elapsed(), Duration::ZERO);
    drop(port);
}

/// It fails at once where all have refused, and waits where one of them may still answer.
#[tokio::test]
async fn r21_only_where_nothing_is_under_way_a_call_fails_at_once() {
    let ((_one, one), (_two, two)) = (nowhere(), nowhere());
    let (_silent, silent) = listen().await;
    let standing = Standing::begin();
    let begun = tokio::time::Instant::now();
    let both = Hub::new().channel(&direct(&[one, two])).expect("a target");
    let status = hello(&both).await.expect_err("both refuse");
    assert_eq!(status.code(), Code::Unavailable);
    let says = status.message();
    assert!(
        says.contains("none of 2 instances can be reached"),
        "{says}"
    );
    assert_eq!(begun.elapsed(), Duration::ZERO);
    let one_silent = Hub::new()
        .channel(&direct(&[one, silent]))
        .expect("a target");
    let call = begin(&one_silent);
    settled().await;
    standing.advance(PICK_WAIT_MAX - 3 * TICK).await;
    settled().await;
    assert!(!call.is_finished());
    standing.advance(2 * TICK).await;
    within(call)
        .await
        .expect("no panic")
        .expect_err("nobody answers");
}

/// A node that fails its calls, a channel to it and to `other`, and one call that has met the node.
async fn failed_at_the_first(other: SocketAddr) -> (Node, Channel) {
    let failing = Node::start("failing", None).await;
    failing.facts.act(Deed::Unavailable);
    let builder = Hub::new().channel_builder(&direct(&[failing.address, other]));
    let channel = builder.idempotent(HELLO).build().expect("a target");
    ready(&channel).await;
    (failing, channel)
}

#[tokio::test]
async fn r29_a_retry_waits_for_the_dial_that_is_under_way() {
    let standing = Standing::begin();
    let (listener, address) = listen().await;
    let (failing, channel) = failed_at_the_first(address).await;
    let mut peer = Peer::accept(&listener).await;
    let call = begin(&channel);
    until_standing(|| failing.facts.started() > 0).await;
    settled().await;
    assert!(!call.is_finished(), "it waits");
    assert_eq!(failing.facts.started(), 1, "it has not gone back");
    // No health service, then an answer.
    peer.settings(&[]).await;
    let watch = peer.request().await;
    peer.trailers_only(watch).await;
    let stream = peer.request().await;
    peer.answer(stream, EMPTY).await;
    let answer = call.await.expect("no panic");
    assert_eq!(answer.expect("the other one answers"), "");
    assert_eq!(failing.facts.started(), 1);
    standing.end();
}

#[tokio::test]
async fn r29_a_retry_goes_back_where_the_other_one_does_not_come() {
    for deadline in [None, Some(Duration::from_millis(800))] {
        let standing = Standing::begin();
        let (listener, address) = listen().await;
        let (failing, channel) = failed_at_the_first(address).await;
        let _silent = Peer::accept(&listener).await;
        let mut request = tonic::Request::new(HelloRequest::default());
        if let Some(deadline) = deadline {
            request.set_timeout(deadline);
        }
        let mut client = GreeterClient::new(channel.clone());
        let call = tokio::spawn(async move { client.hello(request).await });
        until_standing(|| failing.facts.started() > 0).await;
        settled().await;
        assert_eq!(failing.facts.started(), 1);
        // Half of its time at most, so that it can go back.
        let bound = deadline.map_or(PICK_WAIT_MAX, |deadline| deadline / 2);
        standing.advance(bound).await;
        let status = call.await.expect("no panic").expect_err("it fails");
        assert_eq!(status.code(), Code::Unavailable, "{deadline:?}: {status}");
        assert_eq!(failing.facts.started(), 3, "{deadline:?}: all attempts");
        standing.end();
    }
}

#[tokio::test]
async fn r29_a_retry_waits_for_no_dial_that_has_failed() {
    let standing = Standing::begin();
    let (_port, refused) = nowhere();
    let log = Log::default();
    let failing = Node::start("failing", None).await;
    failing.facts.act(Deed::Unavailable);
    let target = direct(&[failing.address, refused]);
    let builder = log.hub().channel_builder(&target).idempotent(HELLO);
    let channel = builder.build().expect("a target");
    ready(&channel).await;
    let unreachable = |event: &Event| matches!(event, Event::Unreachable { .. });
    until_standing(|| log.count(unreachable) > 0).await;
    let status = hello(&channel).await.expect_err("it fails");
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(failing.facts.started(), 3, "all attempts, at once");
    standing.end();
}

/// Waits, while the clock stands, until a condition holds.
async fn until_standing(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    // The clock's watchdog lets it go on.
    timeout(SOON, wait).await.expect("it comes");
}
