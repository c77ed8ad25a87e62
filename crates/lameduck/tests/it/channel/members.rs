//! Endpoints that come and go by the registry's word.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lameduck::Hub;
use lameduck::core::registry::EntryId;
use tokio::runtime::Handle;

use super::leaving::both;
use super::node::{Deed, Facts, Node, life, router};
use super::*;
use crate::raw::nowhere;
use crate::tonic_server;

/// Sockets of ours that are connected, or connecting, to `port`, as the kernel lists them; those
/// that only wait for their time to pass (TIME_WAIT) hold nothing.
fn sockets_to(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("Linux");
    let to_port = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let remote = fields.get(2).and_then(|remote| remote.rsplit_once(':'));
        let is_it = remote.and_then(|(_, hex)| u16::from_str_radix(hex, 16).ok()) == Some(port);
        const TIME_WAIT: &str = "06";
        is_it && fields.get(3) != Some(&TIME_WAIT)
    };
    table.lines().filter(|line| to_port(line)).count()
}

#[tokio::test]
async fn c34_removed_endpoints_cut_too_early_kept_too_long() {
    let (hub, memory) = (Hub::new(), Memory::new());
    let a = Node::start("a", Some(life(1))).await;
    let b = Node::start("b", Some(life(2))).await;
    register(&memory, 1, a.address, life(1));
    register(&memory, 2, b.address, life(2));
    let in_turn = in_memory(&hub, &memory).policy(lameduck::Policy::RoundRobin);
    let channel = in_turn.build().expect("a service");
    both(&channel).await;
    // Twenty calls run there when it leaves the registry, and it lives on.
    let before = b.facts.started();
    b.facts.act(Deed::Hold);
    let calls = (0..40).map(|_| {
        let channel = channel.clone();
        tokio::spawn(async move { hello(&channel).await })
    });
    let calls: Vec<_> = calls.collect();
    until("twenty are there", || b.facts.started() == before + 20).await;
    memory.withdraw(&orders(), EntryId(2));
    // From here on calls go elsewhere alone.
    let port = b.address.port();
    let mut since = 0;
    while since < 50 {
        let answer = hello_within(&channel, Duration::from_millis(200)).await;
        since = if answer.is_ok_and(|name| name == "a") {
            since + 1
        } else {
            0
        };
    }
    assert!(
        sockets_to(port) > 0,
        "the connection was cut with calls on it"
    );
    b.facts.let_go();
    for call in calls {
        call.await.expect("no panic").expect("it finishes");
    }
    until("the idle connection is closed", || sockets_to(port) == 0).await;
    // And is never dialled again.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(sockets_to(port), 0);
}

/// A call with a deadline.
async fn hello_within(channel: &Channel, time: Duration) -> Result<String, tonic::Status> {
    let mut request = tonic::Request::new(HelloRequest::default());
    request.set_timeout(time);
    let answer = GreeterClient::new(channel.clone()).hello(request).await;
    answer.map(|reply| reply.into_inner().text)
}

/// Accepts at every loopback address on one port, and counts.
async fn everywhere(accepted: &Arc<AtomicU32>) -> (u16, tonic_server::Running) {
    let facts = Facts::new("everywhere", None);
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await;
    let listener = listener.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let counted = Arc::clone(accepted);
    let running = tonic_server::serve_counted(listener, router(&facts), counted);
    (port, running)
}

#[tokio::test]
async fn c34_a_thousand_come_and_go() {
    let (hub, memory) = (Hub::new(), Memory::new());
    let stable = Node::start("stable", Some(life(1))).await;
    register(&memory, 1, stable.address, life(1));
    let channel = in_memory(&hub, &memory).build().expect("a service");
    ready(&channel).await;
    let accepted = Arc::new(AtomicU32::new(0));
    let (port, running) = everywhere(&accepted).await;
    let (_refusing, refused) = nowhere();
    let refused = refused.port();
    let tasks = Handle::current().metrics().num_alive_tasks();
    for cycle in 0..1_000_u32 {
        let host = Ipv4Addr::new(127, 0, 1, u8::try_from(cycle % 250).expect("small") + 1);
        let port = if cycle % 2 == 0 { port } else { refused };
        let id = i64::from(cycle) + 10;
        register(
            &memory,
            id,
            (host, port).into(),
            life(u128::from(cycle) + 10),
        );
        tokio::task::yield_now().await;
        if cycle % 10 == 0 {
            // Some are there long enough to be connected.
            let before = accepted.load(Ordering::SeqCst);
            until("it is connected", || {
                accepted.load(Ordering::SeqCst) > before
            })
            .await;
        }
        memory.withdraw(&orders(), EntryId(id));
    }
    until("connections close", || {
        sockets_to(port) + sockets_to(refused) == 0
    })
    .await;
    let metrics = Handle::current().metrics();
    until("tasks end", || {
        metrics.num_alive_tasks() <= tasks + tasks / 20
    })
    .await;
    let dials = accepted.load(Ordering::SeqCst);
    assert!(dials >= 50, "hardly any was connected: {dials}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(
        accepted.load(Ordering::SeqCst),
        dials,
        "a removed address was dialled"
    );
    assert_eq!(hello(&channel).await.expect("it is still there"), "stable");
    drop(running);
}

