//! What a stop waits for, and what it does not wait for.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use futures_util::stream::{self, StreamExt};
use lameduck::Provider;
use lameduck::cell::gate::Admitted;
use lameduck::core::event::{Event, Phase};
use lameduck::core::name::ServiceName;
use lameduck::core::registry::{
    Publication, PublicationStatus, Registration, Registry, Subscription, Want,
};
use lameduck::observe::Observer;
use lameduck::provider::{Builder, DrainReport, Handle, Problem};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::serve::start::{head, rest, say, within};
use crate::standing::{Standing, TICK};

const FLOOR: Duration = Duration::from_millis(100);

pub(super) async fn start(builder: Builder) -> (Handle, JoinHandle<DrainReport>) {
    let builder = builder
        .listen("127.0.0.1:0")
        .signals(false)
        .floor(FLOOR)
        .quiet(FLOOR);
    let provider = builder.build().expect("it builds");
    let handle = provider.handle();
    let running = tokio::spawn(provider.run());
    within(handle.serving()).await;
    (handle, running)
}

async fn ask(handle: &Handle, path: &str) -> TcpStream {
    let mut socket = TcpStream::connect(handle.local_addr())
        .await
        .expect("it listens");
    say(
        &mut socket,
        &format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n"),
    )
    .await;
    socket
}

async fn until(handle: &Handle, phase: Phase) {
    let mut status = handle.watch();
    let reached = status.wait_for(|status| status.phase >= phase);
    within(reached).await.expect("it runs");
}

#[tokio::test]
async fn what_does_not_end_is_cut_within_the_budget_and_looks_cut() {
    let endless = async || {
        let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"first"))]);
        Body::from_stream(first.chain(stream::pending()))
    };
    let budget = Duration::from_millis(1500);
    let router = Router::new().route("/", get(endless));
    let (handle, running) = start(Provider::builder("orders").router(router).budget(budget)).await;
    let mut socket = ask(&handle, "/").await;
    let answer = head(&mut socket).await;
    assert!(answer.starts_with("http/1.1 200"), "{answer}");
    let standing = Standing::begin();
    assert!(handle.stop("test").await);
    while !running.is_finished() {
        standing.advance(TICK).await;
    }
    let report = running.await.expect("no panic");
    standing.end();
    assert!(report.total <= budget, "{report}");
    assert_eq!((report.in_flight, report.abandoned), (1, 1), "{report}");
    assert_eq!(report.problems, [Problem::Connections], "{report}");
    assert_eq!(report.exit_code(), 10);
    // A reset, or an end without the last chunk.
    if let Ok(body) = rest(&mut socket).await {
        assert!(!body.ends_with(b"0\r\n\r\n"), "{body:?}");
    }
}

#[tokio::test]
async fn s1_an_answer_that_nobody_reads_is_abandoned() {
    // In the kernel's queue, and in part in hyper's.
    for bytes in [3 << 20, 12 << 20] {
        let router = Router::new().route("/", get(async move || vec![7; bytes]));
        let budget = Duration::from_secs(2);
        let builder = Provider::builder("orders").router(router).budget(budget);
        let (handle, running) = start(builder).await;
        let mut socket = ask(&handle, "/").await;
        let answer = head(&mut socket).await;
        assert!(answer.starts_with("http/1.1 200"), "{answer}");
        assert!(handle.stop("test").await);
        let report = within(running).await.expect("no panic");
        assert_eq!(report.abandoned, 1, "{bytes}: {report}");
        assert_eq!(report.problems, [Problem::Connections], "{report}");
        assert_eq!(report.exit_code(), 10, "{report}");
    }
}

