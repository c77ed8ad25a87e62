//! Leaving, being forgotten, and what is left of what was dropped.

use std::net::SocketAddr;
use std::time::Duration;

use super::help::service;
use super::help::{
    Publisher, Watcher, etcdctl, on_both, present, real_etcd, registration, registry, stored,
};
use lameduck_core::registry::{Registry, Want};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

on_both!(what_is_dropped_ends_its_tasks);

async fn what_is_dropped_ends_its_tasks(address: SocketAddr) {
    let before = Handle::current().metrics().num_alive_tasks();
    let registry = registry(address);
    let mut publisher = Publisher::new(&registry, registration(&["orders"], "10.0.0.1:80", 1));
    publisher.reach(present(1, 0)).await;
    let mut watcher = Watcher::new(&registry, "orders");
    watcher.until_shown(&["10.0.0.1:80 epoch 0"]).await;
    drop((publisher, registry.subscribe(&service("orders"))));
    // Nobody renews the lease any more: what is published lapses by itself.
    watcher.until_shown(&[]).await;
    assert!(stored(address, "").is_empty());
    drop((watcher, registry));
    let ended = async {
        while Handle::current().metrics().num_alive_tasks() > before {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let ended = timeout(Duration::from_secs(20), ended).await;
    assert!(
        ended.is_ok(),
        "{} tasks",
        Handle::current().metrics().num_alive_tasks()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_without_an_etcd_ends_at_the_ttl() {
    let Some(mut etcd) = real_etcd("leaving_without_an_etcd_ends_at_the_ttl") else {
        return;
    };
    let registry = registry(etcd.address());
    let mut publisher = Publisher::new(&registry, registration(&["orders"], "10.0.0.1:80", 1));
    publisher.reach(present(1, 0)).await;
    etcd.kill().expect("killed");
    let begun = Instant::now();
    publisher.reach(Want::Gone).await;
    assert!(
        begun.elapsed() < Duration::from_secs(6),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_limited_to_the_service_publishes_and_reads_foreign_keys() {
    let Some(etcd) = real_etcd("a_role_limited_to_the_service_publishes_and_reads_foreign_keys")
    else {
        return;
    };
    let address = etcd.address();
    etcdctl(address, &["user", "add", "root:secret"]);
    etcdctl(address, &["role", "add", "orders"]);
    let grant = [
        "role",
        "grant-permission",
        "orders",
        "--prefix=true",
        "readwrite",
        "orders/",
    ];
    etcdctl(address, &grant);
    etcdctl(address, &["user", "add", "app:word"]);
    etcdctl(address, &["user", "grant-role", "app", "orders"]);
    etcdctl(address, &["user", "grant-role", "root", "root"]);
    etcdctl(address, &["auth", "enable"]);

    let client = lameduck_registry::etcd::Client::new(vec![address.into()]);
    let anonymous = lameduck_registry::etcd::Etcd::new(client.clone());
    let mut refused = Publisher::new(&anonymous, registration(&["orders"], "10.0.0.1:80", 1));
    refused.want(present(1, 0));
    refused.until(|status| status.error.is_some()).await;

    let registry = lameduck_registry::etcd::Etcd::new(client.with_login("app", "word"));
    let mut publisher = Publisher::new(&registry, registration(&["orders"], "10.0.0.2:80", 2));
    publisher.reach(present(2, 0)).await;
    assert!(publisher.status.registered && !publisher.status.metadata);
    let mut watcher = Watcher::new(&registry, "orders");
    watcher.until_shown(&["10.0.0.2:80 foreign"]).await;
    assert!(!watcher.is_stale());
    publisher.reach(Want::Closing).await;
    watcher.until_shown(&[]).await;
}

on_both!(readiness_changes_are_seen_and_paced);

async fn readiness_changes_are_seen_and_paced(address: SocketAddr) {
    let registry = registry(address);
    let mut publisher = Publisher::new(&registry, registration(&["orders"], "10.0.0.1:80", 1));
    let mut watcher = Watcher::new(&registry, "orders");
    publisher.reach(present(1, 0)).await;
    let begun = Instant::now();
    let Want::Present { life, .. } = present(1, 0) else {
        unreachable!("present is present")
    };
    publisher.want(Want::Present { life, ready: false });
    publisher.want(present(1, 0));
    publisher.want(Want::Present { life, ready: false });
    watcher
        .until(|watcher| watcher.entries.values().any(|instance| !instance.ready))
        .await;
    assert!(
        begun.elapsed() > Duration::from_millis(900),
        "{:?}",
        begun.elapsed()
    );
}
