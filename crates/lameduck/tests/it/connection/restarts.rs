//! Servers that restart gracefully under load lose nothing, and nothing runs twice.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::request::Parts;
use http_body_util::BodyExt;
use lameduck::consumer::connection::{Connection, Outgoing};
use lameduck::core::failover::Proof;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::{config, dial, whole};
use crate::greeter::greeter_server::{Greeter, GreeterServer};
use crate::greeter::{HelloReply, HelloRequest};
use crate::serve::start::HANG;
use crate::tonic_server::{self, Running};

const CALLERS: usize = 32;
const RESTARTS: usize = 30;
const ATTEMPTS: u32 = 6;

struct Counting {
    executed: Arc<AtomicU64>,
    work: Duration,
}

#[tonic::async_trait]
impl Greeter for Counting {
    async fn hello(
        &self,
        _: tonic::Request<HelloRequest>,
    ) -> Result<tonic::Response<HelloReply>, tonic::Status> {
        if !self.work.is_zero() {
            tokio::time::sleep(self.work).await;
        }
        self.executed.fetch_add(1, Ordering::Relaxed);
        Ok(tonic::Response::new(HelloReply::default()))
    }
}

/// A greeter that counts, and `/held`, an answer without end.
async fn server(executed: &Arc<AtomicU64>, work: Duration) -> (SocketAddr, Running) {
    let greeter = GreeterServer::new(Counting {
        executed: Arc::clone(executed),
        work,
    });
    let held = || async {
        let never = futures_util::stream::pending::<Result<bytes::Bytes, tonic::Status>>();
        axum::response::Response::new(axum::body::Body::from_stream(never))
    };
    let router = tonic::service::Routes::new(greeter)
        .into_axum_router()
        .route("/held", axum::routing::get(held));
    tonic_server::start(router).await
}

/// Where to call, and what became of the calls.
struct World {
    address: ArcSwap<SocketAddr>,
    connection: ArcSwap<Connection>,
    dialling: Mutex<()>,
    stop: AtomicBool,
    ok: AtomicU64,
    again: AtomicU64,
}

impl World {
    /// Another connection than `old`; one dial at a time.
    async fn renew(&self, old: &Connection) {
        let _dialling = self.dialling.lock().await;
        if !self.connection.load().is_same(old) {
            return;
        }
        let successor = loop {
            let address = **self.address.load();
            match Connection::dial(address, &config()).await {
                Ok(successor) => break successor,
                // It was replaced meanwhile, and has stopped.
                Err(error) => assert_ne!(address, **self.address.load(), "{error}"),
            }
        };
        self.connection.store(Arc::new(successor));
    }

    async fn call(&self, head: &Parts, body: Outgoing) {
        for _ in 0..ATTEMPTS {
            let connection = Arc::clone(&self.connection.load());
            let Some(slot) = connection.reserve() else {
                self.renew(&connection).await;
                continue;
            };
            let body = body.replay().expect("it is whole");
            match connection.call(slot, head, body).await {
                Ok(answer) => {
                    let read = answer.into_body().collect().await.expect("an end");
                    assert_eq!(read.trailers().expect("trailers")["grpc-status"], "0");
                    self.ok.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                Err(failure) => {
                    assert_ne!(failure.error.proof, Proof::Unknown, "{:?}", failure.error);
                    self.again.fetch_add(1, Ordering::Relaxed);
                    self.renew(&connection).await;
                }
            }
        }
        panic!("no attempt of {ATTEMPTS} was served");
    }
}

fn hello() -> Parts {
    let mut head = super::head();
    head.uri = http::Uri::from_static("/greeter.v1.Greeter/Hello");
    head
}

/// Holds a stream on each connection until its calls are done, and redials when told.
async fn hold(world: Arc<World>) {
    let mut head = super::head();
    head.method = http::Method::GET;
    head.uri = http::Uri::from_static("/held");
    while !world.stop.load(Ordering::Relaxed) {
        let connection = Arc::clone(&world.connection.load());
        let Some(slot) = connection.reserve() else {
            world.renew(&connection).await;
            continue;
        };
        let held = connection.call(slot, &head, whole(b"")).await;
        connection.unusable().await;
        if !world.stop.load(Ordering::Relaxed) {
            world.renew(&connection).await;
        }
        while connection.state().streams > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(held);
    }
}

async fn thirty_restarts(work: Duration) {
    let executed = Arc::new(AtomicU64::new(0));
    let (address, mut running) = server(&executed, work).await;
    let world = Arc::new(World {
        address: ArcSwap::from_pointee(address),
        connection: ArcSwap::from_pointee(dial(address).await),
        dialling: Mutex::new(()),
        stop: AtomicBool::new(false),
        ok: AtomicU64::new(0),
        again: AtomicU64::new(0),
    });
    let holder = tokio::spawn(hold(Arc::clone(&world)));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let world = Arc::clone(&world);
        callers.spawn(async move {
            while !world.stop.load(Ordering::Relaxed) {
                world.call(&hello(), whole(&[0; 5])).await;
            }
        });
    }
    for _ in 0..RESTARTS {
        // Each life serves at least a few waves of calls.
        let goal = world.ok.load(Ordering::Relaxed) + 4 * CALLERS as u64;
        while world.ok.load(Ordering::Relaxed) < goal {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (address, successor) = server(&executed, work).await;
        world.address.store(Arc::new(address));
        std::mem::replace(&mut running, successor).stop().await;
    }
    world.stop.store(true, Ordering::Relaxed);
    callers.join_all().await;
    running.stop().await;
    holder.await.expect("no panic");
    let (ok, again) = (
        world.ok.load(Ordering::Relaxed),
        world.again.load(Ordering::Relaxed),
    );
    println!("{ok} calls, {again} placed again");
    assert_eq!(executed.load(Ordering::Relaxed), ok, "{again} placed again");
    assert_eq!(world.connection.load().state().streams, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_restarts_at_5_ms() {
    thirty_restarts(Duration::from_millis(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_restarts_at_0_ms() {
    thirty_restarts(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_given_up_at_any_moment_leave_no_slot_behind() {
    let executed = Arc::new(AtomicU64::new(0));
    let (address, running) = server(&executed, Duration::from_millis(1)).await;
    let connection = dial(address).await;
    // Longer where the machine is so slow that none is answered.
    let mut patience = Duration::from_millis(4);
    let answered = loop {
        let answered = calls_of(patience, &connection).await;
        if answered > 0 {
            break answered;
        }
        patience *= 2;
        assert!(patience < HANG, "nobody is answered");
    };
    assert!(answered < CALLERS as u64 * 100, "{answered}");
    assert_eq!(connection.state().streams, 0);
    assert!(connection.state().is_usable());
    drop(connection);
    running.stop().await;
}

/// Many calls, each given up at another moment up to `most`; how many were answered.
async fn calls_of(most: Duration, connection: &Connection) -> u64 {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS as u32 {
        let connection = connection.clone();
        callers.spawn(async move {
            let mut answered = 0;
            for call in 0..100 {
                // From before the head is sent to after the answer has come.
                let patience = most * ((caller * 97 + call * 53) % 4_000) / 4_000;
                let slot = connection.reserve().expect("fewer callers than slots");
                let call = connection.call(slot, &hello(), whole(&[0; 5]));
                let read = async { call.await.expect("a head").into_body().collect().await };
                answered += u64::from(tokio::time::timeout(patience, read).await.is_ok());
            }
            answered
        });
    }
    callers.join_all().await.into_iter().sum()
}
