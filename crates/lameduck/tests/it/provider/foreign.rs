//! Code of others, and pipes of others: what panics, blocks or is full breaks no stop.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use lameduck::Provider;
use lameduck::core::event::{Event, Phase};
use lameduck::core::name::ServiceName;
use lameduck::core::registry::{
    Publication, PublicationStatus, Registration, Registry, Subscription, Want,
};
use lameduck::provider::{Builder, DrainReport, Handle, Problem, Reason};
use lameduck_registry::memory::Memory;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::pipe;
use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::service::Routes;

use super::routes::Polite;
use super::signals::Process;
use crate::greeter::greeter_server::GreeterServer;
use crate::serve::permits::echo;
use crate::serve::start::{head, rest, say, within};

fn builder() -> Builder {
    Provider::builder("orders")
        .listen("127.0.0.1:0")
        .signals(false)
        .floor(Duration::ZERO)
        .quiet(Duration::ZERO)
}

async fn start(builder: Builder) -> (Handle, JoinHandle<DrainReport>) {
    let provider = builder.build().expect("it builds");
    let handle = provider.handle();
    let running = tokio::spawn(provider.run());
    within(handle.serving()).await;
    (handle, running)
}

async fn stopped(handle: &Handle, running: JoinHandle<DrainReport>) -> DrainReport {
    assert!(within(handle.stop("test")).await);
    within(running).await.expect("no panic")
}

async fn ask(handle: &Handle, path: &str) -> TcpStream {
    let socket = TcpStream::connect(handle.local_addr()).await;
    let mut socket = socket.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n");
    say(&mut socket, &request).await;
    socket
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("in a destructor");
        }
    }
}

// --- observers ----------------------------------------------------------------------------------

type Phases = Arc<Mutex<Vec<Phase>>>;

fn noted(builder: Builder) -> (Builder, Phases) {
    let seen = Phases::default();
    let notes = Arc::clone(&seen);
    let builder = builder.on_event(Arc::new(move |event: &Event| {
        if let Event::PhaseEntered { phase, .. } = event {
            notes.lock().expect("no panic").push(*phase);
        }
    }));
    (builder, seen)
}

const ALL: [Phase; 4] = [
    Phase::Serving,
    Phase::Closing,
    Phase::Draining,
    Phase::Stopped,
];

#[tokio::test]
async fn s03_an_observer_that_panics_is_left_out_and_nobody_else() {
    let calls: Arc<Mutex<usize>> = Arc::default();
    let counted = Arc::clone(&calls);
    let memory = Arc::new(Memory::new());
    let builder = builder()
        .registry_with(memory.clone(), "memory")
        .on_event(Arc::new(move |_: &Event| {
            *counted.lock().expect("no panic under it") += 1;
            std::panic::panic_any(Bomb);
        }));
    let (builder, seen) = noted(builder);
    let (handle, running) = start(builder).await;
    let report = stopped(&handle, running).await;
    assert_eq!(report.exit_code(), 0, "{report}");
    assert_eq!(*calls.lock().expect("no panic under it"), 1);
    assert_eq!(*seen.lock().expect("no panic"), ALL);
}

#[tokio::test]
async fn s03_b_an_observer_that_blocks_for_ever_delays_no_stop() {
    let memory = Arc::new(Memory::new());
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let builder = builder()
        .registry_with(memory, "memory")
        .on_event(Arc::new(move |_: &Event| {
            let _ = blocked.lock().expect("no panic").recv();
        }));
    let (handle, running) = start(builder).await;
    let report = stopped(&handle, running).await;
    assert_eq!(report.exit_code(), 0, "{report}");
    let status = handle.registrations().remove(0);
    assert_eq!(status.reached, Some(Want::Gone));
    drop(release);
}

#[tokio::test]
async fn s03_c_an_observer_may_use_the_handle() {
    let own: Arc<Mutex<Option<Handle>>> = Arc::default();
    let known = Arc::clone(&own);
    let builder = builder().on_event(Arc::new(move |event: &Event| {
        let own = known.lock().expect("no panic");
        if let (
            Some(handle),
            Event::PhaseEntered {
                phase: Phase::Closing,
                ..
            },
        ) = (&*own, event)
        {
            assert_ne!(handle.phase(), Phase::Starting);
            drop(handle.stop("the observer"));
        }
    }));
    let (handle, running) = start(builder).await;
    own.lock().expect("no panic").replace(handle.clone());
    assert!(within(handle.hold()).await);
    let report = within(running).await.expect("no panic");
    assert_eq!(report.reason, Reason::Asked("the observer".to_owned()));
    assert_eq!(report.exit_code(), 0, "{report}");
    own.lock().expect("no panic").take();
}

