//! The handle: in handlers, and before there is a provider.

use std::time::Duration;

use axum::Router;
use axum::routing::{any, get};
use http::{Request, StatusCode};
use lameduck::Provider;
use lameduck::core::event::Phase;
use lameduck::provider::{BuildError, Builder, Handle};
use tokio::net::TcpStream;
use tonic::server::NamedService;
use tower::ServiceExt;

use super::leaving::start;
use crate::serve::start::{rest, say, within};

/// A service as tonic serves it: it answers with the phase that the request's own handle shows.
#[derive(Clone)]
struct Phases;

impl NamedService for Phases {
    const NAME: &'static str = "test.Phases";
}

impl tower_service::Service<Request<tonic::body::Body>> for Phases {
    type Response = http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let handle = request.extensions().get::<Handle>();
        let phase = handle.map_or("none", |handle| handle.phase().as_str());
        std::future::ready(Ok(http::Response::new(tonic::body::Body::new(
            phase.to_owned(),
        ))))
    }
}

fn builder() -> Builder {
    let short = Duration::from_millis(20);
    Provider::builder("orders")
        .listen("127.0.0.1:0")
        .signals(false)
        .floor(short)
        .quiet(short)
}

#[tokio::test]
async fn s14_http_and_grpc_handlers_have_the_handle() {
    let router = Router::new().route("/", any(async |handle: Handle| handle.phase().as_str()));
    let nested = Router::new().nest("/nested", router.clone());
    let builder = Provider::builder("orders")
        .router(router.merge(nested))
        .grpc(tonic::service::Routes::new(Phases));
    let (handle, running) = start(builder).await;
    let grpc = "/test.Phases/Ask HTTP/1.1\r\ncontent-type: application/grpc";
    for path in ["/ HTTP/1.1", "/nested HTTP/1.1", grpc] {
        let mut socket = TcpStream::connect(handle.local_addr())
            .await
            .expect("it listens");
        let request =
            format!("POST {path}\r\nhost: test\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        say(&mut socket, &request).await;
        let answer = rest(&mut socket).await.expect("it answers");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.contains("serving"), "{path}: {answer}");
    }
    assert!(handle.stop("test").await);
    let report = within(running).await.expect("no panic");
    assert_eq!(report.exit_code(), 0, "{report}");
}

#[tokio::test]
async fn s14_a_handle_of_a_builder_is_that_of_the_provider() {
    let builder = builder();
    let early = builder.handle();
    assert_eq!(early.phase(), Phase::Starting);
    assert_eq!(early.local_addr().port(), 0);
    assert!(early.registrations().is_empty());
    assert_eq!(early.connections().open, 0);
    let serving = early.serving();
    let provider = builder.build().expect("it builds");
    assert_eq!(early.life(), provider.handle().life());
    assert_eq!(early.local_addr(), provider.handle().local_addr());
    let running = tokio::spawn(provider.run());
    within(serving).await;
    assert_eq!(early.phase(), Phase::Serving);
    assert!(within(early.stop("test")).await);
    let report = within(running).await.expect("no panic");
    assert_eq!(report.exit_code(), 0, "{report}");
    assert_eq!(early.phase(), Phase::Stopped);
}

#[tokio::test]
async fn s14_what_is_asked_before_the_run_is_answered_as_it_begins() {
    for early in [true, false] {
        let builder = builder();
        let handle = builder.handle();
        let ask = || (handle.hold(), handle.resume(), handle.stop("before"));
        let asked = early.then(ask);
        let provider = builder.build().expect("it builds");
        let (hold, resume, stop) = asked.unwrap_or_else(ask);
        let report = within(provider.run()).await;
        assert!(!hold.await, "it does not serve yet");
        assert!(!resume.await, "nothing is held");
        assert!(stop.await, "it stops");
        assert_eq!(report.exit_code(), 0, "{report}");
        assert_eq!(handle.phase(), Phase::Stopped);
    }
}

#[tokio::test]
async fn s14_what_is_never_built_has_ended() {
    let dropped = builder();
    let handle = dropped.handle();
    let (closing, stop) = (handle.closing(), handle.stop("too early"));
    drop(dropped);
    within(closing).await;
    assert!(!within(stop).await);
    assert_eq!(handle.phase(), Phase::Stopped);
    assert!(handle.gate().is_closed());

    let refused = builder().registry("nonsense://here");
    let handle = refused.handle();
    let error = refused.build().expect_err("no such registry");
    assert!(matches!(error, BuildError::Registry { .. }), "{error}");
    within(handle.closing()).await;
    assert_eq!(handle.phase(), Phase::Stopped);
}

#[tokio::test]
async fn s14_a_router_by_itself_says_why_it_has_no_handle() {
    let router = Router::new().route("/", get(async |_: Handle| "served"));
    let bare = Request::new(axum::body::Body::empty());
    let answer = router.clone().oneshot(bare).await;
    let answer = answer.expect("infallible");
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let mut request = Request::new(axum::body::Body::empty());
    request.extensions_mut().insert(builder().handle());
    let answer = router.oneshot(request).await.expect("infallible");
    assert_eq!(answer.status(), StatusCode::OK);
}
