//! What happens to one call.

use std::error::Error as _;
use std::time::Duration;

use lameduck::consumer::CallFailed;
use lameduck::core::failover::Proof;
use lameduck::core::failover::attempt::Stop;
use lameduck::core::limits::PICK_WAIT_MAX;
use lameduck::{Channel, Hub};
use tonic::Code;

use super::node::{Deed, Node, life};
use super::*;
use crate::serve::start::within;
use crate::standing::{Standing, TICK};

fn failure(status: &tonic::Status) -> &CallFailed {
    let source = status.source().expect("our own error");
    source.downcast_ref().expect("our own error")
}

#[tokio::test]
async fn a_generated_client_calls_all_of_them() {
    let nodes = [Node::start("a", None).await, Node::start("b", None).await];
    let target = direct(&nodes.each_ref().map(|node| node.address));
    let channel = Hub::new().channel(&target).expect("a target");
    let mut seen = std::collections::BTreeSet::new();
    let all = async {
        while seen.len() < 2 {
            seen.insert(hello(&channel).await.expect("both serve"));
        }
    };
    timeout(SOON, all).await.expect("both are chosen");
}

#[tokio::test]
async fn round_robin_takes_each_in_turn() {
    let nodes = [Node::start("a", None).await, Node::start("b", None).await];
    let target = direct(&nodes.each_ref().map(|node| node.address));
    let builder = Hub::new().channel_builder(&target);
    let channel = builder
        .policy(lameduck::Policy::RoundRobin)
        .build()
        .expect("a target");
    let mut both = std::collections::BTreeSet::new();
    while both.len() < 2 {
        both.insert(hello(&channel).await.expect("both serve"));
    }
    let before = nodes.each_ref().map(|node| node.facts.started());
    for _ in 0..10 {
        hello(&channel).await.expect("both serve");
    }
    let after = nodes.each_ref().map(|node| node.facts.started());
    assert_eq!([after[0] - before[0], after[1] - before[1]], [5, 5]);
}

#[tokio::test]
async fn connect_waits_for_the_first_instance() {
    let node = Node::start("a", None).await;
    let channel = Channel::connect(&node.address.to_string())
        .await
        .expect("a target");
    let client = GreeterClient::with_origin(channel, "http://orders".parse().expect("a URI"));
    let reply = client
        .clone()
        .hello(HelloRequest::default())
        .await
        .expect("it serves");
    assert_eq!(reply.into_inner().text, "a");
}

#[tokio::test]
async fn a_refusal_goes_elsewhere_and_no_mark_reaches_the_application() {
    let log = Log::default();
    let (a, b) = (
        Node::start("a", Some(life(1))).await,
        Node::start("b", Some(life(2))).await,
    );
    a.facts.act(Deed::Refuse);
    let channel = log
        .hub()
        .channel(&direct(&[a.address, b.address]))
        .expect("a target");
    for _ in 0..20 {
        let mut client = GreeterClient::new(channel.clone());
        let reply = client
            .hello(HelloRequest::default())
            .await
            .expect("b serves");
        for name in [lameduck::mark::LIFE, lameduck::mark::CLOSING] {
            assert!(!reply.metadata().contains_key(name.as_str()));
        }
        assert_eq!(reply.into_inner().text, "b");
    }
    assert!(log.replaced() > 0, "a was never chosen");
    assert_eq!(a.facts.started(), 0);
}

#[tokio::test]
async fn a_refusal_by_another_life_proves_nothing() {
    let a = Node::start("a", Some(life(1))).await;
    a.facts.act(Deed::Refuse);
    a.facts.claim(life(9));
    let hub = Hub::new();
    let channel = hub.channel(&direct(&[a.address])).expect("a target");
    let status = hello(&channel).await.expect_err("it refuses");
    // An answer like any other of the application's.
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.source().is_none());
}

#[tokio::test]
async fn without_failover_a_refusal_is_the_callers() {
    let a = Node::start("a", Some(life(1))).await;
    a.facts.act(Deed::Refuse);
    let builder = Hub::new().channel_builder(&direct(&[a.address]));
    let channel = builder.failover(false).build().expect("a target");
    let status = hello(&channel).await.expect_err("it refuses");
    assert_eq!(status.code(), Code::Unavailable);
    let failed = failure(&status);
    assert_eq!(
        (failed.proof, failed.stop),
        (Proof::NotProcessed, Some(Stop::Off))
    );
    assert_eq!(failed.placed, 1);
}

