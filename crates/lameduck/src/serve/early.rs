//! Answers of our own to requests whose handler has not answered: their time is over, or the server's.

use ::http::header::{
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, CONNECTION, CONTENT_TYPE,
    HeaderMap, HeaderValue, ORIGIN, VARY,
};
use ::http::uri::{PathAndQuery, Uri};
use ::http::{Method, Request, Response, StatusCode, Version};
use axum::Router;
use axum::body::Body;
use futures_util::FutureExt;

use super::answer::status_trailers;
use super::flavour::Flavour;

/// A method that no service has.
const NO_METHOD: &str = "LameduckPreflight";

/// What has to be known of a request to answer it without its handler.
pub(super) struct Asked {
    flavour: Flavour,
    version: Version,
    /// Of a browser that asks for another site: where it asks, and what for.
    foreign: Option<(Uri, HeaderMap)>,
}

impl Asked {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let headers = request.headers();
        let flavour = Flavour::of_request(headers);
        let origin = headers.get(ORIGIN).filter(|_| flavour.is_web());
        let foreign = origin.map(|origin| {
            let pairs = [
                (ORIGIN, origin.clone()),
                (
                    ACCESS_CONTROL_REQUEST_METHOD,
                    HeaderValue::from_static("POST"),
                ),
                (
                    ACCESS_CONTROL_REQUEST_HEADERS,
                    HeaderValue::from_static("x-grpc-web"),
                ),
            ];
            (request.uri().clone(), HeaderMap::from_iter(pairs))
        });
        Self {
            flavour,
            version: request.version(),
            foreign,
        }
    }

    pub(super) const fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// The deadline that the call brought has passed.
    pub(super) fn late(self, router: &mut Router) -> Response<Body> {
        let text = "the call's grpc-timeout passed before there was an answer";
        self.status(&tonic::Status::deadline_exceeded(text), router)
    }

    /// The server ends. What has begun may have been processed: it is not refused.
    pub(super) fn cut(self, router: &mut Router) -> Response<Body> {
        let text = "the server ended before it answered";
        if self.flavour.is_grpc() {
            return self.status(&tonic::Status::unavailable(text), router);
        }
        let mut response = Response::new(Body::from(format!("{text}\n")));
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, self.flavour.content_type());
        if self.version != Version::HTTP_2 {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    fn status(self, status: &tonic::Status, router: &mut Router) -> Response<Body> {
        let flavour = self.flavour;
        let trailers = status_trailers(status);
        if !flavour.is_web() {
            let mut response = Response::new(Body::empty());
            *response.headers_mut() = trailers;
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, flavour.content_type());
            return response;
        }
        // In the body, where browsers show it whatever headers they are allowed to show.
        let mut response = Response::new(Body::from(flavour.trailers_frame(&trailers)));
        let headers = response.headers_mut();
        if let Some(allowed) = self.foreign.and_then(|foreign| allowed(foreign, router)) {
            *headers = allowed;
        }
        headers.insert(CONTENT_TYPE, flavour.content_type());
        response
    }
}

/// What the application's layers let another site's page see. They stand between us and the handler,
/// which was not to answer: so they are asked as a browser asks them, by a preflight, for a method that
/// does not exist. Layers that have to wait are not waited for.
fn allowed((uri, headers): (Uri, HeaderMap), router: &mut Router) -> Option<HeaderMap> {
    let service = uri.path().rsplit_once('/')?.0;
    let path = PathAndQuery::try_from(format!("{service}/{NO_METHOD}")).ok()?;
    let mut parts = uri.into_parts();
    parts.path_and_query = Some(path);
    let mut request = Request::new(Body::empty());
    *request.method_mut() = Method::OPTIONS;
    *request.uri_mut() = Uri::from_parts(parts).ok()?;
    *request.headers_mut() = headers;
    let answer = tower_service::Service::call(router, request).now_or_never()?;
    let headers = answer
        .unwrap_or_else(|never| match never {})
        .into_parts()
        .0
        .headers;
    let is_cors =
        |name: &::http::HeaderName| *name == VARY || name.as_str().starts_with("access-control-");
    let mut kept = HeaderMap::new();
    for (name, value) in headers.iter().filter(|(name, _)| is_cors(name)) {
        kept.append(name, value.clone());
    }
    Some(kept)
}
