//! Callers that learn of every change two seconds late.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::routing::get;
use lameduck::Provider;
use lameduck::core::registry::{Publication, Registration, Subscription, Update};
use lameduck::env::Environment;
use lameduck::provider::{DrainReport, Handle};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, Sleep, sleep_until};

use super::node::{Facts, Node};
use super::*;
use crate::greeter::greeter_server::GreeterServer;
use crate::serve::start::{rest, say};
use crate::standing::{Standing, TICK};

const LATE: Duration = Duration::from_secs(2);
/// 300 calls a second, in turn on a kept connection and on a new one.
const PACE: Duration = Duration::from_micros(3_333);
/// So many of them are under way at most: time stands until one has ended.
const AT_ONCE: usize = 8;

/// A registry whose readers are told of everything [`LATE`], and that says so.
#[derive(Clone, Debug, Default)]
struct Late(Memory);

impl Registry for Late {
    fn propagation(&self) -> Duration {
        LATE
    }

    fn publish(&self, registration: Registration) -> Box<dyn Publication> {
        self.0.publish(registration)
    }

    fn subscribe(&self, service: &ServiceName) -> Box<dyn Subscription> {
        Box::new(Relay {
            source: self.0.subscribe(service),
            on_its_way: VecDeque::new(),
        })
    }
}

struct Relay {
    source: Box<dyn Subscription>,
    on_its_way: VecDeque<(Pin<Box<Sleep>>, Update)>,
}

impl Subscription for Relay {
    fn poll_update(&mut self, cx: &mut Context<'_>) -> Poll<Option<Update>> {
        while let Poll::Ready(Some(update)) = self.source.poll_update(cx) {
            let due = Box::pin(sleep_until(Instant::now() + LATE));
            self.on_its_way.push_back((due, update));
        }
        if let Some((due, _)) = self.on_its_way.front_mut() {
            std::task::ready!(due.as_mut().poll(cx));
        }
        let arrived = self.on_its_way.pop_front();
        arrived.map_or(Poll::Pending, |(_, update)| Poll::Ready(Some(update)))
    }
}

/// What a caller that knows nothing but the registry has heard so far.
type Heard = Arc<Mutex<BTreeMap<EntryId, SocketAddr>>>;

/// Follows the list as one who reads addresses alone: an instance that is closing is gone.
fn follow(registry: &Late) -> Heard {
    let heard = Heard::default();
    let (mut list, ours) = (registry.subscribe(&orders()), Arc::clone(&heard));
    tokio::spawn(async move {
        while let Some(update) = poll_fn(|cx| list.poll_update(cx)).await {
            let mut heard = ours.lock().expect("no panic");
            let (changed, removed) = match update {
                Update::Reset { entries, .. } => {
                    heard.clear();
                    (entries, Vec::new())
                }
                Update::Delta {
                    changed, removed, ..
                } => (changed, removed),
                Update::Stale(_) | Update::Live | Update::Skipped { .. } => continue,
            };
            heard.retain(|id, _| !removed.contains(id));
            for entry in changed {
                heard.remove(&entry.id);
                if entry.instance.state != State::Closing {
                    let address = entry.instance.address.to_string();
                    heard.insert(entry.id, address.parse().expect("an IP address"));
                }
            }
        }
    });
    heard
}

fn provide(registry: &Late) -> (Handle, JoinHandle<DrainReport>) {
    let node = Node {
        address: ([0, 0, 0, 0], 0).into(),
        facts: Facts::new("one of three", None),
        running: None,
    };
    let provider = Provider::builder("orders")
        .listen("127.0.0.1:0")
        .registry_with(Arc::new(registry.clone()), "late")
        .router(Router::new().route("/", get(async || "hello")))
        .grpc(tonic::service::Routes::new(GreeterServer::new(node)))
        // In a cluster the floor would be another.
        .environment(Environment::default())
        .signals(false)
        .build()
        .expect("a free port");
    (provider.handle(), tokio::spawn(provider.run()))
}

/// One request on a connection of its own.
async fn fresh(address: SocketAddr) -> Result<(), String> {
    let call = async {
        let mut socket = TcpStream::connect(address).await?;
        say(
            &mut socket,
            "GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n",
        )
        .await;
        rest(&mut socket).await
    };
    let answer = timeout(SOON, call)
        .await
        .map_err(|_| "it hangs".to_owned())?;
    let answer = answer.map_err(|error| format!("{address}: {error}"))?;
    let text = String::from_utf8_lossy(&answer);
    let whole = text.starts_with("HTTP/1.1 200") && text.ends_with("hello");
    whole
        .then_some(())
        .ok_or_else(|| format!("{address}: {text}"))
}

#[tokio::test]
async fn c04_door_shut_before_the_street_knows() {
    let registry = Late::default();
    let mut servers: Vec<_> = (0..3).map(|_| provide(&registry)).collect();
    let heard = follow(&registry);
    until("all three are heard of", || {
        heard.lock().expect("no panic").len() == 3
    })
    .await;
    let hub = Hub::new();
    let to_orders = hub.channel_builder_with(Arc::new(registry.clone()), orders());
    // Nothing is placed twice: the open door alone must do.
    let channel = to_orders.failover(false).build().expect("a service");
    ready(&channel).await;

    let (leaver, stopped) = servers.swap_remove(0);
    let address = leaver.local_addr();
    let sent_there = Arc::new(AtomicU64::new(0));
    // A machine that stands still must not look like quiet, nor like calls that come all at once.
    let standing = Standing::begin();
    let (begun, mut calls, mut stopped_at) = (Instant::now(), JoinSet::new(), None);
    let mut outcomes = Vec::new();
    for number in 0_usize.. {
        standing.advance(PACE - TICK).await;
        if calls.len() >= AT_ONCE {
            outcomes.extend(calls.join_next().await);
        }
        if stopped_at.is_none() && begun.elapsed() > Duration::from_millis(500) {
            assert!(leaver.stop("a new release").await);
            stopped_at = Some(Instant::now());
        }
        if stopped.is_finished() && begun.elapsed() > LATE * 2 {
            break;
        }
        let (channel, chosen) = (channel.clone(), {
            let heard = heard.lock().expect("no panic");
            *heard.values().nth(number / 2 % heard.len()).expect("some")
        });
        let late = stopped_at.is_some() && chosen == address && number % 2 == 1;
        sent_there.fetch_add(u64::from(late), Ordering::Relaxed);
        calls.spawn(async move {
            match number % 2 {
                0 => hello(&channel)
                    .await
                    .map(drop)
                    .map_err(|status| format!("{status:?}")),
                _ => fresh(chosen).await,
            }
        });
    }
    standing.end();
    while let Some(outcome) = calls.join_next().await {
        outcomes.push(outcome);
    }
    let outcomes: Vec<_> = outcomes
        .into_iter()
        .map(|one| one.expect("no panic"))
        .collect();
    let lost: Vec<_> = outcomes
        .iter()
        .filter_map(|one| one.as_ref().err())
        .collect();
    assert!(
        lost.is_empty(),
        "{} of {}: {:?}",
        lost.len(),
        outcomes.len(),
        lost.first()
    );
    // Two seconds long people came who could not know, and each was served.
    let late = sent_there.load(Ordering::Relaxed);
    assert!(late > 50, "only {late} calls after the signal");
    let report = stopped.await.expect("no panic");
    assert!(
        report.closing >= LATE && report.exit_code() == 0,
        "{report}"
    );
}
