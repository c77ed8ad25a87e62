//! The caller's connection, against a peer of frames and against tonic.

mod bodies;
mod dialling;
mod heads;
mod proof;
mod restarts;
mod streams;

use std::net::SocketAddr;

use bytes::Bytes;
use http::request::Parts;
use http::uri::Authority;
use lameduck::consumer::connection::{Body, Connection, DialConfig, Failure, Outgoing};
use tokio::net::TcpListener;

use crate::raw::{Peer, listen};
use crate::serve::start::HANG;

/// Dials have all the time that a test has.
fn config() -> DialConfig {
    let mut config = DialConfig::new(Authority::from_static("orders"));
    config.deadline = HANG;
    config
}

async fn dial(address: SocketAddr) -> Connection {
    Connection::dial(address, &config())
        .await
        .expect("a peer that sends SETTINGS")
}

/// A connection and its peer, which sent `settings`.
async fn pair(settings: &[(u16, u32)]) -> (Connection, Peer, TcpListener) {
    let (listener, address) = listen().await;
    let (connection, peer) = tokio::join!(dial(address), Peer::ready(&listener, settings));
    (connection, peer, listener)
}

fn head() -> Parts {
    let request = http::Request::post("/pkg.Svc/Do")
        .header("te", "trailers")
        .header("content-type", "application/grpc");
    request.body(()).expect("well formed").into_parts().0
}

fn whole(data: &'static [u8]) -> Outgoing {
    Outgoing::Whole {
        data: Bytes::from_static(data),
        trailers: None,
    }
}

/// Starts a unary call on a slot of its own.
fn unary(
    connection: &Connection,
) -> impl Future<Output = Result<http::Response<Body>, Failure>> + Send + use<> {
    let slot = connection.reserve().expect("there is room");
    connection.call(slot, &head(), whole(b"question"))
}
