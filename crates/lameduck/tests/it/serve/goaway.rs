//! How HTTP/2 connections are told to go.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use lameduck::core::limits::{FINAL_GOAWAY_MAX, HANDSHAKE_DRAINING_MAX, HTTP1_LINGER};
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::Instant;

use super::client::{Client, PING, PREFACE, SHUTDOWN_PING, last_stream};
use super::start::{Running, head, rest, say, start, within};
use crate::raw::{DATA, END_STREAM, Frame, GOAWAY, LAST_STREAM_MAX, RST_STREAM};
use crate::standing::{Standing, TICK};

/// `/` answers at once, `/held` once it is let go, `/large` with a megabyte.
struct Held {
    server: Running,
    release: Arc<Semaphore>,
}

fn held() -> Held {
    let release = Arc::new(Semaphore::new(0));
    let wait = Arc::clone(&release);
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/large", get(|| async { "x".repeat(1 << 20) }))
        .route(
            "/held",
            get(|| async move {
                wait.acquire().await.expect("open").forget();
                "at last"
            }),
        );
    Held {
        server: start(router),
        release,
    }
}

impl Held {
    /// Waits until `count` requests are in flight.
    async fn in_flight(&self, count: u64) {
        within(async {
            while self.server.gate.in_flight().total != count {
                yield_now().await;
            }
        })
        .await;
    }

    /// Tells every connection to go; they have heard it once this has had its turn.
    async fn leave(&self, max: Duration) -> JoinHandle<()> {
        let control = self.server.control.clone();
        let told = tokio::spawn(async move { control.final_goaways(max).await });
        yield_now().await;
        told
    }
}

#[tokio::test]
async fn both_goaways_in_order_and_every_stream_before_the_final_one_is_served() {
    let held = held();
    let control = held.server.control.clone();
    let mut client = Client::connect(held.server.address).await;
    let first = client.get("/held").await;
    held.in_flight(1).await;
    control.announce();
    within(control.close_listener()).await;
    let standing = Standing::begin();
    let told = held.leave(FINAL_GOAWAY_MAX).await;

    let goaway = client.frame_of(GOAWAY).await;
    assert_eq!(last_stream(&goaway), LAST_STREAM_MAX);
    let ping = client.frame_of(PING).await;
    assert_eq!(
        ping.payload, SHUTDOWN_PING,
        "the payload that is answered for a silent peer"
    );
    // Between the two: served.
    let second = client.get("/").await;
    assert_eq!(client.answer(second).await, b"hello");
    assert!(!told.is_finished());

    client.pong().await;
    let goaway = client.frame_of(GOAWAY).await;
    assert_eq!(last_stream(&goaway), second);
    within(told).await.expect("no panic");
    standing.end();
    held.server.control.close_gate();
    // After the final one: not a word about it.
    let third = client.get("/").await;
    held.release.add_permits(1);
    assert_eq!(client.answer(first).await, b"at last");
    let frames = client.rest().await;
    assert!(
        frames.iter().all(|frame| frame.stream != third),
        "{frames:?}"
    );
    assert_eq!(held.server.gate.admitted(), 2);
    held.server.end().await;
}

#[tokio::test]
async fn a_peer_that_never_answers_the_ping_is_bounded_and_loses_nothing() {
    let held = held();
    let mut client = Client::connect(held.server.address).await;
    let first = client.get("/held").await;
    held.in_flight(1).await;
    let max = Duration::from_millis(150);
    let standing = Standing::begin();
    let begun = Instant::now();
    let told = held.leave(max).await;
    assert_eq!(last_stream(&client.frame_of(GOAWAY).await), LAST_STREAM_MAX);
    client.frame_of(PING).await;
    // Not before its time.
    standing.advance(max - 2 * TICK).await;
    let second = client.get("/").await;
    assert_eq!(client.answer(second).await, b"hello");
    assert!(!told.is_finished());
    standing.advance(TICK).await;
    assert_eq!(last_stream(&client.frame_of(GOAWAY).await), second);
    within(told).await.expect("no panic");
    assert_eq!(begun.elapsed(), max + TICK);
    standing.end();
    // Late, it does no harm.
    client.pong().await;
    held.release.add_permits(1);
    assert_eq!(client.answer(first).await, b"at last");
    assert_eq!(client.rest().await, []);
}

