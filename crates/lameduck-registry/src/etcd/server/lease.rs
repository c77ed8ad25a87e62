//! Leases.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use lameduck_core::limits;
use lameduck_core::store::LeaseId;
use lameduck_etcd_proto::etcdserverpb as pb;
use lameduck_etcd_proto::etcdserverpb::lease_server::Lease;
use tonic::{Request, Response, Status, Streaming};

use super::state::{State, header};
use super::wire;

/// The service `etcdserverpb.Lease`.
pub(super) struct LeaseService(pub(super) Arc<State>);

/// As etcd has it: too short is made longer, too long is refused.
fn granted(ttl: i64) -> Duration {
    let asked = Duration::from_secs(u64::try_from(ttl).unwrap_or(0));
    asked.max(limits::STORE_LEASE_TTL_MIN)
}

/// Whole seconds, rounded down.
fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// An unknown lease has 0 s left; this is no error on this stream.
fn keep_alive(state: &State, id: i64) -> pb::LeaseKeepAliveResponse {
    let (ttl, revision) = state.with(|store, now| {
        let ttl = store.renew(now, LeaseId(id)).map_or(0, seconds);
        (ttl, store.revision())
    });
    pb::LeaseKeepAliveResponse {
        header: Some(header(revision)),
        id,
        ttl,
    }
}

#[tonic::async_trait]
impl Lease for LeaseService {
    type LeaseKeepAliveStream =
        Pin<Box<dyn Stream<Item = Result<pb::LeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_grant(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        let pb::LeaseGrantRequest { ttl, id } = request.into_inner();
        let (asked, ttl) = ((id != 0).then_some(LeaseId(id)), granted(ttl));
        let (id, revision) = self
            .0
            .with(|store, now| (store.grant(now, asked, ttl), store.revision()));
        let LeaseId(id) = id.map_err(wire::status)?;
        Ok(Response::new(pb::LeaseGrantResponse {
            header: Some(header(revision)),
            id,
            ttl: seconds(ttl),
            error: String::new(),
        }))
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        let id = LeaseId(request.get_ref().id);
        let (done, revision) = self.0.with(|store, _| (store.revoke(id), store.revision()));
        done.map_err(wire::status)?;
        Ok(Response::new(pb::LeaseRevokeResponse {
            header: Some(header(revision)),
        }))
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let state = Arc::clone(&self.0);
        let answers = request.into_inner().map(move |request| {
            let request = request?;
            Ok(keep_alive(&state, request.id))
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        let pb::LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        let response = self.0.with(|store, now| {
            let header = Some(header(store.revision()));
            let Some(lease) = store.lease(now, LeaseId(id)) else {
                let (ttl, granted_ttl, keys) = (-1, 0, Vec::new());
                return pb::LeaseTimeToLiveResponse {
                    header,
                    id,
                    ttl,
                    granted_ttl,
                    keys,
                };
            };
            let shown = lease.keys.iter().filter(|_| keys).cloned();
            pb::LeaseTimeToLiveResponse {
                header,
                id,
                ttl: seconds(lease.remaining),
                granted_ttl: seconds(lease.ttl),
                keys: shown.map(wire::bytes).collect(),
            }
        });
        Ok(Response::new(response))
    }

    /// The one that ends first comes first.
    async fn lease_leases(
        &self,
        _: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        let (mut leases, revision) = self.0.with(|store, now| {
            let left = |id| store.lease(now, id).map(|lease| (lease.remaining, id.0));
            let leases: Vec<_> = store.leases().filter_map(left).collect();
            (leases, store.revision())
        });
        leases.sort_unstable();
        Ok(Response::new(pb::LeaseLeasesResponse {
            header: Some(header(revision)),
            leases: leases
                .into_iter()
                .map(|(_, id)| pb::LeaseStatus { id })
                .collect(),
        }))
    }
}
