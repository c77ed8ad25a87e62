//! The servers: this program again, as a process of its own.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::greeter::greeter_server::{Greeter, GreeterServer};
use crate::greeter::{HelloReply, HelloRequest};

const SERVERS: usize = 4;
const ARGUMENT: &str = "serve";

/// Four servers; they end when this is dropped, or with this process.
pub struct Servers {
    pub addresses: Vec<SocketAddr>,
    child: Child,
}

impl Servers {
    pub fn start() -> Self {
        let program = std::env::current_exe().expect("it runs");
        let mut child = Command::new(program)
            .arg(ARGUMENT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs once more");
        let said = child.stdout.take().expect("it is piped");
        let lines = BufReader::new(said).lines().take(SERVERS);
        let addresses = lines.map(|line| line.expect("text").parse().expect("an address"));
        Self {
            addresses: addresses.collect(),
            child,
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // Its end is all that is wanted of it.
        let _ = self.child.wait();
    }
}

/// Whether this process is to serve.
pub fn is_child() -> bool {
    std::env::args().nth(1).as_deref() == Some(ARGUMENT)
}

/// Serves until standard input ends.
pub fn serve() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    for _ in 0..SERVERS {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a free port");
        println!("{}", listener.local_addr().expect("it is bound"));
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = Server::builder().add_service(GreeterServer::new(Echo));
        runtime.spawn(server.serve_with_incoming(incoming));
    }
    let mut rest = Vec::new();
    // It says nothing; its end is waited for.
    let _ = std::io::stdin().read_to_end(&mut rest);
}

struct Echo;

#[tonic::async_trait]
impl Greeter for Echo {
    async fn hello(
        &self,
        request: tonic::Request<HelloRequest>,
    ) -> Result<tonic::Response<HelloReply>, tonic::Status> {
        let text = request.into_inner().name;
        Ok(tonic::Response::new(HelloReply { text }))
    }
}
