//! The greeter, for stock callers that see which process has answered: its reply is a name of its own.
//!
//! ```text
//! cargo run --example named_greeter -- 127.0.0.1:50051 etcd://127.0.0.1:2379
//! ```
//!
//! Prints that name (`127.0.0.1:50051#4711`: the address and the process) once every registry lists it.

mod greeter;

use std::process::ExitCode;
use std::time::Duration;

use greeter::greeter_server::{Greeter, GreeterServer};
use greeter::{HelloReply, HelloRequest};
use lameduck::provider::Handle;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// What a call takes, so that some are in flight whenever the signal comes.
const WORK: Duration = Duration::from_millis(5);

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::WARN)
        .init();
    let mut words = std::env::args().skip(1);
    let listen = words.next().unwrap_or("127.0.0.1:0".to_owned());
    let mut builder = lameduck::Provider::builder("greeter").listen(&listen);
    for registry in words {
        builder = builder.registry(&registry);
    }
    let handle = builder.handle();
    let named = Named(handle.clone());
    let provider = builder.grpc(Routes::new(GreeterServer::new(named))).build();
    let provider = match provider {
        Ok(provider) => provider,
        Err(error) => {
            eprintln!("named_greeter: {error}");
            return error.exit_code().into();
        }
    };
    tokio::spawn(tell(handle));
    let report = provider.run().await;
    std::process::exit(report.exit_code().into());
}

/// Prints the name once callers can find this process.
async fn tell(handle: Handle) {
    handle.serving().await;
    while !handle
        .registrations()
        .iter()
        .all(|status| status.registered)
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("{}", name(&handle));
}

fn name(handle: &Handle) -> String {
    format!("{}#{}", handle.local_addr(), std::process::id())
}

struct Named(Handle);

#[tonic::async_trait]
impl Greeter for Named {
    async fn hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        tokio::time::sleep(WORK).await;
        let text = name(&self.0);
        Ok(Response::new(HelloReply { text }))
    }
}
