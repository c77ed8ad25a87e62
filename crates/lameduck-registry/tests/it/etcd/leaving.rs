//! Leaving, being forgotten, and what is left of what was dropped.

use std::net::SocketAddr;
use std::time::Duration;

use super::help::service;
use super::help::{
    Publisher, Watcher, on_both, present, real_etcd, registration, registry, stored,
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
    // When exactly is the session's business, whose tests have a clock of their own.
    publisher.reach(Want::Gone).await;
}

on_both!(readiness_changes_are_seen_and_paced);

async fn readiness_changes_are_seen_and_paced(address: SocketAddr) {
    let registry = registry(address);
    let mut publisher = Publisher::new(&registry, registration(&["orders"], "10.0.0.1:80", 1));
    let mut watcher = Watcher::new(&registry, "orders");
    // The pace counts from the write, which is not before this.
    let begun = Instant::now();
    publisher.reach(present(1, 0)).await;
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
