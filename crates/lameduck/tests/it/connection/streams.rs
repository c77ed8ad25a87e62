//! Slots: who gets one, when it comes back, and when no more are given.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body as _;
use http_body_util::BodyExt;
use lameduck::consumer::connection::{Connection, End, GoAway};
use lameduck::core::limits::CLIENT_RESETS_REMEMBERED;
use tokio::task::JoinSet;

use super::{dial, head, pair, unary, whole};
use crate::raw::{
    DATA, HEADERS, LAST_STREAM_MAX, MAX_CONCURRENT_STREAMS, Peer, RST_STREAM, SETTINGS, listen,
};
use crate::standing::{Standing, TICK};

#[tokio::test]
async fn ready_only_after_the_peers_settings() {
    let (listener, address) = listen().await;
    let dialled = tokio::spawn(async move { dial(address).await });
    let mut peer = Peer::accept(&listener).await;
    assert_eq!(peer.frame().await.expect("the client's").kind, SETTINGS);
    assert!(!dialled.is_finished());
    peer.settings(&[(MAX_CONCURRENT_STREAMS, 10)]).await;
    let connection = dialled.await.expect("no panic");
    let slots: Vec<_> = std::iter::from_fn(|| connection.reserve()).collect();
    assert_eq!(slots.len(), 10, "the first burst knows the limit");
}

/// Answers requests until the client leaves; gives the most streams that were open at once.
async fn serve(mut peer: Peer, goal: usize) -> usize {
    let (mut open, mut most, mut done) = (HashSet::new(), 0, 0);
    while done < goal {
        let frame = peer.frame().await.expect("the client is there");
        if frame.kind == HEADERS {
            open.insert(frame.stream);
            most = most.max(open.len());
        }
        // A wave at a time: as many as may be open, or the rest.
        if frame.ends_stream() && open.len() == (goal - done).min(10) {
            for stream in open.drain() {
                peer.answer(stream, b"answer").await;
                done += 1;
            }
        }
    }
    most
}

#[tokio::test]
async fn a_burst_stays_under_the_peers_limit() {
    let (connection, peer, _listener) = pair(&[(MAX_CONCURRENT_STREAMS, 10)]).await;
    let served = tokio::spawn(serve(peer, 64));
    let mut calls = JoinSet::new();
    for _ in 0..64 {
        calls.spawn(one_when_there_is_room(connection.clone()));
    }
    assert_eq!(calls.join_all().await.len(), 64);
    assert_eq!(served.await.expect("no panic"), 10);
    assert_eq!(connection.state().streams, 0);
}

async fn one_when_there_is_room(connection: Connection) {
    let slot = loop {
        if let Some(slot) = connection.reserve() {
            break slot;
        }
        assert!(connection.room().await, "the peer stays");
    };
    let answer = connection.call(slot, &head(), whole(b"question")).await;
    let body = answer.expect("a head").into_body();
    assert_eq!(body.collect().await.expect("an end").to_bytes(), "answer");
}

#[tokio::test]
async fn every_kind_of_stream_counts() {
    let (connection, mut peer, _listener) = pair(&[(MAX_CONCURRENT_STREAMS, 2)]).await;
    let watch = unary(&connection);
    let stream = peer.request().await;
    peer.head(stream).await;
    let held = watch.await.expect("a head");
    let _second = unary(&connection);
    assert!(connection.reserve().is_none(), "a watch and a call are two");
    drop(held);
    assert!(connection.reserve().is_some());
}

#[tokio::test]
async fn a_limit_that_is_lowered_later() {
    let (connection, mut peer, _listener) = pair(&[(MAX_CONCURRENT_STREAMS, 3)]).await;
    let calls = [unary(&connection), unary(&connection)];
    let streams = [peer.request().await, peer.request().await];
    peer.settings(&[(MAX_CONCURRENT_STREAMS, 1)]).await;
    peer.answer(streams[0], b"").await;
    let [first, second] = calls;
    first
        .await
        .expect("a head")
        .into_body()
        .collect()
        .await
        .expect("an end");
    assert_eq!(connection.state().limit, 1);
    assert!(connection.reserve().is_none(), "one is open");
    peer.answer(streams[1], b"").await;
    second
        .await
        .expect("a head")
        .into_body()
        .collect()
        .await
        .expect("an end");
    assert!(connection.reserve().is_some());
}

#[tokio::test]
async fn zero_streams_is_draining() {
    let (connection, mut peer, _listener) = pair(&[]).await;
    peer.settings(&[(MAX_CONCURRENT_STREAMS, 0)]).await;
    let state = connection.unusable().await;
    assert_eq!((state.limit, state.going_away), (0, None));
    assert!(connection.reserve().is_none());
    assert!(!connection.room().await);
}

#[tokio::test]
async fn goaway_is_seen_while_a_stream_is_held() {
    let (connection, mut peer, _listener) = pair(&[]).await;
    let call = unary(&connection);
    let stream = peer.request().await;
    peer.head(stream).await;
    let mut body = call.await.expect("a head").into_body();
    peer.goaway(LAST_STREAM_MAX, 0).await;
    // No call is spent to learn it.
    let told = connection.unusable().await;
    let said = GoAway {
        last_stream: LAST_STREAM_MAX,
        code: 0,
    };
    assert_eq!(told.going_away, Some(said));
    assert!(connection.reserve().is_none());
    peer.data(stream, b"still").await;
    peer.trailers(stream).await;
    let data = body.frame().await.expect("data").expect("data");
    assert_eq!(data.into_data().expect("data"), "still");
    assert!(
        body.frame()
            .await
            .expect("trailers")
            .expect("trailers")
            .is_trailers()
    );
    assert_eq!(connection.ended().await, End::GoneAway(said));
}

