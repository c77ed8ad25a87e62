//! Cases from the field, by their ids.

use std::net::SocketAddr;
use std::time::Duration;

use super::help::{
    Publisher, WAIT_MAX, Watcher, etcdctl, on_both, present, real_etcd, registration, registry,
    service, stored,
};
use lameduck_core::instance::Incarnation;
use lameduck_core::limits;
use lameduck_core::name::ServiceName;
use lameduck_core::registry::{ErrorClass, PublicationStatus, Want};
use lameduck_etcd_proto::mvccpb::Event;
use lameduck_etcd_proto::mvccpb::event::EventType;
use lameduck_registry::etcd::process::{Process, usable_in};
use lameduck_registry::etcd::{Client, Error};

/// Of the one foreign key of `name`: the lease in its name.
fn lease_of(address: SocketAddr, name: &str) -> Option<i64> {
    let all = stored(address, &format!("{name}/"));
    assert!(all.len() <= 1, "exactly one key: {all:?}");
    let key = all.into_keys().next()?;
    key[name.len() + 1..].parse().ok()
}

on_both!(c15_the_lease_is_gone_and_somebody_registers_again);

async fn c15_the_lease_is_gone_and_somebody_registers_again(address: SocketAddr) {
    let registry = registry(address);
    let mut watcher = Watcher::new(&registry, "orders");
    let mut publisher = Publisher::new(&registry, registration(&["orders"], "10.0.0.1:80", 1));
    publisher.reach(present(1, 0)).await;
    watcher.until_shown(&["10.0.0.1:80 epoch 0"]).await;
    for _ in 0..3 {
        // (d) the lease is revoked by hand.
        let lease = lease_of(address, "orders").expect("registered");
        etcdctl(address, &["lease", "revoke", &format!("{lease:x}")]);
        watcher.until_shown(&[]).await;
        watcher.until_shown(&["10.0.0.1:80 epoch 0"]).await;
        assert_ne!(lease_of(address, "orders"), Some(lease), "a fresh lease");

        // (e) the key alone is deleted by hand: the instance stays listed, its owner mends it.
        let lease = lease_of(address, "orders").expect("registered");
        let client = Client::new(vec![address.into()]);
        let listing = client.list("orders/").await.expect("listed");
        let next = listing.origin.revision + 1;
        let mut keys = client.watch("orders/", next).await.expect("watched");
        let updates = watcher.updates.len();
        etcdctl(address, &["del", &format!("orders/{lease}")]);
        for kind in [EventType::Delete, EventType::Put] {
            let (_, events) = keys.next().await.expect("an event");
            let kinds: Vec<EventType> = events.iter().map(Event::r#type).collect();
            assert_eq!(kinds, [kind], "{events:?}");
        }
        assert_eq!(lease_of(address, "orders"), Some(lease), "the same lease");
        assert_eq!(watcher.updates.len(), updates);
        // The record alone, too.
        etcdctl(
            address,
            &["del", &format!("_lameduck/v1/instance/orders/{lease}")],
        );
        watcher.until_shown(&[]).await;
        watcher.until_shown(&["10.0.0.1:80 epoch 0"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c17_compaction_overtakes_the_watcher() {
    let Some(mut etcd) = real_etcd("c17_compaction_overtakes_the_watcher") else {
        return;
    };
    let address = etcd.address();
    let registry = registry(address);
    for n in 1..=20 {
        etcdctl(
            address,
            &["put", &format!("orders/{n}"), &format!("10.0.0.{n}:80")],
        );
    }
    let mut watcher = Watcher::new(&registry, "orders");
    watcher.until(|watcher| watcher.entries.len() == 20).await;
    let before = watcher.entries.clone();
    // Cut the watcher off: freeze, kill, change behind its back, compact.
    etcd.kill().expect("killed");
    watcher.until(Watcher::is_stale).await;
    assert_eq!(watcher.entries, before, "an error changes nothing");
    etcd.restart().expect("started again");
    for n in 1..=5 {
        etcdctl(address, &["del", &format!("orders/{n}")]);
    }
    for n in 21..=23 {
        etcdctl(
            address,
            &["put", &format!("orders/{n}"), &format!("10.0.0.{n}:80")],
        );
    }
    etcdctl(address, &["put", "orders/20", "10.0.1.20:80"]);
    let status = etcdctl(address, &["endpoint", "status", "--write-out=json"]);
    etcdctl(address, &["compact", &revision_in(&status)]);
    watcher
        .until(|watcher| {
            let moved = watcher
                .show()
                .contains(&"10.0.1.20:80 Revision(21)".to_owned());
            watcher.entries.len() == 18 && moved && !watcher.is_stale()
        })
        .await;
    let same = before
        .iter()
        .filter(|(id, instance)| watcher.entries.get(id) == Some(*instance));
    assert_eq!(same.count(), 14, "nothing else has changed");
    // Between a list and its watch it is told as what it is.
    let client = Client::new(vec![address.into()]);
    let watch = client.watch("orders/", 3).await.map(drop);
    let error = match watch {
        Err(error) => error,
        Ok(()) => client
            .watch("orders/", 3)
            .await
            .expect("opened")
            .next()
            .await
            .expect_err("old"),
    };
    assert_eq!(error, Error::Compacted);
    // It goes on from there.
    etcdctl(address, &["del", "orders/23"]);
    watcher.until(|watcher| watcher.entries.len() == 17).await;
}

on_both!(c20_user_does_not_find_user_admin);

async fn c20_user_does_not_find_user_admin(address: SocketAddr) {
    let registry = registry(address);
    let names = ["a", "ab", "a/b", "a.", "a%2F", "a%2Fb"];
    let mut publishers = Vec::new();
    for (n, name) in (1_u128..).zip(names) {
        let here = format!("10.0.0.{n}:80");
        let mut publisher = Publisher::new(&registry, registration(&[name], &here, n));
        publisher.reach(present(n, 0)).await;
        publishers.push(publisher);
        etcdctl(
            address,
            &["put", &format!("{name}/77"), &format!("10.0.9.{n}:80")],
        );
    }
    etcdctl(address, &["put", "a", "10.0.8.8:80"]);
    for (n, name) in (1..).zip(names) {
        let mut watcher = Watcher::new(&registry, name);
        watcher.next().await;
        watcher.until(|watcher| watcher.entries.len() == 2).await;
        let shown = watcher.show();
        assert_eq!(shown[0], format!("10.0.0.{n}:80 epoch 0"), "{name}");
        assert!(
            shown[1].starts_with(&format!("10.0.9.{n}:80 Revision")),
            "{name}: {shown:?}"
        );
    }
    for bad in ["a/", "/", "_lameduck/v1", "", "a b"] {
        assert!(bad.parse::<ServiceName>().is_err(), "{bad:?}");
    }
}

on_both!(c21_odd_values_in_the_registry);

async fn c21_odd_values_in_the_registry(address: SocketAddr) {
    let registry = registry(address);
    let mut publisher = Publisher::new(&registry, registration(&["orders"], "10.0.0.1:80", 1));
    publisher.reach(present(1, 0)).await;
    let mut watcher = Watcher::new(&registry, "orders");
    watcher.until_shown(&["10.0.0.1:80 epoch 0"]).await;
    let large = "x".repeat(100_000);
    let odd = [
        "grpc://h:1",
        "{\"Addr\":\"h:0\"}",
        "h:0",
        "h:70000",
        "h",
        "",
        &large,
        "0.0.0.0:9000",
        "[::]:1",
    ];
    for (n, value) in odd.iter().enumerate() {
        etcdctl(address, &["put", "--", &format!("orders/{n}"), value]);
    }
    let own = lease_of_own(address);
    // Our record malformed: the instance counts as foreign. Under a lease that is not the key's, too.
    etcdctl(
        address,
        &["put", "_lameduck/v1/instance/orders/78", "{\"v\":1"],
    );
    etcdctl(address, &["put", "orders/78", " 10.0.0.78:80\n"]);
    watcher.until(|watcher| watcher.entries.len() == 2).await;
    let foreign = watcher.entries.values().any(|instance| {
        instance.address.to_string() == "10.0.0.78:80"
            && matches!(instance.incarnation, Incarnation::Revision(_))
    });
    assert!(foreign, "{:?}", watcher.show());
    // A record is read by a watch of its own.
    let counted = async {
        while registry.malformed() < odd.len() as u64 + 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let counted = tokio::time::timeout(WAIT_MAX, counted).await;
    assert!(counted.is_ok(), "{} are counted", registry.malformed());
    // One turns good, one is deleted: both work by key.
    etcdctl(address, &["put", "orders/3", "[2001:DB8::7]:443"]);
    watcher.until(|watcher| watcher.entries.len() == 3).await;
    for n in 0..odd.len() {
        etcdctl(address, &["del", &format!("orders/{n}")]);
    }
    etcdctl(address, &["del", "orders/78"]);
    watcher.until_shown(&["10.0.0.1:80 epoch 0"]).await;
    assert_eq!(lease_of_own(address), own, "the good one was left alone");
    // Who cannot be dialled is not published.
    let wildcard = registration(&["orders"], "0.0.0.0:80", 3);
    let mut refused = Publisher::new(&registry, wildcard);
    refused.want(present(3, 0));
    refused.until(|status| status.error.is_some()).await;
    let error = refused.status.error.as_ref().map(ToString::to_string);
    assert!(error.is_some_and(|error| error.contains("wildcard")));
    drop(service("orders"));
}

on_both!(c21_what_is_skipped_is_said_once);

async fn c21_what_is_skipped_is_said_once(address: SocketAddr) {
    let registry = registry(address);
    let mut publisher = Publisher::new(&registry, registration(&["orders"], "10.0.0.1:80", 1));
    publisher.reach(present(1, 0)).await;
    let record = "_lameduck/v1/instance/orders";
    let (_, good) = stored(address, record).pop_first().expect("a record");
    etcdctl(address, &["put", "orders/1", "h:0"]);
    etcdctl(address, &["put", &format!("{record}/78"), "{\"v\":1"]);
    etcdctl(address, &["put", &format!("{record}/79"), &good]);
    let mut watcher = Watcher::new(&registry, "orders");
    watcher.until(|watcher| watcher.skipped().len() == 3).await;
    // The same value again, and then another one that is as bad.
    etcdctl(address, &["put", "orders/1", "h:0"]);
    etcdctl(address, &["put", "orders/1", "nonsense"]);
    watcher.until(|watcher| watcher.skipped().len() == 4).await;
    let said = watcher.skipped();
    let says = |key: &str, why: &str| {
        let begin = format!("key \"{key}\": ");
        let mut said = said.iter();
        said.any(|line| line.starts_with(&begin) && line.contains(why))
    };
    let all = says("orders/1", "value \"h:0\": port 0 cannot be dialled")
        && says(&format!("{record}/78"), "record \"{\\\"v\\\":1\": EOF")
        && says(&format!("{record}/79"), "lease 0")
        && says("orders/1", "value \"nonsense\": ");
    assert!(all, "{said:#?}");
    assert_eq!(watcher.show(), ["10.0.0.1:80 epoch 0"]);
    // There are more than anybody wants to read; what is good is found all the same.
    for n in 100..100 + limits::SKIPPED_TOLD_MAX {
        etcdctl(address, &["put", &format!("orders/{n}"), "nonsense"]);
    }
    etcdctl(address, &["put", "orders/2", "10.0.0.2:80"]);
    watcher
        .until(|watcher| {
            let all = watcher.skipped().len() == limits::SKIPPED_TOLD_MAX;
            all && watcher.entries.len() == 2
        })
        .await;
    etcdctl(address, &["put", "orders/3", "10.0.0.3:80"]);
    watcher.until(|watcher| watcher.entries.len() == 3).await;
    assert_eq!(watcher.skipped().len(), limits::SKIPPED_TOLD_MAX);
    assert_eq!(registry.malformed(), 5 + limits::SKIPPED_TOLD_MAX as u64);
}

fn lease_of_own(address: SocketAddr) -> Vec<String> {
    let all = stored(address, "_lameduck/v1/instance/orders/");
    let records = all
        .into_iter()
        .filter(|(_, value)| value.contains("\"epoch\":0"));
    records.map(|(key, _)| key).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn c22_the_store_is_full() {
    if !usable_in("c22_the_store_is_full") {
        return;
    }
    let etcd = Process::start_with(&["--quota-backend-bytes=4194304"]).expect("etcd starts");
    let address = etcd.address();
    let registry = registry(address);
    let mut first = Publisher::new(&registry, registration(&["orders"], "10.0.0.1:80", 1));
    first.reach(present(1, 0)).await;
    let mut watcher = Watcher::new(&registry, "orders");
    watcher.until_shown(&["10.0.0.1:80 epoch 0"]).await;
    let filler = "x".repeat(120_000);
    while etcdctl(address, &["alarm", "list"]).is_empty() {
        let put = ["put", "filler", &filler];
        let output = std::process::Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={address}"))
            .args(put)
            .output();
        output.expect("etcdctl runs");
    }
    // A change waits, and what is published stays.
    let Want::Present { life, .. } = present(1, 0) else {
        unreachable!("present is present")
    };
    first.want(Want::Present { life, ready: false });
    let is_full = |status: &PublicationStatus| {
        let class = status.error.as_ref().map(|error| error.class);
        class == Some(ErrorClass::Full)
    };
    first.until(is_full).await;
    assert!(first.status.registered);
    // Another one is told why it is not listed, and waits.
    let mut second = Publisher::new(&registry, registration(&["orders"], "10.0.0.2:80", 2));
    second.want(present(2, 0));
    second.until(is_full).await;
    assert!(!second.status.registered);
    assert_eq!(watcher.show(), ["10.0.0.1:80 epoch 0"]);
    // Whoever leaves does leave.
    first.reach(Want::Closing).await;
    watcher.until_shown(&[]).await;
    let status = etcdctl(address, &["endpoint", "status", "--write-out=json"]);
    etcdctl(address, &["compact", &revision_in(&status)]);
    etcdctl(address, &["defrag"]);
    etcdctl(address, &["alarm", "disarm"]);
    second.until(|status| status.registered).await;
    watcher.until_shown(&["10.0.0.2:80 epoch 0"]).await;
}

/// The revision that `endpoint status` tells.
fn revision_in(status: &str) -> String {
    let at = status.find("\"revision\":").expect("a revision") + 11;
    let digits = status[at..].chars();
    digits.take_while(char::is_ascii_digit).collect()
}
