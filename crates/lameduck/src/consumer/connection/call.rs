//! One call on one connection.

use std::sync::Arc;

use bytes::Bytes;
use h2::SendStream;
use h2::client::ResponseFuture;
use http::header::{HeaderMap, HeaderValue, USER_AGENT};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Request, Response, Version};

use super::body::{Body, Open};
use super::failure::{CallError, Failure};
use super::outgoing::Outgoing;
use super::pump::Pump;
use super::{Connection, Slot};
use crate::mark;

/// What this side is, said where the application says nothing, and after what it says.
const AGENT: &str = concat!("lameduck/", env!("CARGO_PKG_VERSION"));

impl Connection {
    /// Sends a request and resolves with the head of its answer. What can be sent at once is handed
    /// to the connection before this returns: between a look at [`Connection::reserve`] and the
    /// send lies no await.
    ///
    /// `head` stays with the caller, for another attempt; scheme and authority are the
    /// connection's. Dropping the future or the answer's body cancels the call.
    ///
    /// # Errors
    /// [`Failure`], with what it proves. Errors after the head of the answer come out of its body,
    /// as a [`tonic::Status`] with a [`CallError`] as its source.
    pub fn call(
        &self,
        slot: Slot,
        head: &Parts,
        body: Outgoing,
    ) -> impl Future<Output = Result<Response<Body>, Failure>> + Send + use<> {
        debug_assert!(
            Arc::ptr_eq(&slot.link, &self.inner.link),
            "a slot belongs to the connection that gave it"
        );
        let sent = self.send(slot, head, body);
        async move { sent?.answer().await }
    }

    fn send(&self, slot: Slot, head: &Parts, body: Outgoing) -> Result<Sent, Failure> {
        let handle = self.inner.send.load();
        let Some(mut handle) = handle.as_deref().cloned() else {
            return Err(Failure::handed_back(CallError::closed(), body));
        };
        let mut request = request(head, &self.inner.authority);
        let asks = !slot.link.has_asked();
        if asks {
            request.headers_mut().insert(mark::ASK, mark::ASK_LIFE);
        }
        let (size, most) = (list_size(&request), slot.link.headers_max());
        if size > most as usize {
            let error = CallError::headers_too_large(size, most);
            return Err(Failure::handed_back(error, body));
        }
        let open = || handle.send_request(request, body.is_empty());
        let opened = if slot.is_health {
            slot.link.open_health(|| {
                let opened = open();
                let id = opened.as_ref().ok().map(|(answer, _)| answer.stream_id());
                (opened, id.map(|id| id.as_u32()))
            })
        } else {
            open()
        };
        match opened {
            Ok((response, stream)) => {
                if asks {
                    slot.link.set_asked();
                }
                Ok(Sent {
                    response,
                    pump: send_body(stream, body),
                    slot,
                })
            }
            Err(error) => {
                let error = CallError::not_opened(error, &self.inner.link);
                Err(Failure::handed_back(error, body))
            }
        }
    }
}

/// A request on its way. Dropped, it resets the stream, then gives the slot back.
struct Sent {
    response: ResponseFuture,
    pump: Option<Pump>,
    slot: Slot,
}

impl Sent {
    async fn answer(mut self) -> Result<Response<Body>, Failure> {
        match (&mut self.response).await {
            Ok(response) => {
                self.slot.settle();
                let open = |recv| Open::new(recv, self.pump, self.slot);
                Ok(response.map(|recv| Body::new(open(recv))))
            }
            Err(error) => Err(Failure::of(self.failure(error).await)),
        }
    }

    async fn failure(self, error: h2::Error) -> CallError {
        // A reset that is our own is the pump's: its body failed.
        if error.is_reset()
            && !error.is_remote()
            && let Some(pump) = self.pump
            && let Some(status) = pump.outcome().await
        {
            return CallError::request_body(status);
        }
        let id = self.response.stream_id().as_u32();
        CallError::open(error, id, &self.slot.link)
    }
}

fn send_body(mut stream: SendStream<Bytes>, body: Outgoing) -> Option<Pump> {
    match body {
        Outgoing::Streaming(body) => Some(Pump::start(stream, body)),
        Outgoing::Whole { data, trailers } => {
            // Without waiting for the peer's windows: the bytes are in memory anyway. A stream
            // that failed meanwhile tells its answer so.
            if !data.is_empty() {
                let _ = stream.send_data(data, trailers.is_none());
            }
            if let Some(trailers) = trailers {
                let _ = stream.send_trailers(*trailers);
            }
            None
        }
    }
}

fn request(head: &Parts, authority: &Authority) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = head.method.clone();
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = uri(head.uri.path_and_query(), authority);
    *request.headers_mut() = head.headers.clone();
    say_who(request.headers_mut());
    request
}

fn uri(path: Option<&PathAndQuery>, authority: &Authority) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(authority.clone());
    parts.path_and_query = Some(path.map_or_else(|| PathAndQuery::from_static("/"), Clone::clone));
    Uri::from_parts(parts).expect("scheme, authority and path are what a URI needs")
}

/// Bytes of a request's header list, as RFC 9113 (6.5.2) counts them.
fn list_size(request: &Request<()>) -> usize {
    let uri = request.uri();
    let pseudo = [
        (":method", request.method().as_str()),
        (":scheme", uri.scheme_str().unwrap_or_default()),
        (":authority", uri.authority().map_or("", Authority::as_str)),
        (
            ":path",
            uri.path_and_query().map_or("", PathAndQuery::as_str),
        ),
    ];
    let pseudo = pseudo.map(|(name, value)| name.len() + value.len() + 32);
    let fields = request.headers().iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + 32);
    pseudo.into_iter().chain(fields).sum()
}

/// Says what this side is, where it has not been said yet.
pub(in crate::consumer) fn say_who(headers: &mut HeaderMap) {
    let value = match headers.get(USER_AGENT) {
        Some(said) if said.as_bytes().ends_with(AGENT.as_bytes()) => return,
        None => HeaderValue::from_static(AGENT),
        Some(theirs) => {
            let both = [theirs.as_bytes(), b" ", AGENT.as_bytes()].concat();
            HeaderValue::from_bytes(&both).expect("both halves are header values")
        }
    };
    headers.insert(USER_AGENT, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_is_the_connections() {
        let authority = Authority::from_static("orders");
        let (head, ()) = Request::post("http://elsewhere:80/prefix/pkg.Svc/Do?x=1")
            .header("te", "trailers")
            .body(())
            .expect("well formed")
            .into_parts();
        let sent = request(&head, &authority);
        assert_eq!(sent.uri(), "http://orders/prefix/pkg.Svc/Do?x=1");
        assert_eq!(sent.headers()["te"], "trailers");
        assert_eq!(sent.headers()[USER_AGENT], AGENT);
    }

    #[test]
    fn the_applications_name_comes_first() {
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static("shop/2"));
        say_who(&mut headers);
        assert_eq!(headers[USER_AGENT], format!("shop/2 {AGENT}"));
        say_who(&mut headers);
        assert_eq!(headers[USER_AGENT], format!("shop/2 {AGENT}"), "once");
    }
}
