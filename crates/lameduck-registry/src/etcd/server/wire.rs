//! Between etcd's messages and the store's values.

use bytes::Bytes;
use lameduck_core::limits;
use lameduck_core::store::{
    Answer, Assign, Blob, Change, ChangeKind, Compare, Found, KeyRange, KeyValue, LeaseId, Op,
    Operand, Order, Output, Put, Query, Relation, SortBy, StoreError, Txn, TxnAnswer,
};
use lameduck_etcd_proto::etcdserverpb as pb;
use lameduck_etcd_proto::mvccpb;
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::range_request::{SortOrder, SortTarget};
use tonic::{Code, Status};

/// The status that etcd answers with, word for word: clients match on code and text.
pub(super) fn status(error: StoreError) -> Status {
    let (code, text) = match error {
        StoreError::Compacted(_) => (
            Code::OutOfRange,
            "mvcc: required revision has been compacted",
        ),
        StoreError::FutureRevision => (
            Code::OutOfRange,
            "mvcc: required revision is a future revision",
        ),
        StoreError::KeyNotFound => (Code::InvalidArgument, "key not found"),
        StoreError::EmptyKey => (Code::InvalidArgument, "key is not provided"),
        StoreError::DuplicateKey => (Code::InvalidArgument, "duplicate key given in txn request"),
        StoreError::TooManyOps => (Code::InvalidArgument, "too many operations in txn request"),
        StoreError::LeaseNotFound => (Code::NotFound, "requested lease not found"),
        StoreError::LeaseExists => (Code::FailedPrecondition, "lease already exists"),
        StoreError::LeaseTooLong => (Code::OutOfRange, "too large lease TTL"),
        StoreError::Full => (Code::ResourceExhausted, "mvcc: database space exceeded"),
        other => return Status::internal(format!("etcdserver: {other}")),
    };
    Status::new(code, format!("etcdserver: {text}"))
}

/// Refuses a write that etcd would refuse for its size.
pub(super) fn admit_size(request: &impl prost::Message) -> Result<(), Status> {
    if request.encoded_len() > limits::STORE_REQUEST_BYTES_MAX {
        return Err(Status::invalid_argument("etcdserver: request is too large"));
    }
    Ok(())
}

fn blob(bytes: &Bytes) -> Blob {
    bytes[..].into()
}

pub(super) fn bytes(blob: Blob) -> Bytes {
    Bytes::from_owner(blob)
}

pub(super) fn range(key: &Bytes, range_end: &Bytes) -> KeyRange {
    KeyRange::from_wire(blob(key), blob(range_end))
}

/// 0 means no lease.
fn lease(id: i64) -> Option<LeaseId> {
    (id != 0).then_some(LeaseId(id))
}

pub(super) fn query(request: &pb::RangeRequest) -> Query {
    let given = |number: i64| (number != 0).then_some(number);
    let output = match (request.count_only, request.keys_only) {
        (true, _) => Output::Count,
        (false, true) => Output::Keys,
        (false, false) => Output::All,
    };
    Query {
        range: range(&request.key, &request.range_end),
        revision: given(request.revision.max(0)),
        limit: usize::try_from(request.limit)
            .ok()
            .filter(|limit| *limit > 0),
        sort_by: match request.sort_target() {
            SortTarget::Key => SortBy::Key,
            SortTarget::Version => SortBy::Version,
            SortTarget::Create => SortBy::CreateRevision,
            SortTarget::Mod => SortBy::ModRevision,
            SortTarget::Value => SortBy::Value,
        },
        order: match request.sort_order() {
            SortOrder::None => Order::Unsaid,
            SortOrder::Ascend => Order::Ascending,
            SortOrder::Descend => Order::Descending,
        },
        min_mod_revision: given(request.min_mod_revision),
        max_mod_revision: given(request.max_mod_revision),
        min_create_revision: given(request.min_create_revision),
        max_create_revision: given(request.max_create_revision),
        output,
    }
}

