//! A live view of one service: two mirrors and their join, as one machine, and its effects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use lameduck_core::machine::{Machine, Ticket, earliest};
use lameduck_core::mirror::{self, Change, Item, Mirror};
use lameduck_core::name::ServiceName;
use lameduck_core::registry::{Entry, EntryId, Subscription, Update};
use lameduck_core::rng::Rng;
use lameduck_core::time::Timestamp;
use lameduck_etcd_proto::mvccpb::event::EventType;
use lameduck_etcd_proto::mvccpb::{Event, KeyValue};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::client::{Client, Error, Watch};
use super::join::{Join, Record, Shadow};
use super::skipped::Skip;
use crate::driver::{Clock, Effects, drive};
use crate::layout::{foreign, gozero, lameduck};

/// Completions that wait for the machine; the tasks that bring them wait where it is full.
const INPUTS_MAX: usize = 16;

// --- the machine --------------------------------------------------------------------------------

#[derive(Debug)]
enum Input {
    Shadows(mirror::Input<Bytes, Shadow>),
    Records(mirror::Input<i64, Record>),
    /// A value that is no instance, and in neither range.
    Skipped(Skip),
}

/// One of the two ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Range {
    Shadows,
    Records,
}

#[derive(Debug, PartialEq, Eq)]
enum Output {
    List(Range, Ticket),
    Watch(Range, Ticket, u64),
    Emit(Update),
    /// So many more values were no instances.
    Malformed(u64),
}

#[derive(Debug)]
struct View {
    shadows: Mirror<Bytes, Shadow>,
    records: Mirror<i64, Record>,
    join: Join,
    malformed_told: u64,
    now: Timestamp,
}

impl View {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed);
        Self {
            shadows: Mirror::new(Rng::from_seed(rng.next_u64())),
            records: Mirror::new(Rng::from_seed(rng.next_u64())),
            join: Join::default(),
            malformed_told: 0,
            now: Timestamp::ZERO,
        }
    }

    fn poll_mirrors(&mut self) -> Option<Output> {
        loop {
            // The keys first: the records' list is then the later one and decides them all.
            match self.shadows.poll() {
                Some(mirror::Output::List { ticket }) => {
                    return Some(Output::List(Range::Shadows, ticket));
                }
                Some(mirror::Output::Watch { ticket, from }) => {
                    return Some(Output::Watch(Range::Shadows, ticket, from));
                }
                Some(mirror::Output::Emit(news)) => self.join.shadows(self.now, news),
                None => break,
            }
        }
        loop {
            match self.records.poll()? {
                mirror::Output::List { ticket } => {
                    return Some(Output::List(Range::Records, ticket));
                }
                mirror::Output::Watch { ticket, from } => {
                    return Some(Output::Watch(Range::Records, ticket, from));
                }
                mirror::Output::Emit(news) => self.join.records(self.now, news),
            }
        }
    }
}

impl Machine for View {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Timestamp, input: Input) {
        self.now = now;
        match input {
            Input::Shadows(input) => self.shadows.handle(now, input),
            Input::Records(input) => self.records.handle(now, input),
            Input::Skipped(skip) => self.join.skip(&skip),
        }
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.now = now;
        self.shadows.handle_timeout(now);
        self.records.handle_timeout(now);
        self.join.handle_timeout(now);
    }

    fn poll(&mut self) -> Option<Output> {
        if let Some(output) = self.poll_mirrors() {
            return Some(output);
        }
        let more = self.join.malformed() - self.malformed_told;
        if more > 0 {
            self.malformed_told += more;
            return Some(Output::Malformed(more));
        }
        self.join.poll().map(Output::Emit)
    }

    fn deadline(&self) -> Option<(Timestamp, &'static str)> {
        let join = self.join.deadline();
        let join = join.map(|due| (due, "take a key for foreign"));
        let mirrors = earliest(self.shadows.deadline(), self.records.deadline());
        earliest(mirrors, join)
    }
}

// --- its effects --------------------------------------------------------------------------------

struct Runner {
    client: Client,
    service: ServiceName,
    inputs: mpsc::Sender<Input>,
    /// Everything under way; ends with the subscription.
    tasks: JoinSet<()>,
    watches: BTreeMap<u8, AbortHandle>,
    outbox: Arc<Outbox>,
    malformed: Malformed,
}

/// How many values were no instances, over all subscriptions of a registry.
#[derive(Clone, Debug, Default)]
pub(super) struct Malformed(Arc<Mutex<u64>>);

impl Malformed {
    pub(super) fn count(&self) -> u64 {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, more: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += more;
    }
}

impl Effects<Output> for Runner {
    fn perform(&mut self, output: Output) -> ControlFlow<()> {
        while self.tasks.try_join_next().is_some() {}
        match output {
            Output::Emit(update) => self.outbox.push(update),
            Output::Malformed(more) => self.malformed.add(more),
            Output::List(range, ticket) => {
                self.tasks.spawn(self.reader(range, ticket).list());
            }
            Output::Watch(range, ticket, from) => {
                let task = self.tasks.spawn(self.reader(range, ticket).watch(from));
                if let Some(old) = self.watches.insert(range as u8, task) {
                    old.abort();
                }
            }
        }
        ControlFlow::Continue(())
    }
}