#[tokio::test]
async fn what_may_have_run_is_not_repeated_unless_declared() {
    for idempotent in [false, true] {
        let log = Log::default();
        let (a, b) = (Node::start("a", None).await, Node::start("b", None).await);
        a.facts.act(Deed::Hang);
        let mut builder = log.hub().channel_builder(&direct(&[a.address, b.address]));
        if idempotent {
            builder = builder.idempotent(HELLO);
        }
        let channel = builder
            .policy(lameduck::Policy::RoundRobin)
            .build()
            .expect("a target");
        while a.facts.started() == 0 {
            let call = tokio::spawn({
                let channel = channel.clone();
                async move { hello(&channel).await }
            });
            let facts = std::sync::Arc::clone(&a.facts);
            until("somewhere", || call.is_finished() || facts.started() > 0).await;
            if facts.started() == 0 {
                continue;
            }
            // The server dies with the call in its hands.
            a.running.as_ref().expect("it runs").kill();
            let outcome = call.await.expect("no panic");
            if idempotent {
                assert_eq!(outcome.expect("b takes it"), "b");
            } else {
                let status = outcome.expect_err("nobody may repeat it");
                let failed = failure(&status);
                assert_eq!(
                    (failed.proof, failed.stop),
                    (Proof::Unknown, Some(Stop::MayHaveRun))
                );
                assert_eq!(
                    failed.endpoint.as_ref().map(|(at, _)| at.clone()),
                    Some(a.address.into())
                );
            }
        }
        assert_eq!(a.facts.started(), 1);
    }
}

#[tokio::test]
async fn what_may_have_run_once_taints_the_whole_call() {
    let a = Node::start("a", None).await;
    a.facts.act(Deed::Hang);
    let builder = Hub::new().channel_builder(&direct(&[a.address]));
    let channel = builder.idempotent(HELLO).build().expect("a target");
    ready(&channel).await;
    let mut request = tonic::Request::new(HelloRequest::default());
    // Shorter than the wait for an endpoint, which would end it otherwise.
    request.set_timeout(Duration::from_millis(1500));
    let call = tokio::spawn(async move { GreeterClient::new(channel).hello(request).await });
    until("started", || a.facts.started() > 0).await;
    // It may be repeated, but there is nobody left: what it waited for at last never had it.
    a.running.as_ref().expect("it runs").kill();
    let status = call.await.expect("no panic").expect_err("nobody is left");
    let failed = failure(&status);
    assert_eq!(
        (failed.endpoint.as_ref(), failed.proof),
        (None, Proof::Unknown)
    );
}

#[tokio::test]
async fn a_request_that_cannot_be_sent_is_placed_once() {
    let nodes = [Node::start("a", None).await, Node::start("b", None).await];
    let target = direct(&nodes.each_ref().map(|node| node.address));
    let log = Log::default();
    let builder = log.hub().channel_builder(&target);
    let builder = builder.idempotent("/greeter.v1.Greeter/Hello");
    let channel = builder.build().expect("a target");
    ready(&channel).await;
    let mut request = tonic::Request::new(HelloRequest::default());
    // RFC 9113, 8.2.2: not in HTTP/2.
    let value = "keep-alive".parse().expect("a value");
    request.metadata_mut().insert("connection", value);
    let mut client = GreeterClient::new(channel.clone());
    let status = client.hello(request).await.expect_err("cannot be sent");
    assert_eq!(status.code(), Code::Internal);
    let failed = failure(&status);
    assert_eq!((failed.stop, failed.placed), (Some(Stop::Request), 1));
    assert_eq!(failed.proof, Proof::NeverLeft);
    assert_eq!(log.replaced(), 0);
}

