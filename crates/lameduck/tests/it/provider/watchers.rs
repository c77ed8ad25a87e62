//! Who watches health, from processes of their own and with foreign code.

use std::env;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use lameduck::Hub;
use lameduck::core::event::Event;
use lameduck::health::ServingStatus::{self, NotServing, ServiceUnknown, Serving};
use lameduck::health::messages::{HealthCheckRequest, HealthCheckResponse, WATCH_PATH};
use rustix::process::Signal;
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout_at};
use tonic::transport::Channel;

use super::signals::{PEER, Process};
use crate::serve::start::within;

/// The role of a caller that has nothing to call: it stands there and watches.
pub async fn caller() {
    let said = |event: &Event| match event {
        Event::Closing { source, .. } => println!("closing by {source:?}"),
        Event::Disconnected { .. } => println!("disconnected"),
        _ => {}
    };
    let hub = Hub::builder().on_event(Arc::new(said)).build();
    let peer = env::var(PEER).expect("a peer");
    let channel = hub.channel(&peer).expect("an address");
    channel.ready().await;
    println!("\nready");
    std::future::pending().await
}

/// A stock client's Watch; it never ends it by itself.
async fn watch(channel: Channel, service: &str) -> tonic::Streaming<HealthCheckResponse> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.expect("connected");
    let request = tonic::Request::new(HealthCheckRequest {
        service: service.to_owned(),
    });
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let path = PathAndQuery::from_static(WATCH_PATH);
    let answer = client.server_streaming(request, path, codec).await;
    answer.expect("a stream").into_inner()
}

async fn next(watch: &mut tonic::Streaming<HealthCheckResponse>) -> Option<ServingStatus> {
    let message = within(watch.message()).await.ok().flatten();
    message.map(|message| message.status())
}

/// How often somebody comes to `address` within `time`.
async fn visitors(address: SocketAddr, time: Duration) -> u32 {
    let listener = TcpListener::bind(address).await.expect("free again");
    let (end, mut count) = (Instant::now() + time, 0);
    while timeout_at(end, listener.accept()).await.is_ok() {
        count += 1;
    }
    count
}

#[tokio::test]
async fn c12_watchers_in_other_processes_hold_nothing_and_move_on() {
    let mut server = Process::start("serve");
    let address = server.line("built ").await;
    server.line("registry present").await;
    let mut caller = Process::start_beside("watches", &address);
    caller.line("ready").await;
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address");
    let foreign = endpoint.connect().await.expect("it listens");
    let mut watches = Vec::new();
    for (name, first) in [
        ("", Serving),
        ("orders", Serving),
        ("other", ServiceUnknown),
    ] {
        let mut one = watch(foreign.clone(), name).await;
        assert_eq!(next(&mut one).await, Some(first), "{name:?}");
        watches.push(one);
    }

    server.signal(Signal::TERM);
    for mut one in watches {
        assert_eq!(next(&mut one).await, Some(NotServing));
        assert_eq!(next(&mut one).await, None, "the server ends it");
    }
    let ended = server.end().await;
    // Held by a stream or its connection it would end with 10 and say what was cut.
    assert_eq!(ended.status.code(), Some(0), "{}", ended.error);

    // To our own caller this was a closing, and it does not knock in a loop.
    caller.line("closing by").await;
    caller.line("disconnected").await;
    let address = address.parse().expect("an address");
    let knocks = visitors(address, Duration::from_millis(600)).await;
    // 25..50, 50..100, 100..200, … ms apart.
    assert!(knocks <= 6, "{knocks} times in 0.6 s");
}