#[tokio::test]
async fn a_slot_is_free_at_the_trailers() {
    let (connection, mut peer, _listener) = pair(&[]).await;
    let call = unary(&connection);
    let stream = peer.request().await;
    peer.answer(stream, b"answer").await;
    let mut body = call.await.expect("a head").into_body();
    assert!(body.frame().await.expect("data").expect("data").is_data());
    assert_eq!(connection.state().streams, 1);
    assert!(
        body.frame()
            .await
            .expect("trailers")
            .expect("trailers")
            .is_trailers()
    );
    assert_eq!(
        connection.state().streams,
        0,
        "the body itself is still held"
    );
    assert!(body.is_end_stream());
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn an_answer_of_trailers_alone_is_over_with_its_head() {
    let (connection, mut peer, _listener) = pair(&[]).await;
    let call = unary(&connection);
    let stream = peer.request().await;
    peer.trailers_only(stream).await;
    let answer = call.await.expect("a head");
    assert_eq!(answer.headers()["grpc-status"], "12");
    assert!(answer.body().is_end_stream());
    assert_eq!(connection.state().streams, 0);
}

#[tokio::test]
async fn dropped_calls_and_bodies_are_cancelled_and_counted_back() {
    const CANCEL: [u8; 4] = [0, 0, 0, 8];
    let (connection, mut peer, _listener) = pair(&[]).await;
    let waiting = unary(&connection);
    let first = peer.request().await;
    let answered = unary(&connection);
    let second = peer.request().await;
    peer.head(second).await;
    let body = answered.await.expect("a head").into_body();
    assert_eq!(connection.state().streams, 2);
    drop(waiting);
    drop(body);
    assert_eq!(connection.state().streams, 0);
    for stream in [first, second] {
        let reset = peer.frame_of(RST_STREAM).await;
        assert_eq!((reset.stream, &reset.payload[..]), (stream, &CANCEL[..]));
    }
}

#[tokio::test]
async fn a_unary_request_is_one_head_and_one_data_frame() {
    let (connection, mut peer, _listener) = pair(&[]).await;
    let _call = unary(&connection);
    let head = peer.frame_of(HEADERS).await;
    assert!(!head.ends_stream());
    let data = peer.frame().await.expect("data");
    assert_eq!((data.kind, &data.payload[..]), (DATA, &b"question"[..]));
    assert!(data.ends_stream());
}

#[tokio::test]
async fn close_waits_for_what_is_open() {
    let (connection, mut peer, _listener) = pair(&[]).await;
    let call = unary(&connection);
    let stream = peer.request().await;
    connection.close();
    assert!(connection.reserve().is_none());
    peer.answer(stream, b"answer").await;
    let body = call.await.expect("a head").into_body();
    assert_eq!(
        body.collect().await.expect("an end").to_bytes(),
        Bytes::from("answer")
    );
    assert_eq!(connection.ended().await, End::Closed);
    let goodbye = peer.rest().await;
    assert!(
        goodbye.iter().any(|frame| frame.kind == crate::raw::GOAWAY),
        "{goodbye:?}"
    );
}

#[tokio::test]
async fn dropped_handles_close_and_abort_cuts() {
    let (connection, peer, _listener) = pair(&[]).await;
    let ended = connection.ended();
    drop(connection);
    assert_eq!(ended.await, End::Closed);
    drop(peer);

    let (connection, mut peer, _listener) = pair(&[]).await;
    let call = unary(&connection);
    peer.request().await;
    connection.abort();
    call.await.expect_err("it was cut");
    assert_eq!(connection.ended().await, End::Aborted);
    assert_eq!(connection.state().streams, 0);
}

#[tokio::test]
async fn late_answers_do_not_cost_the_connection() {
    // More than are remembered, and more frames than h2 forgives by itself.
    const GIVEN_UP: usize = CLIENT_RESETS_REMEMBERED + 1_100;
    let (connection, mut peer, _listener) = pair(&[]).await;
    let mut streams = Vec::new();
    for _ in 0..GIVEN_UP {
        let call = unary(&connection);
        streams.push(peer.request().await);
        drop(call);
    }
    for stream in streams {
        peer.answer(stream, b"late").await;
    }
    still_serves(&connection, &mut peer).await;
}

#[tokio::test]
async fn small_frames_of_a_slow_reader_or_for_nobody_do_not_cost_the_connection() {
    const FRAMES: usize = 12_000;
    let (connection, mut peer, _listener) = pair(&[]).await;
    for slow in [true, false] {
        let call = unary(&connection);
        let stream = peer.request().await;
        peer.head(stream).await;
        let body = call.await.expect("a head").into_body();
        let body = slow.then_some(body);
        for _ in 0..FRAMES {
            peer.data(stream, b"x").await;
        }
        still_serves(&connection, &mut peer).await;
        drop(body);
    }
}

#[tokio::test]
async fn silence_counts_from_the_last_byte() {
    let (connection, mut peer, _listener) = pair(&[]).await;
    let standing = Standing::begin();
    let quiet = connection.silence();
    let more = Duration::from_millis(20);
    standing.advance(more).await;
    assert_eq!(connection.silence(), quiet + more + TICK);
    let bytes = connection.state().bytes;
    still_serves(&connection, &mut peer).await;
    assert!(connection.state().bytes > bytes);
    assert_eq!(connection.silence(), Duration::ZERO);
}

async fn still_serves(connection: &Connection, peer: &mut Peer) {
    let call = unary(connection);
    let stream = peer.request().await;
    peer.answer(stream, b"answer").await;
    let body = call.await.expect("a head").into_body();
    assert_eq!(body.collect().await.expect("an end").to_bytes(), "answer");
}
