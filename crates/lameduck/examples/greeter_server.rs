//! A gRPC greeter that leaves well. `grpc.health.v1` is served beside it without a further word.
//!
//! ```text
//! cargo run --example greeter_server -- 127.0.0.1:50051 etcd://127.0.0.1:2379
//! kill -TERM <its pid>      # callers are told first, then it drains, then it exits
//! ```
//!
//! What lameduck asks of a service are the lines between the two marks; the rest is tonic.

mod greeter;

use std::process::ExitCode;

use greeter::greeter_server::{Greeter, GreeterServer};
use greeter::{HelloReply, HelloRequest};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let mut words = std::env::args().skip(1);
    let listen = words.next().unwrap_or("127.0.0.1:50051".to_owned());

    // --- lameduck ---
    let mut builder = lameduck::Provider::builder("greeter")
        .listen(&listen)
        .grpc(Routes::new(GreeterServer::new(Polite)));
    for registry in words {
        builder = builder.registry(&registry);
    }
    let provider = match builder.build() {
        Ok(provider) => provider,
        Err(error) => {
            eprintln!("greeter: {error}");
            return error.exit_code().into();
        }
    };
    let report = provider.run().await; // until SIGTERM or SIGINT, then it leaves
    // At once: a runtime that is dropped waits for whatever blocks a thread of it.
    std::process::exit(report.exit_code().into());
    // --- end of lameduck ---
}

struct Polite;

#[tonic::async_trait]
impl Greeter for Polite {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let text = format!("Hello, {}!", request.into_inner().name);
        Ok(Response::new(HelloReply { text }))
    }
}
