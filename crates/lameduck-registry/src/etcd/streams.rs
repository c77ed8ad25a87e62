//! Watches share streams.
//!
//! A stream of etcd's Watch RPC carries any number of watches. All watches of a client that use the
//! same connection and the same token share one, up to [`limits::STREAM_WATCHES_MAX`], so that a hub
//! with hundreds of services needs few of the streams that a connection, or a proxy in front of etcd,
//! has. What a stream brings is handed on without waiting: a watch that is not read is ended when its
//! queue is full, and the others do not notice.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderValue;
use lameduck_core::{limits, mutant};
use lameduck_etcd_proto::etcdserverpb::watch_client::WatchClient;
use lameduck_etcd_proto::etcdserverpb::watch_request::RequestUnion;
use lameduck_etcd_proto::etcdserverpb::{
    WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse,
};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Status};

use super::transport::{Transport, Used};

/// The open streams of one client.
#[derive(Default)]
pub(super) struct Streams(Mutex<Vec<Arc<Shared>>>);

/// One stream.
struct Shared {
    token: Option<HeaderValue>,
    used: Used,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// `None` where the stream is over.
    requests: Option<mpsc::UnboundedSender<WatchRequest>>,
    task: Option<AbortHandle>,
    /// Asked for and not answered yet. Answers come in this order.
    asked: VecDeque<Arc<Inbox>>,
    watches: BTreeMap<i64, Arc<Inbox>>,
}

/// What has come for one watch and has not been read.
#[derive(Default)]
struct Inbox {
    inner: Mutex<Mail>,
    changed: Notify,
}

#[derive(Default)]
struct Mail {
    answers: VecDeque<WatchResponse>,
    bytes: usize,
    /// Nothing comes any more, and why.
    end: Option<Status>,
    /// Nobody reads it any more.
    is_left: bool,
}

/// One watch on a shared stream. Dropping it cancels the watch.
pub(super) struct Member {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Streams {
    /// Asks for a watch on a stream that has room, or on a new one. Its first message is the answer.
    pub(super) fn join(&self, transport: &Transport, create: &WatchCreateRequest) -> Member {
        let mut streams = lock(&self.0);
        streams.retain(|shared| lock(&shared.inner).requests.is_some());
        let usable = streams.iter().filter(|shared| shared.suits(transport));
        for shared in usable {
            if let Some(member) = shared.ask(create) {
                transport.follow(&shared.used);
                return member;
            }
        }
        let used = Used::default();
        transport.follow(&used);
        let (shared, member) = Shared::begin(transport.apart(used.clone()), used, create);
        streams.push(shared);
        member
    }
}

impl Shared {
    /// A new stream with its first watch.
    fn begin(transport: Transport, used: Used, create: &WatchCreateRequest) -> (Arc<Self>, Member) {
        let (requests, asked) = mpsc::unbounded_channel();
        let shared = Arc::new(Self {
            token: transport.token().cloned(),
            used,
            inner: Mutex::new(Inner {
                requests: Some(requests),
                ..Inner::default()
            }),
        });
        let member = shared.ask(create).expect("nothing has ended it yet");
        // Made here: a runtime that ends drops the task before it has begun.
        let guard = Guard(Arc::clone(&shared));
        let task = tokio::spawn(async move {
            let status = guard.0.serve(transport, asked).await;
            guard.0.end(&status);
        });
        let mut inner = lock(&shared.inner);
        if inner.requests.is_some() {
            inner.task = Some(task.abort_handle());
        }
        drop(inner);
        (shared, member)
    }

    /// Whether a call by `transport` may use this stream.
    fn suits(&self, transport: &Transport) -> bool {
        let is_open = self.used.get().is_none_or(|used| transport.is_open(used));
        is_open && (self.token.as_ref() == transport.token() || mutant!("streams/token"))
    }

    /// Asks for a watch; `None` where the stream is full or over.
    fn ask(self: &Arc<Self>, create: &WatchCreateRequest) -> Option<Member> {
        let mut inner = lock(&self.inner);
        if inner.asked.len() + inner.watches.len() >= limits::STREAM_WATCHES_MAX {
            return None;
        }
        inner
            .send(RequestUnion::CreateRequest(create.clone()))
            .ok()?;
        let inbox = Arc::<Inbox>::default();
        inner.asked.push_back(Arc::clone(&inbox));
        Some(Member {
            shared: Arc::clone(self),
            inbox,
        })
    }

