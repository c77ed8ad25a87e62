//! What other programs and people put below a service's name.

use std::net::SocketAddr;

use super::help::{Publisher, Watcher, etcdctl, on_both, present, registration, registry, stored};
use lameduck_core::registry::Want;

on_both!(d08_any_end_of_a_key_is_an_instance);

async fn d08_any_end_of_a_key_is_an_instance(address: SocketAddr) {
    let registry = registry(address);
    let keys = [
        ("user.rpc/static-1", "10.0.0.1:80"),
        // R14: these were dropped without a word.
        ("user.rpc/node-a", "10.0.0.2:80"),
        ("user.rpc/node-b", "10.0.0.3:80"),
        ("user.rpc/007", "10.0.0.4:80"),
        ("user.rpc/9223372036854775808", "10.0.0.5:80"),
        ("user.rpc/1", "10.0.0.6:80"),
        ("user.rpc/", "10.0.0.7:80"),
        ("user.rpc//2", "10.0.0.8:80"),
        ("user.rpc/%2F\u{e4}", "10.0.0.9:80"),
        (
            "user.rpc/127.0.0.1:8091",
            r#"{"Op":0,"Addr":"10.0.1.1:80"}"#,
        ),
        (
            "user.rpc/127.0.0.1:8888",
            r#"{"network":"tcp","address":"10.0.1.2:80"}"#,
        ),
        (
            "user.rpc/7c9f-1",
            r#"{"endpoints":["http://h:1","grpc://10.0.1.3:80"]}"#,
        ),
        ("user.rpc/bom", "\u{feff}10.0.1.4:80"),
    ];
    for (key, value) in keys {
        etcdctl(address, &["put", key, value]);
    }
    etcdctl(address, &["put", "user.rpc/admin/7", "10.0.9.9:80"]);
    let mut watcher = Watcher::new(&registry, "user.rpc");
    watcher
        .until(|watcher| watcher.entries.len() == keys.len())
        .await;
    assert!(watcher.skipped().is_empty(), "{:?}", watcher.skipped());
    // Each goes by its own key, also where keys differ in their last byte only.
    etcdctl(address, &["del", "user.rpc/node-b"]);
    watcher
        .until(|watcher| watcher.entries.len() == keys.len() - 1)
        .await;
    let shown = watcher.show();
    let has = |address: &str| shown.iter().any(|line| line.starts_with(address));
    assert!(has("10.0.0.2:80") && !has("10.0.0.3:80"), "{shown:?}");
    // What can be no instance is said, with its key.
    etcdctl(
        address,
        &["put", "user.rpc/web", r#"{"endpoints":["http://h:1"]}"#],
    );
    etcdctl(address, &["put", "user.rpc/link", "[fe80::1%eth0]:80"]);
    watcher.until(|watcher| watcher.skipped().len() == 2).await;
    let said = watcher.skipped();
    assert!(said[0].starts_with("key \"user.rpc/web\": "), "{said:?}");
    assert!(said[1].starts_with("key \"user.rpc/link\": ") && said[1].contains("zone"));
}

on_both!(d08_b_a_bare_key_is_told);

async fn d08_b_a_bare_key_is_told(address: SocketAddr) {
    let registry = registry(address);
    etcdctl(address, &["put", "user.rpc", "127.0.0.1:8002"]);
    let mut watcher = Watcher::new(&registry, "user.rpc");
    watcher.until(|watcher| watcher.skipped().len() == 1).await;
    let said = watcher.skipped()[0];
    assert!(
        said.starts_with("key \"user.rpc\": the key itself exists") && said.contains("user.rpc/1"),
        "{said}"
    );
    // One that has the same beginning is not taken for it.
    let mut other = Watcher::new(&registry, "user");
    other.next().await;
    assert!(other.skipped().is_empty());
}

on_both!(d09_a_service_whose_name_begins_with_a_slash);

async fn d09_a_service_whose_name_begins_with_a_slash(address: SocketAddr) {
    let registry = registry(address);
    let name = "/service/hello.rpc";
    let key = format!("{name}/7587862094562746118");
    etcdctl(address, &["put", &key, "10.0.0.9:80"]);
    let mut watcher = Watcher::new(&registry, name);
    watcher.until(|watcher| watcher.entries.len() == 1).await;
    // It can be joined: the same key form, and our record without a slash in front.
    let mut publisher = Publisher::new(&registry, registration(&[name], "10.0.0.1:80", 1));
    publisher.reach(present(1, 0)).await;
    watcher.until(|watcher| watcher.entries.len() == 2).await;
    let keys = stored(address, "/service/hello.rpc/");
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert_eq!(
        stored(address, "_lameduck/v1/instance/%2Fservice%2Fhello.rpc/").len(),
        1
    );
    publisher.reach(Want::Gone).await;
    watcher.until(|watcher| watcher.entries.len() == 1).await;
    // Without the slash it is another service.
    let mut other = Watcher::new(&registry, "service/hello.rpc");
    other.next().await;
    assert!(other.entries.is_empty());
}
