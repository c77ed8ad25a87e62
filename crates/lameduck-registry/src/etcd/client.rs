//! A thin client of etcd: the calls that a registry needs, each with a deadline.

use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::HeaderValue;
use lameduck_core::limits;
use lameduck_core::mirror::Origin;
use lameduck_core::name::Address;
use lameduck_core::registry::{ErrorClass, RegistryError};
use lameduck_core::session::LeaseId;
use lameduck_etcd_proto::etcdserverpb::auth_client::AuthClient;
use lameduck_etcd_proto::etcdserverpb::kv_client::KvClient;
use lameduck_etcd_proto::etcdserverpb::lease_client::LeaseClient;
use lameduck_etcd_proto::etcdserverpb::{
    AuthenticateRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest,
    RangeRequest, ResponseHeader, TxnRequest, TxnResponse, WatchCreateRequest, WatchResponse,
};
use lameduck_etcd_proto::mvccpb::{Event, KeyValue};
use tokio::time::timeout;
use tonic::{Code, Status};

use super::login::{Failed, Kind, Login, Outcome, Pass, Token, still_lost};
use super::streams::{Member, Streams};
use super::transport::{Pool, Transport, Used};

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The lease does not exist (any more).
    LeaseGone,
    /// The revision has been compacted away.
    Compacted,
    /// An answer was larger than [`limits::REGISTRY_ANSWER_BYTES_MAX`].
    TooLarge,
    /// Anything else, and what to do about it.
    Registry(RegistryError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseGone => f.write_str("etcd: the lease does not exist"),
            Self::Compacted => f.write_str("etcd: the revision has been compacted"),
            Self::TooLarge => f.write_str("etcd: an answer is too large"),
            Self::Registry(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    /// As a registry's error, for those to whom the other cases mean nothing special.
    #[must_use]
    pub fn into_registry(self) -> RegistryError {
        match self {
            Self::Registry(error) => error,
            other => RegistryError {
                class: ErrorClass::Retry,
                message: other.to_string(),
            },
        }
    }

    fn retry(message: String) -> Self {
        Self::Registry(RegistryError {
            class: ErrorClass::Retry,
            message,
        })
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let text = status.message();
        let class = match status.code() {
            Code::NotFound if text.contains("lease not found") => return Self::LeaseGone,
            Code::OutOfRange if text.contains("compacted") => return Self::Compacted,
            Code::OutOfRange if text.contains("decoded message") => return Self::TooLarge,
            Code::ResourceExhausted if text.contains("space") => ErrorClass::Full,
            Code::PermissionDenied
            | Code::Unauthenticated
            | Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::Unimplemented => ErrorClass::Refused,
            _ => ErrorClass::Retry,
        };
        let message = if text.starts_with("etcd") {
            text.to_owned()
        } else {
            format!("etcd: {text}")
        };
        Self::Registry(RegistryError { class, message })
    }
}

/// A client of one etcd cluster. Clones share the connection.
#[derive(Clone)]
pub struct Client {
    pool: Arc<Pool>,
    login: Option<Arc<Login>>,
    pub(super) streams: Arc<Streams>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// Everything below a prefix at one revision.
#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    /// Which revision of which cluster.
    pub origin: Origin,
    /// The keys in order, at most one page more than [`limits::INSTANCES_MAX`].
    pub kvs: Vec<KeyValue>,
}

impl Client {
    /// A client of the cluster at these hosts. Connects at the first call; one that is dead costs
    /// nothing while another one answers.
    #[must_use]
    pub fn new(hosts: Vec<Address>) -> Self {
        // Each process begins elsewhere, so that one host does not carry all.
        let first = getrandom::u32().unwrap_or_default() as usize;
        Self {
            pool: Arc::new(Pool::new(hosts, first)),
            login: None,
            streams: Arc::default(),
        }
    }

    /// The same, as this user of etcd. All clones share one token; it is renewed by whichever call
    /// hears that it is of no use any more. An etcd that asks nobody for a login is used without.
    #[must_use]
    pub fn with_login(self, name: &str, password: &str) -> Self {
        // Only jitter depends on it.
        let seed = getrandom::u64().unwrap_or_default();
        let login = Login::new(name, password, seed);
        Self {
            login: Some(Arc::new(login)),
            ..self
        }
    }

    /// Gets a lease.
    ///
    /// # Errors
    ///
    /// [`Error::Registry`].
    pub async fn grant(&self, ttl: Duration) -> Result<(LeaseId, Duration), Error> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let request = LeaseGrantRequest {
            ttl: seconds,
            ..Default::default()
        };
        let answer =
            self.call(
                |transport| async move { LeaseClient::new(transport).lease_grant(request).await },
            );
        let answer = answer.await?.into_inner();
        if !answer.error.is_empty() {
            return Err(Error::retry(format!("etcd: {}", answer.error)));
        }
        Ok((LeaseId(answer.id), seconds_of(answer.ttl)))
    }

    /// Renews a lease once; gives what is left of it then.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseGone`], [`Error::Registry`].
    pub async fn renew(&self, lease: LeaseId) -> Result<Duration, Error> {
        let answer = self.call(|transport| async move {
            let request = LeaseKeepAliveRequest { id: lease.0 };
            let requests = stream::once(ready(request));
            let mut client = LeaseClient::new(transport);
            let mut answers = client.lease_keep_alive(requests).await?.into_inner();
            answers.message().await
        });
        match answer.await? {
            Some(answer) if answer.ttl > 0 => Ok(seconds_of(answer.ttl)),
            Some(_) => Err(Error::LeaseGone),
            None => Err(Error::retry("etcd: a renewal was not answered".to_owned())),
        }
    }

    /// Ends a lease and every key under it. One that is gone already counts as ended.
    ///
    /// # Errors
    ///
    /// [`Error::Registry`].
    pub async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        let answer = self.call(|transport| async move {
            let request = LeaseRevokeRequest { id: lease.0 };
            LeaseClient::new(transport).lease_revoke(request).await
        });
        match answer.await {
            Ok(_) | Err(Error::LeaseGone) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// One transaction.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseGone`] where it puts under a lease that does not exist, [`Error::Registry`].
    pub async fn transact(&self, request: &TxnRequest) -> Result<TxnResponse, Error> {
        let answer = self.call(|transport| {
            let request = request.clone();
            async move { KvClient::new(transport).txn(request).await }
        });
        Ok(answer.await?.into_inner())
    }

    /// Everything whose key begins with `prefix`, page by page at one revision.
    ///
    /// # Errors
    ///
    /// [`Error::Compacted`] where history was thrown away between two pages, [`Error::Registry`].
    pub async fn list(&self, prefix: &str) -> Result<Listing, Error> {
        let mut request = RangeRequest {
            key: Bytes::copy_from_slice(prefix.as_bytes()),
            range_end: range_end(prefix),
            limit: i64::from(limits::LIST_PAGE),
            ..Default::default()
        };
        let mut listing = Listing {
            origin: Origin::default(),
            kvs: Vec::new(),
        };
        loop {
            let page = match self.range(&request).await {
                Err(Error::TooLarge) if request.limit > 1 => {
                    request.limit /= 2;
                    continue;
                }
                page => page?,
            };
            if request.revision == 0 {
                listing.origin = origin(page.header.as_ref());
                request.revision = page.header.map_or(0, |header| header.revision);
            }
            listing.kvs.extend(page.kvs);
            if !page.more || listing.kvs.len() > limits::INSTANCES_MAX {
                return Ok(listing);
            }
            let Some(last) = listing.kvs.last() else {
                return Ok(listing);
            };
            request.key = after(&last.key);
        }
    }

    /// One key, where it exists.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`], [`Error::Registry`].
    pub async fn get(&self, key: &str) -> Result<Option<KeyValue>, Error> {
        let request = RangeRequest {
            key: Bytes::copy_from_slice(key.as_bytes()),
            ..Default::default()
        };
        Ok(self.range(&request).await?.kvs.into_iter().next())
    }

    async fn range(
        &self,
        request: &RangeRequest,
    ) -> Result<lameduck_etcd_proto::etcdserverpb::RangeResponse, Error> {
        let answer = self.call_patiently(Kind::Unary, |transport| {
            let request = request.clone();
            async move {
                KvClient::new(transport)
                    .max_decoding_message_size(limits::REGISTRY_ANSWER_BYTES_MAX)
                    .range(request)
                    .await
            }
        });
        Ok(answer.await?.into_inner())
    }

    /// Watches everything whose key begins with `prefix`, from revision `from` on. Dropping the
    /// watch cancels it. Watches of one client share streams; one that is not read for long ends, and
    /// holds up no other.
    ///
    /// # Errors
    ///
    /// [`Error::Compacted`] where `from` is too old, [`Error::Registry`].
    pub async fn watch(&self, prefix: &str, from: u64) -> Result<Watch, Error> {
        let create = WatchCreateRequest {
            key: Bytes::copy_from_slice(prefix.as_bytes()),
            range_end: range_end(prefix),
            start_revision: i64::try_from(from).unwrap_or(i64::MAX),
            fragment: true,
            ..Default::default()
        };
        let answer = self.call_patiently(Kind::Watch, |transport| {
            let mut member = self.streams.join(&transport, &create);
            async move {
                let first = member.message().await?;
                if first.canceled && first.compact_revision == 0 {
                    return Err(cancelled(&first.cancel_reason));
                }
                Ok((member, first))
            }
        });
        let (member, first) = answer.await?;
        refuse_cancelled(&first)?;
        Ok(Watch {
            origin: origin(first.header.as_ref()),
            member,
            fragments: Vec::new(),
        })
    }

    async fn call<T, F, C>(&self, call: C) -> Result<T, Error>
    where
        C: Fn(Transport) -> F,
        F: Future<Output = Result<T, Status>>,
    {
        self.within(limits::REGISTRY_CALL_MAX, Kind::Unary, call)
            .await
    }

    /// The same, for calls that nobody counts on within a certain time: where somebody has to log in
    /// first, they wait for that, too.
    async fn call_patiently<T, F, C>(&self, kind: Kind, call: C) -> Result<T, Error>
    where
        C: Fn(Transport) -> F,
        F: Future<Output = Result<T, Status>>,
    {
        self.token().await?;
        self.within(limits::REGISTRY_CALL_MAX, kind, call).await
    }

    async fn within<T, F, C>(&self, limit: Duration, kind: Kind, call: C) -> Result<T, Error>
    where
        C: Fn(Transport) -> F,
        F: Future<Output = Result<T, Status>>,
    {
        let used = Used::default();
        let answer = timeout(limit, self.attempt(kind, &used, &call)).await;
        let useless = match &answer {
            Err(_) => true,
            Ok(Err(status)) => status.code() == Code::Unavailable && self.pool.has_choice(),
            Ok(Ok(_)) => false,
        };
        if useless && let Some(generation) = used.get() {
            self.pool.abandon(generation);
        }
        match answer {
            Ok(answer) => answer.map_err(Error::from),
            Err(_) => {
                let seconds = limit.as_secs();
                Err(Error::retry(format!("etcd: no answer within {seconds} s")))
            }
        }
    }

    async fn attempt<T, F, C>(&self, kind: Kind, used: &Used, call: &C) -> Result<T, Status>
    where
        C: Fn(Transport) -> F,
        F: Future<Output = Result<T, Status>>,
    {
        let token = self.token().await?;
        let answer = call(self.transport(token.as_ref(), used)).await;
        match (&self.login, token, answer) {
            (Some(login), Some(token), Err(status))
                if login.is_lost(&token, &status, kind, used.get().unwrap_or_default()) =>
            {
                let token = self.token().await?;
                let answer = call(self.transport(token.as_ref(), used)).await;
                answer.map_err(still_lost)
            }
            (_, _, answer) => answer,
        }
    }

    fn transport(&self, token: Option<&Token>, used: &Used) -> Transport {
        let header = token.and_then(Token::header);
        Transport::new(self.pool.clone(), header, used.clone())
    }

    /// The token to call with; logs in where there is none yet. `None` for a client without a login.
    async fn token(&self) -> Result<Option<Token>, Status> {
        let Some(login) = &self.login else {
            return Ok(None);
        };
        let log_in = || {
            authenticate(
                self.pool.clone(),
                login.name.clone(),
                login.password.clone(),
            )
        };
        login.token(log_in).await.map(Some)
    }
}

/// Logs in once.
async fn authenticate(pool: Arc<Pool>, name: String, password: String) -> Outcome {
    let used = Used::default();
    let transport = Transport::new(pool.clone(), None, used.clone());
    let request = AuthenticateRequest { name, password };
    let mut client = AuthClient::new(transport);
    let answer = timeout(limits::LOGIN_MAX, client.authenticate(request)).await;
    let generation = used.get().unwrap_or_default();
    let is_sent = used.get().is_some();
    let token = match answer {
        Ok(Ok(answer)) => {
            let token = HeaderValue::try_from(answer.into_inner().token);
            token.map_err(|_| Status::internal("etcd: a token that is no header value"))
        }
        Ok(Err(status)) if status.message().contains("authentication is not enabled") => {
            return Ok(Pass {
                token: None,
                generation,
            });
        }
        Ok(Err(status)) => Err(status),
        Err(_) => {
            pool.abandon(generation);
            let text = format!("etcd: no login within {:?}", limits::LOGIN_MAX);
            Err(Status::deadline_exceeded(text))
        }
    };
    match token {
        Ok(mut token) => {
            token.set_sensitive(true);
            Ok(Pass {
                token: Some(token),
                generation,
            })
        }
        Err(status) => Err(Failed { status, is_sent }),
    }
}

/// A running watch.
pub struct Watch {
    origin: Origin,
    member: Member,
    fragments: Vec<Event>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    /// The revision and cluster that it was opened at.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// The next events, oldest first, and the revision up to which everything has been told. All
    /// events of one revision come together.
    ///
    /// # Errors
    ///
    /// [`Error::Compacted`], [`Error::Registry`]; the watch is over then.
    pub async fn next(&mut self) -> Result<(u64, Vec<Event>), Error> {
        loop {
            let answer = self.member.message().await?;
            refuse_cancelled(&answer)?;
            let told = answer.events.iter().filter_map(|event| event.kv.as_ref());
            let latest = told.map(|kv| kv.mod_revision).max();
            self.fragments.extend(answer.events);
            if answer.fragment {
                continue;
            }
            // Between events the header's revision may run ahead of what this watch has told.
            let revision = latest.or_else(|| answer.header.map(|header| header.revision));
            let revision = revision.and_then(|revision| u64::try_from(revision).ok());
            let events = std::mem::take(&mut self.fragments);
            if let Some(revision) = revision {
                return Ok((revision, events));
            }
        }
    }
}

fn refuse_cancelled(answer: &WatchResponse) -> Result<(), Error> {
    if answer.compact_revision > 0 {
        return Err(Error::Compacted);
    }
    if !answer.canceled {
        return Ok(());
    }
    Err(cancelled(&answer.cancel_reason).into())
}

/// A watch that etcd has cancelled for `reason`, which holds the text of a status.
fn cancelled(reason: &str) -> Status {
    let text = format!("etcd: the watch was cancelled: {reason}");
    if reason.contains("permission denied") {
        return Status::permission_denied(text);
    }
    Status::aborted(text)
}

fn seconds_of(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or_default())
}