    /// Hands out what comes until the stream ends; says how it has ended.
    async fn serve(
        &self,
        transport: Transport,
        asked: mpsc::UnboundedReceiver<WatchRequest>,
    ) -> Status {
        let mut request = Request::new(UnboundedReceiverStream::new(asked));
        // A member without a leader would keep the stream and tell nothing.
        let headers = request.metadata_mut();
        headers.insert("hasleader", MetadataValue::from_static("true"));
        let mut client = WatchClient::new(transport)
            .max_decoding_message_size(limits::REGISTRY_ANSWER_BYTES_MAX);
        let mut answers = match client.watch(request).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => return status,
        };
        loop {
            match answers.message().await {
                Ok(Some(answer)) => lock(&self.inner).hand_out(answer),
                Ok(None) => return Status::unavailable("etcd: the watch ended"),
                Err(status) => return status,
            }
        }
    }

    /// All watches of the stream end with `status`, and it takes no more.
    fn end(&self, status: &Status) {
        let inner = std::mem::take(&mut *lock(&self.inner));
        for inbox in inner.asked.iter().chain(inner.watches.values()) {
            inbox.end(status.clone());
        }
    }
}

/// Ends a stream whose task is dropped with its runtime.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0
            .end(&Status::unavailable("etcd: the watch was dropped"));
    }
}

impl Inner {
    fn send(&self, request: RequestUnion) -> Result<(), ()> {
        let request = WatchRequest {
            request_union: Some(request),
        };
        self.requests
            .as_ref()
            .ok_or(())?
            .send(request)
            .map_err(drop)
    }

    fn cancel(&self, watch_id: i64) {
        // Fails only where the stream is over, and its watches with it.
        let _ = self.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }));
    }

    fn hand_out(&mut self, answer: WatchResponse) {
        let id = answer.watch_id;
        if answer.created {
            let Some(inbox) = self.asked.pop_front() else {
                return;
            };
            if answer.canceled {
                inbox.put(answer);
            } else if inbox.put(answer) {
                self.watches.insert(id, inbox);
            } else {
                self.cancel(id);
            }
        } else if answer.canceled {
            if let Some(inbox) = self.watches.remove(&id) {
                inbox.put(answer);
            }
        } else if let Some(inbox) = self.watches.get(&id)
            && !inbox.put(answer)
        {
            self.watches.remove(&id);
            self.cancel(id);
        }
    }

    /// Ends a watch that nobody reads any more. Gives the task to abort where it was the last one: the
    /// stream ends, also where the server does not answer any more.
    fn leave(&mut self, inbox: &Arc<Inbox>) -> Option<AbortHandle> {
        let mut watches = self.watches.iter();
        let own = watches.find(|(_, other)| Arc::ptr_eq(other, inbox));
        if let Some(id) = own.map(|(id, _)| *id) {
            self.watches.remove(&id);
            self.cancel(id);
        }
        if !self.is_idle() {
            return None;
        }
        self.requests = None;
        self.task.take()
    }

    fn is_idle(&self) -> bool {
        let is_left = |inbox: &Arc<Inbox>| lock(&inbox.inner).is_left;
        self.watches.is_empty() && self.asked.iter().all(is_left)
    }
}

impl Inbox {
    /// False where there is no room, or nobody to read it: the watch is to be cancelled then.
    fn put(&self, answer: WatchResponse) -> bool {
        let mut mail = lock(&self.inner);
        if mail.is_left {
            return false;
        }
        let is_full = mail.answers.len() >= limits::WATCH_QUEUE_MAX
            || mail.bytes >= limits::REGISTRY_ANSWER_BYTES_MAX;
        if is_full && !mutant!("streams/queues-are-bounded") {
            mail.end = Some(Status::aborted("etcd: a watch was not read in time"));
        } else {
            mail.bytes += weight(&answer);
            mail.answers.push_back(answer);
        }
        let is_open = mail.end.is_none();
        drop(mail);
        self.changed.notify_one();
        is_open
    }

    fn take(&self) -> Option<Result<WatchResponse, Status>> {
        let mut mail = lock(&self.inner);
        if let Some(answer) = mail.answers.pop_front() {
            mail.bytes -= weight(&answer);
            return Some(Ok(answer));
        }
        mail.end.clone().map(Err)
    }

    fn end(&self, status: Status) {
        lock(&self.inner).end.get_or_insert(status);
        self.changed.notify_one();
    }
}

fn weight(answer: &WatchResponse) -> usize {
    let kvs = answer.events.iter().filter_map(|event| event.kv.as_ref());
    kvs.map(|kv| kv.key.len() + kv.value.len()).sum()
}

impl Member {
    /// The next answer. The first one says whether the watch stands.
    ///
    /// # Errors
    ///
    /// How the stream has ended, or that this watch was not read in time.
    pub(super) async fn message(&mut self) -> Result<WatchResponse, Status> {
        loop {
            if let Some(next) = self.inbox.take() {
                return next;
            }
            self.inbox.changed.notified().await;
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        {
            let mut mail = lock(&self.inbox.inner);
            *mail = Mail {
                is_left: true,
                ..Mail::default()
            };
        }
        let task = lock(&self.shared.inner).leave(&self.inbox);
        if let Some(task) = task {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests;
