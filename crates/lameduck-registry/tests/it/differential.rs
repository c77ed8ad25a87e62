//! Random histories, asked of the development server and of a real etcd: every answer is equal.

use lameduck_core::rng::Rng;
use lameduck_etcd_proto::etcdserverpb as pb;
use lameduck_registry::etcd::process::{Process, usable_in};
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::request_op::Request;
use tonic::{Response, Status};

use crate::server::Dev;
use crate::wire::Wire;

/// Requests of one history.
const LENGTH: usize = 250;
const SEEDS: u64 = 4;

/// One request, with everything that is drawn for it.
#[derive(Clone, Debug)]
enum Ask {
    Range(pb::RangeRequest),
    Put(pb::PutRequest),
    Delete(pb::DeleteRangeRequest),
    Txn(pb::TxnRequest),
    Compact(pb::CompactionRequest),
    Grant(pb::LeaseGrantRequest),
    Revoke(pb::LeaseRevokeRequest),
    TimeToLive(pb::LeaseTimeToLiveRequest),
}

struct Draw {
    rng: Rng,
    /// About where the revision is by now.
    revision: usize,
}

impl Draw {
    fn one_of(&mut self, bound: usize) -> usize {
        self.rng.below(bound)
    }

    fn number(&mut self, bound: usize) -> i64 {
        i64::try_from(self.one_of(bound)).expect("small")
    }

    fn often(&mut self, one_in: usize) -> bool {
        self.one_of(one_in) == 0
    }

    fn key(&mut self) -> bytes::Bytes {
        let keys = ["a", "a/1", "a/2", "b", "b/1", "c", "\u{ff}", ""];
        let last = if self.often(30) { 8 } else { 7 };
        keys[self.one_of(last)].into()
    }

    fn range_end(&mut self) -> bytes::Bytes {
        match self.one_of(6) {
            0 => bytes::Bytes::from_static(&[0]),
            1 => "b".into(),
            2 => "a0".into(),
            3 => self.key(),
            _ => bytes::Bytes::new(),
        }
    }

    fn lease(&mut self) -> i64 {
        if self.often(3) { 1 + self.number(4) } else { 0 }
    }

    fn past(&mut self) -> i64 {
        if self.often(4) {
            self.number(self.revision + 3)
        } else {
            0
        }
    }

    fn range(&mut self) -> pb::RangeRequest {
        let sort_order = self.one_of(3);
        let sort_target = self.one_of(5);
        pb::RangeRequest {
            key: self.key(),
            range_end: self.range_end(),
            limit: self.number(4),
            revision: self.past(),
            sort_order: i32::try_from(sort_order).expect("small"),
            sort_target: i32::try_from(sort_target).expect("small"),
            keys_only: self.often(5),
            count_only: self.often(8),
            min_mod_revision: self.past(),
            max_create_revision: self.past(),
            ..Default::default()
        }
    }

    fn put(&mut self) -> pb::PutRequest {
        pb::PutRequest {
            key: self.key(),
            value: ["", "1", "2", "3"][self.one_of(4)].into(),
            lease: self.lease(),
            prev_kv: self.often(3),
            ignore_value: self.often(12),
            ignore_lease: self.often(12),
        }
    }

    fn delete(&mut self) -> pb::DeleteRangeRequest {
        pb::DeleteRangeRequest {
            key: self.key(),
            range_end: self.range_end(),
            prev_kv: self.often(2),
        }
    }

    /// etcd does not see that a delete without end meets a put of the same transaction; we do.
    fn bounded_delete(&mut self) -> pb::DeleteRangeRequest {
        let mut delete = self.delete();
        if delete.range_end[..] == [0] {
            delete.range_end = "d".into();
        }
        delete
    }

    fn compare(&mut self) -> pb::Compare {
        let (target, target_union) = match self.one_of(5) {
            0 => (CompareTarget::Version, TargetUnion::Version(self.number(3))),
            1 => (
                CompareTarget::Create,
                TargetUnion::CreateRevision(self.past()),
            ),
            2 => (CompareTarget::Mod, TargetUnion::ModRevision(self.past())),
            3 => (CompareTarget::Lease, TargetUnion::Lease(self.lease())),
            _ => (
                CompareTarget::Value,
                TargetUnion::Value(["", "1"][self.one_of(2)].into()),
            ),
        };
        let results = [
            CompareResult::Equal,
            CompareResult::NotEqual,
            CompareResult::Greater,
            CompareResult::Less,
        ];
        pb::Compare {
            result: results[self.one_of(4)].into(),
            target: target.into(),
            key: self.key(),
            range_end: self.range_end(),
            target_union: Some(target_union),
        }
    }

    fn txn(&mut self, depth: usize) -> pb::TxnRequest {
        let compare = (0..self.one_of(3)).map(|_| self.compare()).collect();
        let success = (0..self.one_of(4)).map(|_| self.op(depth)).collect();
        let failure = (0..self.one_of(4)).map(|_| self.op(depth)).collect();
        pb::TxnRequest {
            compare,
            success,
            failure,
        }
    }

    fn op(&mut self, depth: usize) -> pb::RequestOp {
        let request = match self.one_of(if depth == 0 { 6 } else { 7 }) {
            0 | 1 => Request::RequestRange(self.range()),
            2..=4 => Request::RequestPut(self.put()),
            5 => Request::RequestDeleteRange(self.bounded_delete()),
            _ => Request::RequestTxn(self.txn(depth - 1)),
        };
        pb::RequestOp {
            request: Some(request),
        }
    }