/// Refuses a put by its looks.
pub(super) fn admit_put(request: &pb::PutRequest) -> Result<(), Status> {
    admit_key(&request.key)?;
    if request.ignore_value && !request.value.is_empty() {
        return Err(Status::invalid_argument("etcdserver: value is provided"));
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Status::invalid_argument("etcdserver: lease is provided"));
    }
    Ok(())
}

fn admit_key(key: &Bytes) -> Result<(), Status> {
    if key.is_empty() {
        Err(status(StoreError::EmptyKey))
    } else {
        Ok(())
    }
}

/// Refuses a transaction by its looks. What is wrong with it first is told, in etcd's order.
pub(super) fn admit_txn(request: &pb::TxnRequest) -> Result<(), Status> {
    use pb::request_op::Request;
    let lists = [
        request.compare.len(),
        request.success.len(),
        request.failure.len(),
    ];
    if lists.iter().any(|len| *len > limits::STORE_TXN_OPS_MAX) {
        return Err(status(StoreError::TooManyOps));
    }
    request
        .compare
        .iter()
        .try_for_each(|compare| admit_key(&compare.key))?;
    let ops = request.success.iter().chain(&request.failure);
    ops.filter_map(|op| op.request.as_ref())
        .try_for_each(|request| match request {
            Request::RequestRange(request) => admit_key(&request.key),
            Request::RequestPut(request) => admit_put(request),
            Request::RequestDeleteRange(request) => admit_key(&request.key),
            Request::RequestTxn(request) => admit_txn(request),
        })
}

pub(super) fn put(request: &pb::PutRequest) -> Put {
    Put {
        key: blob(&request.key),
        value: if request.ignore_value {
            Assign::Keep
        } else {
            Assign::To(blob(&request.value))
        },
        lease: if request.ignore_lease {
            Assign::Keep
        } else {
            Assign::To(lease(request.lease))
        },
    }
}

fn compare(compare: &pb::Compare) -> Compare {
    // A missing operand is the zero of what is compared.
    let number = match &compare.target_union {
        Some(
            TargetUnion::Version(number)
            | TargetUnion::CreateRevision(number)
            | TargetUnion::ModRevision(number)
            | TargetUnion::Lease(number),
        ) => *number,
        Some(TargetUnion::Value(_)) | None => 0,
    };
    Compare {
        range: range(&compare.key, &compare.range_end),
        relation: match compare.result() {
            CompareResult::Equal => Relation::Equal,
            CompareResult::NotEqual => Relation::NotEqual,
            CompareResult::Greater => Relation::Greater,
            CompareResult::Less => Relation::Less,
        },
        operand: match compare.target() {
            CompareTarget::Version => Operand::Version(number),
            CompareTarget::Create => Operand::CreateRevision(number),
            CompareTarget::Mod => Operand::ModRevision(number),
            CompareTarget::Lease => Operand::Lease(lease(number)),
            CompareTarget::Value => Operand::Value(match &compare.target_union {
                Some(TargetUnion::Value(value)) => blob(value),
                _ => [].into(),
            }),
        },
    }
}

pub(super) fn txn(request: &pb::TxnRequest) -> Txn {
    // A step that says nothing is left out.
    let ops = |ops: &[pb::RequestOp]| {
        let requests = ops.iter().filter_map(|op| op.request.as_ref());
        requests.map(op).collect()
    };
    Txn {
        compares: request.compare.iter().map(compare).collect(),
        success: ops(&request.success),
        failure: ops(&request.failure),
    }
}

fn op(request: &pb::request_op::Request) -> Op {
    use pb::request_op::Request;
    match request {
        Request::RequestRange(request) => Op::Range(query(request)),
        Request::RequestPut(request) => Op::Put(put(request)),
        Request::RequestDeleteRange(request) => Op::Delete(range(&request.key, &request.range_end)),
        Request::RequestTxn(request) => Op::Txn(txn(request)),
    }
}