impl Runner {
    fn reader(&self, range: Range, ticket: Ticket) -> Reader {
        Reader {
            client: self.client.clone(),
            service: self.service.clone(),
            inputs: self.inputs.clone(),
            range,
            ticket,
        }
    }
}

/// One list or watch under way.
struct Reader {
    client: Client,
    service: ServiceName,
    inputs: mpsc::Sender<Input>,
    range: Range,
    ticket: Ticket,
}

impl Reader {
    fn prefix(&self) -> String {
        match self.range {
            Range::Shadows => gozero::prefix(&self.service),
            Range::Records => lameduck::prefix(&self.service),
        }
    }

    async fn list(self) {
        let ticket = self.ticket;
        let listing = match self.client.list(&self.prefix()).await {
            Ok(listing) => listing,
            Err(error) => return self.fail(error).await,
        };
        if self.range == Range::Shadows && listing.kvs.is_empty() {
            self.look_for_bare_key().await;
        }
        let (service, origin, kvs) = (&self.service, listing.origin, listing.kvs);
        let input = match self.range {
            Range::Shadows => {
                let items = kvs
                    .iter()
                    .filter_map(|kv| Some(item(kv, shadow(service, kv)?)));
                let items = items.collect();
                Input::Shadows(mirror::Input::Listed {
                    ticket,
                    origin,
                    items,
                })
            }
            Range::Records => {
                let items = kvs
                    .iter()
                    .filter_map(|kv| Some(item(kv, record(service, kv)?)));
                let items = items.collect();
                Input::Records(mirror::Input::Listed {
                    ticket,
                    origin,
                    items,
                })
            }
        };
        self.send(input).await;
    }

    /// People put `orders` where `orders/1` is meant, and then wonder.
    async fn look_for_bare_key(&self) {
        let name = self.service.as_str();
        // Where it may not be read, nothing is known of it.
        if let Ok(Some(kv)) = self.client.get(name).await {
            let value = kv.value[..kv.value.len().min(64)].escape_ascii();
            let why = format!(
                "the key itself exists (value \"{value}\"), but instances are keys below it: put \
                 {name}/1 (or any other end) instead"
            );
            self.send(Input::Skipped(Skip::new(&kv.key, &why))).await;
        }
    }

    async fn watch(self, from: u64) {
        let ticket = self.ticket;
        let mut watch = match self.client.watch(&self.prefix(), from).await {
            Ok(watch) => watch,
            Err(error) => return self.fail(error).await,
        };
        let origin = watch.origin();
        self.send(match self.range {
            Range::Shadows => Input::Shadows(mirror::Input::Opened { ticket, origin }),
            Range::Records => Input::Records(mirror::Input::Opened { ticket, origin }),
        })
        .await;
        let error = self.follow(&mut watch).await;
        self.fail(error).await;
    }

    /// Hands the watch's events on until it ends.
    async fn follow(&self, watch: &mut Watch) -> Error {
        let ticket = self.ticket;
        loop {
            let (revision, events) = match watch.next().await {
                Ok(next) => next,
                Err(error) => return error,
            };
            let service = &self.service;
            let input = match self.range {
                Range::Shadows => Input::Shadows(mirror::Input::Changed {
                    ticket,
                    revision,
                    changes: changes(&events, |kv| shadow(service, kv), |key| end(service, key)),
                }),
                Range::Records => Input::Records(mirror::Input::Changed {
                    ticket,
                    revision,
                    changes: changes(
                        &events,
                        |kv| record(service, kv),
                        |key| lameduck::lease(service, key),
                    ),
                }),
            };
            self.send(input).await;
        }
    }

    async fn fail(&self, error: Error) {
        let ticket = self.ticket;
        self.send(match (self.range, error) {
            (Range::Shadows, Error::Compacted) => {
                Input::Shadows(mirror::Input::Compacted { ticket })
            }
            (Range::Records, Error::Compacted) => {
                Input::Records(mirror::Input::Compacted { ticket })
            }
            (Range::Shadows, error) => {
                let error = error.into_registry();
                Input::Shadows(mirror::Input::Failed { ticket, error })
            }
            (Range::Records, error) => {
                let error = error.into_registry();
                Input::Records(mirror::Input::Failed { ticket, error })
            }
        })
        .await;
    }

    async fn send(&self, input: Input) {
        // Fails only where the subscription has just been dropped.
        let _ = self.inputs.send(input).await;
    }
}

/// What a key ends with and what it holds; `None` for keys that are not the service's own.
fn shadow(service: &ServiceName, kv: &KeyValue) -> Option<(Bytes, Shadow)> {
    let end = end(service, &kv.key)?;
    let shadow = Shadow {
        lease: kv.lease,
        created: kv.create_revision,
        address: foreign::address(&kv.value).map_err(|bad| Skip::new(&kv.key, &bad)),
    };
    Some((end, shadow))
}