#[tokio::test]
async fn handlers_that_listen_say_goodbye() {
    let handler = async |handle: Handle| {
        handle.closing().await;
        "goodbye"
    };
    let router = Router::new().route("/", get(handler));
    let (handle, running) = start(Provider::builder("orders").router(router)).await;
    let mut socket = ask(&handle, "/").await;
    let gate = handle.gate().clone();
    within(async {
        while gate.in_flight().total == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // A held drain can be taken back: nobody says goodbye for that.
    assert!(handle.hold().await);
    assert_eq!(gate.in_flight().total, 1);
    assert!(handle.stop("test").await);
    assert!(head(&mut socket).await.starts_with("http/1.1 200"));
    let report = within(running).await.expect("no panic");
    assert_eq!((report.exit_code(), report.in_flight), (0, 1), "{report}");
}

#[tokio::test]
async fn background_work_with_a_permit_is_waited_for() {
    let (handle, running) = start(Provider::builder("orders")).await;
    let mut permit = handle.gate().enter().expect("it is open");
    permit.set_kind(lameduck::cell::gate::Kind::Task);
    assert!(handle.stop("test").await);
    until(&handle, Phase::Draining).await;
    assert!(!running.is_finished());
    drop(permit);
    let report = within(running).await.expect("no panic");
    assert_eq!((report.exit_code(), report.abandoned), (0, 0), "{report}");
}

/// What a handler in flight sends to a worker while the process is in Draining.
async fn handed_over(late: bool) -> DrainReport {
    let (jobs, mut worker) = tokio::sync::mpsc::unbounded_channel();
    let (go, going) = tokio::sync::watch::channel(false);
    let order = async move |request: Admitted| {
        let mut going = going.clone();
        going
            .wait_for(|going| *going)
            .await
            .expect("a test holds it");
        let permit = if late { None } else { request.another() };
        jobs.send((request, permit)).expect("the worker listens");
        "accepted"
    };
    let router = Router::new().route("/", post(order));
    let builder = Provider::builder("orders").router(router);
    let (at_the_end, ended) = tokio::sync::oneshot::channel::<()>();
    let (begin, begun) = tokio::sync::oneshot::channel::<()>();
    let builder = builder.hook("waits", async move || {
        begin.send(()).expect("a test listens");
        Ok(ended.await?)
    });
    let (handle, running) = start(builder).await;
    let mut socket = TcpStream::connect(handle.local_addr())
        .await
        .expect("it listens");
    let request = "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n";
    say(&mut socket, request).await;
    while handle.gate().in_flight().total == 0 {
        tokio::task::yield_now().await;
    }
    assert!(handle.stop("test").await);
    within(async {
        while !handle.gate().is_closed() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert!(handle.gate().enter().is_none(), "nothing new");
    go.send_replace(true);
    let (request, permit) = within(worker.recv()).await.expect("a job");
    assert!(head(&mut socket).await.starts_with("http/1.1 200"));
    if let Some(permit) = permit {
        assert_eq!(permit.kind(), lameduck::cell::gate::Kind::Task);
        // The answer is out; what the worker does for it is still in flight.
        let further = request.another().expect("the last permit is not back");
        drop(permit);
        assert!(!running.is_finished());
        assert_eq!(handle.phase(), Phase::Draining);
        drop(further);
        within(begun).await.expect("the hook runs");
    } else {
        within(begun).await.expect("the hook runs");
        assert!(request.another().is_none(), "all is over");
    }
    at_the_end.send(()).expect("the hook waits");
    within(running).await.expect("no panic")
}

#[tokio::test]
async fn accepted_work_may_be_handed_over_while_draining() {
    let report = handed_over(false).await;
    assert_eq!((report.exit_code(), report.abandoned), (0, 0), "{report}");
}

#[tokio::test]
async fn work_handed_over_too_late_is_abandoned() {
    let report = handed_over(true).await;
    assert_eq!((report.exit_code(), report.abandoned), (10, 1), "{report}");
}

#[tokio::test]
async fn dropping_the_run_closes_the_door() {
    let (handle, running) = start(Provider::builder("orders")).await;
    running.abort();
    assert!(within(running).await.is_err());
    assert!(!within(handle.stop("too late")).await);
    TcpStream::connect(handle.local_addr())
        .await
        .expect_err("nobody listens");
}

/// A registry that lists at once, and then never answers again. Its publication, like etcd's, does not
/// call itself listed once it gives its lease up.
#[derive(Debug)]
struct Silent;

struct SilentPublication {
    reached: Option<Want>,
    said: Option<Want>,
}

impl Registry for Silent {
    fn propagation(&self) -> Duration {
        Duration::ZERO
    }

    fn publish(&self, _: Registration) -> Box<dyn Publication> {
        Box::new(SilentPublication {
            reached: None,
            said: None,
        })
    }

    fn subscribe(&self, _: &ServiceName) -> Box<dyn Subscription> {
        unreachable!("nobody looks")
    }
}

impl Publication for SilentPublication {
    fn want(&mut self, want: Want) {
        if matches!(want, Want::Present { .. }) {
            self.reached = Some(want);
        }
        self.said = Some(want).filter(|want| *want != Want::Closing);
    }

    fn poll_status(&mut self, _: &mut Context<'_>) -> Poll<PublicationStatus> {
        match self.said.take() {
            None => Poll::Pending,
            Some(said) => Poll::Ready(PublicationStatus {
                reached: self.reached,
                registered: said != Want::Gone,
                metadata: true,
                error: None,
            }),
        }
    }
}

/// Confirms everything, but only after this long.
#[derive(Debug)]
struct Slow(Duration);

struct SlowPublication {
    after: Duration,
    wants: tokio::sync::mpsc::UnboundedSender<(tokio::time::Instant, Want)>,
    statuses: std::pin::Pin<Box<dyn futures_util::Stream<Item = Want> + Send>>,
}

impl Registry for Slow {
    fn propagation(&self) -> Duration {
        Duration::ZERO
    }

    fn publish(&self, _: Registration) -> Box<dyn Publication> {
        let (wants, mut asked) = tokio::sync::mpsc::unbounded_channel();
        let next = stream::poll_fn(move |context| asked.poll_recv(context));
        let statuses = Box::pin(next.then(async |(at, want)| {
            tokio::time::sleep_until(at).await;
            want
        }));
        Box::new(SlowPublication {
            after: self.0,
            wants,
            statuses,
        })
    }

    fn subscribe(&self, _: &ServiceName) -> Box<dyn Subscription> {
        unreachable!("nobody looks")
    }
}

impl Publication for SlowPublication {
    fn want(&mut self, want: Want) {
        let at = tokio::time::Instant::now() + self.after;
        self.wants.send((at, want)).expect("we hold both ends");
    }

    fn poll_status(&mut self, context: &mut Context<'_>) -> Poll<PublicationStatus> {
        match self.statuses.poll_next_unpin(context) {
            Poll::Ready(Some(want)) => Poll::Ready(PublicationStatus {
                reached: Some(want),
                registered: want != Want::Gone,
                metadata: true,
                error: None,
            }),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn s30_a_registry_that_is_slow_is_waited_for_and_a_quick_one_is_not() {
    for (after, exit) in [(1_200, 0), (3_000, 0), (5_000, 10), (0, 0)] {
        let slow = Arc::new(Slow(Duration::from_millis(after)));
        let (handle, running) =
            start(Provider::builder("orders").registry_with(slow, "slow")).await;
        within(async {
            while !handle.registrations()[0].registered {
                tokio::time::sleep(TICK).await;
            }
        })
        .await;
        assert!(handle.stop("test").await);
        let report = within(running).await.expect("no panic");
        assert_eq!(report.exit_code(), exit, "{after}: {report}");
        // Time is this runtime's own.
        let quick = report.total < Duration::from_secs(1);
        assert_eq!(quick, after == 0, "{after}: {report}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_falls_silent_holds_nothing_and_is_named() {
    let registry = Provider::builder("orders").registry_with(Arc::new(Silent), "silent");
    let (handle, running) = start(registry).await;
    within(async {
        while !handle.registrations()[0].registered {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // Well below the budget, which it would take where it waited for the registry.
    assert!(handle.stop("test").await);
    let report = within(running).await.expect("no panic");
    assert_eq!(
        report.problems,
        [Problem::Registration("silent".to_owned())]
    );
    assert_eq!((report.exit_code(), report.deregistered), (10, None));
}

#[tokio::test]
async fn a_registry_that_is_down_from_the_start_is_no_failure() {
    // Bound and not listening: refused, and nobody else's.
    let closed = tokio::net::TcpSocket::new_v4().expect("a socket");
    let any = "127.0.0.1:0".parse().expect("an address");
    closed.bind(any).expect("a free port");
    let target = format!("etcd://{}", closed.local_addr().expect("bound"));
    let heard: Arc<Mutex<Vec<Event>>> = Arc::default();
    let ears = Arc::clone(&heard);
    let observer: Observer = Arc::new(move |event: &Event| {
        ears.lock().expect("no panic").push(event.clone());
    });
    let builder = Provider::builder("orders")
        .registry(&target)
        .on_event(observer);
    let (handle, running) = start(builder).await;
    let mut socket = ask(&handle, "/none").await;
    assert!(
        head(&mut socket).await.starts_with("http/1.1 "),
        "it serves"
    );
    assert!(!handle.registrations()[0].registered);
    assert!(handle.stop("test").await);
    let report = within(running).await.expect("no panic");
    assert_eq!(report.exit_code(), 0, "{report}");
    assert_eq!(report.problems, [Problem::NeverRegistered(target.clone())]);
    assert!(report.to_string().contains("never registered in etcd://"));
    let heard = heard.lock().expect("no panic");
    let said = |known: fn(&Event) -> bool| heard.iter().filter(|event| known(event)).count();
    let never = said(|event| matches!(event, Event::NeverRegistered { .. }));
    let confirmed = said(|event| matches!(event, Event::Registration { error: None, .. }));
    assert_eq!((never, confirmed), (1, 0), "{heard:?}");
}
