//! The order of leaving, as a peer sees it frame by frame.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use lameduck::Provider;
use lameduck::core::event::Phase;
use lameduck::core::limits::GOAWAY_DELAY;
use lameduck::health::messages::{CHECK_PATH, WATCH_PATH};
use lameduck::provider::{ClosingEnd, DrainReport, Handle};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::raw::{DATA, END_STREAM, Frame, GOAWAY, HEADERS, LAST_STREAM_MAX};
use crate::serve::client::{Client, PING, last_stream};
use crate::serve::start::{head, say, within};
use crate::standing::{Standing, TICK};

const SERVING: u8 = 1;
const NOT_SERVING: u8 = 2;
const SERVICE_UNKNOWN: u8 = 3;

struct Running {
    handle: Handle,
    address: SocketAddr,
    report: JoinHandle<DrainReport>,
}

async fn start(floor: Duration) -> Running {
    let provider = Provider::builder("orders")
        .listen("127.0.0.1:0")
        .router(Router::new().route("/", get(async || "hello")))
        .signals(false)
        .floor(floor)
        .quiet(floor.min(Duration::from_millis(200)))
        .build()
        .expect("it builds");
    let handle = provider.handle();
    let address = handle.local_addr();
    let report = tokio::spawn(provider.run());
    within(handle.serving()).await;
    Running {
        handle,
        address,
        report,
    }
}

/// Asks for the health of `service`.
async fn ask(client: &mut Client, path: &str, service: &str) -> u32 {
    let stream = client.open(path).await;
    let mut message = Vec::new();
    if !service.is_empty() {
        message.extend([0x0a, u8::try_from(service.len()).expect("short")]);
        message.extend(service.as_bytes());
    }
    let mut body = vec![0, 0, 0, 0, u8::try_from(message.len()).expect("short")];
    body.extend(message);
    client.data(stream, &body, END_STREAM).await;
    stream
}

/// The status in a health message of gRPC.
fn status(frame: &Frame) -> u8 {
    assert_eq!(frame.payload[..6], [0, 0, 0, 0, 2, 8], "{frame:?}");
    frame.payload[6]
}

