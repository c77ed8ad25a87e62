//! An orders service over HTTP that leaves well.
//!
//! ```text
//! cargo run --example orders -- 127.0.0.1:8080 etcd://127.0.0.1:2379
//! curl -X POST http://127.0.0.1:8080/orders
//! kill -TERM <its pid>      # callers are told first, then it drains, then it exits
//! ```
//!
//! What lameduck asks of a service are the lines between the two marks; the rest is axum.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::State;
use axum::routing::get;

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let mut words = std::env::args().skip(1);
    let listen = words.next().unwrap_or("127.0.0.1:8080".to_owned());

    // --- lameduck ---
    let mut builder = lameduck::Provider::builder("orders")
        .listen(&listen)
        .router(routes());
    for registry in words {
        builder = builder.registry(&registry);
    }
    let provider = match builder.build() {
        Ok(provider) => provider,
        Err(error) => {
            eprintln!("orders: {error}");
            return error.exit_code().into();
        }
    };
    let report = provider.run().await; // until SIGTERM or SIGINT, then it leaves
    // At once: a runtime that is dropped waits for whatever blocks a thread of it.
    std::process::exit(report.exit_code().into());
    // --- end of lameduck ---
}

fn routes() -> Router {
    let orders = Arc::new(AtomicU64::new(0));
    Router::new()
        .route("/orders", get(count).post(order))
        .with_state(orders)
}

async fn count(State(orders): State<Arc<AtomicU64>>) -> String {
    format!("{} orders\n", orders.load(Ordering::Relaxed))
}

async fn order(State(orders): State<Arc<AtomicU64>>) -> String {
    format!("order {}\n", orders.fetch_add(1, Ordering::Relaxed) + 1)
}