/// A log that panics at what is said of a drain.
#[derive(Clone)]
struct Touchy;

impl Write for Touchy {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        assert!(!text.contains("draining"), "cannot bear it");
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn d19_b_a_log_that_panics_in_the_drain_alone() {
    let log = tracing_subscriber::fmt().with_writer(|| Touchy).finish();
    let _guard = tracing::subscriber::set_default(log);
    let (builder, seen) = noted(builder());
    let (handle, running) = start(builder).await;
    let report = stopped(&handle, running).await;
    assert_eq!(report.exit_code(), 0, "{report}");
    assert_eq!(*seen.lock().expect("no panic"), ALL);
}

// --- pipes --------------------------------------------------------------------------------------

/// A pipe into which nothing goes any more.
fn full() -> (OwnedFd, OwnedFd) {
    let (read, write) = pipe().expect("descriptors");
    let flags = fcntl_getfl(&write).expect("a pipe");
    fcntl_setfl(&write, flags | OFlags::NONBLOCK).expect("a pipe");
    while rustix::io::write(&write, &[b'x'; 4096]).is_ok() {}
    while rustix::io::write(&write, b"x").is_ok() {}
    (read, write)
}

async fn drained(stderr: OwnedFd) {
    let mut process = Process::start_with("logs", "", Stdio::from(stderr));
    let mut socket = process.asked().await;
    process.signal(Signal::TERM);
    // At once, while a request is in flight.
    process.line("registry closing").await;
    let answer = rest(&mut socket).await.expect("no reset");
    assert!(answer.ends_with(b"done"), "{answer:?}");
    let ended = process.end().await;
    assert_eq!(ended.status.code(), Some(0));
    assert_eq!(ended.registry, ["present", "closing", "gone"]);
}

#[tokio::test]
async fn d19_who_read_the_log_is_gone() {
    let (read, write) = pipe().expect("descriptors");
    drop(read);
    drained(write).await;
}

#[tokio::test]
async fn d19_c_the_log_would_block() {
    let (read, write) = full();
    drained(write).await;
    drop(read);
}

#[tokio::test]
async fn d21_the_log_blocks_for_ever() {
    let (read, write) = full();
    let flags = fcntl_getfl(&write).expect("a pipe");
    fcntl_setfl(&write, flags - OFlags::NONBLOCK).expect("a pipe");
    drained(write).await;
    drop(read);
}

#[tokio::test]
async fn d21_b_a_stuck_process_with_a_full_pipe_ends_with_its_budget() {
    let (read, write) = full();
    let flags = fcntl_getfl(&write).expect("a pipe");
    fcntl_setfl(&write, flags - OFlags::NONBLOCK).expect("a pipe");
    let mut process = Process::start_with("stuck, on a budget", "", Stdio::from(write));
    process.line("stuck").await;
    process.signal(Signal::TERM);
    let ended = process.end().await;
    assert_eq!(ended.status.code(), Some(10));
    drop(read);
}

// --- hooks --------------------------------------------------------------------------------------

#[tokio::test]
async fn s08_hooks_that_panic_or_block_before_their_first_await() {
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let ran: Arc<Mutex<Vec<&str>>> = Arc::default();
    let note = Arc::clone(&ran);
    let builder = builder()
        .hook("panics", || -> std::future::Ready<_> { panic!("at once") })
        .hook("bomb", || async {
            let _bomb = Bomb;
            Ok(())
        })
        .hook("throws a bomb", || -> std::future::Ready<_> {
            std::panic::panic_any(Bomb)
        })
        // The runtime of this test has one thread.
        .hook_within("blocks", Duration::from_millis(20), move || {
            let _ = blocked.lock().expect("no panic").recv();
            async { Ok(()) }
        })
        .hook("last", async move || {
            note.lock().expect("no panic").push("last");
            Ok(())
        });
    let (handle, running) = start(builder).await;
    let report = stopped(&handle, running).await;
    assert_eq!(*ran.lock().expect("no panic"), ["last"]);
    let failed = |name: &str, why: &str| Problem::HookFailed {
        name: name.to_owned(),
        why: format!("it panicked: {why}"),
    };
    let expected = [
        failed("panics", "at once"),
        failed("bomb", "in a destructor"),
        failed("throws a bomb", "without a message"),
        Problem::HookLeft {
            name: "blocks".to_owned(),
        },
    ];
    assert_eq!(report.problems, expected);
    drop(release);
}

// --- handlers -----------------------------------------------------------------------------------

#[tokio::test]
async fn s03_d_handlers_that_panic_with_what_panics_again() {
    let throws = async || -> &'static str { std::panic::panic_any(Bomb) };
    let hangs = async || -> &'static str {
        let _bomb = Bomb;
        std::future::pending().await
    };
    let router = Router::new()
        .route("/", get(async || "well"))
        .route("/throws", get(throws))
        .route("/hangs", get(hangs));
    let (handle, running) = start(builder().router(router)).await;
    for _ in 0..2 {
        let mut thrown = ask(&handle, "/throws").await;
        // Its connection ends without an answer.
        assert!(
            rest(&mut thrown)
                .await
                .is_ok_and(|answer| answer.is_empty())
        );
        let mut well = ask(&handle, "/").await;
        assert!(head(&mut well).await.starts_with("http/1.1 200"));
    }
    let _hangs = ask(&handle, "/hangs").await;
    let gate = handle.gate().clone();
    within(async {
        while gate.in_flight().total == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    handle.abort();
    let report = within(running).await.expect("no panic");
    assert_eq!((report.exit_code(), report.abandoned), (11, 1), "{report}");
}

// --- the program's own registry -----------------------------------------------------------------

/// Lists at once, and panics when something is taken back.
#[derive(Debug)]
struct Brittle;

struct BrittlePublication(Option<Want>);

impl Registry for Brittle {
    fn propagation(&self) -> Duration {
        Duration::ZERO
    }

    fn publish(&self, _: Registration) -> Box<dyn Publication> {
        Box::new(BrittlePublication(None))
    }

    fn subscribe(&self, _: &ServiceName) -> Box<dyn Subscription> {
        unreachable!("nobody looks")
    }
}

impl Publication for BrittlePublication {
    fn want(&mut self, want: Want) {
        assert!(matches!(want, Want::Present { .. }), "cannot take it back");
        self.0 = Some(want);
    }

    fn poll_status(&mut self, _: &mut Context<'_>) -> Poll<PublicationStatus> {
        match self.0.take() {
            None => Poll::Pending,
            want => Poll::Ready(PublicationStatus {
                reached: want,
                registered: true,
                metadata: true,
                error: None,
            }),
        }
    }
}

#[tokio::test]
async fn s03_e_a_registry_that_panics_confirms_nothing_and_is_named() {
    let (handle, running) = start(builder().registry_with(Arc::new(Brittle), "brittle")).await;
    within(async {
        while !handle.registrations()[0].registered {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let report = stopped(&handle, running).await;
    let why = "brittle: it panicked: cannot take it back".to_owned();
    assert_eq!(report.problems, [Problem::Registration(why)]);
    assert_eq!((report.exit_code(), report.deregistered), (10, None));
}

// --- runtimes -----------------------------------------------------------------------------------

#[test]
fn s03_f_a_runtime_without_io_or_time_is_refused_by_build() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let error = |runtime: &tokio::runtime::Runtime| {
        let _inside = runtime.enter();
        let error = builder().build().expect_err("it could not run");
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    };
    let said = error(&runtime.build().expect("a runtime"));
    assert!(
        said.contains("no IO") && said.contains("enable_all"),
        "{said}"
    );
    let said = error(&runtime.enable_io().build().expect("a runtime"));
    assert!(said.contains("no time"), "{said}");
}

#[test]
fn s03_g_accepting_that_cannot_go_on_is_a_stop_and_no_zombie() {
    let whole = tokio::runtime::Runtime::new().expect("a runtime");
    let provider = {
        let _inside = whole.enter();
        let memory = Arc::new(Memory::new());
        let builder = builder().registry_with(memory, "memory");
        builder.build().expect("it builds")
    };
    let handle = provider.handle();
    let mut without_io = tokio::runtime::Builder::new_current_thread();
    let without_io = without_io.enable_time().build().expect("a runtime");
    let report = without_io.block_on(async { within(provider.run()).await });
    assert_eq!(report.reason, Reason::ServerEnded);
    assert_eq!(report.problems, [Problem::ServerEnded], "{report}");
    assert_eq!((handle.phase(), report.exit_code()), (Phase::Stopped, 1));
    assert_eq!(handle.registrations()[0].reached, Some(Want::Gone));
}

// --- a run that is dropped ----------------------------------------------------------------------

#[tokio::test]
async fn s07_a_dropped_run_is_a_cut() {
    let router = Router::new().route("/", get(echo));
    let (builder, seen) = noted(builder().router(router));
    let (handle, running) = start(builder).await;
    let socket = TcpStream::connect(handle.local_addr()).await;
    let mut socket = socket.expect("it listens");
    let request = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    say(&mut socket, request).await;
    assert!(head(&mut socket).await.starts_with("http/1.1 101 "));
    let closing = handle.closing();
    running.abort();
    assert!(within(running).await.is_err());
    within(closing).await;
    // Whatever it was in the middle of: it is over.
    assert!(rest(&mut socket).await.is_ok_and(|rest| rest.is_empty()));
    assert_eq!(handle.phase(), Phase::Stopped);
    assert!(handle.gate().enter().is_none());
    assert!(!within(handle.stop("too late")).await);
    within(async {
        while seen.lock().expect("no panic").last() != Some(&Phase::Stopped) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn s07_b_a_provider_that_is_dropped_before_it_ran_is_over() {
    let provider = builder().build().expect("it builds");
    let handle = provider.handle();
    let (closing, serving) = (handle.closing(), handle.serving());
    let asked = handle.stop("early");
    drop(provider);
    within(closing).await;
    within(serving).await;
    assert!(!within(asked).await);
    assert_eq!(handle.phase(), Phase::Stopped);
    assert!(!within(handle.hold()).await);
}

#[test]
fn s07_c_a_runtime_that_ends_is_a_cut() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (handle, _running) = runtime.block_on(start(builder()));
    runtime.shutdown_background();
    let after = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    after.expect("a runtime").block_on(within(handle.closing()));
    assert_eq!(handle.phase(), Phase::Stopped);
}

// --- what is said to the builder ----------------------------------------------------------------

fn refused(builder: Builder) -> String {
    let error = builder.build().expect_err("it cannot work");
    assert_eq!(error.exit_code(), 2);
    error.to_string()
}

#[tokio::test]
async fn s15_routes_with_a_health_service_of_their_own_are_refused() {
    let theirs = || lameduck::health::Health::new().service();
    let grpc = Routes::new(GreeterServer::new(Polite)).add_service(theirs());
    let says = ".health(false)";
    let said = refused(builder().grpc(grpc.clone()));
    assert!(said.contains(says), "{said}");
    let web = Router::new().route("/grpc.health.v1.Health/{*method}", get(async || "mine"));
    let said = refused(builder().router(web));
    assert!(said.contains(says), "{said}");
    builder()
        .grpc(grpc)
        .health(false)
        .build()
        .expect("it builds");
}

#[tokio::test]
async fn s22_more_routes_are_merged_and_never_lost() {
    let route = |path: &str| Router::new().route(path, get(async || "well"));
    let more = builder()
        .router(route("/one"))
        .router(route("/two"))
        .grpc(Routes::default())
        .grpc(Routes::new(GreeterServer::new(Polite)));
    let (handle, running) = start(more).await;
    for path in ["/one", "/two"] {
        let mut socket = ask(&handle, path).await;
        assert!(
            head(&mut socket).await.starts_with("http/1.1 200"),
            "{path}"
        );
    }
    let mut socket = ask(&handle, "/three").await;
    assert!(head(&mut socket).await.starts_with("http/1.1 404"));
    stopped(&handle, running).await;
    let twice = builder().router(route("/one")).router(route("/one"));
    assert!(refused(twice).contains("do not go together"));
    let fallbacks = [(); 2].map(|()| Router::new().fallback(async || "mine"));
    let [one, two] = fallbacks;
    assert!(refused(builder().router(one).router(two)).contains("fallback"));
}

#[tokio::test]
async fn s21_times_of_any_length() {
    let (handle, running) = start(builder().budget(Duration::MAX).hook_within(
        "any",
        Duration::MAX,
        async || Ok(()),
    ))
    .await;
    assert_eq!(stopped(&handle, running).await.exit_code(), 0);
    for long in [
        builder().floor(Duration::MAX),
        builder().quiet(Duration::MAX),
    ] {
        assert!(refused(long).contains("does not fit"));
    }
    let (handle, running) = start(builder().budget(Duration::ZERO)).await;
    stopped(&handle, running).await;
}

#[tokio::test]
async fn s23_a_name_to_listen_on_is_its_ipv4_address() {
    let provider = builder().listen("localhost:0").build().expect("it builds");
    assert!(provider.handle().local_addr().ip().is_loopback());
    assert!(provider.handle().local_addr().is_ipv4());
}

#[tokio::test]
async fn s29_two_that_stop_hear_the_same() {
    let (handle, running) = start(builder()).await;
    let (one, two) = (handle.hold(), handle.hold());
    assert!(within(one).await && within(two).await);
    let (one, two) = (handle.stop("one"), handle.stop("two"));
    assert!(within(one).await && within(two).await);
    let report = within(running).await.expect("no panic");
    assert_eq!(report.reason, Reason::Asked("one".to_owned()));
}