fn end(service: &ServiceName, key: &Bytes) -> Option<Bytes> {
    gozero::end(service, key).map(|end| key.slice_ref(end))
}

fn record(service: &ServiceName, kv: &KeyValue) -> Option<(i64, Record)> {
    let lease = lameduck::lease(service, &kv.key)?;
    let instance = match lameduck::decode(&kv.value) {
        Ok(instance) if lease == kv.lease && lease != 0 => Ok(instance),
        Ok(_) => {
            let why = format!("the record hangs on lease {}, not on its key's", kv.lease);
            Err(Skip::new(&kv.key, &why))
        }
        Err(bad) => Err(Skip::new(&kv.key, &bad)),
    };
    Some((lease, Record { instance }))
}

fn revision_of(kv: &KeyValue) -> u64 {
    u64::try_from(kv.mod_revision).unwrap_or_default()
}

fn item<K, V>(kv: &KeyValue, (key, value): (K, V)) -> Item<K, V> {
    Item {
        key,
        modified: revision_of(kv),
        value,
    }
}

fn changes<K, V>(
    events: &[Event],
    read: impl Fn(&KeyValue) -> Option<(K, V)>,
    name: impl Fn(&Bytes) -> Option<K>,
) -> Vec<Change<K, V>> {
    let change = |event: &Event| {
        let kv = event.kv.as_ref()?;
        // A deletion works by its key alone, whatever the value was.
        let (key, value) = match event.r#type() {
            EventType::Put => read(kv).map(|(key, value)| (key, Some(value)))?,
            EventType::Delete => (name(&kv.key)?, None),
        };
        let modified = revision_of(kv);
        Some(Change {
            key,
            modified,
            value,
        })
    };
    events.iter().filter_map(change).collect()
}

// --- what its owner holds -----------------------------------------------------------------------

/// Updates that have not been fetched yet. They are merged, so that an owner who does not look
/// costs no more memory than the list itself.
#[derive(Debug, Default)]
struct Outbox(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    reset: Option<Update>,
    changed: BTreeMap<EntryId, Entry>,
    removed: BTreeSet<EntryId>,
    revision: u64,
    /// No more than a subscription ever says of skipped values.
    skipped: VecDeque<Update>,
    standing: Option<Update>,
    waker: Option<Waker>,
}

impl Outbox {
    fn waiting(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, update: Update) {
        let mut waiting = self.waiting();
        match update {
            Update::Reset { .. } => {
                waiting.changed.clear();
                waiting.removed.clear();
                waiting.standing = None;
                waiting.reset = Some(update);
            }
            Update::Delta {
                changed,
                removed,
                revision,
            } => {
                for id in removed {
                    waiting.changed.remove(&id);
                    waiting.removed.insert(id);
                }
                for entry in changed {
                    waiting.removed.remove(&entry.id);
                    waiting.changed.insert(entry.id, entry);
                }
                waiting.revision = revision;
            }
            Update::Skipped { .. } => waiting.skipped.push_back(update),
            Update::Stale(_) | Update::Live => waiting.standing = Some(update),
        }
        let waker = waiting.waker.take();
        drop(waiting);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Update>> {
        let mut waiting = self.waiting();
        match waiting.next() {
            Some(update) => Poll::Ready(Some(update)),
            None => {
                waiting.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Waiting {
    fn next(&mut self) -> Option<Update> {
        if let Some(reset) = self.reset.take() {
            return Some(reset);
        }
        if !self.changed.is_empty() || !self.removed.is_empty() {
            let changed = std::mem::take(&mut self.changed).into_values().collect();
            let removed = std::mem::take(&mut self.removed).into_iter().collect();
            let revision = self.revision;
            return Some(Update::Delta {
                changed,
                removed,
                revision,
            });
        }
        self.skipped.pop_front().or_else(|| self.standing.take())
    }
}

/// A subscription that is kept up to date by a task of its own, which ends with it.
#[derive(Debug)]
pub(super) struct Subscribed {
    outbox: Arc<Outbox>,
    task: AbortHandle,
}

impl Subscribed {
    pub(super) fn start(
        client: Client,
        service: ServiceName,
        malformed: Malformed,
        seed: u64,
    ) -> Self {
        let (sender, inputs) = mpsc::channel(INPUTS_MAX);
        let outbox = Arc::<Outbox>::default();
        let runner = Runner {
            client,
            service,
            inputs: sender,
            tasks: JoinSet::new(),
            watches: BTreeMap::new(),
            outbox: outbox.clone(),
            malformed,
        };
        let task = drive(View::new(seed), Clock::start(), inputs, runner);
        let task = tokio::spawn(async { drop(task.await) }).abort_handle();
        Self { outbox, task }
    }
}

impl Subscription for Subscribed {
    fn poll_update(&mut self, context: &mut Context<'_>) -> Poll<Option<Update>> {
        self.outbox.poll(context)
    }
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests;
