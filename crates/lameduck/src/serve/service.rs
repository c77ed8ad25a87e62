//! The one service of a connection, outside of axum and tonic: admits or refuses, strips and marks,
//! keeps `grpc-timeout`, and ties the permit to the answer's body.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ::http::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue};
use ::http::{Method, Request, Response, StatusCode, Version};
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use hyper::body::{Body as _, Incoming};
use lameduck_core::conn::Protocol;
use tonic::transport::server::TcpConnectInfo;

use super::BoxError;
use super::answer::Answer;
use super::early::Asked;
use super::fit::{Room, TooLarge, fit};
use super::flavour::Flavour;
use super::peer::{ConnectionInfo, Held, Peer, Unanswered};
use super::refuse::refuse;
use super::upload::Upload;
use crate::cell::gate::Admitted;
use crate::cell::streams;
use crate::cell::wire::Flag;
use crate::health::messages::SERVICE;
use crate::mark::ShowLife;
use crate::{deadline, mark};

/// Serves the requests of one connection.
pub(super) struct Service {
    peer: Arc<Peer>,
    router: Router,
}

impl Service {
    pub(super) fn new(peer: Arc<Peer>, router: Router) -> Self {
        Self { peer, router }
    }
}

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response<Answer>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, BoxError>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        if request.version() != Version::HTTP_2 {
            self.peer.wire.set(Flag::Spoken);
            if !request.body().is_end_stream() {
                self.peer.wire.set(Flag::Uploading);
                // What was read behind the head is of its body.
                self.peer.wire.take(Flag::HeadBegun);
            }
            if request.version() != Version::HTTP_11 {
                self.peer.wire.set(Flag::CloseDelimited);
            }
        }
        let peer = Arc::clone(&self.peer);
        if peer.shared.shows == ShowLife::Asked && mark::asks_life(request.headers()) {
            peer.wire.set(Flag::AskedLife);
        }
        let path = request.uri().path();
        let unobserved = || peer.shared.unobserved.iter().any(|one| one == path);
        let entered = if is_health(path) || unobserved() {
            Some(peer.enter_uncounted())
        } else {
            peer.enter()
        };
        match entered {
            Some(held) => Box::pin(answer(held, self.router.clone(), request)),
            None => Box::pin(refuse(peer, request)),
        }
    }
}

async fn answer(
    mut held: Held,
    mut router: Router,
    request: Request<Incoming>,
) -> Result<Response<Answer>, BoxError> {
    let peer = Arc::clone(held.peer());
    let version = request.version();
    let connect = request.method() == Method::CONNECT;
    let unanswered = (version == Version::HTTP_2).then(|| Unanswered::new(&peer));
    if unanswered.is_some() && peer.wire.is_suspect() {
        // Where its reset has been read already, hyper drops the call now, before its handler begins.
        tokio::task::yield_now().await;
    }
    let asked = Asked::of(&request);
    let asked_for = asked.flavour();
    let limit = deadline::parse(request.headers()).filter(|_| asked_for.is_grpc());
    let call = tower_service::Service::call(&mut router, prepare(&peer, request));
    let end = held.end();
    let answered = tokio::select! {
        biased;
        response = call => Ok(response.unwrap_or_else(|never| match never {})),
        () = end.cancelled() => Err(Ended::Cut),
        () = passes(limit) => Err(Ended::Late),
    };
    let mut response = match answered {
        Ok(response) => response,
        Err(Ended::Cut) => asked.cut(&mut router),
        Err(Ended::Late) => asked.late(&mut router),
    };
    if let Some(unanswered) = unanswered {
        unanswered.answered();
    }
    let tunnel = connect && response.status().is_success();
    if version != Version::HTTP_2
        && (tunnel || response.status() == StatusCode::SWITCHING_PROTOCOLS)
    {
        mark_life(&peer, response.headers_mut());
        peer.keep_upgraded(held);
        return Ok(response.map(Answer::bare));
    }
    mark_head(&peer, version, response.headers_mut());
    if tunnel {
        held.is_upgraded();
        streams::keep_for_tunnel(Box::new(held));
        return Ok(response.map(Answer::bare));
    }
    let flavour = asked_for.of_answer(response.headers());
    let room = Room::of(&peer.wire, protocol(version));
    match fit(response.headers_mut(), room) {
        Ok(()) => {}
        Err(too_large) if asked_for.is_grpc() => {
            response = instead(&too_large, response.headers(), asked_for);
        }
        Err(too_large) => return Err(too_large.into()),
    }
    Ok(response.map(|body| Answer::new(body, held, protocol(version), flavour)))
}