pub(super) fn key_value(kv: KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: bytes(kv.key),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        value: bytes(kv.value),
        lease: kv.lease.map_or(0, |id| id.0),
    }
}

pub(super) fn event(change: Change, prev_kv: bool) -> mvccpb::Event {
    let kind = match change.kind {
        ChangeKind::Put => mvccpb::event::EventType::Put,
        ChangeKind::Delete => mvccpb::event::EventType::Delete,
    };
    mvccpb::Event {
        r#type: kind.into(),
        kv: Some(key_value(change.kv)),
        prev_kv: change.prev.filter(|_| prev_kv).map(key_value),
    }
}

pub(super) fn found(found: Found, header: pb::ResponseHeader) -> pb::RangeResponse {
    pb::RangeResponse {
        header: Some(header),
        kvs: found.kvs.into_iter().map(key_value).collect(),
        more: found.more,
        count: i64::try_from(found.count).unwrap_or(i64::MAX),
    }
}

pub(super) fn replaced(
    prev: Option<KeyValue>,
    request: &pb::PutRequest,
    header: pb::ResponseHeader,
) -> pb::PutResponse {
    let prev_kv = prev.filter(|_| request.prev_kv).map(key_value);
    pb::PutResponse {
        header: Some(header),
        prev_kv,
    }
}

pub(super) fn deleted(
    deleted: Vec<KeyValue>,
    request: &pb::DeleteRangeRequest,
    header: pb::ResponseHeader,
) -> pb::DeleteRangeResponse {
    let count = i64::try_from(deleted.len()).unwrap_or(i64::MAX);
    let shown = if request.prev_kv { deleted } else { Vec::new() };
    pb::DeleteRangeResponse {
        header: Some(header),
        deleted: count,
        prev_kvs: shown.into_iter().map(key_value).collect(),
    }
}

/// The answer to `request`. `revision` is the one before the transaction. As etcd does, each step's
/// header says the revision as that step saw it, a transaction within says none.
pub(super) fn txn_answer(
    answer: TxnAnswer,
    request: &pb::TxnRequest,
    revision: &mut i64,
    before: i64,
) -> pb::TxnResponse {
    use pb::request_op::Request;
    use pb::response_op::Response;
    let ops = if answer.succeeded {
        &request.success
    } else {
        &request.failure
    };
    let requests = ops.iter().filter_map(|op| op.request.as_ref());
    let mut responses = Vec::with_capacity(answer.answers.len());
    for (answer, request) in answer.answers.into_iter().zip(requests) {
        let changes = match &answer {
            Answer::Put(_) => true,
            Answer::Delete(deleted) => !deleted.is_empty(),
            Answer::Range(_) | Answer::Txn(_) => false,
        };
        if changes {
            *revision = before + 1;
        }
        let header = pb::ResponseHeader {
            revision: *revision,
            ..Default::default()
        };
        let response = match (answer, request) {
            (Answer::Range(answer), _) => Response::ResponseRange(found(answer, header)),
            (Answer::Put(prev), Request::RequestPut(request)) => {
                Response::ResponsePut(replaced(prev, request, header))
            }
            (Answer::Delete(kvs), Request::RequestDeleteRange(request)) => {
                Response::ResponseDeleteRange(deleted(kvs, request, header))
            }
            (Answer::Txn(answer), Request::RequestTxn(request)) => {
                Response::ResponseTxn(txn_answer(answer, request, revision, before))
            }
            // Answers come in the order of the steps.
            (Answer::Put(_) | Answer::Delete(_) | Answer::Txn(_), _) => continue,
        };
        responses.push(pb::ResponseOp {
            response: Some(response),
        });
    }
    pb::TxnResponse {
        header: Some(pb::ResponseHeader::default()),
        succeeded: answer.succeeded,
        responses,
    }
}
