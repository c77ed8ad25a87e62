//! Both ends of ours: servers are rolled and held while they are called.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lameduck::core::instance::Incarnation;
use lameduck::core::registry::Registry;
use lameduck::env::Environment;
use lameduck::provider::{DrainReport, Handle, Problem};
use lameduck::{Hub, Provider};
use lameduck_registry::etcd::server::DevServer;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use super::leaving::both;
use super::node::{Deed, Facts, Node};
use super::*;
use crate::greeter::greeter_server::GreeterServer;

/// Where providers are found.
pub enum Listing {
    Nowhere,
    In(Arc<dyn Registry>),
    At(String),
}

impl Listing {
    fn in_memory() -> (Self, Arc<dyn Registry>) {
        let registry: Arc<dyn Registry> = Arc::new(Memory::new());
        (Self::In(Arc::clone(&registry)), registry)
    }
}

/// A provider that runs.
pub struct Running {
    pub handle: Handle,
    pub facts: Arc<Facts>,
    pub run: JoinHandle<DrainReport>,
}

pub async fn provide(name: &'static str, address: &str, listing: &Listing) -> Running {
    let facts = Facts::new(name, None);
    let node = Node {
        address: ([0, 0, 0, 0], 0).into(),
        facts: Arc::clone(&facts),
        running: None,
    };
    let routes = tonic::service::Routes::new(GreeterServer::new(node));
    let mut builder = Provider::builder("orders")
        .listen(address)
        .grpc(routes)
        // In a cluster the floor would be another.
        .environment(Environment::default())
        .signals(false);
    match listing {
        Listing::Nowhere => {}
        Listing::In(registry) => builder = builder.registry_with(Arc::clone(registry), "memory"),
        Listing::At(target) => builder = builder.registry(target),
    }
    let provider = builder.build().expect("a free port");
    let handle = provider.handle();
    let run = tokio::spawn(provider.run());
    timeout(SOON, handle.serving()).await.expect("it serves");
    until("it is registered", || {
        let registrations = handle.registrations();
        registrations.iter().all(|one| one.registered)
    })
    .await;
    Running { handle, facts, run }
}

/// Callers that go on until they are told to stop.
pub struct Load {
    over: Arc<AtomicBool>,
    calls: Arc<AtomicU32>,
    callers: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    pub fn start(channel: &Channel) -> Self {
        let (over, calls) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU32::new(0)),
        );
        let callers = (0..8).map(|_| {
            let (channel, over, calls) = (channel.clone(), Arc::clone(&over), Arc::clone(&calls));
            tokio::spawn(async move {
                let mut lost = Vec::new();
                while !over.load(Ordering::SeqCst) {
                    calls.fetch_add(1, Ordering::SeqCst);
                    if let Err(status) = hello(&channel).await {
                        lost.push(format!("{status:?}"));
                    }
                }
                lost
            })
        });
        let callers = callers.collect();
        Self {
            over,
            calls,
            callers,
        }
    }

    pub async fn go_on(&self, more: u32) {
        let before = self.calls.load(Ordering::SeqCst);
        until("calls go on", || {
            self.calls.load(Ordering::SeqCst) > before + more
        })
        .await;
    }

    pub async fn end(self) {
        self.over.store(true, Ordering::SeqCst);
        for caller in self.callers {
            assert_eq!(caller.await.expect("no panic"), Vec::<String>::new());
        }
    }
}

/// Nothing was abandoned, and nobody cut off. That a registry confirms in time is not asked here: it may
/// be slow.
fn left_well(report: &DrainReport) {
    let cut = report.problems.contains(&Problem::Connections);
    assert!(report.abandoned == 0 && !cut, "{report}");
}

/// Stops and starts each of them on its port, under load.
async fn roll(channel: Channel, mut servers: [Running; 2], listing: &Listing) {
    both(&channel).await;
    let load = Load::start(&channel);
    for (server, name) in servers.iter_mut().zip(["a2", "b2"]) {
        load.go_on(50).await;
        server.handle.stop("a test");
        let report = timeout(SOON, &mut server.run)
            .await
            .expect("in time")
            .expect("no panic");
        left_well(&report);
        let address = server.handle.local_addr().to_string();
        *server = provide(name, &address, listing).await;
        let facts = Arc::clone(&server.facts);
        until("the successor is called", || facts.started() > 0).await;
    }
    load.end().await;
}