#[tokio::test]
async fn half_a_frame_on_its_way_does_not_hide_the_answer_to_the_ping() {
    let held = held();
    let mut client = Client::connect(held.server.address).await;
    let stream = client.open("/").await;
    let first = Frame::bytes(DATA, 0, stream, b"abcd");
    let second = Frame::bytes(DATA, END_STREAM, stream, b"efgh");
    let bytes = [first, second].concat();
    // The leave comes in the middle of the first, and what comes then ends in the middle of the second.
    let (early, rest) = bytes.split_at(10);
    let (late, last) = rest.split_at(7);
    client.socket.write_all(early).await.expect("it reads");
    let standing = Standing::begin();
    let told = held.leave(FINAL_GOAWAY_MAX).await;
    client.frame_of(GOAWAY).await;
    client.frame_of(PING).await;
    standing.advance(FINAL_GOAWAY_MAX).await;
    // The answer is given while the frame is half there.
    yield_now().await;
    client.socket.write_all(late).await.expect("it reads");
    let goaway = client.frame_of(GOAWAY).await;
    assert_eq!(last_stream(&goaway), stream);
    assert_eq!(goaway.payload[4..], [0; 4], "no error");
    within(told).await.expect("no panic");
    standing.end();
    client.socket.write_all(last).await.expect("it reads");
    client.rest().await;
}

#[tokio::test]
async fn only_the_connections_that_existed_are_hinted() {
    let held = held();
    let mut old = Client::connect(held.server.address).await;
    held.server.control.announce();
    held.server.control.go_away_existing(Duration::ZERO);
    assert_eq!(last_stream(&old.frame_of(GOAWAY).await), LAST_STREAM_MAX);
    let mut new = Client::connect(held.server.address).await;
    let stream = new.get("/").await;
    assert_eq!(new.answer(stream).await, b"hello");
    // The old one is not hurried: it is served until its peer has heard.
    let stream = old.get("/").await;
    assert_eq!(old.answer(stream).await, b"hello");
    old.pong().await;
    assert_eq!(last_stream(&old.frame_of(GOAWAY).await), stream);
    assert_eq!(old.rest().await, []);
    drop(old);
    within(async {
        while held.server.control.connections().told > 0 {
            yield_now().await;
        }
    })
    .await;
    let stream = new.get("/").await;
    assert_eq!(new.answer(stream).await, b"hello");
}

#[tokio::test]
async fn first_goaways_are_spread_over_the_pace() {
    let held = held();
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(Client::connect(held.server.address).await);
    }
    let standing = Standing::begin();
    // 256 steps, of which these connections have the first eight.
    let step = Duration::from_millis(20);
    held.server.control.go_away_existing(256 * step);
    while !clients.is_empty() {
        // The one whose turn it is, and no other.
        clients.remove(0).frame_of(GOAWAY).await;
        for client in &mut clients {
            client.send(PING, 0, 0, &[7; 8]).await;
            assert_eq!(client.frame().await.expect("an answer").kind, PING);
        }
        standing.advance(step).await;
    }
}

#[tokio::test]
async fn who_says_nothing_or_half_a_preface_is_bounded() {
    let held = held();
    let mut sockets = Vec::new();
    for part in [0, 1, 3, 5, 23, 24] {
        let mut socket = held.server.connect().await;
        socket.write_all(&PREFACE[..part]).await.expect("it reads");
        sockets.push(socket);
    }
    within(async {
        while held.server.control.connections().open < sockets.len() {
            yield_now().await;
        }
    })
    .await;
    within(held.server.control.close_listener()).await;
    let standing = Standing::begin();
    let begun = Instant::now();
    let told = held.leave(FINAL_GOAWAY_MAX).await;
    standing.advance(HANDSHAKE_DRAINING_MAX - 2 * TICK).await;
    yield_now().await;
    assert_eq!(held.server.control.connections().open, sockets.len());
    standing.advance(TICK).await;
    within(told).await.expect("no panic");
    held.server.end().await;
    assert_eq!(begun.elapsed(), HANDSHAKE_DRAINING_MAX + TICK);
    for mut socket in sockets {
        // HTTP/2's own SETTINGS may have come; no answer has.
        let _ = rest(&mut socket).await;
    }
}

