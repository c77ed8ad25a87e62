//! The whole story in one program: a registry, two servers, a caller, and one server that leaves
//! while it is called (`cargo run --example 01_whole_story`). The exit code says whether a call was
//! lost.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use lameduck::core::registry::Registry;
use lameduck::registry::memory::Memory;
use lameduck::{Channel, Hub, Provider};
use tokio::time::{Instant, sleep};
use tonic::{Request, Response, Status};

mod greeter;
use greeter::greeter_client::GreeterClient;
use greeter::greeter_server::{Greeter, GreeterServer};
use greeter::{HelloReply, HelloRequest};

struct Polite(&'static str);

#[tonic::async_trait]
impl Greeter for Polite {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        sleep(Duration::from_millis(5)).await;
        let text = format!("hello {}, says {}", request.into_inner().name, self.0);
        Ok(Response::new(HelloReply { text }))
    }
}

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

fn server(name: &'static str, registry: &Arc<dyn Registry>) -> Fallible<Provider> {
    let greeter = GreeterServer::new(Polite(name));
    let provider = Provider::builder("greeter")
        .listen("127.0.0.1:0")
        .registry_with(Arc::clone(registry), "memory")
        .grpc(tonic::service::Routes::new(greeter))
        .signals(false); // two servers in one process; one that is alone leaves this out
    Ok(provider.build()?)
}

/// Calls until `end`; gives how many calls there were, and how many failed.
async fn call(channel: Channel, end: Instant) -> (u32, u32) {
    let mut client = GreeterClient::new(channel);
    let (mut calls, mut failed) = (0, 0);
    while Instant::now() < end {
        let name = "world".to_owned();
        let outcome = client.hello(HelloRequest { name }).await;
        calls += 1;
        failed += u32::from(outcome.is_err());
    }
    (calls, failed)
}

#[tokio::main]
async fn main() -> Fallible<ExitCode> {
    let registry: Arc<dyn Registry> = Arc::new(Memory::new());
    let (one, two) = (server("one", &registry)?, server("two", &registry)?);
    let leaver = one.handle();
    let (one, _two) = (tokio::spawn(one.run()), tokio::spawn(two.run()));

    let to_greeter = Hub::new().channel_builder_with(registry, "greeter".parse()?);
    let channel = to_greeter.build()?;
    channel.ready().await; // a registry that lists nothing fails calls at once
    let end = Instant::now() + Duration::from_secs(3);
    let callers = (0..16).map(|_| tokio::spawn(call(channel.clone(), end)));
    let callers: Vec<_> = callers.collect();

    sleep(Duration::from_secs(1)).await;
    leaver.stop("a new release"); // what SIGTERM does
    println!("server one: {}", one.await?);

    let (mut calls, mut failed) = (0, 0);
    for caller in callers {
        let (its_calls, its_failures) = caller.await?;
        (calls, failed) = (calls + its_calls, failed + its_failures);
    }
    println!("{calls} calls, {failed} failed");
    Ok(ExitCode::from(u8::from(failed > 0)))
}
