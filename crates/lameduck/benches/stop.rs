//! How long a stop takes where nobody calls and three streams watch health, beside its floor alone.
//!
//! The floor is what a leaving instance owes to callers that hear of it late; whatever comes on top is
//! ours: telling the streams, ending them, closing their connections, the report. Each stop leaves its
//! line on standard error, as always.

use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use lameduck::Provider;
use lameduck::health::messages::{HealthCheckRequest, HealthCheckResponse, WATCH_PATH};
use lameduck_pairs::{Side, compare};
use tonic::Streaming;
use tonic::transport::Channel;

const FLOOR: Duration = Duration::from_millis(150);
/// The whole process, the service, and one that nobody knows.
const NAMES: [&str; 3] = ["", "orders", "unknown"];

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let stops = Side::new("stop/watched", |times| {
        let stops = async {
            let mut all = Duration::ZERO;
            for _ in 0..times {
                all += stop_with_watches().await;
            }
            all
        };
        runtime.block_on(stops)
    });
    let floors = Side::single("stop/floor", || {
        runtime.block_on(async { tokio::time::sleep(FLOOR).await });
    });
    println!("{}", compare(stops, floors));
}

/// From the stop of a server until its report, while three streams that never end by themselves watch.
async fn stop_with_watches() -> Duration {
    let provider = Provider::builder("orders")
        .listen("127.0.0.1:0")
        .signals(false)
        .floor(FLOOR)
        .quiet(FLOOR)
        .build()
        .expect("a free port");
    let handle = provider.handle();
    let running = tokio::spawn(provider.run());
    handle.serving().await;
    let endpoint = Channel::from_shared(format!("http://{}", handle.local_addr()));
    let channel = endpoint.expect("an address").connect().await;
    let channel = channel.expect("it listens");
    let mut watches = Vec::new();
    for name in NAMES {
        watches.push(tokio::spawn(to_its_end(watch(&channel, name).await)));
    }
    drop(channel);
    let begun = Instant::now();
    handle.stop("a bench").await;
    let report = running.await.expect("no panic");
    let took = begun.elapsed();
    assert_eq!(report.exit_code(), 0, "{report}");
    for watch in watches {
        assert_eq!(watch.await.expect("no panic"), 1, "NOT_SERVING, and an end");
    }
    took
}

/// A stream that has told the first status.
async fn watch(channel: &Channel, service: &str) -> Streaming<HealthCheckResponse> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.expect("connected");
    let request = tonic::Request::new(HealthCheckRequest {
        service: service.to_owned(),
    });
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let path = PathAndQuery::from_static(WATCH_PATH);
    let answer = client.server_streaming(request, path, codec).await;
    let mut stream = answer.expect("a stream").into_inner();
    stream.message().await.expect("a status");
    stream
}

/// How many more statuses it tells.
async fn to_its_end(mut stream: Streaming<HealthCheckResponse>) -> u32 {
    let mut told = 0;
    while let Ok(Some(_)) = stream.message().await {
        told += 1;
    }
    told
}
