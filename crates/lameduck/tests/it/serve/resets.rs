//! Peers that give calls up as soon as they have sent them, and honest ones that only look like them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::routing::get;
use lameduck::core::limits::{RAPID_RESETS_MAX, RESETS_SUSPECT};
use tokio::io::AsyncWriteExt;

use super::client::Client;
use super::start::{Running, start, within};
use crate::raw::{END_STREAM, Frame, GOAWAY, HEADERS, RST_STREAM};
use crate::standing::Standing;

const CANCEL: [u8; 4] = [0, 0, 0, 8];
const ENHANCE_YOUR_CALM: [u8; 4] = [0, 0, 0, 11];
const END_HEADERS: u8 = 4;
/// GET / by HPACK's static table.
const GET: [u8; 3] = [0x82, 0x86, 0x84];

/// A server whose handlers at `/slow` count their starts and never end.
fn server() -> (Running, Arc<AtomicUsize>) {
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let slow = move || {
        count.fetch_add(1, Ordering::Relaxed);
        std::future::pending::<&'static str>()
    };
    let router = Router::new()
        .route("/", get(slow))
        .route("/quick", get("a"));
    (start(router), begun)
}

fn pair(stream: u32) -> Vec<u8> {
    let mut pair = Frame::bytes(HEADERS, END_HEADERS | END_STREAM, stream, &GET);
    pair.extend(Frame::bytes(RST_STREAM, 0, stream, &CANCEL));
    pair
}

/// Sends pairs of a request and its reset, so many in one write, until the server ends the connection.
async fn flood(batch: u32) -> usize {
    let (server, begun) = server();
    let client = Client::connect(server.address).await;
    let (mut read, mut write) = client.socket.into_split();
    let mut answer = Vec::new();
    let ended = async {
        // Where the reset destroys what was sent, the end alone is seen.
        let _ = tokio::io::copy(&mut read, &mut answer).await;
    };
    let sends = async {
        let mut next = 1;
        loop {
            let streams = (next..).step_by(2).take(batch as usize);
            let bytes: Vec<u8> = streams.flat_map(pair).collect();
            next += 2 * batch;
            if write.write_all(&bytes).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    within(async { tokio::join!(ended, sends) }).await;
    begun.load(Ordering::Relaxed)
}

#[tokio::test]
async fn s5_a_rapid_reset_starts_few_handlers_and_ends() {
    for batch in [1, 20, 200] {
        let begun = flood(batch).await;
        // With a write for each pair, some handlers begin before their reset is read.
        let most = 2 * RESETS_SUSPECT as usize;
        assert!(begun <= most, "{begun} handlers in batches of {batch}");
    }
}

#[tokio::test]
async fn s5_b_the_peer_is_told_why() {
    let (server, _) = server();
    let mut client = Client::connect(server.address).await;
    // On a slow machine the time between the waves would pay for some.
    let _standing = Standing::begin();
    let pairs: Vec<u8> = (1..)
        .step_by(2)
        .take(RAPID_RESETS_MAX as usize / 2)
        .flat_map(pair)
        .collect();
    // Two waves at once are more than the bound, each is less than what may wait.
    client.socket.write_all(&pairs).await.expect("it reads");
    server.idle_after(u64::from(RAPID_RESETS_MAX / 2)).await;
    let first = RAPID_RESETS_MAX + 1;
    let pairs: Vec<u8> = (first..)
        .step_by(2)
        .take(RAPID_RESETS_MAX as usize / 2 + 400)
        .flat_map(pair)
        .collect();
    client.socket.write_all(&pairs).await.expect("it reads");
    let goaway = within(async {
        loop {
            // The connection ends at the next read.
            client.send(6, 0, 0, &[0; 8]).await;
            let frame = client.frame().await.expect("a GOAWAY comes first");
            if frame.kind == GOAWAY {
                return frame;
            }
        }
    })
    .await;
    assert_eq!(goaway.payload[4..8], ENHANCE_YOUR_CALM);
    assert_eq!(&goaway.payload[8..], b"too_many_resets");
    let newest = first + 2 * (RAPID_RESETS_MAX / 2 + 400 - 1);
    assert_eq!(goaway.payload[..4], newest.to_be_bytes());
}

#[tokio::test]
async fn s5_c_a_client_that_is_answered_may_cancel_as_often() {
    let (server, begun) = server();
    let mut client = Client::connect(server.address).await;
    // A hedger: of each two calls one is given up.
    for _ in 0..3 * RAPID_RESETS_MAX {
        let answered = client.get("/quick").await;
        while client.frame_of(HEADERS).await.stream != answered {}
        let given_up = client.get("/").await;
        client.send(RST_STREAM, 0, given_up, &CANCEL).await;
    }
    let last = client.get("/quick").await;
    while within(client.frame_of(HEADERS)).await.stream != last {}
    assert_eq!(server.control.connections().open, 1);
    assert!(begun.load(Ordering::Relaxed) > 0);
}
