//! A unary echo over four endpoints: through this crate's channel, and through what others use.
//!
//! The servers are one process of their own (plain tonic), so that what is counted here is the
//! caller's. `echo/<n>` is the time of a call with n at once, `echo/<n>/cpu` the caller's processor
//! time for it.

mod by_hand;
#[path = "../../examples/greeter/mod.rs"]
mod greeter;
mod servers;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::Body;
use lameduck_pairs::{Side, compare};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::client::GrpcService;
use tonic::codegen::StdError;
use tonic::transport::Endpoint;

use greeter::HelloRequest;
use greeter::greeter_client::GreeterClient;

/// Calls at once.
const CONCURRENCY: [u64; 2] = [1, 64];

/// What is counted.
#[derive(Clone, Copy)]
enum Count {
    Time,
    Processor,
}

fn main() {
    if servers::is_child() {
        return servers::serve();
    }
    let servers = servers::Servers::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    for (count, suffix) in [(Count::Time, ""), (Count::Processor, "/cpu")] {
        for at_once in CONCURRENCY {
            let bench = Bench {
                runtime: &runtime,
                count,
                at_once,
                what: format!("{at_once}{suffix}"),
            };
            bench.beside("balance-list", &servers.addresses, balance_list);
            bench.beside("one-channel", &servers.addresses, one_channel);
            bench.beside("hyper-p2c", &servers.addresses, by_hand::client);
        }
    }
}

struct Bench<'a> {
    runtime: &'a Runtime,
    count: Count,
    at_once: u64,
    what: String,
}

impl Bench<'_> {
    /// Compares this crate's channel with the client that `other` makes.
    fn beside<C: Caller, F: Future<Output = C>>(
        &self,
        name: &str,
        addresses: &[SocketAddr],
        other: impl FnOnce(Vec<SocketAddr>) -> F,
    ) {
        let ours = self.runtime.block_on(ours(addresses));
        let theirs = self.runtime.block_on(other(addresses.to_vec()));
        let [ours_named, theirs_named] = ["echo", name].map(|who| format!("{who}/{}", self.what));
        let a = Side::new(&ours_named, |times| self.run(&ours, times));
        let b = Side::new(&theirs_named, |times| self.run(&theirs, times));
        println!("{}", compare(a, b));
    }

    /// What `times` calls cost.
    fn run<C: Caller>(&self, caller: &C, times: u64) -> Duration {
        let each = times.div_ceil(self.at_once);
        let (start, processor) = (Instant::now(), processor_time());
        self.runtime.block_on(calls(caller, self.at_once, each));
        let spent = match self.count {
            Count::Time => start.elapsed(),
            Count::Processor => processor_time() - processor,
        };
        #[expect(clippy::cast_precision_loss, reason = "no bench repeats 2^53 times")]
        let share = times as f64 / (each * self.at_once) as f64;
        spent.mul_f64(share)
    }
}

async fn calls<C: Caller>(caller: &C, at_once: u64, each: u64) {
    if at_once == 1 {
        return repeat(caller.clone(), each).await;
    }
    let mut callers = JoinSet::new();
    for _ in 0..at_once {
        callers.spawn(repeat(caller.clone(), each));
    }
    callers.join_all().await;
}

async fn repeat<C: Caller>(mut caller: C, times: u64) {
    for _ in 0..times {
        caller.echo().await;
    }
}

fn processor_time() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(spent).expect("it does not run backwards")
}

/// A generated client over any transport.
trait Caller: Clone + Send + 'static {
    fn echo(&mut self) -> impl Future<Output = ()> + Send;
}

impl<T> Caller for GreeterClient<T>
where
    T: GrpcService<tonic::body::Body> + Clone + Send + 'static,
    T::Error: Into<StdError>,
    T::Future: Send,
    T::ResponseBody: Body<Data = Bytes> + Send + 'static,
    <T::ResponseBody as Body>::Error: Into<StdError> + Send,
{
    async fn echo(&mut self) {
        let request = HelloRequest {
            name: "lameduck".to_owned(),
        };
        self.hello(request).await.expect("the servers stay");
    }
}

async fn ours(addresses: &[SocketAddr]) -> impl Caller + use<> {
    let list: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let target = format!("direct:///{}", list.join(","));
    let channel = lameduck::Channel::connect(&target)
        .await
        .expect("a target of addresses");
    GreeterClient::new(channel)
}

async fn balance_list(addresses: Vec<SocketAddr>) -> impl Caller {
    let endpoints = addresses.iter().map(endpoint);
    let mut client = GreeterClient::new(tonic::transport::Channel::balance_list(endpoints));
    client.echo().await;
    client
}

async fn one_channel(addresses: Vec<SocketAddr>) -> impl Caller {
    let channel = endpoint(&addresses[0]).connect().await;
    GreeterClient::new(channel.expect("it listens"))
}

fn endpoint(address: &SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).expect("an address is a URI")
}
