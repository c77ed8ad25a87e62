//! One service out of what the program gave: axum routes, tonic routes, and health.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use futures_util::future::Either;
use http::header::{
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, CONTENT_TYPE, HeaderMap,
};
use http::{Method, Request, StatusCode};
use tonic::service::Routes;
use tower_service::Service;

use crate::foreign::quietly;
use crate::health::Health;
use crate::health::messages::SERVICE;

/// Puts them behind one port. Where there are both, a gRPC content type decides: each side keeps
/// its own answer to what it does not know.
///
/// # Errors
/// Where two of them want one path or one fallback: what the router says of it, which it does by a
/// panic.
pub(super) fn join(
    webs: Vec<Router>,
    grpcs: Vec<Routes>,
    health: Option<&Health>,
) -> Result<Router, String> {
    let joined = quietly(|| {
        let web = webs.into_iter().reduce(Router::merge);
        let grpc = grpcs.into_iter().reduce(merge);
        side_by_side(web, grpc, health)
    });
    joined.map_err(|panicked| panicked.message().to_owned())
}

/// Both have tonic's own answer to a method that they do not know, of which one is enough.
fn merge(mut first: Routes, second: Routes) -> Routes {
    let all = first.axum_router_mut();
    let second = second.into_axum_router().reset_fallback();
    *all = std::mem::take(all).merge(second);
    first
}

fn side_by_side(web: Option<Router>, grpc: Option<Routes>, health: Option<&Health>) -> Router {
    let grpc = match (grpc, health) {
        (Some(grpc), Some(health)) => Some(grpc.add_service(health.service())),
        (grpc, _) => grpc,
    };
    let grpc = grpc.map(|routes| routes.prepare().into_axum_router());
    match (web, grpc, health) {
        (Some(web), Some(grpc), _) => Router::new().fallback_service(ByContent { web, grpc }),
        (Some(web), None, Some(health)) => {
            let path = format!("/{SERVICE}/{{*method}}");
            web.route_service(&path, health.service())
        }
        (Some(web), None, None) => web,
        (None, Some(grpc), _) => grpc_alone(grpc),
        (None, None, Some(health)) => {
            grpc_alone(Routes::new(health.service()).prepare().into_axum_router())
        }
        (None, None, None) => Router::new(),
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let content = headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    content.is_some_and(|content| content.starts_with(b"application/grpc"))
}

/// A port that speaks gRPC only. tonic answers 200 to whatever it does not know, with the error in a gRPC
/// status, so an HTTP probe would be well for ever.
fn grpc_alone(grpc: Router) -> Router {
    Router::new().fallback_service(GrpcAlone { grpc })
}

#[derive(Clone)]
struct GrpcAlone {
    grpc: Router,
}

impl Service<Request<Body>> for GrpcAlone {
    type Response = axum::response::Response;
    type Error = Infallible;
    type Future = Either<Routed, Pin<Box<dyn Future<Output = Answered> + Send>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // Calls of gRPC are POST; some clients leave the content type out.
        let is_call = request.method() == Method::POST || is_grpc(request.headers());
        let answer = self.grpc.call(request);
        if is_call {
            return Either::Left(answer);
        }
        // The program may have given HTTP routes among its gRPC ones: their answers stay.
        Either::Right(Box::pin(async {
            let answer = answer.await?;
            let answers_grpc = is_grpc(answer.headers());
            Ok(if answers_grpc { no_grpc() } else { answer })
        }))
    }
}

/// The answer to what is no gRPC, where nothing else is served.
fn no_grpc() -> axum::response::Response {
    const HINT: &str =
        "this port speaks gRPC only: probe it by grpc.health.v1 (Kubernetes: the grpc probe)\n";
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, HINT).into_response()
}

#[derive(Clone)]
struct ByContent {
    web: Router,
    grpc: Router,
}

type Routed = <Router as Service<Request<Body>>>::Future;
type Answered = Result<axum::response::Response, Infallible>;

impl Service<Request<Body>> for ByContent {
    type Response = axum::response::Response;
    type Error = Infallible;
    type Future = Either<Routed, Pin<Box<dyn Future<Output = Answered> + Send>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if is_grpc(request.headers()) {
            Either::Left(self.grpc.call(request))
        } else if is_preflight(&request) {
            Either::Right(Box::pin(preflight(self.clone(), request)))
        } else {
            Either::Left(self.web.call(request))
        }
    }
}

/// Whether a browser asks if another site's page may send a request (Fetch, "CORS-preflight request"). It
/// does not say of which content type.
fn is_preflight(request: &Request<Body>) -> bool {
    request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// gRPC-web's clients send `x-grpc-web`, and so a browser asks for it. Where it asks for nothing of the
/// kind, what the web side does not know is the gRPC side's.
async fn preflight(mut sides: ByContent, request: Request<Body>) -> Answered {
    if asks_for_grpc_web(request.headers()) {
        return sides.grpc.call(request).await;
    }
    let (head, body) = request.into_parts();
    // A preflight has no body.
    let again = Request::from_parts(head.clone(), Body::empty());
    let answer = sides.web.call(Request::from_parts(head, body)).await?;
    if answer.status() == StatusCode::NOT_FOUND {
        return sides.grpc.call(again).await;
    }
    Ok(answer)
}

fn asks_for_grpc_web(headers: &HeaderMap) -> bool {
    let mut names = headers
        .get_all(ACCESS_CONTROL_REQUEST_HEADERS)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    names.any(|name| name.trim_ascii().eq_ignore_ascii_case(b"x-grpc-web"))
}
