//! A login, and everything that makes a token useless.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;

use super::help::{Publisher, Watcher, etcdctl, present, real_etcd, registration};
use lameduck_core::registry::{ErrorClass, Update, Want};
use lameduck_registry::etcd::process::{ETCD_3_6, Process, newer_usable_in, usable_in};
use lameduck_registry::etcd::{Client, Etcd};

/// etcd's cheapest password hash: these tests are about something else.
const CHEAP: [&str; 2] = ["--bcrypt-cost", "4"];

/// The user `app` may do everything below `prefix`; from now on everybody has to say who it is.
pub fn enable(address: SocketAddr, prefix: &str) {
    etcdctl(address, &["user", "add", "root:secret"]);
    etcdctl(address, &["role", "add", "app"]);
    grant(&[], address, prefix);
    etcdctl(address, &["user", "add", "app:word"]);
    etcdctl(address, &["user", "grant-role", "app", "app"]);
    etcdctl(address, &["user", "grant-role", "root", "root"]);
    etcdctl(address, &["auth", "enable"]);
}

const ROOT: [&str; 2] = ["--user", "root:secret"];

fn grant(user: &[&str], address: SocketAddr, prefix: &str) {
    let grant = ["role", "grant-permission", "app", "--prefix=true"];
    let what = ["readwrite", prefix];
    etcdctl(address, &[user, &grant[..], &what[..]].concat());
}

fn as_root(address: SocketAddr, arguments: &[&str]) -> String {
    etcdctl(address, &[&ROOT[..], arguments].concat())
}

fn app(address: SocketAddr) -> Etcd {
    Etcd::new(Client::new(vec![address.into()]).with_login("app", "word"))
}

/// How many calls of this name etcd has been asked since it was started.
fn asked(address: SocketAddr, method: &str) -> u32 {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
        .expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("answered");
    let method = format!("grpc_method=\"{method}\"");
    let counted = text
        .lines()
        .filter(|line| line.starts_with("grpc_server_started_total") && line.contains(&method));
    let counts = counted.filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok());
    counts.sum()
}

/// A file with the secret that JWT are signed with; gone on drop.
struct Secret(PathBuf);