fn work(servers: [Running; 2]) -> [Running; 2] {
    for server in &servers {
        server.facts.act(Deed::Work(Duration::from_millis(2)));
    }
    servers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_roll_on_a_registry_loses_nothing_even_without_failover() {
    for failover in [true, false] {
        let (listing, registry) = Listing::in_memory();
        let a = provide("a", "127.0.0.1:0", &listing).await;
        let b = provide("b", "127.0.0.1:0", &listing).await;
        let builder = Hub::new().channel_builder_with(registry, orders());
        let channel = builder.failover(failover).build().expect("a service");
        roll(channel, work([a, b]), &listing).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_roll_of_fixed_addresses_loses_nothing_even_without_failover() {
    for failover in [true, false] {
        let a = provide("a", "127.0.0.1:0", &Listing::Nowhere).await;
        let b = provide("b", "127.0.0.1:0", &Listing::Nowhere).await;
        let target = direct(&[a.handle.local_addr(), b.handle.local_addr()]);
        let builder = Hub::new().channel_builder(&target);
        let channel = builder.failover(failover).build().expect("a target");
        roll(channel, work([a, b]), &Listing::Nowhere).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_roll_on_etcd_loses_nothing_even_without_failover() {
    let loopback = "127.0.0.1:0".parse().expect("an address");
    let etcd = DevServer::bind(loopback).await.expect("a free port");
    let hosts = etcd.local_addr();
    let _etcd = AbortOnDropHandle::new(tokio::spawn(etcd.run(std::future::pending())));
    for failover in [true, false] {
        let listing = Listing::At(format!("etcd://{hosts}"));
        let a = provide("a", "127.0.0.1:0", &listing).await;
        let b = provide("b", "127.0.0.1:0", &listing).await;
        let builder = Hub::new().channel_builder(&format!("etcd:///{hosts}?key=orders"));
        let channel = builder.failover(failover).build().expect("a target");
        roll(channel, work([a, b]), &listing).await;
    }
}

/// (d) of the field case, with both ends: a hold takes the instance out, a Resume brings it back.
async fn hold_and_resume(channel: Channel, log: &Log, servers: [Running; 2]) {
    both(&channel).await;
    let [a, b] = &servers;
    let life = a.handle.life();
    a.handle.hold();
    let is_it = |event: &Event| matches!(event, Event::Closing { incarnation, .. } if *incarnation == Incarnation::Life(life));
    until("the hold is known", || log.count(is_it) == 1).await;
    let before = a.facts.started();
    for _ in 0..20 {
        assert_eq!(hello(&channel).await.expect("b serves"), "b");
    }
    assert_eq!(a.facts.started(), before);
    // Longer than the first GOAWAYs take: the connection of before is gone.
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(a.handle.resume().await, "a hold is resumed");
    assert_eq!(a.handle.life(), life.resumed());
    let used = async { while hello(&channel).await.expect("they serve") != "a" {} };
    timeout(SOON, used).await.expect("the resumed life is used");
    assert!(!b.handle.gate().is_closed());
}

#[tokio::test]
async fn c32_d_a_hold_is_resumed_on_a_registry() {
    let (listing, registry) = Listing::in_memory();
    let a = provide("a", "127.0.0.1:0", &listing).await;
    let b = provide("b", "127.0.0.1:0", &listing).await;
    let log = Log::default();
    let builder = log.hub().channel_builder_with(registry, orders());
    hold_and_resume(builder.build().expect("a service"), &log, [a, b]).await;
}

#[tokio::test]
async fn c32_d_a_hold_is_resumed_at_a_fixed_address() {
    let a = provide("a", "127.0.0.1:0", &Listing::Nowhere).await;
    let b = provide("b", "127.0.0.1:0", &Listing::Nowhere).await;
    let log = Log::default();
    let target = direct(&[a.handle.local_addr(), b.handle.local_addr()]);
    let channel = log.hub().channel(&target).expect("a target");
    hold_and_resume(channel, &log, [a, b]).await;
}

#[tokio::test]
async fn one_static_address_outlives_its_servers_restart() {
    let a = provide("a", "127.0.0.1:0", &Listing::Nowhere).await;
    let address: SocketAddr = a.handle.local_addr();
    let channel = Hub::new().channel(&address.to_string()).expect("a target");
    ready(&channel).await;
    assert!(a.handle.hold().await);
    // Closing: the last resort still serves.
    assert_eq!(hello(&channel).await.expect("it still serves"), "a");
    a.handle.stop("a test");
    timeout(SOON, a.run)
        .await
        .expect("in time")
        .expect("no panic");
    let waiting = tokio::spawn({
        let channel = channel.clone();
        async move { hello(&channel).await }
    });
    let _b = provide("b", &address.to_string(), &Listing::Nowhere).await;
    assert_eq!(waiting.await.expect("no panic").expect("within 2 s"), "b");
}
