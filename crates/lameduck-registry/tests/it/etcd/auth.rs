//! An etcd that asks who is there.

use super::help::{Publisher, Watcher, etcdctl, present, real_etcd, registration};
use lameduck_core::registry::Want;
use lameduck_registry::etcd::process::Process;
use lameduck_registry::etcd::{Client, Etcd};

/// Lets `app` do everything below `prefix`, and nothing else.
fn limit(etcd: &Process, prefix: &str) {
    let address = etcd.address();
    etcdctl(address, &["user", "add", "root:secret"]);
    etcdctl(address, &["role", "add", "app"]);
    let grant = [
        "role",
        "grant-permission",
        "app",
        "--prefix=true",
        "readwrite",
        prefix,
    ];
    etcdctl(address, &grant);
    etcdctl(address, &["user", "add", "app:word"]);
    etcdctl(address, &["user", "grant-role", "app", "app"]);
    etcdctl(address, &["user", "grant-role", "root", "root"]);
    etcdctl(address, &["auth", "enable"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_limited_to_the_service_publishes_and_reads_foreign_keys() {
    let Some(etcd) = real_etcd("a_role_limited_to_the_service_publishes_and_reads_foreign_keys")
    else {
        return;
    };
    limit(&etcd, "orders/");
    let client = Client::new(vec![etcd.address().into()]);
    let anonymous = Etcd::new(client.clone());
    let mut refused = Publisher::new(&anonymous, registration(&["orders"], "10.0.0.1:80", 1));
    refused.want(present(1, 0));
    refused.until(|status| status.error.is_some()).await;

    let registry = Etcd::new(client.with_login("app", "word"));
    let mut publisher = Publisher::new(&registry, registration(&["orders"], "10.0.0.2:80", 2));
    publisher.reach(present(2, 0)).await;
    assert!(publisher.status.registered && !publisher.status.metadata);
    let mut watcher = Watcher::new(&registry, "orders");
    watcher.until_shown(&["10.0.0.2:80 foreign"]).await;
    assert!(!watcher.is_stale());
    publisher.reach(Want::Closing).await;
    watcher.until_shown(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c16_tokens_vanish_when_etcd_restarts() {
    let Some(mut etcd) = real_etcd("c16_tokens_vanish_when_etcd_restarts") else {
        return;
    };
    limit(&etcd, "");
    let client = Client::new(vec![etcd.address().into()]).with_login("app", "word");
    let registry = Etcd::new(client);
    let mut publisher = Publisher::new(&registry, registration(&["orders"], "10.0.0.1:80", 1));
    let mut watcher = Watcher::new(&registry, "orders");
    publisher.reach(present(1, 0)).await;
    watcher.until_shown(&["10.0.0.1:80 epoch 0"]).await;
    etcd.kill().expect("killed");
    watcher.until(Watcher::is_stale).await;
    etcd.restart().expect("started again");
    watcher.until(|watcher| !watcher.is_stale()).await;
    publisher.reach(Want::Closing).await;
    watcher.until_shown(&["10.0.0.1:80 epoch 0 closing"]).await;
    assert!(!watcher.is_stale());
    let shown = format!("{registry:?}");
    assert!(!shown.contains("word"), "{shown}");
}
