//! In this process: registry, health, hold and resume, hooks, budget.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::poll_fn;
use lameduck::Provider;
use lameduck::core::event::{Event, Phase};
use lameduck::core::instance::State;
use lameduck::core::registry::{Registry, Subscription, Update};
use lameduck::env::{Environment, PodIp};
use lameduck::health::ServingStatus;
use lameduck::provider::{Builder, Problem};
use lameduck_registry::direct::Direct;
use lameduck_registry::memory::Memory;

use crate::serve::start::within;

const SOON: Duration = Duration::from_secs(20);

fn builder() -> Builder {
    Provider::builder("orders")
        .listen("127.0.0.1:0")
        .signals(false)
}

/// Waits until the one registration there looks like this; `None`: there is none.
async fn until(list: &mut dyn Subscription, ends: impl Fn(Option<(State, bool)>) -> bool) {
    let mut known = std::collections::BTreeMap::new();
    let looking = async {
        loop {
            match poll_fn(|context| list.poll_update(context)).await {
                Some(Update::Reset { entries, .. }) => {
                    known = entries
                        .into_iter()
                        .map(|entry| (entry.id, entry.instance))
                        .collect();
                }
                Some(Update::Delta {
                    changed, removed, ..
                }) => {
                    removed.iter().for_each(|id| drop(known.remove(id)));
                    known.extend(changed.into_iter().map(|entry| (entry.id, entry.instance)));
                }
                _ => continue,
            }
            if ends(known.values().next_back().map(|one| (one.state, one.ready))) {
                return;
            }
        }
    };
    tokio::time::timeout(SOON, looking)
        .await
        .expect("the registry shows it");
}

#[tokio::test]
async fn published_while_serving_closing_before_it_leaves_gone_after() {
    let memory = Arc::new(Memory::new());
    let registry: Arc<dyn Registry> = memory.clone();
    let service = "orders".parse().expect("a name");
    let mut list = registry.subscribe(&service);
    let provider = builder()
        .registry_with(registry.clone(), "memory")
        .build()
        .expect("it builds");
    let handle = provider.handle();
    let running = tokio::spawn(provider.run());
    until(&mut *list, |seen| seen == Some((State::Serving, true))).await;
    assert_eq!(handle.phase(), Phase::Serving);
    assert!(handle.stop("enough").await);
    assert!(handle.stop("again").await, "it is the same stop");
    handle.closing().await;
    let mut again = registry.subscribe(&service);
    until(&mut *again, |seen| {
        seen.is_none_or(|(state, _)| state == State::Closing)
    })
    .await;
    let report = running.await.expect("no panic");
    assert_eq!((report.exit_code(), report.abandoned), (0, 0), "{report}");
    let before_the_floor = report
        .deregistered
        .is_some_and(|took| took < report.closing);
    assert!(before_the_floor, "{:?} {report}", report.deregistered);
    let mut after = registry.subscribe(&service);
    until(&mut *after, |seen| seen.is_none()).await;
    assert!(!handle.stop("too late").await);
}

#[tokio::test]
async fn a_held_drain_comes_back_as_the_next_life() {
    let memory: Arc<dyn Registry> = Arc::new(Memory::new());
    let service = "orders".parse().expect("a name");
    let mut list = memory.subscribe(&service);
    let provider = builder()
        .registry_with(memory.clone(), "memory")
        .build()
        .expect("it builds");
    let handle = provider.handle();
    let running = tokio::spawn(provider.run());
    until(&mut *list, |seen| seen == Some((State::Serving, true))).await;
    let first = handle.life();
    assert!(!handle.resume().await);
    assert!(handle.hold().await);
    assert_eq!(
        handle.health().status("orders"),
        Some(ServingStatus::NotServing)
    );
    until(&mut *list, |seen| {
        seen.is_none_or(|(state, _)| state == State::Closing)
    })
    .await;
    assert!(handle.resume().await);
    assert_eq!(handle.life(), first.resumed());
    until(&mut *list, |seen| seen == Some((State::Serving, true))).await;
    assert_eq!(
        handle.health().status("orders"),
        Some(ServingStatus::Serving)
    );
    assert!(handle.stop("done").await);
    let report = running.await.expect("no panic");
    assert_eq!(
        (report.life, report.exit_code()),
        (first.resumed(), 0),
        "{report}"
    );
}

#[tokio::test]
async fn c07_not_ready_until_the_end_whatever_is_said() {
    let provider = builder().build().expect("it builds");
    let handle = provider.handle();
    let running = tokio::spawn(provider.run());
    handle.serving().await;
    handle.health().set("orders.v1", ServingStatus::Serving);
    assert_eq!(
        handle.health().status("orders.v1"),
        Some(ServingStatus::Serving)
    );
    assert!(handle.hold().await);
    for name in ["orders.v1", "orders", ""] {
        handle.health().set(name, ServingStatus::NotServing);
        handle.health().set(name, ServingStatus::Serving);
        assert_eq!(
            handle.health().status(name),
            Some(ServingStatus::NotServing)
        );
    }
    handle.health().set("orders.v1", ServingStatus::NotServing);
    assert!(handle.resume().await);
    assert_eq!(
        handle.health().status("orders"),
        Some(ServingStatus::Serving)
    );
    assert_eq!(
        handle.health().status("orders.v1"),
        Some(ServingStatus::NotServing)
    );
    handle.stop("done").await;
    running.await.expect("no panic");
}

