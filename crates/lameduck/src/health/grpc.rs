//! `grpc.health.v1.Health` as the health checking protocol and gRFC A17 describe it.
//!
//! Check answers NOT_FOUND for an unknown service; Watch says SERVICE_UNKNOWN and stays open. A
//! value that has not changed is not sent again. The server ends the streams by itself once the
//! drain says so: an open Watch is nobody's work and never holds a stop.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{self, BoxStream, StreamExt};
use lameduck_core::limits::HEALTH_LIST_MAX;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, ServerStreamingService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::messages::{
    CHECK_PATH, HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
    LIST_PATH, SERVICE, ServingStatus, WATCH_PATH,
};
use super::{Board, Health};

/// The service, for `Routes::add_service`.
#[derive(Clone, Debug)]
pub struct HealthServer {
    health: Health,
}

impl HealthServer {
    /// The service that shows `health`.
    #[must_use]
    pub const fn new(health: Health) -> Self {
        Self { health }
    }
}

impl NamedService for HealthServer {
    const NAME: &'static str = SERVICE;
}

impl<B> tower_service::Service<http::Request<B>> for HealthServer
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let health = self.health.clone();
        Box::pin(async move {
            Ok(match request.uri().path() {
                CHECK_PATH => {
                    let mut grpc = Grpc::new(ProstCodec::default());
                    grpc.unary(Check(health), request).await
                }
                WATCH_PATH => {
                    let mut grpc = Grpc::new(ProstCodec::default());
                    grpc.server_streaming(Watch(health), request).await
                }
                LIST_PATH => {
                    let mut grpc = Grpc::new(ProstCodec::default());
                    grpc.unary(List(health), request).await
                }
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}

struct Check(Health);

impl UnaryService<HealthCheckRequest> for Check {
    type Response = HealthCheckResponse;
    type Future = Ready<Result<Response<HealthCheckResponse>, Status>>;

    fn call(&mut self, request: Request<HealthCheckRequest>) -> Self::Future {
        let service = &request.get_ref().service;
        ready(match self.0.status(service) {
            Some(status) => Ok(Response::new(answer(status))),
            None => Err(Status::not_found(format!("unknown service {service:?}"))),
        })
    }
}

struct List(Health);

impl UnaryService<HealthListRequest> for List {
    type Response = HealthListResponse;
    type Future = Ready<Result<Response<HealthListResponse>, Status>>;

    fn call(&mut self, _: Request<HealthListRequest>) -> Self::Future {
        let list = self.0.list();
        if list.len() > HEALTH_LIST_MAX {
            let why = format!("{} services are more than {HEALTH_LIST_MAX}", list.len());
            return ready(Err(Status::resource_exhausted(why)));
        }
        let statuses = list
            .into_iter()
            .map(|(name, status)| (name, answer(status)))
            .collect();
        ready(Ok(Response::new(HealthListResponse { statuses })))
    }
}

struct Watch(Health);

impl ServerStreamingService<HealthCheckRequest> for Watch {
    type Response = HealthCheckResponse;
    type ResponseStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<HealthCheckRequest>) -> Self::Future {
        let watcher = Watcher {
            board: self.0.board.subscribe(),
            service: request.into_inner().service,
            last: None,
        };
        ready(Ok(Response::new(statuses(watcher).boxed())))
    }
}

struct Watcher {
    board: watch::Receiver<Board>,
    service: String,
    last: Option<ServingStatus>,
}

enum Next {
    Changed(ServingStatus),
    Same,
    Ended,
}

impl Watcher {
    /// Looks at the board, and marks it as seen. The lock is given back before anybody waits.
    fn look(&mut self) -> Next {
        let board = self.board.borrow_and_update();
        let status = board.watched(&self.service);
        if self.last.replace(status) != Some(status) {
            // The last word comes before the end, however fast the two follow each other.
            Next::Changed(status)
        } else if board.ended {
            Next::Ended
        } else {
            Next::Same
        }
    }
}

/// The status as it is, then each change, then the end that the server makes.
fn statuses(watcher: Watcher) -> impl stream::Stream<Item = Result<HealthCheckResponse, Status>> {
    stream::unfold(Some(watcher), async |watcher| {
        let mut watcher = watcher?;
        loop {
            match watcher.look() {
                Next::Changed(status) => return Some((Ok(answer(status)), Some(watcher))),
                Next::Same if watcher.board.changed().await.is_ok() => {}
                Next::Same | Next::Ended => {
                    let end = Status::unavailable("this instance is leaving");
                    return Some((Err(end), None));
                }
            }
        }
    })
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ServingStatus::{NotServing, ServiceUnknown, Serving};

    /// What a Watch of `service` is sent while `script` happens, step by step.
    fn check(service: &str, script: &[fn(&Health)], expected: &[ServingStatus]) {
        let health = Health::new();
        health.set("known", Serving);
        health.open();
        let watcher = Watcher {
            board: health.board.subscribe(),
            service: service.to_owned(),
            last: None,
        };
        let mut stream = Box::pin(statuses(watcher));
        let mut seen = Vec::new();
        for step in 0..=script.len() {
            script[..step].last().iter().for_each(|step| step(&health));
            while let Some(Some(Ok(next))) = futures_util::FutureExt::now_or_never(stream.next()) {
                seen.push(next.status());
            }
        }
        assert_eq!(seen, expected, "{service}");
    }

    #[test]
    fn unchanged_values_are_not_sent_again() {
        let again: fn(&Health) = |health| health.set("known", Serving);
        check("known", &[again, again], &[Serving]);
        let other: fn(&Health) = |health| health.set("other", NotServing);
        check("known", &[other], &[Serving]);
    }

    #[test]
    fn an_unknown_service_is_watched_until_it_is_known() {
        let known: fn(&Health) = |health| health.set("late", Serving);
        let forgotten: fn(&Health) = |health| health.clear("late");
        check(
            "late",
            &[known, forgotten],
            &[ServiceUnknown, Serving, ServiceUnknown],
        );
    }

    #[tokio::test]
    async fn c12_each_watch_is_told_then_ended() {
        check("", &[Health::leave, Health::end], &[Serving, NotServing]);
        check(
            "known",
            &[Health::leave, Health::end],
            &[Serving, NotServing],
        );
        check(
            "unknown",
            &[Health::leave, Health::end],
            &[ServiceUnknown, NotServing],
        );
        let health = Health::new();
        health.open();
        let board = health.board.subscribe();
        let watcher = Watcher {
            board,
            service: String::new(),
            last: Some(Serving),
        };
        health.leave();
        health.end();
        let sent: Vec<_> = statuses(watcher).collect().await;
        assert_eq!(sent.len(), 2);
        assert_eq!(
            sent[0].as_ref().map(HealthCheckResponse::status).ok(),
            Some(NotServing)
        );
        assert_eq!(
            sent[1].as_ref().map_err(Status::code),
            Err(tonic::Code::Unavailable)
        );
    }

    #[test]
    fn c07_what_is_said_while_leaving_shows_only_after_a_resume() {
        let user: fn(&Health) = |health| health.set("known", Serving);
        check(
            "known",
            &[Health::leave, user, Health::open],
            &[Serving, NotServing, Serving],
        );
        let fails: fn(&Health) = |health| health.set("known", NotServing);
        check(
            "known",
            &[Health::leave, fails, Health::open],
            &[Serving, NotServing],
        );
    }

    #[test]
    fn check_and_list() {
        let health = Health::new();
        assert_eq!(health.status(""), Some(NotServing));
        health.open();
        assert_eq!(health.status(""), Some(Serving));
        assert_eq!(health.status("unknown"), None);
        assert_eq!(health.list().len(), 1);
    }
}
