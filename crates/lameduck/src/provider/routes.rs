//! One service out of what the program gave: axum routes, tonic routes, and health.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use http::Request;
use http::header::CONTENT_TYPE;
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
        (Some(only), None, None) | (None, Some(only), _) => only,
        (None, None, Some(health)) => Routes::new(health.service()).prepare().into_axum_router(),
        (None, None, None) => Router::new(),
    }
}

#[derive(Clone)]
struct ByContent {
    web: Router,
    grpc: Router,
}

impl Service<Request<Body>> for ByContent {
    type Response = axum::response::Response;
    type Error = Infallible;
    type Future = <Router as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let content = request
            .headers()
            .get(CONTENT_TYPE)
            .map(|value| value.as_bytes());
        if content.is_some_and(|content| content.starts_with(b"application/grpc")) {
            self.grpc.call(request)
        } else {
            self.web.call(request)
        }
    }
}
