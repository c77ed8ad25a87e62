//! Several servers behind one address.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use lameduck::core::event::{Event, Tier};
use tokio::net::{TcpListener, TcpStream};

use super::leaving::both;
use super::node::{Node, life};
use super::{Log, SOON, direct, hello, ready};
use crate::raw::listen;

/// A pass-through that gives its connections to the servers in turn, as a virtual IP does.
struct Vip {
    address: SocketAddr,
    servers: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Vip {
    async fn before(servers: &[&Node]) -> Self {
        let (listener, address) = listen().await;
        let servers = servers.iter().map(|node| node.address).collect();
        let servers = Arc::new(Mutex::new(servers));
        tokio::spawn(Self::run(listener, Arc::clone(&servers)));
        Self { address, servers }
    }

    async fn run(listener: TcpListener, servers: Arc<Mutex<Vec<SocketAddr>>>) {
        let mut turn = 0;
        while let Ok((mut here, _)) = listener.accept().await {
            let to = {
                let servers = servers.lock().expect("no panic");
                servers[turn % servers.len()]
            };
            turn += 1;
            tokio::spawn(async move {
                if let Ok(mut there) = TcpStream::connect(to).await {
                    // Either may end at any time.
                    let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
                }
            });
        }
    }

    fn remove(&self, node: &Node) {
        let mut servers = self.servers.lock().expect("no panic");
        servers.retain(|server| *server != node.address);
    }
}

/// Two streams a connection: the health Watch and one call.
const STREAMS: u32 = 2;

#[tokio::test]
async fn r1_a_healthy_server_behind_one_address_is_used_whatever_its_neighbour_says() {
    // Foreign servers, and ours, which name themselves.
    for lives in [[None, None], [Some(life(1)), Some(life(2))]] {
        let mut a = Node::start("a", lives[0]).await;
        let b = Node::start("b", lives[1]).await;
        let vip = Vip::before(&[&a, &b]).await;
        let log = Log::default();
        let hub = log.builder().streams_per_connection(STREAMS).build();
        let channel = hub.channel(&direct(&[vip.address])).expect("a target");
        ready(&channel).await;
        // Calls at once, until there is a connection to each.
        let several = async || {
            let calls = (0..4).map(|_| hello(&channel));
            for answer in futures_util::future::join_all(calls).await {
                answer.expect("both serve");
            }
        };
        while a.facts.started() == 0 || b.facts.started() == 0 {
            several().await;
        }
        // It leaves as every server that behaves: NOT_SERVING, then GOAWAY.
        a.facts.health.leave();
        a.facts.announce();
        vip.remove(&a);
        for _ in 0..20 {
            hello(&channel).await.expect("b serves");
        }
        a.running.take().expect("it runs").stop().await;
        for _ in 0..20 {
            assert_eq!(hello(&channel).await.expect("b serves"), "b");
        }
        let last = log.tier(vip.address);
        assert_eq!(last, Some(Tier::Ready), "{lives:?}");
    }
}

#[tokio::test]
async fn r1_beside_another_address_both_take_calls() {
    let mut a = Node::start("a", Some(life(1))).await;
    let b = Node::start("b", Some(life(2))).await;
    let c = Node::start("c", Some(life(3))).await;
    let vip = Vip::before(&[&a, &b]).await;
    let hub = Log::default()
        .builder()
        .streams_per_connection(STREAMS)
        .build();
    let channel = hub
        .channel(&direct(&[vip.address, c.address]))
        .expect("a target");
    ready(&channel).await;
    while [&a, &b, &c].iter().any(|node| node.facts.started() == 0) {
        let calls = (0..8).map(|_| hello(&channel));
        for answer in futures_util::future::join_all(calls).await {
            answer.expect("all serve");
        }
    }
    vip.remove(&a);
    a.facts.health.leave();
    a.facts.announce();
    a.running.take().expect("it runs").stop().await;
    both(&channel).await;
}

#[tokio::test]
async fn r1_one_that_does_not_serve_for_long_hides_nobody_behind_its_address() {
    let (a, b) = (Node::start("a", None).await, Node::start("b", None).await);
    a.facts.health.leave();
    let vip = Vip::before(&[&a, &b]).await;
    let log = Log::default();
    let channel = log
        .hub()
        .channel(&direct(&[vip.address]))
        .expect("a target");
    ready(&channel).await;
    for _ in 0..20 {
        assert_eq!(hello(&channel).await.expect("b serves"), "b");
    }
    // They change places.
    a.facts.health.open();
    b.facts.health.leave();
    let changed = async { while hello(&channel).await.expect("one of them serves") != "a" {} };
    tokio::time::timeout(SOON, changed)
        .await
        .expect("a is found");
}

impl Log {
    /// The last tier of an address that was said.
    fn tier(&self, of: SocketAddr) -> Option<Tier> {
        let events = self.0.lock().expect("no panic");
        events.iter().rev().find_map(|event| match event {
            Event::TierChanged { address, tier, .. } => (*address == of.into()).then_some(*tier),
            _ => None,
        })
    }
}
