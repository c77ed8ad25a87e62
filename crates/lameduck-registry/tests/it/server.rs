//! The development server from outside.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;

use lameduck_core::limits;
use lameduck_etcd_proto::etcdserverpb as pb;
use lameduck_registry::etcd::ports;
use lameduck_registry::etcd::server::DevServer;
use pb::request_op::Request;
use pb::response_op::Response;
use pb::watch_create_request::FilterType;
use pb::watch_request::RequestUnion;
use tokio::sync::oneshot;
use tonic::Code;

use crate::wire::Wire;

/// A development server on a thread of its own; ends on drop.
pub(crate) struct Dev {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Dev {
    /// At revision 1, as a new etcd.
    pub(crate) fn start() -> Self {
        Self::start_with(|server| server.beginning_at(1))
    }

    pub(crate) fn start_with(choose: impl FnOnce(DevServer) -> DevServer + Send + 'static) -> Self {
        let (end, ended) = oneshot::channel::<()>();
        let (bound, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                let server = choose(DevServer::bind(any).await.expect("a free port"));
                bound.send(server.local_addr()).expect("the test waits");
                server.run(async { drop(ended.await) }).await;
            });
        });
        let address = address.recv().expect("it listens");
        Self {
            address,
            end: Some(end),
            thread: Some(thread),
        }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        drop(self.end.take());
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.expect("it was started").expect("it has not panicked");
        }
    }
}

fn put(key: &str, value: &str) -> pb::PutRequest {
    pb::PutRequest {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        ..Default::default()
    }
}

fn key(key: &str) -> pb::RangeRequest {
    pb::RangeRequest {
        key: key.to_owned().into(),
        ..Default::default()
    }
}

fn watch(key: &str, start_revision: i64) -> pb::WatchCreateRequest {
    pb::WatchCreateRequest {
        key: key.to_owned().into(),
        start_revision,
        ..Default::default()
    }
}

/// An answer in short: which watch, what is said, the events as `+key` and `-key`.
fn words(answer: &pb::WatchResponse) -> String {
    let mut words = vec![answer.watch_id.to_string()];
    let flags = [
        (answer.created, "created"),
        (answer.canceled, "canceled"),
        (answer.compact_revision > 0, "compacted"),
    ];
    words.extend(
        flags
            .iter()
            .filter(|(set, _)| *set)
            .map(|(_, word)| (*word).to_owned()),
    );
    for event in &answer.events {
        let sign = if event.r#type == 0 { '+' } else { '-' };
        let kv = event.kv.as_ref().expect("always there");
        let prev = if event.prev_kv.is_some() { "~" } else { "" };
        words.push(format!("{sign}{}{prev}", String::from_utf8_lossy(&kv.key)));
    }
    words.join(" ")
}

#[tokio::test]
async fn one_stream_carries_many_watches() {
    let dev = Dev::start();
    let wire = Wire::connect(dev.address()).await;
    let mut stream = wire.watch().await;
    stream.create(watch("a", 0));
    assert_eq!(words(&stream.next().await), "0 created");
    stream.create(pb::WatchCreateRequest {
        watch_id: 7,
        prev_kv: true,
        ..watch("a", 0)
    });
    assert_eq!(words(&stream.next().await), "7 created");
    stream.create(pb::WatchCreateRequest {
        watch_id: 7,
        ..watch("b", 0)
    });
    let refused = stream.next().await;
    assert_eq!(words(&refused), "-1 created canceled");
    assert!(
        refused.cancel_reason.contains("duplicate watch ID"),
        "{refused:?}"
    );
    stream.create(pb::WatchCreateRequest {
        range_end: "a".into(),
        ..watch("b", 0)
    });
    assert_eq!(words(&stream.next().await), "-1 created canceled");
    let left_out = vec![FilterType::Noput.into()];
    stream.create(pb::WatchCreateRequest {
        filters: left_out,
        ..watch("a", 0)
    });
    assert_eq!(words(&stream.next().await), "1 created");
    let mut kv = wire.kv();
    kv.put(put("a", "1")).await.expect("put");
    assert_eq!(words(&stream.next().await), "0 +a");
    assert_eq!(words(&stream.next().await), "7 +a");
    kv.put(put("a", "2")).await.expect("put");
    assert_eq!(words(&stream.next().await), "0 +a");
    assert_eq!(words(&stream.next().await), "7 +a~");
    stream.ask(RequestUnion::CancelRequest(pb::WatchCancelRequest {
        watch_id: 0,
    }));
    assert_eq!(words(&stream.next().await), "0 canceled");
    stream.ask(RequestUnion::CancelRequest(pb::WatchCancelRequest {
        watch_id: 0,
    }));
    let request = pb::DeleteRangeRequest {
        key: "a".into(),
        ..Default::default()
    };
    kv.delete_range(request).await.expect("deleted");
    assert_eq!(words(&stream.next().await), "1 -a");
    assert_eq!(words(&stream.next().await), "7 -a~");
    stream.ask(RequestUnion::ProgressRequest(pb::WatchProgressRequest {}));
    let progress = stream.next().await;
    assert_eq!(words(&progress), "-1");
    assert_eq!(progress.header.expect("always there").revision, 4);
    assert!(stream.end().await.expect("a clean end").is_none());
}

