//! A client that asks for much and reads nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use futures_util::stream;
use lameduck::core::limits::{SEND_BYTES_MAX, SERVER_STREAMS_MAX};

use super::client::Client;
use super::start::{start, within};
use crate::raw::SETTINGS;

const INITIAL_WINDOW_SIZE: u16 = 4;
const WINDOW_UPDATE: u8 = 8;
const LARGEST_WINDOW: u32 = 0x7fff_ffff;
const PIECE: &[u8] = &[7; 4 << 10];
/// What both kernels may take of one connection, and more.
const KERNEL_BYTES: usize = 16 << 20;
/// Nothing was made for this long: the client that reads nothing is waited for.
const STILL: Duration = Duration::from_millis(300);

/// Answers without an end; counts the bytes that were asked of them.
fn endless(made: &Arc<AtomicUsize>) -> Router {
    let made = Arc::clone(made);
    let answer = async move || {
        let pieces = stream::unfold(made, |made| async {
            made.fetch_add(PIECE.len(), Ordering::Relaxed);
            Some((Ok::<_, std::io::Error>(Bytes::from_static(PIECE)), made))
        });
        Body::from_stream(pieces)
    };
    Router::new().route("/", get(answer))
}

#[tokio::test]
async fn what_is_held_for_a_client_that_does_not_read_is_bounded() {
    let made = Arc::new(AtomicUsize::new(0));
    let server = start(endless(&made));
    let mut client = Client::connect(server.address).await;
    let setting = [
        &INITIAL_WINDOW_SIZE.to_be_bytes()[..],
        &LARGEST_WINDOW.to_be_bytes(),
    ];
    client.send(SETTINGS, 0, 0, &setting.concat()).await;
    let more = (LARGEST_WINDOW - u32::from(u16::MAX)).to_be_bytes();
    client.send(WINDOW_UPDATE, 0, 0, &more).await;
    for _ in 0..SERVER_STREAMS_MAX {
        client.get("/").await;
    }
    let streams = SERVER_STREAMS_MAX as usize;
    let still = async {
        let mut before = 0;
        loop {
            tokio::time::sleep(STILL).await;
            let now = made.load(Ordering::Relaxed);
            if now == before && now >= streams * PIECE.len() {
                return now;
            }
            before = now;
        }
    };
    let held = within(still).await;
    // Of each stream one piece more may be under way.
    let most = streams * (SEND_BYTES_MAX + 2 * PIECE.len()) + KERNEL_BYTES;
    assert!(held <= most, "{held} bytes are held, of {most} at most");
}
