//! The four kinds of callers, and how their calls are timed.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::uri::PathAndQuery;
use http_body::Body as HttpBody;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use crate::by_hand::ByHand;

/// The method that is called.
pub const PATH: &str = "/bench.Echo/Echo";

/// Bytes that go there and come back.
const BYTES: &[u8] = &[7; 64];

/// Calls in a row that each caller makes at least: all begin and end at once, which is not what is
/// measured.
const EACH_MIN: u64 = 16;

/// What is sent and answered.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Payload {
    /// Any bytes.
    #[prost(bytes = "bytes", tag = "1")]
    data: Bytes,
}

/// What is measured.
#[derive(Clone, Copy)]
pub enum Meter {
    /// Time.
    Wall,
    /// This process's time on a CPU, the kernel's for it included.
    Cpu,
}

impl Meter {
    fn start(self) -> impl Fn() -> Duration {
        let (wall, cpu) = (Instant::now(), self.cpu_time());
        move || match self {
            Self::Wall => wall.elapsed(),
            Self::Cpu => self.cpu_time() - cpu,
        }
    }

    /// This process's so far. Not looked at for nothing: valgrind does not survive the way to it.
    fn cpu_time(self) -> Duration {
        if let Self::Wall = self {
            return Duration::ZERO;
        }
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let seconds = u64::try_from(time.tv_sec).expect("it counts from 0");
        let nanos = u32::try_from(time.tv_nsec).expect("less than a second");
        Duration::new(seconds, nanos)
    }
}

/// One of each kind, connected.
pub struct Callers {
    runtime: Runtime,
    ours: lameduck::Channel,
    list: tonic::transport::Channel,
    single: tonic::transport::Channel,
    by_hand: ByHand,
}

impl Callers {
    /// Connects to the servers.
    pub fn connect(addresses: &[SocketAddr]) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let texts: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        let target = format!("direct:///{}", texts.join(","));
        let endpoint = |text: &String| {
            Endpoint::from_shared(format!("http://{text}")).expect("an address is a URI")
        };
        let (ours, list, single, by_hand) = runtime.block_on(async {
            let ours = lameduck::Channel::connect(&target).await;
            let single = endpoint(&texts[0]).connect().await;
            (
                ours.expect("a target"),
                tonic::transport::Channel::balance_list(texts.iter().map(endpoint)),
                single.expect("it listens"),
                ByHand::connect(addresses).await,
            )
        });
        Self {
            runtime,
            ours,
            list,
            single,
            by_hand,
        }
    }

    /// Makes calls, `concurrent` at a time, and says how long so many take.
    pub fn run(&self, who: &str, concurrent: u64, calls: u64, meter: Meter) -> Duration {
        let each = calls.div_ceil(concurrent).max(EACH_MIN);
        let time = match who {
            "channel" => self.time(&self.ours, concurrent, each, meter),
            "tonic-balance-list" => self.time(&self.list, concurrent, each, meter),
            "tonic-channel" => self.time(&self.single, concurrent, each, meter),
            "by-hand" => self.time(&self.by_hand, concurrent, each, meter),
            other => panic!("nobody is called {other}"),
        };
        #[expect(clippy::cast_precision_loss, reason = "no bench calls 2^53 times")]
        let made = calls as f64 / (each * concurrent) as f64;
        time.mul_f64(made)
    }

    fn time<S>(&self, service: &S, concurrent: u64, each: u64, meter: Meter) -> Duration
    where
        S: GrpcService<Body> + Clone + Send + 'static,
        S::Future: Send,
        S::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
        <S::ResponseBody as HttpBody>::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    {
        self.runtime.block_on(async {
            let taken = meter.start();
            let mut tasks = JoinSet::new();
            for _ in 0..concurrent {
                tasks.spawn(call(service.clone(), each));
            }
            while let Some(done) = tasks.join_next().await {
                done.expect("every call is answered");
            }
            taken()
        })
    }
}

async fn call<S>(service: S, count: u64)
where
    S: GrpcService<Body>,
    S::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <S::ResponseBody as HttpBody>::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    let mut grpc = Grpc::new(service);
    for _ in 0..count {
        let ready = grpc.ready().await.map_err(Into::into);
        ready.expect("it is connected");
        let data = Bytes::from_static(BYTES);
        let request = tonic::Request::new(Payload { data });
        let codec = ProstCodec::<Payload, Payload>::default();
        let path = PathAndQuery::from_static(PATH);
        let answer = grpc.unary(request, path, codec).await;
        assert_eq!(answer.expect("it serves").get_ref().data, BYTES);
    }
}
