//! What an application holds: a channel to a service.

use std::collections::HashSet;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use lameduck_core::failover::attempt;
use lameduck_core::limits::{ATTEMPTS_MAX, PICK_WAIT_MAX};
use lameduck_core::name::ServiceName;
use lameduck_core::registry::Registry;
use tokio::time::timeout;
use tonic::body::Body;
use tower_service::Service;

use super::Directory;
use super::call;
use crate::hub::{Hub, TargetError};

/// How an endpoint is chosen among those that are ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// The one with fewer calls in flight of two drawn at random: keeps away from slow ones, and
    /// callers that do not know of each other do not choose alike.
    #[default]
    P2c,
    /// Each in turn.
    RoundRobin,
}

/// What a channel was built with.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) policy: Policy,
    pub(super) attempts_max: u32,
    pub(super) failover: bool,
    pub(super) wait_for_ready: bool,
    pub(super) tell_leaving: bool,
    idempotent: HashSet<Box<str>>,
}

impl Options {
    /// What is allowed for calls of the method at `path`.
    pub(super) fn attempts(&self, path: &str) -> attempt::Policy {
        attempt::Policy {
            attempts_max: self.attempts_max,
            idempotent: self.idempotent.contains(path),
            failover: self.failover,
        }
    }
}

/// A channel to the instances of one service; takes the place of `tonic::transport::Channel` in
/// generated clients.
///
/// Cheap to clone; clones share everything. It is always ready: choosing an endpoint, waiting for
/// one (at most 2 s, unless built with [`ChannelBuilder::wait_for_ready`]), the call's deadline and
/// placing it once more all happen within the call. What fails is a [`tonic::Status`] whose source
/// is [`CallFailed`](super::CallFailed).
#[derive(Clone)]
pub struct Channel {
    directory: Arc<Directory>,
    options: Arc<Options>,
}

impl Channel {
    /// A channel with a hub of its own, once an instance can be called or 2 s have passed.
    ///
    /// Costs a registry connection and a directory per channel, and closing statements reach only
    /// this one; a program with several channels makes one [`Hub`].
    ///
    /// # Errors
    /// As [`Hub::channel`]. Instances that cannot be reached are not an error here but of calls.
    pub async fn connect(target: &str) -> Result<Self, TargetError> {
        let channel = Hub::new().channel(target)?;
        // Only a courtesy to the first call, which waits by itself.
        let _ = timeout(PICK_WAIT_MAX, channel.ready()).await;
        Ok(channel)
    }

    /// Calls in flight to the instances that are known now, by all channels to this service of the
    /// hub; a call counts until its answer has been read to the end or dropped.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        let view = self.directory.shared.view.load();
        view.all.iter().map(|one| one.cell.in_flight()).sum()
    }

    /// Calls that wait now, since the streams of all instances are in use, by all channels to this
    /// service of the hub.
    #[must_use]
    pub fn waiting_for_stream(&self) -> u64 {
        self.directory.shared.line.waiting()
    }

    /// Calls that have waited so, from the first on.
    #[must_use]
    pub fn waited_for_stream(&self) -> u64 {
        self.directory.shared.line.joined()
    }

    /// Resolves once an instance can be called.
    pub async fn ready(&self) {
        let shared = &self.directory.shared;
        let waiting = shared.waiters.wait();
        loop {
            let changed = waiting.changed();
            if shared.view.load().spare.iter().any(|one| one.is_usable()) {
                return;
            }
            changed.await;
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = &self.directory.shared;
        f.debug_struct("Channel")
            .field("registry", &shared.registry)
            .field("service", &shared.service)
            .finish_non_exhaustive()
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = tonic::Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, tonic::Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), tonic::Status>> {
        // Waiting here would escape the call's deadline, and a failure here ends generated clients
        // with an UNKNOWN of tonic's own.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let directory = Arc::clone(&self.directory);
        let options = Arc::clone(&self.options);
        Box::pin(call::run(directory, options, request))
    }
}

