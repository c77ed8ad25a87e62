//! What stands in etcd, to the byte, and who reads what.

use super::help::{Publisher, Watcher, etcdctl, on_both, present, registration, registry, stored};
use lameduck_core::instance::{Incarnation, Instance};
use lameduck_core::registry::{Entry, Update, Want};
use std::net::SocketAddr;
use std::time::Duration;

on_both!(keys_and_values_are_literal_and_share_a_lease);

async fn keys_and_values_are_literal_and_share_a_lease(address: SocketAddr) {
    let registry = registry(address);
    let services = ["t.rpc", "grp/svc"];
    let mut publisher = Publisher::new(&registry, registration(&services, "10.0.0.1:8080", 0xab));
    publisher.reach(present(0xab, 0)).await;
    assert!(publisher.status.registered && publisher.status.metadata);

    let all = stored(address, "");
    let shadow = all.keys().find(|key| key.starts_with("t.rpc/"));
    let lease: i64 = shadow.expect("go-zero's key")[6..]
        .parse()
        .expect("decimal");
    let record = concat!(
        r#"{"v":1,"address":"10.0.0.1:8080","#,
        r#""life":{"boot":"000000000000000000000000000000ab","epoch":0},"#,
        r#""state":"serving","ready":true,"weight":100,"zone":"","version":"","#,
        r#""labels":{},"protocols":["grpc"]}"#
    );
    let expected = [
        (format!("_lameduck/v1/instance/grp%2Fsvc/{lease}"), record),
        (format!("_lameduck/v1/instance/t.rpc/{lease}"), record),
        (format!("grp/svc/{lease}"), "10.0.0.1:8080"),
        (format!("t.rpc/{lease}"), "10.0.0.1:8080"),
    ];
    let expected = expected.map(|(key, value)| (key, value.to_owned()));
    assert_eq!(all.into_iter().collect::<Vec<_>>(), expected);

    let id = format!("{lease:x}");
    let kept = etcdctl(address, &["lease", "timetolive", &id, "--keys"]);
    assert!(kept.contains("granted with TTL(5s)"), "{kept}");
    assert!(
        expected.iter().all(|(key, _)| kept.contains(key.as_str())),
        "{kept}"
    );

    publisher.reach(Want::Closing).await;
    let all: Vec<_> = stored(address, "").into_iter().collect();
    let closing = record
        .replace("\"serving\"", "\"closing\"")
        .replace("\"ready\":true", "\"ready\":false");
    let expected = [
        (
            format!("_lameduck/v1/instance/grp%2Fsvc/{lease}"),
            closing.clone(),
        ),
        (format!("_lameduck/v1/instance/t.rpc/{lease}"), closing),
    ];
    assert_eq!(all, expected);

    publisher.reach(Want::Gone).await;
    assert!(stored(address, "").is_empty());
    let leases = etcdctl(address, &["lease", "list"]);
    assert!(!leases.contains(&id), "{leases}");
}

on_both!(a_watcher_sees_every_step_of_a_life);

async fn a_watcher_sees_every_step_of_a_life(address: SocketAddr) {
    let registry = registry(address);
    let mut watcher = Watcher::new(&registry, "orders");
    watcher.next().await;
    assert!(watcher.entries.is_empty());
    let mut publisher = Publisher::new(&registry, registration(&["orders"], "10.0.0.1:80", 1));
    publisher.want(present(1, 0));
    watcher.until_shown(&["10.0.0.1:80 epoch 0"]).await;
    publisher.reach(Want::Closing).await;
    watcher.until_shown(&["10.0.0.1:80 epoch 0 closing"]).await;
    publisher.want(present(1, 1));
    let resumed = "10.0.0.1:80 epoch 1".to_owned();
    watcher
        .until(|watcher| watcher.show().contains(&resumed))
        .await;
    watcher.until_shown(&["10.0.0.1:80 epoch 1"]).await;
    publisher.want(Want::Gone);
    watcher.until_shown(&[]).await;
    // One update a step (or one for two, where we look late): no shadow ever came between. A key whose
    // record is late by more than `FOREIGN_AFTER` counts as somebody else's until then, and is none.
    let of_lives = watcher.updates.iter().filter(|update| !is_foreign(update));
    assert!(of_lives.count() <= 6, "{:?}", watcher.updates);
}