#[tokio::test]
async fn a_watch_begins_in_the_past_and_its_progress_waits_for_it() {
    let dev = Dev::start();
    let wire = Wire::connect(dev.address()).await;
    for _ in 0..40 {
        let put = |number: u32| Some(Request::RequestPut(put(&format!("a/{number}"), "1")));
        let success = (0..100)
            .map(|number| pb::RequestOp {
                request: put(number),
            })
            .collect();
        let txn = pb::TxnRequest {
            success,
            ..Default::default()
        };
        wire.kv().txn(txn).await.expect("done");
    }
    let all = pb::WatchCreateRequest {
        range_end: "b".into(),
        ..watch("a", 2)
    };
    let mut stream = wire.watch().await;
    stream.create(all.clone());
    stream.ask(RequestUnion::ProgressRequest(pb::WatchProgressRequest {}));
    assert_eq!(words(&stream.next().await), "0 created");
    let mut revisions = Vec::new();
    while revisions.len() < 4_000 {
        let events = stream.next().await.events;
        assert_eq!(events.len() % 100, 0, "a revision is never split");
        let kvs = events.into_iter().filter_map(|event| event.kv);
        revisions.extend(kvs.map(|kv| kv.mod_revision));
    }
    assert!((2..42).flat_map(|revision| [revision; 100]).eq(revisions));
    assert_eq!(words(&stream.next().await), "-1");
    wire.kv()
        .compact(pb::CompactionRequest {
            revision: 10,
            physical: false,
        })
        .await
        .expect("compacted");
    stream.create(pb::WatchCreateRequest {
        start_revision: 9,
        ..all
    });
    assert_eq!(words(&stream.next().await), "1 created");
    let gone = stream.next().await;
    assert_eq!(
        (words(&gone).as_str(), gone.compact_revision),
        ("1 canceled compacted", 10)
    );
}

#[tokio::test]
async fn ten_thousand_watches_hear_what_is_theirs() {
    const MANY: usize = 10_000;
    let dev = Dev::start();
    let wire = Wire::connect(dev.address()).await;
    let mut stream = wire.watch().await;
    for number in 0..MANY {
        stream.create(watch(&format!("k/{number}"), 0));
    }
    for number in 0..MANY {
        assert_eq!(words(&stream.next().await), format!("{number} created"));
    }
    for number in [5_000, 0, 9_999] {
        let key = format!("k/{number}");
        wire.kv().put(put(&key, "1")).await.expect("put");
        assert_eq!(words(&stream.next().await), format!("{number} +{key}"));
    }
    drop(stream);
    let mut again = wire.watch().await;
    again.create(watch("k/1", 0));
    assert_eq!(words(&again.next().await), "0 created");
}

#[tokio::test]
async fn one_who_does_not_read_is_cancelled_and_costs_the_others_nothing() {
    let dev = Dev::start();
    let wire = Wire::connect(dev.address()).await;
    let other = Wire::connect(dev.address()).await;
    let mut slow = wire.watch().await;
    slow.create(watch("a", 0));
    assert_eq!(words(&slow.next().await), "0 created");
    let mut quick = other.watch().await;
    quick.create(watch("b", 0));
    assert_eq!(words(&quick.next().await), "0 created");
    let value = "x".repeat(1 << 20);
    let mut kv = other.kv();
    for _ in 0..limits::STORE_HISTORY_BYTES_MAX / value.len() {
        kv.put(put("a", &value)).await.expect("put");
    }
    kv.put(put("b", "1")).await.expect("put");
    assert_eq!(words(&quick.next().await), "0 +b");
    let last = loop {
        let answer = slow.next().await;
        if answer.canceled {
            break answer;
        }
    };
    assert_eq!(words(&last), "0 canceled compacted");
}

