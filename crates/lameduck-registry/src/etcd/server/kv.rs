//! Reading and writing.

use std::sync::Arc;

use lameduck_etcd_proto::etcdserverpb as pb;
use lameduck_etcd_proto::etcdserverpb::kv_server::Kv;
use tonic::{Request, Response, Status};

use super::state::{State, header};
use super::wire;

/// The service `etcdserverpb.KV`.
pub(super) struct KvService(pub(super) Arc<State>);

#[tonic::async_trait]
impl Kv for KvService {
    async fn range(
        &self,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<pb::RangeResponse>, Status> {
        let query = wire::query(request.get_ref());
        let (found, revision) = self
            .0
            .with(|store, _| (store.range(&query), store.revision()));
        let found = found.map_err(wire::status)?;
        Ok(Response::new(wire::found(found, header(revision))))
    }

    async fn put(
        &self,
        request: Request<pb::PutRequest>,
    ) -> Result<Response<pb::PutResponse>, Status> {
        let request = request.get_ref();
        wire::admit_size(request)?;
        wire::admit_put(request)?;
        let put = wire::put(request);
        let (prev, revision) = self.0.with(|store, _| (store.put(put), store.revision()));
        let prev = prev.map_err(wire::status)?;
        Ok(Response::new(wire::replaced(
            prev,
            request,
            header(revision),
        )))
    }

    async fn delete_range(
        &self,
        request: Request<pb::DeleteRangeRequest>,
    ) -> Result<Response<pb::DeleteRangeResponse>, Status> {
        let request = request.get_ref();
        let range = wire::range(&request.key, &request.range_end);
        let (deleted, revision) = self
            .0
            .with(|store, _| (store.delete(&range), store.revision()));
        let deleted = deleted.map_err(wire::status)?;
        Ok(Response::new(wire::deleted(
            deleted,
            request,
            header(revision),
        )))
    }

    async fn txn(
        &self,
        request: Request<pb::TxnRequest>,
    ) -> Result<Response<pb::TxnResponse>, Status> {
        let request = request.get_ref();
        wire::admit_size(request)?;
        wire::admit_txn(request)?;
        let txn = wire::txn(request);
        let (answer, before, revision) = self.0.with(|store, _| {
            let before = store.revision();
            (store.txn(txn), before, store.revision())
        });
        let answer = answer.map_err(wire::status)?;
        let mut response = wire::txn_answer(answer, request, &mut before.clone(), before);
        response.header = Some(header(revision));
        Ok(Response::new(response))
    }

    async fn compact(
        &self,
        request: Request<pb::CompactionRequest>,
    ) -> Result<Response<pb::CompactionResponse>, Status> {
        let wanted = request.get_ref().revision;
        let (done, revision) = self
            .0
            .with(|store, _| (store.compact(wanted), store.revision()));
        done.map_err(wire::status)?;
        Ok(Response::new(pb::CompactionResponse {
            header: Some(header(revision)),
        }))
    }
}