/// Why a handler that has not answered is not waited for.
enum Ended {
    /// The server ends.
    Cut,
    /// The call's deadline has passed.
    Late,
}

/// Resolves when this much time has passed.
async fn passes(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}

/// The answer to a gRPC call whose metadata its caller does not take, with the marks of the one that was to
/// be.
fn instead(too_large: &TooLarge, headers: &HeaderMap, flavour: Flavour) -> Response<Body> {
    let mut response: Response<Body> = too_large.status().into_http();
    let content = flavour.content_type();
    response.headers_mut().insert(CONTENT_TYPE, content);
    for name in [mark::LIFE, mark::CLOSING] {
        if let Some(value) = headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

fn protocol(version: Version) -> Protocol {
    if version == Version::HTTP_2 {
        Protocol::Http2
    } else {
        Protocol::Http1
    }
}

/// The request as the router gets it: without marks, with what is known of the connection.
fn prepare(peer: &Arc<Peer>, request: Request<Incoming>) -> Request<Body> {
    let version = request.version();
    let mut request = Upload::of(request, peer).map(Body::new);
    mark::strip(request.headers_mut());
    let extensions = request.extensions_mut();
    extensions.insert(ConnectInfo(peer.remote));
    extensions.insert(TcpConnectInfo {
        local_addr: Some(peer.local),
        remote_addr: Some(peer.remote),
    });
    extensions.insert(ConnectionInfo {
        number: peer.number,
        local: peer.local,
        remote: peer.remote,
        protocol: protocol(version),
    });
    extensions.insert(Admitted::new(peer.shared.gate.clone()));
    if let Some(extend) = &peer.shared.extend {
        extend(extensions);
    }
    request
}

/// Whether it asks for `grpc.health.v1`: whoever serves that on this port, it is no work.
fn is_health(path: &str) -> bool {
    let method = path.strip_prefix('/');
    let method = method.and_then(|path| path.strip_prefix(SERVICE));
    method.is_some_and(|rest| rest.starts_with('/'))
}

/// Says who answers, where this connection has not heard it yet.
fn mark_life(peer: &Peer, headers: &mut HeaderMap) {
    // What the application passes on from elsewhere would speak in our name.
    mark::strip(headers);
    let shown = match peer.shared.shows {
        ShowLife::Always => true,
        ShowLife::Asked => peer.wire.has(Flag::AskedLife),
        ShowLife::Never => false,
    };
    if !shown {
        return;
    }
    let announcement = peer.shared.announcement.load();
    if peer.wire.identify(announcement.generation) {
        headers.insert(mark::LIFE, announcement.identity.clone());
    }
}

/// Marks the head of an answer.
pub(super) fn mark_head(peer: &Peer, version: Version, headers: &mut HeaderMap) {
    mark_life(peer, headers);
    let announcement = peer.shared.announcement.load();
    let last = announcement.closing || peer.wire.has(Flag::LastAnswer);
    if announcement.closing {
        headers.insert(mark::CLOSING, announcement.life.clone());
    }
    if last && version != Version::HTTP_2 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        peer.is_told();
    }
}

/// Marks the trailers of an answer, which may have begun long before the closing did.
pub(super) fn mark_trailers(peer: &Peer, trailers: &mut HeaderMap) {
    mark::strip(trailers);
    let announcement = peer.shared.announcement.load();
    if announcement.closing {
        trailers.insert(mark::CLOSING, announcement.life.clone());
    }
}