impl Secret {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lameduck-{name}-{}", std::process::id()));
        std::fs::write(&path, "what JWT are signed with").expect("a file");
        Self(path)
    }

    fn option(&self) -> String {
        format!("jwt,sign-method=HS256,priv-key={},ttl=1h", self.0.display())
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Whether tokens are JWT.
#[derive(Clone, Copy)]
enum Jwt {
    No,
    Yes,
}

async fn a_lone_subscription_lives_on(test: &str, program: &str, jwt: Jwt) {
    let there = if program == ETCD_3_6 {
        newer_usable_in(test)
    } else {
        usable_in(test)
    };
    if !there {
        return;
    }
    let secret = Secret::new(test);
    let option = secret.option();
    let mut options = Vec::from(CHEAP);
    if matches!(jwt, Jwt::Yes) {
        options.extend(["--auth-token", &option]);
    }
    let parent = std::env::temp_dir();
    let etcd = Process::start_program(program, &parent, &options);
    let mut etcd = etcd.expect("etcd starts");
    let address = etcd.address();
    enable(address, "");
    let registry = app(address);
    let mut watcher = Watcher::new(&registry, "orders");
    as_root(address, &["put", "orders/1", "10.0.0.1:80"]);
    watcher.until(|watcher| watcher.entries.len() == 1).await;
    // Makes every JWT old. Simple tokens are lost by the restart, once the login cannot be
    // replayed: a defragmentation writes down what was applied.
    as_root(address, &["role", "add", "another"]);
    as_root(address, &["defrag"]);
    etcd.kill().expect("killed");
    watcher.until(Watcher::is_stale).await;
    etcd.restart().expect("started again");
    watcher.until(|watcher| !watcher.is_stale()).await;
    as_root(address, &["put", "orders/2", "10.0.0.2:80"]);
    watcher.until(|watcher| watcher.entries.len() == 2).await;
    assert_eq!(watcher.fewest, 1, "nothing was lost on the way");
}

#[tokio::test(flavor = "multi_thread")]
async fn r2_a_lone_subscription_logs_in_again_on_3_4() {
    let test = "r2_a_lone_subscription_logs_in_again_on_3_4";
    a_lone_subscription_lives_on(test, "etcd", Jwt::No).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r2_a_lone_subscription_logs_in_again_on_3_6() {
    let test = "r2_a_lone_subscription_logs_in_again_on_3_6";
    a_lone_subscription_lives_on(test, ETCD_3_6, Jwt::No).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r5_an_old_jwt_is_renewed_by_a_lone_subscription_on_3_4() {
    let test = "r5_an_old_jwt_is_renewed_by_a_lone_subscription_on_3_4";
    a_lone_subscription_lives_on(test, "etcd", Jwt::Yes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r5_an_old_jwt_is_renewed_by_a_lone_subscription_on_3_6() {
    let test = "r5_an_old_jwt_is_renewed_by_a_lone_subscription_on_3_6";
    a_lone_subscription_lives_on(test, ETCD_3_6, Jwt::Yes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r5_b_a_publisher_keeps_its_record_when_every_jwt_becomes_old() {
    let test = "r5_b_a_publisher_keeps_its_record_when_every_jwt_becomes_old";
    if !usable_in(test) {
        return;
    }
    let secret = Secret::new(test);
    let option = secret.option();
    let options = [&CHEAP[..], &["--auth-token", &option]].concat();
    let etcd = Process::start_with(&options).expect("etcd starts");
    let address = etcd.address();
    enable(address, "");
    let registry = app(address);
    let mut publisher = Publisher::new(&registry, registration(&["orders"], "10.0.0.1:80", 1));
    publisher.reach(present(1, 0)).await;
    as_root(address, &["role", "add", "another"]);
    publisher.reach(Want::Closing).await;
    assert!(publisher.status.metadata, "{:?}", publisher.status);
    as_root(address, &["role", "add", "a-third"]);
    let client = Client::new(vec![address.into()]).with_login("app", "word");
    let listed = client.list("_lameduck/").await.expect("listed");
    assert_eq!(listed.kvs.len(), 1);
}

/// Subscriptions to so many services by one client.
fn many(registry: &Etcd, count: usize) -> Vec<Watcher> {
    let names = (0..count).map(|n| format!("service-{n}"));
    names.map(|name| Watcher::new(registry, &name)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn r3_a_hundred_services_make_one_login() {
    // With the usual hash: the herd was made by its cost.
    let Some(mut etcd) = real_etcd("r3_a_hundred_services_make_one_login") else {
        return;
    };
    let address = etcd.address();
    enable(address, "");
    let before = asked(address, "Authenticate");
    let registry = app(address);
    let mut watchers = many(&registry, 100);
    for watcher in &mut watchers {
        watcher.next().await;
        assert!(matches!(watcher.updates[..], [Update::Reset { .. }]));
    }
    assert_eq!(asked(address, "Authenticate") - before, 1);
    as_root(address, &["put", "service-0/1", "10.0.0.1:80"]);
    as_root(address, &["defrag"]);
    etcd.kill().expect("killed");
    for watcher in &mut watchers {
        watcher.until(Watcher::is_stale).await;
    }
    etcd.restart().expect("started again");
    for watcher in &mut watchers {
        watcher.until(|watcher| !watcher.is_stale()).await;
    }
    assert_eq!(
        asked(address, "Authenticate"),
        1,
        "once more, after the restart"
    );
}

/// The class of the trouble that was told last.
fn trouble(watcher: &Watcher) -> Option<ErrorClass> {
    watcher
        .updates
        .iter()
        .rev()
        .find_map(|update| match update {
            Update::Stale(error) => Some(error.class),
            _ => None,
        })
}

#[tokio::test(flavor = "multi_thread")]
async fn r2_b_logins_are_switched_off_and_on_under_a_subscription() {
    let Some(mut etcd) = real_etcd("r2_b_logins_are_switched_off_and_on_under_a_subscription")
    else {
        return;
    };
    let address = etcd.address();
    // A login where etcd wants none is no fault.
    let registry = app(address);
    let mut watcher = Watcher::new(&registry, "orders");
    watcher.next().await;
    assert!(!watcher.is_stale());
    enable(address, "");
    as_root(address, &["put", "orders/1", "10.0.0.1:80"]);
    watcher.until(|watcher| watcher.entries.len() == 1).await;
    etcd.restart().expect("started again");
    watcher.until(Watcher::is_stale).await;
    watcher.until(|watcher| !watcher.is_stale()).await;
    as_root(address, &["auth", "disable"]);
    let updates = watcher.updates.len();
    etcd.restart().expect("started again");
    watcher
        .until(|watcher| watcher.updates.len() > updates)
        .await;
    watcher.until(|watcher| !watcher.is_stale()).await;
    etcdctl(address, &["put", "orders/2", "10.0.0.2:80"]);
    watcher.until(|watcher| watcher.entries.len() == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r2_c_a_role_is_lost_and_given_back() {
    let Some(mut etcd) = real_etcd("r2_c_a_role_is_lost_and_given_back") else {
        return;
    };
    let address = etcd.address();
    enable(address, "orders/");
    grant(&ROOT, address, "_lameduck/");
    let registry = app(address);
    let mut watcher = Watcher::new(&registry, "orders");
    as_root(address, &["put", "orders/1", "10.0.0.1:80"]);
    watcher.until(|watcher| watcher.entries.len() == 1).await;
    as_root(
        address,
        &[
            "role",
            "revoke-permission",
            "app",
            "--prefix=true",
            "orders/",
        ],
    );
    etcd.restart().expect("started again");
    watcher.until(Watcher::is_stale).await;
    // What is told of an outage is its first reason. A new subscription of the same client shows that
    // it is refused by now.
    let mut refused = Watcher::new(&registry, "orders");
    refused
        .until(|watcher| trouble(watcher) == Some(ErrorClass::Refused))
        .await;
    assert_eq!(watcher.entries.len(), 1, "an error takes nothing away");
    grant(&ROOT, address, "orders/");
    watcher.until(|watcher| !watcher.is_stale()).await;
    as_root(address, &["put", "orders/2", "10.0.0.2:80"]);
    watcher.until(|watcher| watcher.entries.len() == 2).await;
    // Denied again and again, it did not log in for each attempt.
    let logins = asked(address, "Authenticate");
    assert!(logins <= 8, "{logins} logins");
}

#[tokio::test(flavor = "multi_thread")]
async fn r2_d_a_password_is_changed_and_changed_back() {
    let Some(mut etcd) = real_etcd("r2_d_a_password_is_changed_and_changed_back") else {
        return;
    };
    let address = etcd.address();
    enable(address, "");
    let registry = app(address);
    let mut watcher = Watcher::new(&registry, "orders");
    as_root(address, &["put", "orders/1", "10.0.0.1:80"]);
    watcher.until(|watcher| watcher.entries.len() == 1).await;
    // etcdctl of 3.4 reads the password from a terminal only; a user that is gone says the same.
    as_root(address, &["user", "delete", "app"]);
    etcd.restart().expect("started again");
    watcher.until(Watcher::is_stale).await;
    // What is told of an outage is its first reason. A new subscription of the same client shows that
    // it is refused by now.
    let mut refused = Watcher::new(&registry, "orders");
    refused
        .until(|watcher| trouble(watcher) == Some(ErrorClass::Refused))
        .await;
    as_root(address, &["user", "add", "app:word"]);
    as_root(address, &["user", "grant-role", "app", "app"]);
    watcher.until(|watcher| !watcher.is_stale()).await;
    as_root(address, &["put", "orders/2", "10.0.0.2:80"]);
    watcher.until(|watcher| watcher.entries.len() == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r3_b_two_users_of_one_etcd_have_a_token_each() {
    let Some(etcd) = real_etcd("r3_b_two_users_of_one_etcd_have_a_token_each") else {
        return;
    };
    let address = etcd.address();
    enable(address, "orders/");
    let root = Client::new(vec![address.into()]).with_login("root", "secret");
    let app = Client::new(vec![address.into()]).with_login("app", "word");
    let mut seen = BTreeMap::new();
    for _ in 0..2 {
        seen.insert("root", root.list("other/").await.is_ok());
        seen.insert("app", app.list("other/").await.is_ok());
        seen.insert("app's own", app.list("orders/").await.is_ok());
    }
    let expected = [("app", false), ("app's own", true), ("root", true)];
    assert_eq!(seen, BTreeMap::from(expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn d12_d_a_login_in_a_target_is_used() {
    let Some(etcd) = real_etcd("d12_d_a_login_in_a_target_is_used") else {
        return;
    };
    let address = etcd.address();
    enable(address, "");
    as_root(address, &["put", "orders/1", "10.0.0.1:80"]);
    for text in [
        format!("etcd://app:word@{address}/orders"),
        format!("etcd:///{address}?key=orders&user=app&pass=%77ord"),
    ] {
        let target = text.parse().expect("a target");
        let registry = lameduck_registry::builtin()
            .connect(&target)
            .expect("taken");
        let mut watcher = Watcher::new(&*registry, "orders");
        watcher.until(|watcher| watcher.entries.len() == 1).await;
        assert!(!format!("{registry:?} {target:?} {target}").contains("word"));
    }
}
