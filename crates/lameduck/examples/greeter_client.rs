//! Calls the greeter, wherever it is, twenty times a second; start and stop servers meanwhile.
//!
//! ```console
//! $ cargo run --example greeter_client -- 'etcd:///127.0.0.1:2379?key=greeter' 600
//! ```

use std::time::Duration;

use lameduck::Hub;
use tokio::time::{MissedTickBehavior, interval};

mod greeter;
use greeter::HelloRequest;
use greeter::greeter_client::GreeterClient;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init(); // says when a server closes, and why a registry cannot be read
    let mut arguments = std::env::args().skip(1);
    let target = arguments.next();
    let target = target.as_deref().unwrap_or("127.0.0.1:50051");
    let calls: u32 = arguments.next().map_or(Ok(600), |text| text.parse())?;

    // One hub for the whole program: its channels share registries and what they hear.
    let hub = Hub::new();
    let channel = hub
        .channel_builder(target)
        .idempotent("/greeter.v1.Greeter/Hello")
        .build()?;
    let mut client = GreeterClient::new(channel);

    let mut failed = 0;
    let mut ticks = interval(Duration::from_millis(50));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for _ in 0..calls {
        ticks.tick().await;
        let name = "world".to_owned();
        let mut request = tonic::Request::new(HelloRequest { name });
        request.set_timeout(Duration::from_secs(1));
        match client.hello(request).await {
            Ok(reply) => println!("{}", reply.into_inner().text),
            Err(status) => {
                failed += 1;
                println!("failed: {status}");
            }
        }
    }
    println!("{calls} calls, {failed} failed");
    Ok(())
}
