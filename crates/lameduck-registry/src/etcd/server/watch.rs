//! Watches: any number on one stream.
//!
//! The stream is pulled: an answer is made when the connection has room for it. A watcher is a place
//! in the store's history, so a client that does not read costs nothing, and is cancelled as
//! compacted once the history has moved past its place.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;

use futures_util::{FutureExt, Stream, StreamExt, stream};
use lameduck_core::limits;
use lameduck_core::store::{Compacted, Cursor, KeyRange, Kinds};
use lameduck_etcd_proto::etcdserverpb as pb;
use lameduck_etcd_proto::etcdserverpb::watch_server::Watch;
use pb::watch_create_request::FilterType;
use pb::watch_request::RequestUnion;
use tokio::time::{Instant, Interval, interval_at};
use tonic::{Request, Response, Status, Streaming};

use super::state::{Inbox, State, WatcherPermit, header};
use super::wire;

/// Watchers looked at before other tasks get their turn.
const WATCHERS_AT_ONCE: usize = 256;
/// The watch id of answers that belong to no watch.
const NO_WATCH: i64 = -1;

/// The service `etcdserverpb.Watch`.
pub(super) struct WatchService(pub(super) Arc<State>);

#[tonic::async_trait]
impl Watch for WatchService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<pb::WatchResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<Streaming<pb::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let session = Session::new(Arc::clone(&self.0), request.into_inner());
        let answers = stream::unfold(session, async |mut session| {
            let answer = session.next().await?;
            Some((Ok(answer), session))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

struct Watcher {
    cursor: Cursor,
    prev_kv: bool,
    progress: Progress,
    _permit: WatcherPermit,
}

/// Whether a watcher wants to hear that nothing has happened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Unwanted,
    /// It has heard something since the last time.
    Heard,
    Silent,
}

/// One stream.
struct Session {
    state: Arc<State>,
    requests: Streaming<pb::WatchRequest>,
    inbox: Inbox,
    watchers: BTreeMap<i64, Watcher>,
    /// Those that may have something to read. The others have seen all that concerns them.
    behind: BTreeSet<i64>,
    /// Whose turn it is among them.
    turn: i64,
    next_id: i64,
    /// Answers to requests, which come before further events.
    answers: VecDeque<pb::WatchResponse>,
    /// Watchers that are not behind have seen all that concerns them up to this revision.
    seen: i64,
    progress_wanted: bool,
    tick: Interval,
}

enum Wake {
    Request(Option<pb::WatchRequest>),
    News,
    Tick,
}

impl Session {
    fn new(state: Arc<State>, requests: Streaming<pb::WatchRequest>) -> Self {
        let inbox = state.inbox();
        let period = limits::WATCH_PROGRESS_INTERVAL;
        Self {
            state,
            requests,
            inbox,
            watchers: BTreeMap::new(),
            behind: BTreeSet::new(),
            turn: i64::MIN,
            next_id: 0,
            answers: VecDeque::new(),
            seen: 0,
            progress_wanted: false,
            tick: interval_at(Instant::now() + period, period),
        }
    }

    /// The next answer; `None` where the client has ended the stream.
    async fn next(&mut self) -> Option<pb::WatchResponse> {
        loop {
            if let Some(answer) = self.answers.pop_front() {
                return Some(answer);
            }
            // Requests come first: a client must be able to cancel what it cannot bear.
            if let Some(request) = self.requests.next().now_or_never() {
                self.take(request?.ok()?);
                continue;
            }
            if let Some(answer) = self.look().await {
                return Some(answer);
            }
            if std::mem::take(&mut self.progress_wanted) {
                return Some(answer(NO_WATCH, self.seen));
            }
            match self.wait().await {
                Wake::Request(request) => self.take(request?),
                Wake::News => self.collect(),
                Wake::Tick => self.tell_progress(),
            }
        }
    }

    async fn wait(&mut self) -> Wake {
        tokio::select! {
            request = self.requests.next() => Wake::Request(request.and_then(Result::ok)),
            () = self.inbox.posted() => Wake::News,
            _ = self.tick.tick() => Wake::Tick,
        }
    }

    /// Learns which watchers have something to read.
    fn collect(&mut self) {
        let (revision, news) = self.inbox.take();
        self.seen = revision;
        if self.behind.is_empty() {
            self.turn = i64::MIN;
        }
        for (id, first) in news.watches {
            self.fall_behind(id, first);
        }
        if let Some(first) = news.all {
            let ids: Vec<i64> = self.watchers.keys().copied().collect();
            for id in ids {
                self.fall_behind(id, first);
            }
        }
    }

    fn fall_behind(&mut self, id: i64, first: i64) {
        if let Some(watcher) = self.watchers.get_mut(&id)
            && self.behind.insert(id)
        {
            // It had seen everything, and nothing before `first` has concerned it since. Its old place
            // may be compacted by now.
            watcher.cursor.skip_to(first);
        }
    }

    /// The next event of any watcher. They take turns, so that one who has much to read does not keep
    /// the others waiting.
    async fn look(&mut self) -> Option<pb::WatchResponse> {
        for looked in 1.. {
            let later = self.behind.range(self.turn..).next();
            let id = *later.or_else(|| self.behind.first())?;
            self.turn = id.saturating_add(1);
            let answer = self.read(id);
            if answer.is_some() {
                return answer;
            }
            if looked % WATCHERS_AT_ONCE == 0 {
                tokio::task::yield_now().await;
            }
        }
        None
    }

    fn read(&mut self, id: i64) -> Option<pb::WatchResponse> {
        let Some(watcher) = self.watchers.get_mut(&id) else {
            self.behind.remove(&id);
            return None;
        };
        let (read, revision) = self.state.with(|store, _| {
            let read = store.read(&mut watcher.cursor, limits::STORE_READ_MAX);
            (read, store.revision())
        });
        if watcher.cursor.next_revision() > revision {
            self.behind.remove(&id);
        }
        match read {
            Ok(changes) if changes.is_empty() => None,
            Ok(changes) => {
                if watcher.progress == Progress::Silent {
                    watcher.progress = Progress::Heard;
                }
                let prev_kv = watcher.prev_kv;
                let events = changes
                    .into_iter()
                    .map(|change| wire::event(change, prev_kv));
                Some(pb::WatchResponse {
                    events: events.collect(),
                    ..answer(id, revision)
                })
            }
            Err(Compacted {
                revision: compact_revision,
            }) => {
                self.behind.remove(&id);
                self.watchers.remove(&id);
                Some(pb::WatchResponse {
                    canceled: true,
                    compact_revision,
                    ..answer(id, revision)
                })
            }
        }
    }

    fn take(&mut self, request: pb::WatchRequest) {
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => self.create(&create),
            Some(RequestUnion::CancelRequest(cancel)) => self.cancel(cancel.watch_id),
            Some(RequestUnion::ProgressRequest(_)) => self.ask_progress(),
            None => {}
        }
    }

    fn create(&mut self, create: &pb::WatchCreateRequest) {
        // What is written from now on is read first, and marked from a little later on.
        let revision = self.state.with(|store, _| store.revision());
        let created = pb::WatchResponse {
            created: true,
            ..answer(NO_WATCH, revision)
        };
        let range = watched(create);
        let refusal = if range.is_empty() {
            Some("mvcc: watcher range is empty")
        } else if create.watch_id != 0 && self.watchers.contains_key(&create.watch_id) {
            Some("mvcc: duplicate watch ID provided on the WatchStream")
        } else {
            None
        };
        let mut watch_id = create.watch_id;
        let (permit, refusal) = match refusal {
            Some(refusal) => (None, refusal),
            None => {
                if watch_id == 0 {
                    watch_id = self.fresh_id();
                }
                let permit = self.inbox.watch(watch_id, range.clone());
                (permit, "etcdserver: too many requests")
            }
        };
        let Some(permit) = permit else {
            let cancel_reason = refusal.to_owned();
            let refused = pb::WatchResponse {
                canceled: true,
                cancel_reason,
                ..created
            };
            self.answers.push_back(refused);
            return;
        };
        let next = if create.start_revision > 0 {
            create.start_revision
        } else {
            revision + 1
        };
        let progress = if create.progress_notify {
            Progress::Silent
        } else {
            Progress::Unwanted
        };
        let watcher = Watcher {
            cursor: Cursor::new(range, kinds(create), next),
            prev_kv: create.prev_kv,
            progress,
            _permit: permit,
        };
        self.watchers.insert(watch_id, watcher);
        self.answers.push_back(pb::WatchResponse {
            watch_id,
            ..created
        });
        self.behind.insert(watch_id);
    }

    fn fresh_id(&mut self) -> i64 {
        while self.watchers.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }

    fn cancel(&mut self, watch_id: i64) {
        if self.watchers.remove(&watch_id).is_some() {
            self.behind.remove(&watch_id);
            let revision = self.state.with(|store, _| store.revision());
            let canceled = pb::WatchResponse {
                canceled: true,
                ..answer(watch_id, revision)
            };
            self.answers.push_back(canceled);
        }
    }

    /// The answer comes after all events of before, which etcd's is meant to and did not always.
    fn ask_progress(&mut self) {
        self.progress_wanted = true;
        self.collect();
    }

    fn tell_progress(&mut self) {
        self.collect();
        for (id, watcher) in &mut self.watchers {
            if watcher.progress == Progress::Silent && !self.behind.contains(id) {
                self.answers.push_back(answer(*id, self.seen));
            } else if watcher.progress == Progress::Heard {
                watcher.progress = Progress::Silent;
            }
        }
    }
}

fn answer(watch_id: i64, revision: i64) -> pb::WatchResponse {
    pb::WatchResponse {
        header: Some(header(revision)),
        watch_id,
        ..Default::default()
    }
}

/// No key means the first possible one.
fn watched(create: &pb::WatchCreateRequest) -> KeyRange {
    if create.key.is_empty() {
        let first = bytes::Bytes::from_static(&[0]);
        return wire::range(&first, &create.range_end);
    }
    wire::range(&create.key, &create.range_end)
}

fn kinds(create: &pb::WatchCreateRequest) -> Kinds {
    let left_out = |kind| create.filters().any(|filter| filter == kind);
    match (left_out(FilterType::Noput), left_out(FilterType::Nodelete)) {
        (false, false) => Kinds::All,
        (false, true) => Kinds::Puts,
        (true, false) => Kinds::Deletes,
        (true, true) => Kinds::Neither,
    }
}
