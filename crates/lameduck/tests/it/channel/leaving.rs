//! Servers that leave, and what their callers make of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lameduck::Hub;
use lameduck::consumer::CallFailed;
use lameduck::core::event::{ClosingSource, Event, Tier};
use lameduck::core::failover::Proof;

use super::node::{Deed, Node, life, router};
use super::*;
use crate::raw;

fn is_proven(status: &tonic::Status) -> bool {
    let source = std::error::Error::source(status);
    let failed = source.and_then(|source| source.downcast_ref::<CallFailed>());
    failed.is_some_and(|failed| failed.proof != Proof::Unknown)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_plain_servers_stops_and_nothing_provable_is_lost() {
    let nodes = [
        Node::start("a", None).await,
        Node::start("b", None).await,
        Node::start("c", None).await,
    ];
    for node in &nodes {
        node.facts.act(Deed::Work(Duration::from_millis(3)));
    }
    let hub = Hub::new();
    let channel = hub
        .channel(&direct(&nodes.each_ref().map(|node| node.address)))
        .expect("a target");
    ready(&channel).await;
    let over = Arc::new(AtomicBool::new(false));
    let (calls, lost) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let (channel, over) = (channel.clone(), Arc::clone(&over));
            let (calls, lost) = (Arc::clone(&calls), Arc::clone(&lost));
            tokio::spawn(async move {
                while !over.load(Ordering::SeqCst) {
                    calls.fetch_add(1, Ordering::SeqCst);
                    if let Err(status) = hello(&channel).await {
                        assert!(!is_proven(&status), "provable and lost: {status}");
                        lost.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    let [a, b, c] = nodes;
    until("a is called", || a.facts.started() > 50).await;
    a.stop().await;
    let before = calls.load(Ordering::SeqCst);
    until("the others go on", || {
        calls.load(Ordering::SeqCst) > before + 200
    })
    .await;
    over.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.expect("no panic");
    }
    assert_eq!(
        lost.load(Ordering::SeqCst),
        0,
        "of {} calls",
        calls.load(Ordering::SeqCst)
    );
    drop((b, c));
}

#[tokio::test]
async fn a_closing_mark_is_the_last_reason_to_choose_its_life() {
    let log = Log::default();
    let (a, b) = two().await;
    let hub = log.hub();
    let channel = hub
        .channel(&direct(&[a.address, b.address]))
        .expect("a target");
    both(&channel).await;
    a.facts.announce();
    while hello(&channel).await.expect("both serve") != "a" {}
    // The answer that carried the mark was the last from there.
    for _ in 0..50 {
        assert_eq!(hello(&channel).await.expect("b serves"), "b");
    }
    until("the directory knows", || log.closings() == 1).await;
    for _ in 0..50 {
        assert_eq!(hello(&channel).await.expect("b serves"), "b");
    }
    // It is still better than nothing.
    b.stop().await;
    until("b is gone", || log.disconnections() > 0).await;
    assert_eq!(hello(&channel).await.expect("a still serves"), "a");
    assert_eq!(hub.ignored_marks(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_choice_is_seen_after_its_lifes_closing_statement() {
    for source in ["mark", "registry"] {
        let log = Log::default();
        let memory = Memory::new();
        let a = Node::start("a", Some(life(1))).await;
        let b = Node::start("b", Some(life(2))).await;
        register(&memory, 1, a.address, life(1));
        register(&memory, 2, b.address, life(2));
        let channel = in_memory(&log.hub(), &memory).build().expect("a service");
        both(&channel).await;
        let over = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..8)
            .map(|_| {
                let (channel, over) = (channel.clone(), Arc::clone(&over));
                tokio::spawn(async move {
                    while !over.load(Ordering::SeqCst) {
                        hello(&channel).await.expect("they serve");
                    }
                })
            })
            .collect();
        match source {
            "mark" => a.facts.announce(),
            _ => register_closing(&memory, 1, a.address, life(1)),
        }
        until("it is known", || log.closings() == 1).await;
        let before = b.facts.started();
        until("b goes on", || b.facts.started() > before + 50).await;
        over.store(true, Ordering::SeqCst);
        for caller in callers {
            caller.await.expect("no panic");
        }
        let gone = Incarnation::Life(life(1));
        let events = log.0.lock().expect("no panic");
        let after = events
            .iter()
            .skip_while(|event| !matches!(event, Event::Closing { .. }));
        let late = after.filter(
            |event| matches!(event, Event::Picked { incarnation, .. } if *incarnation == gone),
        );
        assert_eq!(late.count(), 0, "closing by {source}");
    }
}

#[tokio::test]
async fn a_mark_of_another_life_is_not_believed() {
    let (a, b) = two().await;
    let log = Log::default();
    let hub = log.hub();
    let channel = hub
        .channel(&direct(&[a.address, b.address]))
        .expect("a target");
    both(&channel).await;
    // Says that b is closing.
    a.facts.claim(life(2));
    a.facts.announce();
    for _ in 0..3 {
        both(&channel).await;
    }
    assert!(hub.ignored_marks() > 0);
    assert_eq!(log.closings(), 0);
}

#[tokio::test]
async fn two_lives_on_one_connection_are_a_proxys() {
    let (a, b) = two().await;
    let log = Log::default();
    let hub = log.hub();
    let channel = hub
        .channel(&direct(&[a.address, b.address]))
        .expect("a target");
    both(&channel).await;
    a.facts.live(life(3));
    let ignored = async {
        while hub.ignored_marks() == 0 {
            hello(&channel).await.expect("both serve");
        }
    };
    timeout(SOON, ignored).await.expect("the marks are seen");
    a.facts.announce();
    for _ in 0..3 {
        both(&channel).await;
    }
    assert_eq!(log.closings(), 0);
}

#[tokio::test]
async fn a_closing_event_reaches_every_directory_of_the_hub_and_those_to_come() {
    let log = Log::default();
    let hub = log.hub();
    let (a, b) = two().await;
    let memory = Memory::new();
    register(&memory, 1, a.address, life(1));
    register(&memory, 2, b.address, life(2));
    let listed = in_memory(&hub, &memory).build().expect("a service");
    let fixed = hub
        .channel(&direct(&[a.address, b.address]))
        .expect("a target");
    both(&fixed).await;
    both(&listed).await;
    a.facts.announce();
    while hello(&fixed).await.expect("both serve") != "a" {}
    until("both directories have it", || log.closings() == 2).await;
    // `listed` has not had one marked answer.
    let before = a.facts.started();
    for _ in 0..20 {
        assert_eq!(hello(&listed).await.expect("b serves"), "b");
    }
    let late = in_memory(&hub, &Memory::new()).build().expect("a service");
    drop(late);
    let other = Memory::new();
    register(&other, 7, a.address, life(1));
    register(&other, 8, b.address, life(2));
    let late = in_memory(&hub, &other).build().expect("a service");
    ready(&late).await;
    for _ in 0..20 {
        assert_eq!(hello(&late).await.expect("b serves"), "b");
    }
    assert_eq!(a.facts.started(), before);
}

#[tokio::test]
async fn not_serving_keeps_calls_away_and_serving_brings_them_back() {
    let log = Log::default();
    let (a, b) = (Node::start("a", None).await, Node::start("b", None).await);
    let channel = log
        .hub()
        .channel(&direct(&[a.address, b.address]))
        .expect("a target");
    both(&channel).await;
    a.facts.health.leave();
    until("a is out", || out(&log, &a) == 1).await;
    for _ in 0..20 {
        assert_eq!(hello(&channel).await.expect("b serves"), "b");
    }
    a.facts.health.open();
    both(&channel).await;
    assert_eq!(log.closings(), 0, "a judgement, no closing");
}

fn out(log: &Log, node: &Node) -> usize {
    log.count(|event| match event {
        Event::TierChanged { address, tier, .. } => {
            *address == node.address.into() && *tier == Tier::Out
        }
        _ => false,
    })
}

#[tokio::test]
async fn c12_our_own_health_stream_holds_the_door() {
    // The caller's half: NOT_SERVING and then the peer's own end is closing, and is not asked again
    // in a loop.
    let log = Log::default();
    let (a, b) = two().await;
    let channel = log
        .hub()
        .channel(&direct(&[a.address, b.address]))
        .expect("a target");
    both(&channel).await;
    a.facts.health.leave();
    a.facts.health.end();
    let by_health = |event: &Event| {
        let wanted = lameduck::core::instance::Incarnation::Life(life(1));
        matches!(event, Event::Closing { incarnation, source: ClosingSource::Health, .. }
            if *incarnation == wanted)
    };
    until("it counts as closing", || log.count(by_health) == 1).await;
    let address = a.address;
    let stopped = timeout(SOON, a.stop()).await;
    stopped.expect("our Watch does not hold the server");
    // Whoever listens there now sees how often it is dialled.
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .expect("free again");
    let dials = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&dials);
    let hang_up = tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            counting.fetch_add(1, Ordering::SeqCst);
        }
    });
    tokio::time::sleep(Duration::from_millis(600)).await;
    hang_up.abort();
    // 25..50, 50..100, 100..200, … ms apart.
    let dials = dials.load(Ordering::SeqCst);
    assert!(dials <= 6, "dialled {dials} times in 0.6 s");
    assert_eq!(hello(&channel).await.expect("b serves"), "b");
}

#[tokio::test]
async fn a_peer_without_health_service_is_called() {
    let (listener, address) = raw::listen().await;
    let peer = tokio::spawn(async move {
        let app = axum::Router::new();
        axum::serve(listener, app).await.expect("it serves");
    });
    let channel = Hub::new().channel(&direct(&[address])).expect("a target");
    ready(&channel).await;
    let status = hello(&channel).await.expect_err("there is no such method");
    assert_eq!(status.code(), tonic::Code::Unimplemented);
    peer.abort();
}

#[tokio::test]
async fn c32_restarted_on_the_same_port_still_on_the_black_list() {
    let log = Log::default();
    let hub = log.hub();
    let memory = Memory::new();
    let (a, b) = two().await;
    register(&memory, 1, a.address, life(1));
    register(&memory, 2, b.address, life(2));
    let channel = in_memory(&hub, &memory).build().expect("a service");
    both(&channel).await;
    // Life 1 says that it is closing, and goes.
    register_closing(&memory, 1, a.address, life(1));
    until("it is known", || log.closings() == 1).await;
    memory.withdraw(&orders(), lameduck::core::registry::EntryId(1));
    let address = a.address;
    a.stop().await;
    // (b) Its registration is replayed: late data revives nothing.
    let again = restart(address, "old", life(1)).await;
    register(&memory, 9, address, life(1));
    for _ in 0..20 {
        assert_eq!(hello(&channel).await.expect("b serves"), "b");
    }
    assert_eq!(again.facts.started(), 0);
    again.stop().await;
    // (c) A new life there; the first contact fails, and no further registry event comes.
    register(&memory, 3, address, life(3));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(hello(&channel).await.expect("b serves"), "b");
    let new = restart(address, "new", life(3)).await;
    // (a) It is used; the tombstone of the old life hides nothing of it.
    let used = async { while hello(&channel).await.expect("they serve") != "new" {} };
    timeout(SOON, used).await.expect("the new life is used");
    // (d) It holds a drain, and resumes.
    new.facts.announce();
    new.facts.health.leave();
    let closed = || log.closings() == 2;
    until("the hold is known", closed).await;
    for _ in 0..10 {
        assert_eq!(hello(&channel).await.expect("b serves"), "b");
    }
    new.facts.resume();
    new.facts.health.open();
    let used = async { while hello(&channel).await.expect("they serve") != "new" {} };
    timeout(SOON, used).await.expect("the resumed life is used");
    let lifted = |event: &Event| matches!(event, Event::ClosingLifted { .. });
    assert_eq!(log.count(lifted), 1);
}

async fn restart(address: SocketAddr, name: &'static str, life: Life) -> Node {
    let facts = super::node::Facts::new(name, Some(life));
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .expect("free again");
    let running = crate::tonic_server::serve(listener, router(&facts));
    Node {
        address,
        facts,
        running: Some(running),
    }
}

#[tokio::test]
async fn a_wrong_service_at_a_known_address_is_out() {
    let memory = Memory::new();
    let (a, b) = two().await;
    a.facts.serve_instead("stock");
    register(&memory, 1, a.address, life(1));
    register(&memory, 2, b.address, life(2));
    let hub = Hub::new();
    let channel = in_memory(&hub, &memory).build().expect("a service");
    ready(&channel).await;
    for _ in 0..20 {
        assert_eq!(hello(&channel).await.expect("b serves"), "b");
    }
    assert_eq!(a.facts.started(), 0);
}

/// Two servers that name themselves.
async fn two() -> (Node, Node) {
    (
        Node::start("a", Some(life(1))).await,
        Node::start("b", Some(life(2))).await,
    )
}

/// Calls until both nodes have answered.
pub async fn both(channel: &Channel) {
    let mut seen = std::collections::BTreeSet::new();
    let all = async {
        while seen.len() < 2 {
            seen.insert(hello(channel).await.expect("both serve"));
        }
    };
    timeout(SOON, all).await.expect("both are chosen");
}