#[tokio::test]
async fn streams_that_are_dropped_leave_nothing() {
    let dev = Dev::start();
    for round in 0..5 {
        let wire = Wire::connect(dev.address()).await;
        for _ in 0..20 {
            let stream = wire.watch().await;
            stream.create(watch("a", 0));
            let (_requests, received) = tokio::sync::mpsc::channel(1);
            let renewing = tokio_stream::wrappers::ReceiverStream::new(received);
            wire.lease()
                .lease_keep_alive(renewing)
                .await
                .expect("a stream");
            drop(stream);
        }
        let answered = wire.kv().put(put("a", &round.to_string())).await;
        assert!(answered.is_ok(), "{answered:?}");
    }
}

#[tokio::test]
async fn what_is_too_large_or_unknown_is_refused() {
    let dev = Dev::start();
    let wire = Wire::connect(dev.address()).await;
    let refused = |bytes: usize| {
        let mut kv = wire.kv();
        async move {
            kv.put(put("a", &"x".repeat(bytes)))
                .await
                .expect_err("too large")
        }
    };
    let large = refused(limits::STORE_REQUEST_BYTES_MAX).await;
    assert_eq!(large.message(), "etcdserver: request is too large");
    assert_eq!(large.code(), Code::InvalidArgument);
    assert_eq!(refused(4 << 20).await.code(), Code::OutOfRange);
    let key = pb::PutRequest {
        key: vec![b'k'; 1 << 20].into(),
        ..Default::default()
    };
    wire.kv().put(key).await.expect("a key may be large");
    let empty = wire
        .kv()
        .range(pb::RangeRequest::default())
        .await
        .expect_err("no key");
    assert_eq!(empty.message(), "etcdserver: key is not provided");
    for path in [
        "/etcdserverpb.KV/Unknown",
        "/v3electionpb.Election/Campaign",
    ] {
        let request = http::Request::post(format!("http://lameduck.test{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(tonic::body::Body::empty())
            .expect("a request");
        let answer = wire.raw().send_request(request).await.expect("an answer");
        assert_eq!(
            answer
                .headers()
                .get("grpc-status")
                .map(|status| status.as_bytes()),
            Some(&b"12"[..]),
            "{path}"
        );
        let status = tonic::Status::from_header_map(answer.headers()).expect("a status");
        assert!(
            status.message().contains("development registry"),
            "{status}"
        );
    }
}

#[tokio::test]
async fn transactions_nest_and_leases_can_be_compared() {
    let dev = Dev::start();
    let wire = Wire::connect(dev.address()).await;
    let grant = pb::LeaseGrantRequest { ttl: 60, id: 77 };
    assert_eq!(
        wire.lease()
            .lease_grant(grant)
            .await
            .expect("granted")
            .get_ref()
            .id,
        77
    );
    let taken = wire.lease().lease_grant(grant).await.expect_err("taken");
    assert_eq!(
        (taken.code(), taken.message()),
        (Code::FailedPrecondition, "etcdserver: lease already exists")
    );
    let op = |request| pb::RequestOp {
        request: Some(request),
    };
    let leased = pb::PutRequest {
        lease: 77,
        ..put("a", "1")
    };
    let inner = pb::TxnRequest {
        success: vec![
            op(Request::RequestPut(leased)),
            op(Request::RequestRange(pb::RangeRequest {
                key: "a".into(),
                ..Default::default()
            })),
        ],
        ..Default::default()
    };
    let outer = pb::TxnRequest {
        success: vec![op(Request::RequestTxn(inner))],
        ..Default::default()
    };
    let answer = wire.kv().txn(outer).await.expect("done").into_inner();
    let Some(Response::ResponseTxn(inner)) = &answer.responses[0].response else {
        panic!("{answer:?}")
    };
    let Some(Response::ResponseRange(range)) = &inner.responses[1].response else {
        panic!("{inner:?}")
    };
    assert_eq!((range.kvs[0].lease, range.kvs[0].mod_revision), (77, 2));
    let mine = pb::Compare {
        target: pb::compare::CompareTarget::Lease.into(),
        key: "a".into(),
        target_union: Some(pb::compare::TargetUnion::Lease(77)),
        ..Default::default()
    };
    let compared = pb::TxnRequest {
        compare: vec![mine],
        ..Default::default()
    };
    assert!(
        wire.kv()
            .txn(compared)
            .await
            .expect("done")
            .get_ref()
            .succeeded
    );
}

/// Sends `bytes` and reads until the server has closed.
fn throw_at(address: SocketAddr, bytes: &[u8]) {
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    // It may close before it has read all.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

#[tokio::test]
async fn malformed_input_ends_its_own_connection_only() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let dev = Dev::start();
    let wire = Wire::connect(dev.address()).await;
    let mut stream = wire.watch().await;
    stream.create(watch("a", 0));
    assert_eq!(words(&stream.next().await), "0 created");
    let frame = |kind: u8, stream: u32, body: &[u8]| {
        let length = u32::try_from(body.len()).expect("short").to_be_bytes();
        [
            PREFACE,
            &[0, 0, 0, 4, 0, 0, 0, 0, 0],
            &length[1..],
            &[kind, 0],
            &stream.to_be_bytes(),
            body,
        ]
        .concat()
    };
    for bytes in [
        b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        vec![0xff; 100_000],
        PREFACE[..10].to_vec(),
        [PREFACE, &[0xff; 1_000]].concat(),
        frame(0, 0, b"data on no stream"),
        frame(1, 1, &[0xff; 64]),
        frame(3, 0, &[0; 4]),
        frame(6, 0, &[0; 3]),
        frame(8, 1, &[0; 4]),
        frame(9, 1, b"a continuation of nothing"),
    ] {
        let address = dev.address();
        let thrown = tokio::task::spawn_blocking(move || throw_at(address, &bytes));
        thrown.await.expect("no panic");
    }
    let malformed = http::Request::post("http://lameduck.test/etcdserverpb.KV/Put")
        .header("content-type", "application/grpc")
        .body(tonic::body::Body::new(http_body_util::Full::new(
            bytes::Bytes::from_static(b"\0\0\0\0\x03\x0a\xff\xff"),
        )))
        .expect("a request");
    let answer = wire.raw().send_request(malformed).await.expect("an answer");
    assert!(answer.headers().contains_key("grpc-status"), "{answer:?}");
    wire.kv().put(put("a", "1")).await.expect("put");
    assert_eq!(words(&stream.next().await), "0 +a");
}

#[tokio::test]
async fn only_loopback_is_taken() {
    let any = tokio::net::TcpListener::bind("0.0.0.0:0")
        .await
        .expect("a free port");
    let refused = DevServer::new(any).expect_err("not loopback");
    assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
    assert!(refused.to_string().contains("127.0.0.1"), "{refused}");
    let six = DevServer::bind("[::1]:0".parse().expect("an address")).await;
    assert!(six.is_ok() || std::net::TcpListener::bind("[::1]:0").is_err());
}

/// The development server at `address` until the sender is dropped.
async fn life(
    address: SocketAddr,
) -> (SocketAddr, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let server = DevServer::bind(address).await.expect("its port is free");
    let address = server.local_addr();
    let (end, ended) = oneshot::channel::<()>();
    let running = tokio::spawn(server.run(async { drop(ended.await) }));
    (address, end, running)
}

#[tokio::test]
async fn r13_a_restart_strands_no_watcher() {
    let mut rng = lameduck_core::rng::Rng::from_seed(u64::from(std::process::id()) + 13);
    let mut address = ports::free(1, &mut rng).expect("a port")[0];
    let mut last = None::<i64>;
    for _ in 0..3 {
        let (bound, end, running) = life(address).await;
        address = bound;
        let wire = Wire::connect(address).await;
        let mut kv = wire.kv();
        if let Some(last) = last {
            // As clientv3 resumes: behind the last revision it has heard of, whatever that was.
            for from in [last + 1, last, 2] {
                let mut stream = wire.watch().await;
                stream.create(watch("orders/1", from));
                assert_eq!(words(&stream.next().await), "0 created");
                let gone = stream.next().await;
                assert_eq!(words(&gone), "0 canceled compacted", "from {from}");
                assert!(gone.compact_revision > last, "{gone:?}");
            }
            // Lists go on at the revision of their first page.
            let page = pb::RangeRequest {
                revision: last,
                ..key("orders/1")
            };
            let gone = kv.range(page).await.expect_err("forgotten");
            assert_eq!(gone.code(), Code::OutOfRange, "{gone:?}");
            // A condition on a revision of an earlier life never holds by chance.
            kv.put(put("orders/1", "now")).await.expect("put");
            let unchanged = pb::Compare {
                key: "orders/1".into(),
                target: pb::compare::CompareTarget::Mod.into(),
                target_union: Some(pb::compare::TargetUnion::ModRevision(last)),
                ..Default::default()
            };
            let txn = pb::TxnRequest {
                compare: vec![unchanged],
                ..Default::default()
            };
            let done = kv.txn(txn).await.expect("asked").into_inner();
            assert!(!done.succeeded);
        }
        for _ in 0..50 {
            kv.put(put("orders/1", "before")).await.expect("put");
        }
        let answer = kv.put(put("orders/1", "last")).await.expect("put");
        let header = answer.into_inner().header.expect("always there");
        assert!(last.is_none_or(|last| header.revision > last));
        // One that begins now hears the next.
        let mut stream = wire.watch().await;
        stream.create(watch("orders/1", header.revision + 1));
        assert_eq!(words(&stream.next().await), "0 created");
        kv.put(put("orders/1", "heard")).await.expect("put");
        assert_eq!(words(&stream.next().await), "0 +orders/1");
        last = Some(header.revision + 1);
        drop(end);
        running.await.expect("no panic");
    }
}

/// Puts a hundred keys at once.
fn hundred(parent: &str) -> pb::TxnRequest {
    let op = |number: u32| pb::RequestOp {
        request: Some(Request::RequestPut(put(&format!("{parent}/{number}"), "1"))),
    };
    pb::TxnRequest {
        success: (0..100).map(op).collect(),
        ..Default::default()
    }
}

#[tokio::test]
async fn r24_a_quiet_watch_outlives_the_history() {
    let dev = Dev::start();
    let wire = Wire::connect(dev.address()).await;
    let mut kv = wire.kv();
    let mut stream = wire.watch().await;
    for (id, key) in [(1, "quiet"), (2, "later")] {
        stream.create(pb::WatchCreateRequest {
            watch_id: id,
            ..watch(key, if id == 2 { 3 } else { 0 })
        });
        assert_eq!(words(&stream.next().await), format!("{id} created"));
    }
    // More revisions than are remembered, none of which concerns them.
    for _ in 0..limits::STORE_HISTORY_MAX / 100 + 2 {
        kv.txn(hundred("busy")).await.expect("done");
    }
    let old = kv.range(pb::RangeRequest {
        revision: 2,
        ..key("busy/0")
    });
    let old = old.await.expect_err("that is forgotten");
    assert!(old.message().contains("compacted"), "{old}");
    kv.put(put("quiet", "1")).await.expect("put");
    assert_eq!(words(&stream.next().await), "1 +quiet");
    kv.put(put("later", "1")).await.expect("put");
    assert_eq!(words(&stream.next().await), "2 +later");
    // Both hear a transaction that writes both, each its own part.
    let both = pb::TxnRequest {
        success: ["later", "quiet"]
            .map(|key| pb::RequestOp {
                request: Some(Request::RequestPut(put(key, "2"))),
            })
            .to_vec(),
        ..Default::default()
    };
    kv.txn(both).await.expect("done");
    assert_eq!(words(&stream.next().await), "1 +quiet");
    assert_eq!(words(&stream.next().await), "2 +later");
}

#[tokio::test]
async fn r24_one_who_has_much_to_read_keeps_nobody_waiting() {
    let dev = Dev::start();
    let wire = Wire::connect(dev.address()).await;
    let mut kv = wire.kv();
    // Several answers' worth of the past.
    for _ in 0..limits::STORE_READ_MAX * 4 / 100 {
        kv.txn(hundred("much")).await.expect("done");
    }
    kv.put(put("few", "1")).await.expect("put");
    let mut stream = wire.watch().await;
    stream.create(pb::WatchCreateRequest {
        range_end: "much0".into(),
        ..watch("much/", 2)
    });
    stream.create(watch("few", 2));
    let mut before = 0;
    loop {
        let answer = stream.next().await;
        match answer.events.first().and_then(|event| event.kv.as_ref()) {
            Some(kv) if kv.key == "few" => break,
            Some(_) => before += 1,
            None => assert!(answer.created),
        }
    }
    assert!(before <= 2, "{before} answers of the other came first");
}
