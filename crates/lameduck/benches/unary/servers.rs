//! Four echo servers in a process of their own.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

use http::Request;
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_prost::ProstCodec;

use crate::callers::{PATH, Payload};

/// Endpoints that a channel spreads its calls over.
const COUNT: usize = 4;

/// The running servers. They end when this is dropped, or when this process does.
pub struct Servers {
    /// Where they listen.
    pub addresses: Vec<SocketAddr>,
    process: Child,
}

impl Drop for Servers {
    fn drop(&mut self) {
        // The process ends by itself when its input does; gone already is as good.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Starts this program once more, as the servers.
pub fn start() -> Servers {
    let program = std::env::current_exe().expect("a running program has a path");
    let mut process = Command::new(program)
        .arg("serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("what runs once runs twice");
    let mut line = String::new();
    let output = process.stdout.take().expect("it is piped");
    BufReader::new(output)
        .read_line(&mut line)
        .expect("a line of addresses");
    let addresses = line.split_whitespace();
    Servers {
        addresses: addresses
            .map(|text| text.parse().expect("an address"))
            .collect(),
        process,
    }
}

/// Serves until the input ends.
pub fn serve() {
    let bind = |_| TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listeners: Vec<TcpListener> = (0..COUNT).map(bind).collect();
    let address = |listener: &TcpListener| listener.local_addr().expect("bound").to_string();
    let addresses: Vec<String> = listeners.iter().map(address).collect();
    println!("{}", addresses.join(" "));
    std::thread::spawn(|| {
        // Whatever ends the input ends the servers.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        for listener in listeners {
            tokio::spawn(serve_on(listener));
        }
        std::future::pending::<()>().await;
    });
}

async fn serve_on(listener: TcpListener) {
    listener.set_nonblocking(true).expect("a socket");
    let listener = tokio::net::TcpListener::from_std(listener).expect("within a runtime");
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let router = axum::Router::new().route(PATH, axum::routing::post(answer));
    Server::builder()
        .add_routes(Routes::from(router))
        .serve_with_incoming(incoming)
        .await
        .expect("it serves until the process ends");
}

async fn answer(request: Request<axum::body::Body>) -> Result<http::Response<Body>, Infallible> {
    let codec = ProstCodec::<Payload, Payload>::default();
    Ok(Grpc::new(codec).unary(Echo, request).await)
}

struct Echo;

impl UnaryService<Payload> for Echo {
    type Response = Payload;
    type Future = Ready<Result<tonic::Response<Payload>, Status>>;

    fn call(&mut self, request: tonic::Request<Payload>) -> Self::Future {
        ready(Ok(tonic::Response::new(request.into_inner())))
    }
}
