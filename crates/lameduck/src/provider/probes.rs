//! HTTP probes on the main port, and the paths that do not count.

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use lameduck_core::event::Phase;

use super::error::BuildError;
use super::handle::Handle;

const LIVE: &str = "/livez";
const READY: &str = "/readyz";
const STARTUP: &str = "/startupz";

/// Where the probes are.
pub(super) const PATHS: [&str; 3] = [LIVE, READY, STARTUP];

/// The probes, for requests that carry their provider's handle.
pub(super) fn routes() -> Router {
    Router::new()
        .route(LIVE, get(live))
        .route(READY, get(ready))
        .route(STARTUP, get(startup))
}

/// Whether every path can be one of a request.
///
/// # Errors
/// Names the first that cannot.
pub(super) fn check(unobserved: &[String]) -> Result<(), BuildError> {
    let is_path = |path: &str| path.starts_with('/') && !path.contains(['?', '#']);
    match unobserved.iter().find(|path| !is_path(path)) {
        Some(path) => Err(BuildError::Unobserved(path.clone())),
        None => Ok(()),
    }
}

async fn live(handle: Handle) -> (StatusCode, &'static str) {
    said(handle.phase() != Phase::Stopped)
}

async fn ready(handle: Handle) -> (StatusCode, &'static str) {
    said(handle.is_ready())
}

async fn startup(handle: Handle) -> (StatusCode, &'static str) {
    said(handle.phase() != Phase::Starting)
}

fn said(well: bool) -> (StatusCode, &'static str) {
    if well {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "no\n")
    }
}