fn origin(header: Option<&ResponseHeader>) -> Origin {
    header.map_or_else(Origin::default, |header| Origin {
        revision: u64::try_from(header.revision).unwrap_or_default(),
        cluster: header.cluster_id,
    })
}

/// The end of the range of all keys that begin with `prefix`: the prefix, its last byte one up.
fn range_end(prefix: &str) -> Bytes {
    let mut end = prefix.as_bytes().to_vec();
    // Text has no byte 0xff, so the last one can always go one up.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    Bytes::from(end)
}

/// The first key after `key`.
fn after(key: &Bytes) -> Bytes {
    let mut next = key.to_vec();
    next.push(0);
    Bytes::from(next)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use tokio::net::TcpListener;

    use super::*;
    use crate::etcd::server::DevServer;

    #[track_caller]
    fn check_class(code: Code, message: &str, expected: Result<ErrorClass, Error>) {
        let error = Error::from(Status::new(code, message));
        match expected {
            Ok(class) => assert_eq!(error.into_registry().class, class, "{message}"),
            Err(other) => assert_eq!(error, other),
        }
    }

    #[test]
    fn etcds_words_have_classes() {
        let gone = Err(Error::LeaseGone);
        check_class(
            Code::NotFound,
            "etcdserver: requested lease not found",
            gone,
        );
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        check_class(Code::OutOfRange, compacted, Err(Error::Compacted));
        let full = "etcdserver: mvcc: database space exceeded";
        check_class(Code::ResourceExhausted, full, Ok(ErrorClass::Full));
        let busy = "etcdserver: too many requests";
        check_class(Code::ResourceExhausted, busy, Ok(ErrorClass::Retry));
        let denied = "etcdserver: permission denied";
        check_class(Code::PermissionDenied, denied, Ok(ErrorClass::Refused));
        check_class(
            Code::InvalidArgument,
            "etcdserver: user name is empty",
            Ok(ErrorClass::Refused),
        );
        check_class(
            Code::Unavailable,
            "etcdserver: no leader",
            Ok(ErrorClass::Retry),
        );
    }

    #[tokio::test]
    async fn a_silent_host_is_left_for_the_next() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        // Takes connections, as the kernel does for a process that is stopped, and never answers.
        let silent = TcpListener::bind(any).await.expect("a free port");
        let server = DevServer::bind(any).await.expect("a free port");
        let hosts = [silent.local_addr().expect("bound"), server.local_addr()];
        tokio::spawn(server.run(std::future::pending()));
        let client = Client {
            pool: Arc::new(Pool::new(hosts.map(Address::from).to_vec(), 0)),
            login: None,
            streams: Arc::default(),
        };
        let ttl = Duration::from_secs(10);
        let error = client.grant(ttl).await.expect_err("nobody answers");
        assert_eq!(error.into_registry().class, ErrorClass::Retry);
        let (lease, granted) = client.grant(ttl).await.expect("the other one answers");
        assert_eq!(granted, ttl);
        assert_eq!(client.renew(lease).await, Ok(ttl));
    }

    #[test]
    fn ranges_end_after_their_prefix() {
        assert_eq!(range_end("a/"), Bytes::from_static(b"a0"));
        assert_eq!(
            after(&Bytes::from_static(b"a/7")),
            Bytes::from_static(b"a/7\0")
        );
    }
}
