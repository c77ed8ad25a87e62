//! What clients ask besides: who is there, how is it, may I come in.

use std::net::SocketAddr;
use std::sync::Arc;

use lameduck_etcd_proto::etcdserverpb as pb;
use pb::auth_server::Auth;
use pb::cluster_server::Cluster;
use pb::maintenance_server::Maintenance;
use tonic::{Request, Response, Status};

use super::state::{MEMBER_ID, State, TERM, header};

/// The API that is spoken, and who speaks it. Clients refuse what is older than 3.4.
pub(super) const VERSION: &str = concat!("3.4.0+lameduck.", env!("CARGO_PKG_VERSION"));

/// The server's own address of the connection that a request came in on.
#[derive(Clone, Copy, Debug)]
pub(super) struct CameIn(pub(super) SocketAddr);

/// The services `etcdserverpb.Cluster`, `Maintenance` and `Auth`.
pub(super) struct OtherServices(pub(super) Arc<State>);

#[tonic::async_trait]
impl Cluster for OtherServices {
    /// One member, whose address is the one that works for this client: what it came in on.
    async fn member_list(
        &self,
        request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        let came_in = request.extensions().get::<CameIn>();
        let member = pb::Member {
            id: MEMBER_ID,
            name: "lameduck".to_owned(),
            peer_ur_ls: Vec::new(),
            client_ur_ls: came_in
                .map(|CameIn(address)| format!("http://{address}"))
                .into_iter()
                .collect(),
            is_learner: false,
        };
        let revision = self.0.with(|store, _| store.revision());
        Ok(Response::new(pb::MemberListResponse {
            header: Some(header(revision)),
            members: vec![member],
        }))
    }
}

#[tonic::async_trait]
impl Maintenance for OtherServices {
    /// There never is an alarm.
    async fn alarm(
        &self,
        _: Request<pb::AlarmRequest>,
    ) -> Result<Response<pb::AlarmResponse>, Status> {
        let revision = self.0.with(|store, _| store.revision());
        Ok(Response::new(pb::AlarmResponse {
            header: Some(header(revision)),
            alarms: Vec::new(),
        }))
    }

    async fn status(
        &self,
        _: Request<pb::StatusRequest>,
    ) -> Result<Response<pb::StatusResponse>, Status> {
        let (revision, weight) = self.0.with(|store, _| (store.revision(), store.weight()));
        let size = i64::try_from(weight).unwrap_or(i64::MAX);
        Ok(Response::new(pb::StatusResponse {
            header: Some(header(revision)),
            version: VERSION.to_owned(),
            db_size: size,
            leader: MEMBER_ID,
            raft_index: revision.unsigned_abs(),
            raft_term: TERM,
            raft_applied_index: revision.unsigned_abs(),
            errors: Vec::new(),
            db_size_in_use: size,
            is_learner: false,
        }))
    }
}

#[tonic::async_trait]
impl Auth for OtherServices {
    /// As an etcd answers that has no users.
    async fn authenticate(
        &self,
        _: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        Err(Status::failed_precondition(
            "etcdserver: authentication is not enabled",
        ))
    }
}