#[tokio::test]
async fn an_applications_unavailable_is_an_answer() {
    let (a, b) = (Node::start("a", None).await, Node::start("b", None).await);
    a.facts.act(Deed::Unavailable);
    b.facts.act(Deed::Unavailable);
    let target = direct(&[a.address, b.address]);
    // Not declared idempotent: one that said so may have done something before.
    let channel = Hub::new().channel(&target).expect("a target");
    let status = hello(&channel).await.expect_err("as it says");
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, "no database")
    );
    assert_eq!(a.facts.started() + b.facts.started(), 1);
}

#[tokio::test]
async fn a_hung_server_ends_at_the_deadline() {
    let a = Node::start("a", None).await;
    a.facts.act(Deed::Hang);
    let channel = Hub::new().channel(&direct(&[a.address])).expect("a target");
    ready(&channel).await;
    let mut request = tonic::Request::new(HelloRequest::default());
    let deadline = Duration::from_millis(150);
    request.set_timeout(deadline);
    let standing = Standing::begin();
    let call = tokio::spawn(async move { GreeterClient::new(channel).hello(request).await });
    within(async {
        while a.facts.started() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    standing.advance(deadline - 2 * TICK).await;
    assert!(!call.is_finished());
    standing.advance(TICK).await;
    let status = within(call).await.expect("no panic");
    let status = status.expect_err("it hangs");
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn nowhere_to_go_says_why() {
    // Bound and not listening: refused, and nobody else's.
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    let any = "127.0.0.1:0".parse().expect("an address");
    socket.bind(any).expect("a port");
    let address = socket.local_addr().expect("bound");
    let standing = Standing::begin();
    let begun = tokio::time::Instant::now();
    let builder = Hub::new().channel_builder(&direct(&[address]));
    let patient = builder.wait_for_ready(true).build().expect("a target");
    let mut request = tonic::Request::new(HelloRequest::default());
    request.set_timeout(PICK_WAIT_MAX);
    let call = tokio::spawn(async move { GreeterClient::new(patient).hello(request).await });
    standing.advance(PICK_WAIT_MAX).await;
    let status = within(call).await.expect("no panic").expect_err("nobody");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().contains("nothing listens"), "{status}");
    let printed = status.to_string();
    assert_eq!(printed.matches("nothing listens").count(), 1, "{printed}");
    assert!(
        printed.contains("CallFailed { proof: NeverLeft"),
        "{printed}"
    );
    // Nobody waits for who has just refused, unless told to.
    let elapsed = begun.elapsed();
    let channel = Hub::new().channel(&direct(&[address])).expect("a target");
    let status = hello(&channel).await.expect_err("nobody");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("nothing listens"), "{status}");
    assert_eq!(failure(&status).placed, 0);
    assert_eq!(begun.elapsed(), elapsed);
}

#[tokio::test]
async fn a_registry_that_lists_nothing_is_not_waited_for() {
    let (hub, memory) = (Hub::new(), Memory::new());
    let channel = in_memory(&hub, &memory).build().expect("a service");
    let standing = Standing::begin();
    let begun = tokio::time::Instant::now();
    let status = hello(&channel).await.expect_err("nobody");
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(begun.elapsed(), Duration::ZERO);
    standing.end();
    // Unless the caller says so.
    let patient = in_memory(&hub, &memory)
        .wait_for_ready(true)
        .build()
        .expect("a service");
    let call = tokio::spawn(async move { hello(&patient).await });
    let node = Node::start("a", Some(life(1))).await;
    register(&memory, 1, node.address, life(1));
    assert_eq!(call.await.expect("no panic").expect("it came"), "a");
}

#[tokio::test]
async fn who_calls_in_a_loop_lets_the_news_come() {
    let (hub, memory) = (Hub::new(), Memory::new());
    let channel = in_memory(&hub, &memory).build().expect("a service");
    let node = Node::start("a", Some(life(1))).await;
    let status = hello(&channel).await.expect_err("nobody");
    assert_eq!(status.code(), Code::Unavailable);
    // It registers as soon as it has its turn, on the thread that calls.
    tokio::spawn(async move { register(&memory, 1, node.address, life(1)) });
    for _ in 0..10_000 {
        if hello(&channel).await.is_ok() {
            return;
        }
    }
    panic!("nobody else had a turn");
}

#[tokio::test]
async fn retries_stay_within_the_budget() {
    let log = Log::default();
    let a = Node::start("a", Some(life(1))).await;
    let b = Node::start("b", Some(life(2))).await;
    a.facts.act(Deed::Refuse);
    b.facts.act(Deed::Refuse);
    let builder = log.hub().channel_builder(&direct(&[a.address, b.address]));
    let channel = builder.attempts(5).build().expect("a target");
    ready(&channel).await;
    for _ in 0..100 {
        let status = hello(&channel).await.expect_err("both refuse");
        assert_eq!(status.code(), Code::Unavailable);
    }
    // One free each, and of the rest a fifth of the calls and three a second over ten seconds.
    let replaced = log.replaced();
    assert!((100..=100 + 20 + 30).contains(&replaced), "{replaced}");
}

#[tokio::test]
async fn many_calls_at_once_open_more_connections() {
    let node = Node::start("a", None).await;
    node.facts.act(Deed::Hold);
    let hub = Hub::builder().streams_per_connection(100).build();
    let channel = hub.channel(&direct(&[node.address])).expect("a target");
    ready(&channel).await;
    let calls: Vec<_> = (0..250)
        .map(|_| {
            let channel = channel.clone();
            tokio::spawn(async move { hello(&channel).await })
        })
        .collect();
    until("all are there", || node.facts.started() == 250).await;
    node.facts.let_go();
    for call in calls {
        assert_eq!(call.await.expect("no panic").expect("it serves"), "a");
    }
}

#[tokio::test]
async fn every_way_out_counts_out() {
    let a = Node::start("a", Some(life(1))).await;
    let hub = Hub::new();
    let target = direct(&[a.address]);
    let channel = hub.channel(&target).expect("a target");
    let strict = hub.channel_builder(&target).failover(false).build();
    let strict = strict.expect("a target");
    ready(&channel).await;
    let deeds = [Deed::Answer, Deed::Refuse, Deed::Unavailable];
    for deed in deeds {
        a.facts.act(deed);
        // Whatever it says.
        let _ = hello(&channel).await;
        let _ = hello(&strict).await;
        assert_eq!(channel.in_flight(), 0, "{deed:?}");
    }
    a.facts.act(Deed::Hang);
    let before = a.facts.started();
    let given_up = tokio::spawn({
        let channel = channel.clone();
        async move { hello(&channel).await }
    });
    let mut request = tonic::Request::new(HelloRequest::default());
    request.set_timeout(Duration::from_millis(100));
    let standing = Standing::begin();
    let mut client = GreeterClient::new(channel.clone());
    let late = tokio::spawn(async move { client.hello(request).await });
    within(async {
        while a.facts.started() < before + 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    standing.advance(Duration::from_millis(100)).await;
    let late = within(late).await.expect("no panic");
    standing.end();
    assert_eq!(late.expect_err("it hangs").code(), Code::DeadlineExceeded);
    assert_eq!(channel.in_flight(), 1);
    given_up.abort();
    until("given up is out", || channel.in_flight() == 0).await;
    let killed = tokio::spawn({
        let channel = channel.clone();
        async move { hello(&channel).await }
    });
    until("it is there", || a.facts.started() == before + 3).await;
    a.running.as_ref().expect("it runs").kill();
    killed.await.expect("no panic").expect_err("it died");
    assert_eq!(channel.in_flight(), 0);
}

#[tokio::test]
async fn a_target_that_cannot_be_followed_says_what_to_do() {
    let hub = Hub::new();
    let refused = |target: &str| {
        let error = hub.channel(target).expect_err("it leads nowhere");
        error.to_string()
    };
    let no_service = refused("etcd://127.0.0.1:1");
    let advice = "write etcd://127.0.0.1:1?key=SERVICE";
    assert!(no_service.contains(advice), "{no_service}");
    // The advice is a good one.
    hub.channel("etcd://127.0.0.1:1?key=SERVICE")
        .expect("a target");
    assert!(
        refused("nowhere:///h:1?key=a").contains("etcd"),
        "the known ones are named"
    );
    let unknown = refused("dns:///x:80");
    let says = "no registry for scheme \"dns\"; known here: direct, discov, etcd, memory";
    assert_eq!(unknown, says);
    assert!(refused("just-a-name").contains("port"));
    assert!(refused("https://h:443").contains("TLS"));
    assert!(refused("").len() > 10);
}

#[tokio::test]
async fn what_is_no_method_is_not_idempotent() {
    let build = |path: &str| {
        let builder = Hub::new().channel_builder("127.0.0.1:1");
        builder.idempotent(HELLO).idempotent(path).build()
    };
    for wrong in [
        "Hello",
        "",
        "/",
        "/Hello",
        "greeter.v1.Greeter/Hello",
        "/greeter.v1.Greeter/",
        "//Hello",
        "/greeter.v1.Greeter/Say Hello",
        "http://h/greeter.v1.Greeter/Hello",
    ] {
        let error = build(wrong).expect_err("it never matches").to_string();
        let says =
            format!("{wrong:?} is not the path of a method; write .idempotent(\"/package.Service/");
        assert!(error.starts_with(&says), "{error}");
    }
    for right in [HELLO, "/Greeter/Hello", "/v2/greeter.v1.Greeter/Hello"] {
        build(right).expect("a path of a method");
    }
}

#[tokio::test]
async fn r27_one_that_says_unavailable_at_once_gets_few_calls() {
    let nodes = [
        Node::start("a", None).await,
        Node::start("b", None).await,
        Node::start("c", None).await,
    ];
    let target = direct(&nodes.each_ref().map(|node| node.address));
    let channel = Hub::new().channel(&target).expect("a target");
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < nodes.len() {
        seen.insert(hello(&channel).await.expect("all serve"));
    }
    nodes[0].facts.act(Deed::Unavailable);
    let mut failed = 0;
    // It begins to count as failing after six failures.
    while failed < 6 {
        failed += u32::from(hello(&channel).await.is_err());
    }
    // From here on at most one trial each second, and some that meet it.
    let before = nodes[0].facts.started();
    let seconds = tokio::time::Instant::now();
    for _ in 0..300 {
        let _ = hello(&channel).await;
    }
    let trials = seconds.elapsed().as_secs() + 1;
    let more = u64::from(nodes[0].facts.started() - before);
    assert!(more <= trials, "{more} of 300 in {trials} s");
    // Well again, it is found by the next trial.
    nodes[0].facts.act(Deed::Answer);
    let found = async { while hello(&channel).await.as_deref().ok() != Some("a") {} };
    timeout(SOON, found).await.expect("it is tried again");
}

#[tokio::test]
async fn r22_a_deadline_that_passes_names_the_instance() {
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = tokio::net::TcpListener::bind(any).await.expect("a port");
    let address = listener.local_addr().expect("bound");
    // Does not look at the deadline, as tonic's server does.
    let _server = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
        let (socket, _) = listener.accept().await.expect("a caller");
        let mut connection = h2::server::handshake(socket).await.expect("HTTP/2");
        let mut held = Vec::new();
        while let Some(call) = connection.accept().await {
            held.push(call.expect("a call"));
        }
    }));
    let builder = Hub::new().channel_builder(&direct(&[address]));
    let channel = builder.health(false).build().expect("a target");
    ready(&channel).await;
    let mut request = tonic::Request::new(HelloRequest::default());
    request.set_timeout(Duration::from_millis(300));
    let status = GreeterClient::new(channel).hello(request).await;
    let status = status.expect_err("it hangs");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().contains(&address.to_string()), "{status}");
}

#[tokio::test]
async fn r22_a_deadline_that_passes_within_an_answer_names_the_instance() {
    let (listener, address) = crate::raw::listen().await;
    let _server = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
        let mut peer = crate::raw::Peer::ready(&listener, &[]).await;
        let stream = peer.request().await;
        peer.head(stream).await;
        peer.rest().await
    }));
    let builder = Hub::new().channel_builder(&direct(&[address]));
    let channel = builder.health(false).build().expect("a target");
    ready(&channel).await;
    let mut request = tonic::Request::new(HelloRequest::default());
    request.set_timeout(Duration::from_millis(300));
    let status = GreeterClient::new(channel).hello(request).await;
    let status = status.expect_err("its message never comes");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    let read = format!("while it read the answer of {address}");
    assert!(status.message().contains(&read), "{status}");
}
