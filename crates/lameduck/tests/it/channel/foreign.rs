//! Code of others on the caller's side: observers, resolvers, registries that panic.

use std::task::{Context, Poll};

use lameduck::core::registry::{Publication, Registration, Subscription, Update};

use axum::extract::Request;
use axum::middleware::{Next, from_fn};

use super::node::{self, Facts, Node, life};
use super::*;
use crate::tonic_server;

#[tokio::test]
async fn r11_an_observer_that_panics_freezes_no_directory() {
    let (one, two) = (
        Node::start("one", Some(life(1))).await,
        Node::start("two", Some(life(2))).await,
    );
    let memory = Memory::new();
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let hub = Hub::builder().on_event(Arc::new(move |_: &Event| {
        *counted.lock().expect("no panic under it") += 1;
        panic!("an index out of range");
    }));
    let seen = Arc::new(Mutex::new(0));
    let notes = Arc::clone(&seen);
    let hub = hub.on_event(Arc::new(move |_: &Event| {
        *notes.lock().expect("no panic") += 1;
    }));
    let hub = hub.build();
    register(&memory, 1, one.address, life(1));
    let channel = in_memory(&hub, &memory).build().expect("a service");
    assert_eq!(hello(&channel).await.expect("it serves"), "one");
    // Registered after the panic, and used; withdrawn, and used no more.
    register(&memory, 2, two.address, life(2));
    memory.withdraw(&orders(), EntryId(1));
    let asked = async { while hello(&channel).await.expect("it serves") != "two" {} };
    timeout(SOON, asked).await.expect("the directory lives");
    assert_eq!(*calls.lock().expect("no panic under it"), 1);
    assert!(*seen.lock().expect("no panic") > 1);
}

#[tokio::test]
async fn r11_b_a_resolver_that_panics_has_not_found_the_name() {
    let node = Node::start("one", None).await;
    let (address, counted) = (node.address, Mutex::new(0));
    let hub = Hub::builder().lookup(Arc::new(move |_, _| {
        let count = {
            let mut count = counted.lock().expect("no panic under it");
            *count += 1;
            *count
        };
        assert!(count != 1, "at once");
        Box::pin(async move {
            assert!(count != 2, "later");
            Ok(vec![address])
        })
    }));
    let channel = hub.build().channel("orders.test:80").expect("a target");
    assert_eq!(hello(&channel).await.expect("it is asked again"), "one");
}

/// Reads nothing, and panics.
#[derive(Debug)]
struct Brittle;

struct BrittleSubscription;

impl Registry for Brittle {
    fn propagation(&self) -> Duration {
        Duration::ZERO
    }

    fn publish(&self, _: Registration) -> Box<dyn Publication> {
        unreachable!("nobody serves")
    }

    fn subscribe(&self, _: &ServiceName) -> Box<dyn Subscription> {
        Box::new(BrittleSubscription)
    }
}

impl Subscription for BrittleSubscription {
    fn poll_update(&mut self, _: &mut Context<'_>) -> Poll<Option<Update>> {
        panic!("no page")
    }
}

#[tokio::test]
async fn r11_c_a_registry_that_panics_cannot_be_read_and_says_so() {
    let registry: Arc<dyn Registry> = Arc::new(Brittle);
    let hub = Hub::new();
    let channel = hub.channel_builder_with(registry, orders()).build();
    let failed = hello(&channel.expect("a service")).await;
    let failed = failed.expect_err("nothing is known").to_string();
    assert!(failed.contains("it panicked: no page"), "{failed}");
}

#[tokio::test]
async fn d06_an_instance_of_another_service_is_said_once_and_in_the_error_of_the_call() {
    let log = Log::default();
    let a = Node::start("a", Some(life(1))).await;
    a.facts.serve_instead("test");
    let memory = Memory::new();
    register(&memory, 1, a.address, life(1));
    let hub = log.hub();
    let channel = in_memory(&hub, &memory).build().expect("a service");
    let wrong = |event: &Event| match event {
        Event::WrongService {
            service,
            address,
            serves,
        } => *service == Some(orders()) && *address == a.address.into() && serves == "test",
        _ => false,
    };
    until("it is said", || log.count(wrong) == 1).await;
    for _ in 0..3 {
        let status = hello(&channel).await.expect_err("nobody serves it");
        let says = format!("{} says that it serves test, not orders", a.address);
        assert!(status.message().contains(&says), "{status}");
    }
    assert_eq!(a.facts.started(), 0);
    assert_eq!(log.count(wrong), 1);
}

#[tokio::test]
async fn r7_an_instance_that_lets_nobody_ask_for_its_health_is_used_and_that_is_said_once() {
    for code in ["16", "7", "2", "13", "20"] {
        let log = Log::default();
        let facts = Facts::new("a", Some(life(1)));
        let refuse = move |request: Request, next: Next| async move {
            if request.uri().path().starts_with("/grpc.health") {
                let head = axum::http::Response::builder().header("grpc-status", code);
                let head = head.header("content-type", "application/grpc");
                return head.body(axum::body::Body::empty()).expect("a head");
            }
            next.run(request).await
        };
        let routes = node::router(&facts).layer(from_fn(refuse));
        let (address, _running) = tonic_server::start(routes).await;
        let channel = log.hub().channel(&direct(&[address])).expect("a target");
        for _ in 0..3 {
            assert_eq!(hello(&channel).await.expect("it serves"), "a");
        }
        let said = |event: &Event| matches!(event, Event::HealthRefused { .. });
        assert_eq!(log.count(said), 1, "{code}");
        // Who does not ask is not refused.
        let quiet = Log::default();
        let builder = quiet.hub().channel_builder(&direct(&[address]));
        let channel = builder.health(false).build().expect("a target");
        assert_eq!(hello(&channel).await.expect("it serves"), "a");
        assert_eq!(quiet.count(said), 0);
    }
}