#[tokio::test]
async fn half_a_head_is_bounded_on_a_fresh_and_on_a_used_connection() {
    let held = held();
    let mut fresh = held.server.connect().await;
    say(&mut fresh, "GET / HTTP/1.1\r\nho").await;
    let mut used = held.server.connect().await;
    say(
        &mut used,
        "GET / HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\nho",
    )
    .await;
    head(&mut used).await;
    within(held.server.control.close_listener()).await;
    let standing = Standing::begin();
    let begun = Instant::now();
    let told = held.leave(FINAL_GOAWAY_MAX).await;
    standing.advance(HTTP1_LINGER).await;
    yield_now().await;
    assert_eq!(held.server.control.connections().open, 2);
    standing.advance(HANDSHAKE_DRAINING_MAX).await;
    within(told).await.expect("no panic");
    held.server.end().await;
    let most = HTTP1_LINGER + HANDSHAKE_DRAINING_MAX;
    assert_eq!(begun.elapsed(), most + 2 * TICK);
}

#[tokio::test]
async fn a_request_on_its_way_is_served_during_the_linger() {
    let held = held();
    let mut socket = held.server.connect().await;
    say(&mut socket, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    held.server.idle_after(1).await;
    head(&mut socket).await;
    held.server.control.announce();
    within(held.server.control.close_listener()).await;
    let standing = Standing::begin();
    let told = held.leave(FINAL_GOAWAY_MAX).await;
    assert_eq!(held.server.control.connections().told, 1);
    // Just before its end.
    standing.advance(HTTP1_LINGER - 2 * TICK).await;
    yield_now().await;
    say(&mut socket, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let answers = String::from_utf8(rest(&mut socket).await.expect("FIN")).expect("ASCII");
    assert!(answers.contains("connection: close\r\n"), "{answers}");
    assert!(answers.ends_with("hello"), "{answers}");
    drop(socket);
    within(told).await.expect("no panic");
    standing.end();
    assert_eq!(held.server.gate.admitted(), 2);
    held.server.end().await;
}

#[tokio::test]
async fn a_preface_that_comes_after_the_leave_is_told_and_served() {
    let held = held();
    let mut socket = held.server.connect().await;
    socket.write_all(&PREFACE[..1]).await.expect("it reads");
    within(held.server.control.close_listener()).await;
    let standing = Standing::begin();
    let told = held.leave(FINAL_GOAWAY_MAX).await;
    // Just before its bound.
    standing.advance(HANDSHAKE_DRAINING_MAX - 2 * TICK).await;
    yield_now().await;
    let mut client = Client::resume(socket, 1).await;
    let stream = client.get("/").await;
    assert_eq!(client.answer(stream).await, b"hello");
    client.pong().await;
    within(told).await.expect("no panic");
    standing.end();
    client.rest().await;
    held.server.end().await;
}

#[tokio::test]
async fn what_was_answered_is_flushed_before_the_server_ends() {
    let held = held();
    let mut client = Client::connect(held.server.address).await;
    let stream = client.get("/large").await;
    held.server.idle_after(1).await;
    within(held.server.control.close_listener()).await;
    client.pong().await;
    let control = held.server.control.clone();
    tokio::spawn(async move { control.final_goaways(Duration::from_millis(10)).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(
        !held.server.ended.is_finished(),
        "most of it waits for window"
    );
    // 65,535 bytes is what the peer has granted so far.
    let more = (1_u32 << 21).to_be_bytes();
    client.send(8, 0, 0, &more).await;
    client.send(8, 0, stream, &more).await;
    assert_eq!(client.answer(stream).await.len(), 1 << 20);
    client.rest().await;
    held.server.end().await;
}

#[tokio::test]
async fn calls_given_up_while_the_server_was_frozen_do_not_end_the_connection() {
    let server = start(Router::new().route("/", get(|| async { "hello" })));
    let mut client = Client::connect(server.address).await;
    // The server is not looked after while this task does not wait: frozen, to the client.
    for _ in 0..50 {
        let stream = client.get("/").await;
        client.send(RST_STREAM, 0, stream, &[0, 0, 0, 8]).await;
    }
    let stream = client.get("/").await;
    assert_eq!(client.answer(stream).await, b"hello");
}