/// Makes a [`Channel`] that differs from the usual one.
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct ChannelBuilder {
    hub: Hub,
    whither: Whither,
    options: Options,
    health: Option<bool>,
}

/// What a channel leads to.
#[derive(Debug)]
enum Whither {
    Target(String),
    Service(Arc<dyn Registry>, ServiceName),
}

impl ChannelBuilder {
    pub(crate) fn to_target(hub: Hub, target: &str) -> Self {
        Self::new(hub, Whither::Target(target.to_owned()))
    }

    pub(crate) fn to_service(hub: Hub, registry: Arc<dyn Registry>, service: ServiceName) -> Self {
        Self::new(hub, Whither::Service(registry, service))
    }

    fn new(hub: Hub, whither: Whither) -> Self {
        Self {
            hub,
            whither,
            options: Options {
                policy: Policy::default(),
                attempts_max: ATTEMPTS_MAX,
                failover: true,
                wait_for_ready: false,
                tell_leaving: false,
                idempotent: HashSet::new(),
            },
            health: None,
        }
    }

    /// Declares a method idempotent, by its path (`/greeter.v1.Greeter/Hello`): doing it twice is as
    /// good as doing it once, so a call that *may* have been processed may be placed once more,
    /// within the retry budget; so may one that a server answers with UNAVAILABLE. Its answer is given to the application once the first message is
    /// whole. Nothing is idempotent unless declared. What is no such path would never match, and is
    /// refused by [`build`](Self::build).
    pub fn idempotent(mut self, path: impl Into<Box<str>>) -> Self {
        self.options.idempotent.insert(path.into());
        self
    }

    /// How endpoints are chosen. [`Policy::P2c`] unless said.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.options.policy = policy;
        self
    }

    /// Attempts in all that may reach a server; 3 unless said, at least 1.
    pub fn attempts(mut self, attempts_max: u32) -> Self {
        self.options.attempts_max = attempts_max.max(1);
        self
    }

    /// `false`: the instances of this service are used without asking `grpc.health.v1` on their
    /// connections, `true`: they are asked; as [`HubBuilder::health`](crate::HubBuilder::health) says unless
    /// said. Channels that differ in this share no connections.
    pub fn health(mut self, asks: bool) -> Self {
        self.health = Some(asks);
        self
    }

    /// `false`: no call is placed twice, not even one that was handed back unsent.
    pub fn failover(mut self, failover: bool) -> Self {
        self.options.failover = failover;
        self
    }

    /// `true`: a call that finds no endpoint waits until its deadline, not 2 s, and also where the
    /// registry lists none.
    pub fn wait_for_ready(mut self, wait: bool) -> Self {
        self.options.wait_for_ready = wait;
        self
    }

    /// `true`: each answer carries a [`Leaving`](super::Leaving) in its extensions, which tells when
    /// its server goes away; for long streams. Costs two small allocations a call.
    pub fn tell_leaving(mut self, tell: bool) -> Self {
        self.options.tell_leaving = tell;
        self
    }

    /// The channel. Must be called within a tokio runtime, on which it runs.
    ///
    /// # Errors
    /// [`TargetError`] where the target cannot be read, names no known registry or no service, or what
    /// is said to be idempotent is no method.
    pub fn build(self) -> Result<Channel, TargetError> {
        let mut methods = self.options.idempotent.iter();
        if let Some(wrong) = methods.find(|path| !is_method(path)) {
            return Err(TargetError::Method {
                path: wrong.to_string(),
            });
        }
        let directory = match &self.whither {
            Whither::Target(target) => self.hub.directory(target, self.health)?,
            Whither::Service(registry, service) => {
                self.hub.directory_in(registry, service, self.health)
            }
        };
        Ok(Channel {
            directory,
            options: Arc::new(self.options),
        })
    }
}

/// Whether requests can have this path: `/package.Service/Method`, perhaps below the path of an origin.
fn is_method(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else {
        return false;
    };
    let odd = |c: char| c.is_whitespace() || c.is_control() || "?#".contains(c);
    rest.contains('/') && !rest.split('/').any(str::is_empty) && !rest.contains(odd)
}