#[tokio::test]
async fn the_order_of_leaving_on_the_wire() {
    let floor = Duration::from_millis(1200);
    let running = start(floor).await;
    let mut old = Client::connect(running.address).await;
    let watch = ask(&mut old, WATCH_PATH, "orders").await;
    assert_eq!(status(&old.frame_of(DATA).await), SERVING);

    let standing = Standing::begin();
    assert!(running.handle.stop("test").await);
    // Told by health first, then by marks, and only then by a GOAWAY.
    let told = old.frame().await.expect("it is there");
    assert_eq!(
        (told.kind, told.stream, status(&told)),
        (DATA, watch, NOT_SERVING)
    );
    let mut plain = TcpStream::connect(running.address)
        .await
        .expect("it listens");
    say(&mut plain, "GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
    let answer = head(&mut plain).await;
    assert!(answer.starts_with("http/1.1 200"), "{answer}");
    let mark = format!("lameduck-closing: {}", running.handle.life());
    assert!(
        answer.contains(&mark) && answer.contains("connection: close"),
        "{answer}"
    );
    let mut new = Client::connect(running.address).await;
    let request = new.get("/").await;
    assert_eq!(new.answer(request).await, b"hello");

    // Not before its time: the next word is the answer to a request.
    standing.advance(GOAWAY_DELAY - 2 * TICK).await;
    let early = old.get("/").await;
    let next = old.frame().await.expect("it is there");
    assert_eq!((next.kind, next.stream), (HEADERS, early));
    // Then within its share of the pace.
    standing.advance(TICK + floor / 4).await;
    let goaway = old.frame_of(GOAWAY).await;
    assert_eq!(last_stream(&goaway), LAST_STREAM_MAX);
    assert_eq!(running.handle.phase(), Phase::Closing);
    let request = old.get("/").await;
    assert_eq!(old.answer(request).await, b"hello");
    drop(
        TcpStream::connect(running.address)
            .await
            .expect("it listens in Closing"),
    );

    // A connection that came later is told in Draining only.
    while running.handle.phase() == Phase::Closing {
        standing.advance(TICK).await;
    }
    let frame = new.frame().await.expect("it is there");
    assert_eq!(frame.kind, GOAWAY);
    assert_eq!(running.handle.phase(), Phase::Draining);
    TcpStream::connect(running.address)
        .await
        .expect_err("the listener is closed");
    standing.end();
    new.pong().await;
    old.pong().await;
    let frames = old.rest().await;
    let end = frames
        .iter()
        .find(|frame| frame.stream == watch)
        .expect("the Watch ends");
    assert!(end.kind == HEADERS && end.ends_stream(), "{frames:?}");
    new.rest().await;
    let report = within(running.report).await.expect("no panic");
    assert_eq!((report.exit_code(), report.abandoned), (0, 0), "{report}");
}

#[tokio::test]
async fn c04_the_door_is_open_and_says_not_ready_until_closing_is_over() {
    let running = start(Duration::from_millis(400)).await;
    assert!(running.handle.hold().await);
    for _ in 0..6 {
        let socket = TcpStream::connect(running.address).await;
        let said = check(socket.expect("it listens")).await;
        assert_eq!(said, Some(NOT_SERVING));
    }
    assert_eq!(running.handle.phase(), Phase::Closing);
    assert!(running.handle.stop("test").await);
    let mut refused = false;
    while !refused {
        match TcpStream::connect(running.address).await {
            Ok(socket) => {
                let Some(said) = check(socket).await else {
                    break;
                };
                assert_eq!(said, NOT_SERVING);
            }
            Err(_) => refused = true,
        }
        assert!(
            !refused || running.handle.phase() > Phase::Closing,
            "refused while closing"
        );
    }
    let report = within(running.report).await.expect("no panic");
    // Probes are nobody's work: they have not kept Closing from being quiet.
    assert_eq!(report.closing_end, ClosingEnd::Quiet, "{report}");
    assert_eq!(report.exit_code(), 0);
}

/// One health Check on a connection of its own; `None` where that was taken too late.
async fn check(socket: TcpStream) -> Option<u8> {
    let mut client = Client::resume(socket, 0).await;
    let stream = ask(&mut client, CHECK_PATH, "orders").await;
    while let Some(frame) = client.frame().await {
        if frame.kind == PING {
            client.pong().await;
        }
        if frame.kind == DATA && frame.stream == stream {
            return Some(status(&frame));
        }
    }
    None
}

/// Watches, answers PINGs, and never closes by itself. Gives the statuses that it was sent, once
/// the server has ended the stream and the connection.
async fn watch(
    address: SocketAddr,
    service: &'static str,
    seen: tokio::sync::mpsc::Sender<()>,
) -> Vec<u8> {
    let mut client = Client::connect(address).await;
    let stream = ask(&mut client, WATCH_PATH, service).await;
    let (mut statuses, mut ended) = (Vec::new(), false);
    while let Some(frame) = client.frame().await {
        match frame.kind {
            PING => client.pong().await,
            DATA if frame.stream == stream && !frame.payload.is_empty() => {
                statuses.push(status(&frame));
                let _ = seen.send(()).await;
            }
            HEADERS if frame.stream == stream => ended = frame.ends_stream(),
            _ => {}
        }
    }
    assert!(ended, "the server ends the stream, not only the connection");
    statuses
}

/// Stops a process with three open Watch streams and no calls; how long that took by a clock that stands
/// while they are told, ended and closed.
async fn stop_with_watches(floor: Duration) -> Duration {
    let running = start(floor).await;
    let (sender, mut seen) = tokio::sync::mpsc::channel(8);
    let watches = ["", "orders", "unknown"];
    let watching = watches.map(|name| tokio::spawn(watch(running.address, name, sender.clone())));
    for _ in watches {
        within(seen.recv()).await;
    }
    let standing = Standing::begin();
    assert!(running.handle.stop("test").await);
    standing.advance(floor).await;
    let report = within(running.report).await.expect("no panic");
    standing.end();
    assert_eq!((report.exit_code(), report.abandoned), (0, 0), "{report}");
    for (watching, first) in watching
        .into_iter()
        .zip([SERVING, SERVING, SERVICE_UNKNOWN])
    {
        let statuses = within(watching).await.expect("no panic");
        assert_eq!(statuses, [first, NOT_SERVING]);
    }
    report.total
}

#[tokio::test]
async fn c12_watch_streams_are_told_and_ended_and_hold_nothing() {
    let floor = Duration::from_millis(150);
    assert_eq!(stop_with_watches(floor).await, floor + TICK);
}