#[tokio::test]
async fn hooks_run_in_order_and_none_of_them_holds_the_stop() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let order = Arc::clone(&order);
        move || {
            order.lock().expect("no panic").push(name);
            async { Ok(()) }
        }
    };
    let provider = builder()
        .floor(Duration::ZERO)
        .quiet(Duration::ZERO)
        .budget(Duration::from_secs(3))
        .hook("first", note("first"))
        .hook("fails", async || Err("no".into()))
        .hook("panics", async || panic!("on purpose"))
        .hook("hangs", std::future::pending)
        .hook("last", note("last"))
        .build()
        .expect("it builds");
    let handle = provider.handle();
    handle.stop("before it runs");
    // Without end where the hook that hangs was waited for.
    let report = within(provider.run()).await;
    assert_eq!(*order.lock().expect("no panic"), ["first", "last"]);
    let left = Problem::HookLeft {
        name: "hangs".to_owned(),
    };
    assert!(report.problems.contains(&left), "{report}");
    assert_eq!(report.problems.len(), 3, "{report}");
    assert_eq!(report.exit_code(), 10);
}

#[tokio::test]
async fn phases_are_events_in_order() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let provider = builder()
        .floor(Duration::from_millis(50))
        .quiet(Duration::from_millis(50))
        .on_event(Arc::new(move |event: &Event| {
            if let Event::PhaseEntered { phase, .. } = event {
                notes.lock().expect("no panic").push(*phase);
            }
        }))
        .build()
        .expect("it builds");
    let handle = provider.handle();
    let running = tokio::spawn(provider.run());
    handle.serving().await;
    handle.stop("done");
    running.await.expect("no panic");
    let expected = [
        Phase::Serving,
        Phase::Closing,
        Phase::Draining,
        Phase::Stopped,
    ];
    assert_eq!(*seen.lock().expect("no panic"), expected);
}

#[tokio::test]
async fn c04_no_closing_at_all_is_said_once() {
    let said = Arc::new(Mutex::new(0));
    let notes = Arc::clone(&said);
    let provider = builder()
        .floor(Duration::ZERO)
        .quiet(Duration::ZERO)
        .on_event(Arc::new(move |event: &Event| {
            *notes.lock().expect("no panic") += u32::from(matches!(event, Event::NoClosing { .. }));
        }))
        .build()
        .expect("it builds");
    let handle = provider.handle();
    let running = tokio::spawn(provider.run());
    handle.serving().await;
    handle.stop("done");
    running.await.expect("no panic");
    assert_eq!(*said.lock().expect("no panic"), 1);
}

#[tokio::test]
async fn what_cannot_work_is_refused_before_it_starts() {
    let refused = |builder: Builder| {
        let error = builder.build().expect_err("it cannot work");
        (error.exit_code(), error.to_string())
    };
    let wrong_pod_ip = Environment {
        pod_ip: PodIp::NoIp("nonsense".to_owned()),
        in_cluster: false,
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    for (builder, code, says) in [
        (Provider::builder("orders"), 2, ".listen("),
        (Provider::builder("a b\n").listen("127.0.0.1:0"), 2, "a b"),
        (
            Provider::builder("orders").listen("nowhere"),
            2,
            "address \"nowhere\": no port; write host:port; say .listen(",
        ),
        (
            Provider::builder("orders").listen("no.such.host.invalid:80"),
            12,
            "cannot be looked up",
        ),
        (
            Provider::builder("orders").listen(&address),
            12,
            "; choose another port, or stop who holds it",
        ),
        (builder().registry("gopher://127.0.0.1:1"), 2, "gopher"),
        (builder().floor(Duration::from_secs(30)), 2, "floor of 30s"),
        (
            builder().registry("etcd://192.0.2.1:2379"),
            2,
            ".advertise(",
        ),
        (
            Provider::builder("orders")
                .listen("0.0.0.0:0")
                .registry("etcd://127.0.0.1:1")
                .environment(wrong_pod_ip),
            2,
            "no address to publish in etcd://127.0.0.1:1: the environment variable POD_IP is \"nonsense\", \
             which is no IP address; correct it, unset it, or say .advertise(\"host:port\")",
        ),
        (
            builder().registry("127.0.0.1:23790"),
            2,
            "registry \"127.0.0.1:23790\" is a list of addresses, in which nobody can be published; write \
             one that takes registrations, like \"etcd://127.0.0.1:23790\", or",
        ),
        (
            builder().registry("direct:///a:1"),
            2,
            "registry \"direct:///a:1\" is a list of addresses",
        ),
        (
            builder().registry_with(Arc::new(Direct::new([])), "fixed"),
            2,
            "registry \"fixed\" is a list of addresses",
        ),
        (
            builder().registry("etcd:///127.0.0.1:1?key=stock"),
            2,
            "it names service \"stock\", but this process serves orders; write etcd://127.0.0.1:1 and",
        ),
        (
            builder()
                .service("stock")
                .registry("etcd:///127.0.0.1:1?key=stock"),
            2,
            "but this process serves orders,stock",
        ),
    ] {
        let (got, text) = refused(builder.signals(false));
        assert_eq!(got, code, "{text}");
        assert!(text.contains(says), "{text}");
    }
    let own = builder().registry("etcd:///127.0.0.1:1?key=orders");
    own.build()
        .expect("the service is named twice, that is all");
}
