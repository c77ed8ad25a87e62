//! Tunnels: WebSockets over HTTP/2 (RFC 8441) and CONNECT, counted to their close.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::any;
use hyper_util::rt::TokioIo;
use lameduck::cell::gate::InFlight;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::client::Client;
use super::start::{Running, start, within};
use crate::raw::{DATA, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, literal};

const ENABLE_CONNECT_PROTOCOL: [u8; 6] = [0, 8, 0, 0, 0, 1];
const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// Echoes until its peer's half ends; then says goodbye and closes its own.
async fn echo(mut request: Request) -> Response {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut io = TokioIo::new(upgrade.await.expect("a tunnel"));
        let mut bytes = [0; 16];
        while let Ok(read @ 1..) = io.read(&mut bytes).await {
            if io.write_all(&bytes[..read]).await.is_err() {
                return;
            }
        }
        // The peer may be gone by now.
        let _ = io.write_all(b"bye").await;
        let _ = io.shutdown().await;
    });
    Response::new(Body::empty())
}

fn server() -> Running {
    // A CONNECT without `:protocol` has no path.
    start(Router::new().route("/ws", any(echo)).fallback(echo))
}

/// Opens a tunnel: an extended CONNECT where there is a path.
async fn connect(client: &mut Client, path: Option<&str>) -> u32 {
    let mut block = literal(":method", "CONNECT");
    block.extend(literal(":authority", "test"));
    if let Some(path) = path {
        block.extend(literal(":scheme", "http"));
        block.extend(literal(":path", path));
        block.extend(literal(":protocol", "websocket"));
    }
    let stream = client.open_block(&block, 0).await;
    let head = within(client.frame_of(HEADERS)).await;
    assert_eq!(head.stream, stream);
    assert!(!head.ends_stream(), "the tunnel is open");
    client.data(stream, b"ping", 0).await;
    let data = within(client.frame_of(DATA)).await;
    assert_eq!((data.stream, &data.payload[..]), (stream, &b"ping"[..]));
    stream
}

impl Running {
    async fn tunnels(&self, count: u64) {
        let expected = InFlight {
            upgraded: count,
            total: count,
            ..InFlight::default()
        };
        within(async {
            while self.gate.in_flight() != expected {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn d40_the_settings_offer_websockets() {
    let server = server();
    let mut socket = server.connect().await;
    let hello = [
        super::client::PREFACE,
        &crate::raw::Frame::bytes(SETTINGS, 0, 0, &[]),
    ]
    .concat();
    socket.write_all(&hello).await.expect("it reads");
    let settings = within(crate::raw::Frame::read(&mut socket)).await;
    let settings = settings.expect("SETTINGS").payload;
    assert!(settings.chunks(6).any(|one| one == ENABLE_CONNECT_PROTOCOL));
}

#[tokio::test]
async fn s13_tunnels_over_http2_are_counted_to_their_close() {
    let server = server();
    for path in [Some("/ws"), None] {
        let mut client = Client::connect(server.address).await;
        // The client ends its half, the server then its own.
        let stream = connect(&mut client, path).await;
        server.tunnels(1).await;
        let beside = connect(&mut client, path).await;
        server.tunnels(2).await;
        client.data(stream, &[], END_STREAM).await;
        let bye = within(client.frame_of(DATA)).await;
        assert_eq!((bye.stream, &bye.payload[..]), (stream, &b"bye"[..]));
        server.tunnels(1).await;
        // A reset ends the other one.
        client.send(RST_STREAM, 0, beside, &CANCEL).await;
        server.tunnels(0).await;
        // The connection's end does, too.
        connect(&mut client, path).await;
        server.tunnels(1).await;
        drop(client);
        server.tunnels(0).await;
    }
}

#[tokio::test]
async fn s13_b_a_stop_waits_for_tunnels_and_cuts_them_visibly() {
    let server = server();
    let mut client = Client::connect(server.address).await;
    let stream = connect(&mut client, Some("/ws")).await;
    within(server.control.close_listener()).await;
    within(server.control.final_goaways(Duration::from_millis(20))).await;
    server.control.close_gate();
    client.frame_of(GOAWAY).await;
    client.data(stream, b"on", 0).await;
    assert_eq!(within(client.frame_of(DATA)).await.payload, b"on");
    server.tunnels(1).await;
    server.control.cut();
    // Frames up to the end: nothing ends the stream well.
    while let Some(frame) = within(client.frame()).await {
        assert!(!frame.ends_stream(), "{frame:?}");
    }
    server.idle().await;
    server.end().await;
}

#[tokio::test]
async fn s13_c_a_refused_tunnel_is_an_ordinary_answer() {
    let teapot = async || axum::http::StatusCode::IM_A_TEAPOT;
    let server = start(Router::new().fallback(teapot));
    let mut client = Client::connect(server.address).await;
    let mut block = literal(":method", "CONNECT");
    block.extend(literal(":authority", "test"));
    let stream = client.open_block(&block, 0).await;
    let head = within(client.frame_of(HEADERS)).await;
    assert_eq!(head.stream, stream);
    server.idle_after(1).await;
}