    fn ask(&mut self) -> Ask {
        match self.one_of(20) {
            0..=4 => Ask::Range(self.range()),
            5..=9 => Ask::Put(self.put()),
            10 | 11 => Ask::Delete(self.delete()),
            12..=15 => Ask::Txn(self.txn(2)),
            16 => Ask::Grant(pb::LeaseGrantRequest {
                // Longer than the slowest disk takes for all the rest.
                ttl: 100_000,
                id: 1 + self.number(4),
            }),
            17 => Ask::Revoke(pb::LeaseRevokeRequest { id: self.number(5) }),
            18 => Ask::TimeToLive(pb::LeaseTimeToLiveRequest {
                id: 1 + self.number(4),
                keys: true,
            }),
            _ => {
                let back = self.number(30);
                let revision = self.number(self.revision + 1) - back;
                Ask::Compact(pb::CompactionRequest {
                    revision,
                    physical: false,
                })
            }
        }
    }
}

fn say<T: std::fmt::Debug>(answer: Result<Response<T>, Status>) -> Result<T, String> {
    let answer = answer.map(Response::into_inner);
    answer.map_err(|status| format!("{:?} {:?}", status.code(), status.message()))
}

/// The answer as text, without what names the server.
async fn answer(wire: &Wire, ask: Ask) -> String {
    let (mut kv, mut lease) = (wire.kv(), wire.lease());
    let text = match ask {
        Ask::Range(ask) => format!("{:?}", say(kv.range(ask).await)),
        Ask::Put(ask) => format!("{:?}", say(kv.put(ask).await)),
        Ask::Delete(ask) => format!("{:?}", say(kv.delete_range(ask).await)),
        Ask::Txn(ask) => format!("{:?}", say(kv.txn(ask).await)),
        Ask::Compact(ask) => format!("{:?}", say(kv.compact(ask).await)),
        Ask::Grant(ask) => format!("{:?}", say(lease.lease_grant(ask).await)),
        Ask::Revoke(ask) => format!("{:?}", say(lease.lease_revoke(ask).await)),
        Ask::TimeToLive(ask) => {
            let mut said = say(lease.lease_time_to_live(ask).await);
            if let Ok(said) = &mut said {
                // etcd's come in no order; seconds may pass.
                said.keys.sort();
                said.ttl = said.ttl.min(1);
            }
            format!("{said:?}")
        }
    };
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut kept = String::new();
    for (number, part) in text.split("_id: ").enumerate() {
        kept.push_str(if number == 0 {
            part
        } else {
            &part[digits(part)..]
        });
    }
    kept
}

/// Everything that a watcher of all keys hears from `from` on, up to `to`.
async fn heard(wire: &Wire, from: i64, to: i64) -> Vec<String> {
    let first = bytes::Bytes::from_static(&[0]);
    let create = pb::WatchCreateRequest {
        key: first.clone(),
        range_end: first,
        start_revision: from,
        prev_kv: true,
        ..Default::default()
    };
    let mut stream = wire.watch_with([create]).await;
    assert!(stream.next().await.created);
    let mut heard = Vec::new();
    let mut last = 0;
    while last < to {
        let answer = stream.next().await;
        assert!(!answer.canceled, "{answer:?}");
        for event in answer.events {
            last = event.kv.as_ref().expect("always there").mod_revision;
            heard.push(format!("{event:?}"));
        }
    }
    heard
}

async fn compare(seed: u64) {
    let etcd = Process::start().expect("etcd starts");
    let dev = Dev::start();
    let (real, ours) = (
        Wire::connect(etcd.address()).await,
        Wire::connect(dev.address()).await,
    );
    let mut draw = Draw {
        rng: Rng::from_seed(seed),
        revision: 1,
    };
    let mut compacted = 0;
    for number in 0..LENGTH {
        let ask = draw.ask();
        let (theirs, mine) = (
            answer(&real, ask.clone()).await,
            answer(&ours, ask.clone()).await,
        );
        assert_eq!(
            mine, theirs,
            "seed {seed}, request {number}: {ask:?}; left: ours, right: etcd"
        );
        draw.revision +=
            usize::from(matches!(ask, Ask::Put(_) | Ask::Txn(_)) && mine.starts_with("Ok"));
        if let Ask::Compact(ask) = ask {
            compacted = if mine.starts_with("Ok") {
                ask.revision
            } else {
                compacted
            };
        }
    }
    // A last word that both surely hear; the past from just after the last compaction.
    let end = pb::PutRequest {
        key: "end".into(),
        ..Default::default()
    };
    let end = ours
        .kv()
        .put(end.clone())
        .await
        .and(real.kv().put(end).await)
        .expect("put");
    let to = end.into_inner().header.expect("always there").revision;
    let from = compacted + 2;
    assert_eq!(
        heard(&ours, from, to).await,
        heard(&real, from, to).await,
        "seed {seed}"
    );
}

#[tokio::test]
async fn random_histories_are_answered_as_by_etcd() {
    if !usable_in("random_histories_are_answered_as_by_etcd") {
        return;
    }
    let asked = std::env::var("LAMEDUCK_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seeds = asked.map_or(0..SEEDS, |seed| seed..seed + 1);
    for seed in seeds {
        compare(seed).await;
    }
}