#[tokio::test]
async fn an_unused_directory_ends_with_its_connections() {
    let (hub, memory) = (Hub::new(), Memory::new());
    let node = Node::start("a", Some(life(1))).await;
    register(&memory, 1, node.address, life(1));
    let registry: Arc<dyn lameduck::core::registry::Registry> = Arc::new(memory);
    let builder = || hub.channel_builder_with(Arc::clone(&registry), orders());
    let channel = builder().build().expect("a service");
    let twin = builder().failover(false).build().expect("a service");
    ready(&channel).await;
    ready(&twin).await;
    let port = node.address.port();
    assert_eq!(sockets_to(port), 1, "one directory, one connection");
    drop(channel);
    hello(&twin).await.expect("the other channel still uses it");
    node.facts.act(Deed::Hold);
    let before = node.facts.started();
    let last = tokio::spawn(async move { hello(&twin).await });
    until("the call is there", || node.facts.started() > before).await;
    node.facts.let_go();
    assert_eq!(last.await.expect("no panic").expect("it finishes"), "a");
    until("the connection closes", || sockets_to(port) == 0).await;
}

#[tokio::test]
async fn a_registry_that_fails_changes_nothing() {
    let (log, memory) = (Log::default(), Memory::new());
    let hub = log.hub();
    let node = Node::start("a", Some(life(1))).await;
    register(&memory, 1, node.address, life(1));
    let channel = in_memory(&hub, &memory).build().expect("a service");
    ready(&channel).await;
    memory.fail(lameduck::core::registry::RegistryError {
        class: lameduck::core::registry::ErrorClass::Retry,
        message: "away".to_owned(),
    });
    let stale = |event: &Event| matches!(event, Event::DirectoryStale { .. });
    until("it is stale", || log.count(stale) == 1).await;
    hello(&channel).await.expect("it still serves");
    memory.recover();
    let live = |event: &Event| matches!(event, Event::DirectoryLive { service, .. } if *service == Some(orders()));
    until("it can be read again", || log.count(live) == 1).await;
    let late = Node::start("b", Some(life(2))).await;
    register(&memory, 2, late.address, life(2));
    both(&channel).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_finds_nothing_says_of_what_and_why() {
    let (log, memory) = (Log::default(), Memory::new());
    let hub = log.hub();
    let channel = in_memory(&hub, &memory).build().expect("a service");
    let none = hello(&channel).await.expect_err("nobody is there");
    assert_eq!(
        none.message(),
        format!("service {}: the registry lists no instance", orders())
    );
    memory.fail(lameduck::core::registry::RegistryError {
        class: lameduck::core::registry::ErrorClass::Retry,
        message: "etcd h:2379: away".to_owned(),
    });
    let stale = |event: &Event| matches!(event, Event::DirectoryStale { .. });
    until("it is stale", || log.count(stale) == 1).await;
    let none = hello(&channel).await.expect_err("nobody is known");
    assert!(
        none.message()
            .ends_with("no instance is known yet (the registry cannot be read: etcd h:2379: away)"),
        "{none}"
    );
    let mut request = tonic::Request::new(HelloRequest::default());
    request.set_timeout(Duration::from_millis(100));
    let late = GreeterClient::new(channel).hello(request).await;
    let late = late.expect_err("nobody is known");
    assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
    let failed = std::error::Error::source(&late);
    let failed = failed.and_then(|source| source.downcast_ref::<lameduck::consumer::CallFailed>());
    let proof = failed.map(|failed| failed.proof);
    assert_eq!(proof, Some(lameduck::core::failover::Proof::NeverLeft));
}

#[tokio::test]
async fn an_instance_that_dies_is_missed_once_until_it_is_back_or_not_listed() {
    let (log, memory) = (Log::default(), Memory::new());
    let hub = log.hub();
    let a = Node::start("a", Some(life(1))).await;
    let mut b = Node::start("b", Some(life(2))).await;
    register(&memory, 1, a.address, life(1));
    register(&memory, 2, b.address, life(2));
    let channel = in_memory(&hub, &memory).build().expect("a service");
    both(&channel).await;
    let began = |event: &Event| matches!(event, Event::Unreachable { .. });
    let ended = |expected: bool| {
        log.count(|event| matches!(event, Event::UnreachableEnded { reached, service, .. } if *reached == expected && *service == Some(orders())))
    };
    // It dies, and comes back where it was.
    b.running.take().expect("it runs").kill();
    until("it is missed", || log.count(began) == 1).await;
    let listener = listen_again(b.address).await;
    b.running = Some(tonic_server::serve(listener, router(&b.facts)));
    until("it is found again", || ended(true) == 1).await;
    assert_eq!(log.count(began), 1, "once, however often it was dialled");
    // It dies for good.
    b.running.take().expect("it runs").kill();
    until("it is missed again", || log.count(began) == 2).await;
    memory.withdraw(&orders(), EntryId(2));
    until("it is given up", || ended(false) == 1).await;
    assert_eq!((log.count(began), ended(true)), (2, 1));
}

/// The port that somebody has just let go.
async fn listen_again(address: std::net::SocketAddr) -> tokio::net::TcpListener {
    timeout(SOON, async {
        loop {
            match tokio::net::TcpListener::bind(address).await {
                Ok(listener) => return listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    })
    .await
    .expect("the port is free")
}

#[tokio::test]
async fn an_instance_that_said_that_it_leaves_is_not_missed() {
    let (log, memory) = (Log::default(), Memory::new());
    let hub = log.hub();
    let a = Node::start("a", Some(life(1))).await;
    register(&memory, 1, a.address, life(1));
    let channel = in_memory(&hub, &memory).build().expect("a service");
    ready(&channel).await;
    a.facts.announce();
    hello(&channel).await.expect("it still serves");
    until("the directory knows", || log.closings() == 1).await;
    a.stop().await;
    // The registry still lists it, so that it is dialled.
    let refused = || async {
        let none = hello_within(&channel, Duration::from_millis(50)).await;
        none.expect_err("nobody is there")
            .message()
            .contains("can be reached")
    };
    let seen = async { while !refused().await {} };
    timeout(SOON, seen).await.expect("a dial fails");
    assert_eq!(
        log.count(|event| matches!(event, Event::Unreachable { .. })),
        0
    );
}
