//! An etcd that is away, forgets, or was never there.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::help::{
    Publisher, Watcher, etcdctl, present, real_etcd, registration, registry, stored,
};
use lameduck_core::registry::Want;
use lameduck_core::rng::Rng;
use lameduck_registry::etcd::server::DevServer;
use lameduck_registry::etcd::{Client, Etcd, ports};
use tokio::net::TcpSocket;
use tokio::sync::oneshot;

#[tokio::test(flavor = "multi_thread")]
async fn b4_a_restarted_etcd_keeps_the_list_and_nobody_is_missed() {
    let Some(mut etcd) = real_etcd("b4_a_restarted_etcd_keeps_the_list_and_nobody_is_missed")
    else {
        return;
    };
    // Long enough for a renewal after the restart, whose pause may be a third of it.
    let registry = registry(etcd.address()).with_lease_ttl(Duration::from_secs(10));
    let mut watcher = Watcher::new(&registry, "orders");
    let mut publisher = Publisher::new(&registry, registration(&["orders"], "10.0.0.1:80", 1));
    publisher.reach(present(1, 0)).await;
    watcher.until_shown(&["10.0.0.1:80 epoch 0"]).await;
    let keys = stored(etcd.address(), "");
    etcd.kill().expect("killed");
    watcher.until(Watcher::is_stale).await;
    // Longer than the TTL: the session must give up, and yet keep the lease if etcd does.
    publisher.until(|status| !status.registered).await;
    etcd.restart().expect("started again");
    publisher.until(|status| status.registered).await;
    watcher.until(|watcher| !watcher.is_stale()).await;
    assert_eq!(stored(etcd.address(), ""), keys, "the same lease");
    assert_eq!(
        watcher.fewest, 1,
        "never an empty moment: {:?}",
        watcher.updates
    );
    // And it is watched on from there.
    etcdctl(etcd.address(), &["put", "orders/7", "10.0.0.7:80"]);
    watcher.until(|watcher| watcher.entries.len() == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b5_one_dead_host_of_two_and_an_etcd_that_comes_later() {
    let Some(mut etcd) = real_etcd("b5_one_dead_host_of_two_and_an_etcd_that_comes_later") else {
        return;
    };
    // Bound and not listening: refused, and nobody else's.
    let free = TcpSocket::new_v4().expect("a socket");
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    free.bind(any).expect("a port");
    let dead = free.local_addr().expect("bound");
    let hosts = vec![dead.into(), etcd.address().into()];
    let two = Etcd::new(Client::new(hosts)).with_lease_ttl(Duration::from_secs(5));
    let mut publisher = Publisher::new(&two, registration(&["orders"], "10.0.0.1:80", 1));
    publisher.reach(present(1, 0)).await;

    etcd.kill().expect("killed");
    let mut watcher = Watcher::new(&two, "late");
    let mut late = Publisher::new(&two, registration(&["late"], "10.0.0.2:80", 2));
    late.want(present(2, 0));
    late.until(|status| status.error.is_some()).await;
    watcher.until(Watcher::is_stale).await;
    assert!(watcher.entries.is_empty() && !late.status.registered);
    etcd.restart().expect("started again");
    late.until(|status| status.registered).await;
    watcher.until_shown(&["10.0.0.2:80 epoch 0"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c15_the_registry_has_lost_everything() {
    // It is away again and again, and must find its port free.
    let mut rng = Rng::from_seed(u64::from(std::process::id()));
    let address = ports::free(1, &mut rng).expect("a port")[0];
    let registry = registry(address);
    let mut watcher = Watcher::new(&registry, "orders");
    let mut publisher = Publisher::new(&registry, registration(&["orders"], "10.0.0.1:80", 1));
    publisher.want(present(1, 0));
    for round in 0..3 {
        // Each time with an empty store, whose revisions begin anew, as those of an etcd whose data
        // were thrown away.
        let (end, ended) = oneshot::channel::<()>();
        let server = DevServer::bind(address).await.expect("a free port");
        let server = server.beginning_at(1);
        let server = tokio::spawn(server.run(async { drop(ended.await) }));
        let client = Client::new(vec![address.into()]);
        let keys = async {
            let listing = client.list("orders/").await.expect("it is there");
            let next = listing.origin.revision + 1;
            let mut watch = client.watch("orders/", next).await.expect("watched");
            if listing.kvs.is_empty() {
                watch.next().await.expect("the registration");
            }
        };
        keys.await;
        publisher.until(|status| status.registered).await;
        watcher.until(|watcher| !watcher.is_stale()).await;
        watcher.until_shown(&["10.0.0.1:80 epoch 0"]).await;
        for extra in 0..=round {
            // Ever more history, so that a revision alone may look like progress.
            let mut other = Publisher::new(&registry, registration(&["other"], "10.0.0.2:80", 2));
            other.reach(present(2, extra)).await;
            other.reach(Want::Gone).await;
        }
        drop(end);
        server.await.expect("no panic");
        watcher.until(Watcher::is_stale).await;
        assert_eq!(
            watcher.show(),
            ["10.0.0.1:80 epoch 0"],
            "an error changes nothing"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_etcd_is_noticed() {
    let Some(etcd) = real_etcd("a_silent_etcd_is_noticed") else {
        return;
    };
    let registry = registry(etcd.address());
    let mut watcher = Watcher::new(&registry, "orders");
    watcher.next().await;
    etcd.freeze().expect("stopped");
    watcher.until(Watcher::is_stale).await;
    etcd.thaw().expect("continued");
    watcher.until(|watcher| !watcher.is_stale()).await;
    etcdctl(etcd.address(), &["put", "orders/7", "10.0.0.7:80"]);
    watcher.until(|watcher| watcher.entries.len() == 1).await;
}