/// Whether it tells of nothing but keys without a record of ours.
fn is_foreign(update: &Update) -> bool {
    let Update::Delta {
        changed, removed, ..
    } = update
    else {
        return false;
    };
    let lease = |entry: &Entry| matches!(entry.instance.incarnation, Incarnation::Lease(_));
    removed.is_empty() && !changed.is_empty() && changed.iter().all(lease)
}

on_both!(foreign_keys_are_instances_too);

async fn foreign_keys_are_instances_too(address: SocketAddr) {
    let registry = registry(address);
    etcdctl(address, &["put", "orders/7", "10.0.0.7:80"]);
    let mut watcher = Watcher::new(&registry, "orders");
    watcher.next().await;
    assert_eq!(watcher.show(), ["10.0.0.7:80 Revision(2)"]);
    let granted = etcdctl(address, &["lease", "grant", "60"]);
    let lease = granted.split(' ').nth(1).expect("a lease id");
    let number = i64::from_str_radix(lease, 16).expect("hexadecimal");
    let option = format!("--lease={lease}");
    let key = format!("orders/{number}");
    etcdctl(address, &["put", &option, &key, "10.0.0.8:80"]);
    let both = ["10.0.0.7:80 Revision(2)", "10.0.0.8:80 foreign"];
    watcher.until_shown(&both).await;
    // B2: another value under the same key is seen, and nothing is lost on the way.
    etcdctl(address, &["put", &option, &key, "10.0.0.9:80"]);
    let both = ["10.0.0.7:80 Revision(2)", "10.0.0.9:80 foreign"];
    watcher.until_shown(&both).await;
    etcdctl(address, &["lease", "revoke", lease]);
    watcher.until_shown(&["10.0.0.7:80 Revision(2)"]).await;
}

on_both!(two_leases_at_one_address_are_two_lives);

async fn two_leases_at_one_address_are_two_lives(address: SocketAddr) {
    let registry = registry(address);
    let mut old = Publisher::new(&registry, registration(&["orders"], "10.0.0.1:80", 1));
    let mut new = Publisher::new(&registry, registration(&["orders"], "10.0.0.1:80", 2));
    old.reach(present(1, 0)).await;
    new.reach(present(2, 0)).await;
    let mut watcher = Watcher::new(&registry, "orders");
    let line = "10.0.0.1:80 epoch 0";
    watcher.until_shown(&[line, line]).await;
    old.reach(Want::Gone).await;
    watcher.until_shown(&[line]).await;
}

on_both!(a_thousand_instances_and_a_hundred_services);

async fn a_thousand_instances_and_a_hundred_services(address: SocketAddr) {
    // A TTL that no load on this machine outlasts.
    let registry = registry(address).with_lease_ttl(Duration::from_secs(60));
    // More services than one transaction takes.
    let names: Vec<String> = (0..100).map(|n| format!("s{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut many = Publisher::new(&registry, registration(&names, "10.0.0.1:80", 1));
    many.reach(present(1, 0)).await;
    assert_eq!(stored(address, "").len(), 200);
    many.reach(Want::Closing).await;
    assert_eq!(stored(address, "").len(), 100);
    many.reach(Want::Gone).await;

    let mut watcher = Watcher::new(&registry, "big");
    let mut publishers = Vec::new();
    for n in 0..1_000_u32 {
        let address = format!("10.1.{}.{}:80", n / 250, n % 250 + 1);
        let registration = registration(&["big"], &address, u128::from(n));
        let mut publisher = Publisher::new(&registry, registration);
        publisher.want(present(u128::from(n), 0));
        publishers.push(publisher);
    }
    // Where a record comes more than 100 ms after its key, on a loaded machine, the instance is a
    // foreign one until then.
    let ours = |instance: &Instance| matches!(instance.incarnation, Incarnation::Life(_));
    let all = |watcher: &Watcher| watcher.entries.values().filter(|i| ours(i)).count() == 1_000;
    watcher.until(all).await;
    let mut late = Watcher::new(&registry, "big");
    late.next().await;
    let differs = late
        .entries
        .iter()
        .find(|(id, instance)| watcher.entries.get(id) != Some(*instance));
    assert_eq!((late.entries.len(), differs), (1_000, None));
    for publisher in &mut publishers {
        publisher.want(Want::Gone);
    }
    watcher.until_shown(&[]).await;
}
