//! The client of `grpc.health.v1` on one connection.
//!
//! Its calls go over that very connection, whatever the directory thinks of the endpoint: they are
//! how it learns.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{Request, Response};
use lameduck_core::event::Event;
use lameduck_core::limits::{FIRST_ANSWER_MAX, REPLAY_BYTES_MAX};
use lameduck_core::watch::{Ended, Status};
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;
use tower_service::Service;

use super::body::AnswerBody;
use super::connection::{CallError, Cause, Outgoing};
use super::link::{Link, Unanswered};
use crate::health::messages::{
    CHECK_PATH, HealthCheckRequest, HealthCheckResponse, ServingStatus, WATCH_PATH,
};

fn read(response: HealthCheckResponse) -> Status {
    match response.status() {
        ServingStatus::Serving => Status::Serving,
        ServingStatus::NotServing => Status::NotServing,
        ServingStatus::Unknown | ServingStatus::ServiceUnknown => Status::Unknown,
    }
}

/// Watches `service` and tells each status; resolves with how the stream ended.
pub(super) async fn watch(link: Arc<Link>, service: String, tell: impl Fn(Status)) -> Ended {
    if link.connection.state().limit < 2 {
        // The only stream there is belongs to calls.
        return Ended::Unimplemented;
    }
    let mut client = Grpc::new(OnLink(Arc::clone(&link)));
    if client.ready().await.is_err() {
        return Ended::Lost;
    }
    let request = tonic::Request::new(HealthCheckRequest { service });
    let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let path = PathAndQuery::from_static(WATCH_PATH);
    let mut stream = match client.server_streaming(request, path, codec).await {
        Ok(response) => response.into_inner(),
        Err(status) => return refused(&link, &status),
    };
    let mut told = false;
    loop {
        match stream.message().await {
            Ok(Some(response)) => {
                told = true;
                tell(read(response));
            }
            Ok(None) => return Ended::ByPeer,
            Err(status) if told => return ended(&status),
            Err(status) => return refused(&link, &status),
        }
    }
}

/// How a Watch ended with `status` before it said anything. Where nobody may ask, that is said: one
/// instance of a service is enough.
fn refused(link: &Link, status: &tonic::Status) -> Ended {
    let how = ended(status);
    let directory = &link.endpoint.directory;
    if how == Ended::Refused
        && directory
            .health_told
            .is_due(directory.hub.clock().now(), Duration::MAX)
    {
        directory.hub.emit(&Event::HealthRefused {
            service: directory.service.clone(),
            address: link.endpoint.address.clone(),
            error: format!("{:?}: {}", status.code(), status.message()),
        });
    }
    how
}

/// Makes one Check; `None` where it fails. [`Link::place`] reads the marks of its answer on the way.
pub(super) async fn check(link: Arc<Link>, service: String) -> Option<Status> {
    let mut client = Grpc::new(OnLink(link));
    client.ready().await.ok()?;
    let request = tonic::Request::new(HealthCheckRequest { service });
    let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let path = PathAndQuery::from_static(CHECK_PATH);
    // Only a bound: an answer that comes later tells nothing new.
    let answer = timeout(FIRST_ANSWER_MAX, client.unary(request, path, codec)).await;
    Some(read(answer.ok()?.ok()?.into_inner()))
}

/// How a Watch ended with `status`.
fn ended(status: &tonic::Status) -> Ended {
    if let Some(cause) = cause(status) {
        return match cause {
            Cause::Refused | Cause::Reset(_) => Ended::ByPeer,
            // The connection's end is told by the connection.
            _ => Ended::Lost,
        };
    }
    match status.code() {
        tonic::Code::Unimplemented => Ended::Unimplemented,
        tonic::Code::NotFound => Ended::NotFound,
        // A leaving or overloaded server says so; it is asked again.
        tonic::Code::Unavailable => Ended::ByPeer,
        _ => Ended::Refused,
    }
}

fn cause(status: &tonic::Status) -> Option<Cause> {
    let mut source = status.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<CallError>() {
            return Some(error.cause);
        }
        source = error.source();
    }
    None
}

/// A service that places everything on one connection.
struct OnLink(Arc<Link>);

impl Service<Request<tonic::body::Body>> for OnLink {
    type Response = Response<AnswerBody>;
    type Error = tonic::Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, tonic::Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), tonic::Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let link = Arc::clone(&self.0);
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let Some(slot) = link.connection.reserve() else {
                return Err(CallError::closed().into_status());
            };
            let body = Outgoing::take(body, REPLAY_BYTES_MAX);
            match link.place(slot.for_health(), &head, body).await {
                Ok(response) => Ok(response),
                Err(Unanswered::Failed(failure)) => Err(failure.error.into_status()),
                Err(Unanswered::Refused) => Err(tonic::Status::unavailable("refused")),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_apart() {
        let status = |code| tonic::Status::new(code, "");
        assert_eq!(
            ended(&status(tonic::Code::Unimplemented)),
            Ended::Unimplemented
        );
        assert_eq!(ended(&status(tonic::Code::NotFound)), Ended::NotFound);
        assert_eq!(ended(&status(tonic::Code::Unavailable)), Ended::ByPeer);
        for code in [
            tonic::Code::Unauthenticated,
            tonic::Code::PermissionDenied,
            tonic::Code::Unknown,
            tonic::Code::Internal,
        ] {
            assert_eq!(ended(&status(code)), Ended::Refused);
        }
        assert_eq!(ended(&CallError::closed().into_status()), Ended::Lost);
    }
}
