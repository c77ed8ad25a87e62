//! What README.md and docs/guide.md show is code that compiles: each of their Rust blocks is, but for
//! white space, a part of this file.
#![expect(dead_code, reason = "it is here to be compiled, and compared")]

use std::error::Error;
use std::process::ExitCode;

use axum::Router;

use crate::greeter::greeter_client::GreeterClient;
use crate::greeter::greeter_server::{Greeter, GreeterServer};

/// The README's service is called like its trait.
mod readme {
    use super::*;
    use crate::greeter::{HelloReply, HelloRequest};

    struct Greeter;

    #[tonic::async_trait]
    impl super::Greeter for Greeter {
        async fn hello(
            &self,
            _: tonic::Request<HelloRequest>,
        ) -> Result<tonic::Response<HelloReply>, tonic::Status> {
            Ok(tonic::Response::new(HelloReply::default()))
        }
    }

    async fn readme_server() -> ExitCode {
        tracing_subscriber::fmt().init(); // without a subscriber nothing is said before the report
        let provider = lameduck::Provider::builder("greeter")
            .listen("0.0.0.0:8080")
            .registry("etcd://127.0.0.1:2379")
            .grpc(tonic::service::Routes::new(GreeterServer::new(Greeter))) // .router(axum) serves HTTP beside it
            .build()
            .unwrap_or_else(|error| {
                eprintln!("greeter: {error}");
                std::process::exit(error.exit_code().into()) // 2 or 12: a `main` that returns it by `?` ends with 1
            });
        let report = provider.run().await; // until SIGTERM or SIGINT, then leaves well
        std::process::exit(report.exit_code().into());
    }
}

fn readme_caller() -> Result<(), Box<dyn Error>> {
    let hub = lameduck::Hub::new();
    let channel = hub
        .channel_builder("etcd:///127.0.0.1:2379?key=greeter")
        .idempotent("/greeter.v1.Greeter/Hello")
        .build()?;
    let mut client = GreeterClient::new(channel); // the client that tonic generates, unchanged
    let _ = &mut client;
    Ok(())
}

async fn guide_server<G: Greeter>(router: Router, greeter: G) -> ExitCode {
    let provider = lameduck::Provider::builder("orders")
        .listen("0.0.0.0:8080")
        .registry("etcd://127.0.0.1:2379")
        .router(router)
        .grpc(tonic::service::Routes::new(GreeterServer::new(greeter)))
        .hook("flush", async || Ok(()))
        .build()
        .unwrap_or_else(|error| {
            eprintln!("orders: {error}");
            std::process::exit(error.exit_code().into())
        });
    let report = provider.run().await;
    std::process::exit(report.exit_code().into());
}

fn guide_limits(builder: lameduck::provider::Builder) {
    use std::time::Duration;

    let builder = builder.server(|limits| {
        limits.connections = 50_000; // WebSockets; also raise `ulimit -n`
        limits.age = Some(Duration::from_secs(600)); // behind a TCP balancer
        limits.http1_head_bytes = 64 << 10;
    });
    let _ = builder;
}

fn guide_caller() -> Result<(), Box<dyn Error>> {
    let hub = lameduck::Hub::new();
    let channel = hub
        .channel_builder("etcd:///127.0.0.1:2379?key=greeter")
        .idempotent("/greeter.v1.Greeter/Hello")
        .build()?;
    let mut client = GreeterClient::new(channel);
    let _ = &mut client;
    Ok(())
}

fn guide_errors(status: &tonic::Status) {
    use lameduck::consumer::CallFailed;
    use lameduck::core::failover::Proof;
    use std::error::Error; // for source()
    use tonic::Code;

    let failed = status
        .source()
        .and_then(|source| source.downcast_ref::<CallFailed>());
    match failed.map(|failed| failed.proof) {
        Some(Proof::NeverLeft | Proof::NotProcessed) => println!("safe to repeat"),
        Some(Proof::Unknown) => println!("it may have run"),
        None if status.code() == Code::DeadlineExceeded => println!("out of time: it may have run"),
        None => println!("the server's own answer"),
    }
}

mod guide_metrics {
    use lameduck::core::event::Event;
    use lameduck::observe::Observer;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    /// Two gauges and a counter: whatever your metrics library has.
    #[derive(Default)]
    pub struct Metrics {
        registries_lost: AtomicI64,
        instances_missed: AtomicI64,
        calls_placed_again: AtomicI64,
    }

    fn observer(metrics: Arc<Metrics>) -> Observer {
        Arc::new(move |event: &Event| {
            let (metric, by) = match event {
                Event::DirectoryStale { .. } => (&metrics.registries_lost, 1),
                Event::DirectoryLive { .. } => (&metrics.registries_lost, -1),
                Event::Unreachable { .. } => (&metrics.instances_missed, 1),
                Event::UnreachableEnded { .. } => (&metrics.instances_missed, -1),
                Event::Replaced { .. } => (&metrics.calls_placed_again, 1),
                _ => return, // there are more, and there will be
            };
            metric.fetch_add(by, Ordering::Relaxed);
        })
    }

    fn registered() {
        let metrics = Arc::new(Metrics::default());
        let hub = lameduck::Hub::builder()
            .on_event(observer(Arc::clone(&metrics)))
            .build();
        let provider = lameduck::Provider::builder("orders").on_event(observer(metrics));
        let _ = (hub, provider);
    }
}

mod guide_limits {
    use std::time::Duration;

    fn limits(builder: lameduck::provider::Builder) {
        let builder = builder.server(|limits| {
            limits.connections = 50_000; // WebSockets; also raise `ulimit -n`
            limits.age = Some(Duration::from_secs(600)); // behind a TCP balancer
            limits.http1_head_bytes = 64 << 10;
        });
        let _ = builder;
    }
}

fn guide_readiness(builder: lameduck::provider::Builder) {
    let builder = builder.ready("db", false); // begins not ready
    let handle = builder.handle();
    // later, wherever it is known:
    handle.ready("db", true);
}

fn dense(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

#[test]
fn what_the_texts_show_compiles() {
    let here = dense(include_str!("texts.rs"));
    let texts = [
        ("README.md", include_str!("../../../../README.md"), 2),
        (
            "docs/guide.md",
            include_str!("../../../../docs/guide.md"),
            7,
        ),
    ];
    for (name, text, count) in texts {
        let blocks: Vec<&str> = text
            .split("```rust,ignore\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next())
            .collect();
        assert_eq!(blocks.len(), count, "{name}");
        for block in blocks {
            assert!(
                here.contains(&dense(block)),
                "{name}: nothing compiles\n{block}"
            );
        }
    }
}
