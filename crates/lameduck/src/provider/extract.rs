//! The handle in handlers.

use axum::extract::FromRequestParts;
use http::StatusCode;
use http::request::Parts;

use super::handle::Handle;

/// An axum handler takes the handle of the provider that serves it as an argument:
///
/// ```
/// use lameduck::provider::Handle;
///
/// async fn events(handle: Handle) -> &'static str {
///     handle.closing().await;
///     "goodbye"
/// }
/// let router: axum::Router = axum::Router::new().route("/events", axum::routing::get(events));
/// ```
///
/// A tonic service finds it among the extensions of each request:
/// `request.extensions().get::<Handle>()`. Where no provider serves the request, as in a test that calls
/// a router directly, the extractor answers 500, unless the request carries a handle of
/// [`Builder::handle`](super::Builder::handle).
impl<S: Sync> FromRequestParts<S> for Handle {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        parts.extensions.get::<Self>().cloned().ok_or((
            StatusCode::INTERNAL_SERVER_ERROR,
            "no lameduck provider serves this request, so it has no handle",
        ))
    }
}
