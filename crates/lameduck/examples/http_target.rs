//! A port for conformance and load tools of others: answers every request with a few bytes.
//!
//! ```text
//! cargo run --example http_target -- 127.0.0.1:8080
//! h2spec --strict -h 127.0.0.1 -p 8080
//! ```
//!
//! Prints the address first, so that port 0 may be asked for.

use std::process::ExitCode;

use axum::Router;
use axum::body::Bytes;
use axum::routing::any;

#[tokio::main]
async fn main() -> ExitCode {
    let listen = std::env::args().nth(1);
    let listen = listen.unwrap_or("127.0.0.1:0".to_owned());
    // Reads the body, so that tools see their windows given back.
    let answer = async |_: Bytes| "the quick brown fox jumps over the lazy dog";
    let provider = lameduck::Provider::builder("target")
        .listen(&listen)
        .router(Router::new().fallback(any(answer)))
        .build();
    let provider = match provider {
        Ok(provider) => provider,
        Err(error) => {
            eprintln!("http_target: {error}");
            return error.exit_code().into();
        }
    };
    println!("{}", provider.handle().local_addr());
    let report = provider.run().await;
    std::process::exit(report.exit_code().into());
}
