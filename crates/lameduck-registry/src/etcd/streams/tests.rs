use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::task::Poll;

use lameduck_etcd_proto::etcdserverpb::request_op::Request as Step;
use lameduck_etcd_proto::etcdserverpb::{PutRequest, RequestOp, TxnRequest};
use tokio::task::JoinHandle;

use super::*;
use crate::etcd::client::{Client, Error, Watch};
use crate::etcd::process::{Process, usable_in};
use crate::etcd::server::DevServer;
use crate::etcd::transport::Pool;

async fn server() -> (JoinHandle<()>, Client) {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = DevServer::bind(any).await.expect("a free port");
    let client = Client::new(vec![server.local_addr().into()]);
    let running = tokio::spawn(server.run(std::future::pending()));
    (running, client)
}

/// Puts all of these at once; gives the revision.
async fn put(client: &Client, keys: &[&str], value: &[u8]) -> u64 {
    let op = |key: &&str| RequestOp {
        request: Some(Step::RequestPut(PutRequest {
            key: (*key).to_owned().into(),
            value: value.to_vec().into(),
            ..Default::default()
        })),
    };
    let txn = TxnRequest {
        success: keys.iter().map(op).collect(),
        ..Default::default()
    };
    let answer = client.transact(&txn).await.expect("put");
    let header = answer.header.expect("always there");
    u64::try_from(header.revision).expect("positive")
}

/// The names of the keys that come next.
async fn heard(watch: &mut Watch) -> Vec<String> {
    let (_, events) = watch.next().await.expect("it goes on");
    let kvs = events.into_iter().filter_map(|event| event.kv);
    kvs.map(|kv| String::from_utf8_lossy(&kv.key).into_owned())
        .collect()
}

/// Open streams, and the watches on each.
fn streams(client: &Client) -> Vec<usize> {
    let streams = lock(&client.streams.0);
    let open = streams.iter().map(|shared| lock(&shared.inner));
    open.filter(|inner| inner.requests.is_some())
        .map(|inner| inner.watches.len() + inner.asked.len())
        .collect()
}

/// 600 services on one hub. A connection has 1,024 streams here, as behind many proxies.
#[tokio::test]
async fn r19_hundreds_of_services_share_a_few_streams() {
    let (_running, client) = server().await;
    let from = put(&client, &["start"], b"").await + 1;
    let names: Vec<String> = (0..1_200).map(|number| format!("s{number}/")).collect();
    let mut opening = Vec::new();
    for name in names.clone() {
        let client = client.clone();
        opening.push(tokio::spawn(async move { client.watch(&name, from).await }));
    }
    let mut watches = Vec::new();
    for opening in opening {
        watches.push(opening.await.expect("no panic").expect("it is open"));
    }
    let most = limits::STREAM_WATCHES_MAX;
    assert_eq!(streams(&client), [most, most, 1_200 - 2 * most]);
    for (watch, name) in watches.iter_mut().zip(&names) {
        let key = format!("{name}1");
        put(&client, &[&key], b"").await;
        assert_eq!(heard(watch).await, [key]);
    }
    // What is dropped is cancelled, and its place is free again.
    watches.drain(..300);
    assert_eq!(streams(&client), [most - 300, most, 1_200 - 2 * most]);
    let _one = client.watch("one/", from).await.expect("it is open");
    assert_eq!(streams(&client), [most - 299, most, 1_200 - 2 * most]);
    drop(watches);
    assert_eq!(streams(&client), [1]);
}

#[tokio::test]
async fn r19_one_who_does_not_read_loses_its_watch_alone() {
    let (_running, client) = server().await;
    let from = put(&client, &["start"], b"").await + 1;
    let mut slow = client.watch("busy/", from).await.expect("it is open");
    let mut quick = client.watch("calm/", from).await.expect("it is open");
    assert_eq!(streams(&client), [2]);
    // Each is an answer of its own where it is heard before the next is written.
    let mut beside = client.watch("busy/", from).await.expect("it is open");
    let mut last = 0;
    for _ in 0..limits::WATCH_QUEUE_MAX + 9 {
        last = put(&client, &["busy/1"], b"").await;
        heard(&mut beside).await;
    }
    put(&client, &["calm/1"], b"").await;
    assert_eq!(heard(&mut quick).await, ["calm/1"]);
    let mut seen = 0;
    let error = loop {
        match slow.next().await {
            Ok((revision, _)) if revision < last => seen = revision,
            Ok(_) => panic!("the queue had room for all"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Registry(_)), "{error}");
    assert!(error.to_string().contains("not read in time"), "{error}");
    // It goes on behind what it has read, and has missed nothing.
    let mut again = client.watch("busy/", seen + 1).await.expect("it is open");
    assert_eq!(heard(&mut again).await[0], "busy/1");
    // It was cancelled when its queue was full.
    assert_eq!(streams(&client), [3]);
    drop(slow);
    assert_eq!(streams(&client), [3]);
}

/// Watches that nobody waits for any more when etcd answers do not shift the answers of the others.
#[tokio::test]
async fn r19_watches_that_are_given_up_unanswered_shift_no_others() {
    let (_running, client) = server().await;
    let from = put(&client, &["start"], b"").await + 1;
    let mut kept = Vec::new();
    let mut given_up = Vec::new();
    for number in 0..40 {
        let (client, name) = (client.clone(), format!("s{number}/"));
        let mut watch = Box::pin(async move { client.watch(&name, from).await });
        // As far as it gets without an answer.
        assert!(
            std::future::poll_fn(|context| Poll::Ready(watch.as_mut().poll(context).is_pending()))
                .await
        );
        if number % 2 == 0 {
            kept.push((number, watch));
        } else {
            given_up.push(watch);
        }
    }
    drop(given_up);
    for (number, watch) in kept {
        let mut watch = watch.await.expect("it is open");
        let key = format!("s{number}/1");
        put(&client, &[&key], b"").await;
        assert_eq!(heard(&mut watch).await, [key]);
    }
    let last = client.watch("last/", from).await.expect("it is open");
    assert_eq!(streams(&client), [1]);
    drop(last);
    assert!(streams(&client).is_empty());
}

/// etcd takes a stream's watches for those of the user who began it, and for as long as that token lasts.
#[tokio::test]
async fn r19_a_stream_belongs_to_one_token() {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = DevServer::bind(any).await.expect("a free port");
    let pool = Arc::new(Pool::new(vec![server.local_addr().into()], 0));
    let _running = tokio::spawn(server.run(std::future::pending()));
    let streams = Streams::default();
    let create = WatchCreateRequest {
        key: "a".into(),
        ..Default::default()
    };
    let mut members = Vec::new();
    for token in [Some("old"), Some("new"), None, Some("old"), Some("new")] {
        let header = token.map(HeaderValue::from_static);
        let transport = Transport::new(pool.clone(), header, Used::default());
        let mut member = streams.join(&transport, &create);
        let first = member.message().await.expect("it is open");
        assert!(first.created && !first.canceled, "{first:?}");
        members.push(member);
    }
    let tokens = lock(&streams.0);
    let tokens = tokens.iter().map(|shared| {
        let token = shared.token.clone();
        (token, lock(&shared.inner).watches.len())
    });
    let header = |text| Some(HeaderValue::from_static(text));
    assert_eq!(
        tokens.collect::<Vec<_>>(),
        [(header("old"), 2), (header("new"), 2), (None, 1)]
    );
}

#[tokio::test]
async fn r19_all_watches_of_a_stream_hear_of_its_end() {
    let (running, client) = server().await;
    let from = put(&client, &["start"], b"").await + 1;
    let mut watches = Vec::new();
    for name in ["a/", "b/", "c/"] {
        watches.push(client.watch(name, from).await.expect("it is open"));
    }
    running.abort();
    for watch in &mut watches {
        watch.next().await.expect_err("the server is gone");
    }
    assert!(streams(&client).is_empty());
}

/// A stream begins on the runtime of its first watch, which may end before others do.
#[test]
fn r19_a_runtime_that_ends_takes_its_stream_along() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime")
    };
    let (keeping, passing) = (runtime(), runtime());
    let (_running, client) = keeping.block_on(server());
    let first = passing
        .block_on(client.watch("a/", 1 << 53))
        .expect("it is open");
    let mut second = keeping
        .block_on(client.watch("b/", 1 << 53))
        .expect("it is open");
    assert_eq!(streams(&client), [2]);
    drop(passing);
    let error = keeping
        .block_on(second.next())
        .expect_err("its task is gone");
    assert!(matches!(error, Error::Registry(_)), "{error}");
    drop(first);
    assert!(streams(&client).is_empty());
}

#[tokio::test]
async fn r19_a_stream_of_etcd_carries_watches_of_all_kinds() {
    if !usable_in("r19_a_stream_of_etcd_carries_watches_of_all_kinds") {
        return;
    }
    let etcd = Process::start().expect("etcd starts");
    let client = Client::new(vec![etcd.address().into()]);
    let old = put(&client, &["old/1"], b"").await;
    // More than etcd puts into one message: it comes in fragments, and so does the other's.
    let large = vec![b'x'; 1 << 20];
    let from = old + 1;
    for _ in 0..5 {
        put(&client, &["large/1"], &large).await;
        put(&client, &["big/1"], &large).await;
    }
    let mut large = client.watch("large/", from).await.expect("it is open");
    let mut big = client.watch("big/", from).await.expect("it is open");
    let mut calm = client.watch("calm/", from).await.expect("it is open");
    for watch in [&mut large, &mut big] {
        let (mut keys, mut last) = (0, 0);
        while keys < 5 {
            let (revision, events) = watch.next().await.expect("it goes on");
            assert!(revision > last, "in order");
            (keys, last) = (keys + events.len(), revision);
        }
    }
    // One that begins too early ends alone.
    let now = put(&client, &["calm/1"], b"").await;
    assert_eq!(heard(&mut calm).await, ["calm/1"]);
    compact(&etcd, now).await;
    let early = match client.watch("old/", old).await {
        Ok(mut early) => early.next().await.expect_err("that is forgotten"),
        Err(error) => error,
    };
    assert_eq!(early, Error::Compacted);
    put(&client, &["calm/2", "big/2"], b"").await;
    assert_eq!(heard(&mut calm).await, ["calm/2"]);
    assert_eq!(heard(&mut big).await, ["big/2"]);
    assert_eq!(streams(&client), [3]);
}

async fn compact(etcd: &Process, revision: u64) {
    let mut command = tokio::process::Command::new("etcdctl");
    command
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &etcd.address().to_string(), "compact"])
        .arg(revision.to_string());
    let output = command.output().await.expect("etcdctl starts");
    assert!(output.status.success(), "{output:?}");
}
