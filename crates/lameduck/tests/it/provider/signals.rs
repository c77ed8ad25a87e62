//! Signals, on real processes: this test program starts itself again in the role of a server.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use std::{env, process};

use axum::Router;
use axum::routing::get;
use lameduck::Provider;
use lameduck::core::name::ServiceName;
use lameduck::core::registry::{
    Publication, PublicationStatus, Registration, Registry, Subscription, Want,
};
use lameduck::provider::Builder;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::mpsc;

use crate::serve::start::{rest, say, within};
use futures_util::StreamExt;

const ROLE: &str = "LAMEDUCK_TEST_ROLE";
pub const PEER: &str = "LAMEDUCK_TEST_PEER";
const BUDGET: Duration = Duration::from_secs(1);
pub const WORK: Duration = Duration::from_secs(2);
/// Processes that get a signal after each delay.
const SPAWNS: usize = 50;

// --- the server ---------------------------------------------------------------------------------

/// Not a test where no role is given.
#[test]
fn child() {
    let Ok(role) = env::var(ROLE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    if let Some(code) = super::process::play(&role) {
        process::exit(code);
    }
    if role == "watches" {
        return runtime.block_on(super::watchers::caller());
    }
    let code = runtime.block_on(async {
        let server = match role.as_str() {
            "stuck, on a budget" => server().budget(BUDGET),
            "serve, on a budget" => server().budget(super::frozen::BUDGET),
            "short of descriptors" => super::descriptors::watched(server()),
            "inherits" => server().listen_inherited(true),
            _ => server(),
        };
        let provider = server.build().expect("it builds");
        println!("\nbuilt {}", provider.handle().local_addr());
        if role == "slow to start" {
            // Never done: what ends it is the signal.
            std::future::pending::<()>().await;
        }
        let handle = provider.handle();
        let serving = handle.serving();
        let running = tokio::spawn(provider.run());
        if role == "short of descriptors" {
            serving.await;
            super::descriptors::limit();
            return running.await.expect("no panic").exit_code();
        }
        if role.starts_with("stuck") {
            serving.await;
            // The one worker does nothing else from here on.
            tokio::spawn(async {
                println!("stuck");
                loop {
                    std::thread::park();
                }
            });
        }
        if role == "stops by itself" {
            handle.stop("it has had enough");
        }
        let report = running.await.expect("no panic");
        if role == "stops by itself" {
            println!("stopped");
            std::future::pending::<()>().await;
        }
        report.exit_code()
    });
    process::exit(code.into());
}

pub fn server() -> Builder {
    let work = async || {
        println!("working");
        tokio::time::sleep(WORK).await;
        "done"
    };
    Provider::builder("orders")
        .listen("127.0.0.1:0")
        .registry_with(Arc::new(Printed), "printed")
        .router(Router::new().route("/", get(work)))
        .floor(Duration::from_millis(100))
        .quiet(Duration::from_millis(100))
}

/// A registry that confirms everything at once, and prints it.
#[derive(Debug)]
struct Printed;

impl Registry for Printed {
    fn propagation(&self) -> Duration {
        Duration::ZERO
    }

    fn publish(&self, _: Registration) -> Box<dyn Publication> {
        let (sender, statuses) = mpsc::unbounded_channel();
        Box::new(PrintedPublication { sender, statuses })
    }

    fn subscribe(&self, _: &ServiceName) -> Box<dyn Subscription> {
        unreachable!("nobody looks")
    }
}

struct PrintedPublication {
    sender: mpsc::UnboundedSender<PublicationStatus>,
    statuses: mpsc::UnboundedReceiver<PublicationStatus>,
}

impl Publication for PrintedPublication {
    fn want(&mut self, want: Want) {
        let word = match want {
            Want::Present { .. } => "present",
            Want::Closing => "closing",
            Want::Gone => "gone",
        };
        println!("registry {word}");
        let status = PublicationStatus {
            reached: Some(want),
            registered: matches!(want, Want::Present { .. }),
            metadata: true,
            error: None,
        };
        self.sender.send(status).expect("we hold the other end");
    }

    fn poll_status(&mut self, context: &mut Context<'_>) -> Poll<PublicationStatus> {
        match self.statuses.poll_recv(context) {
            Poll::Ready(Some(status)) => Poll::Ready(status),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

// --- who starts and signals it ------------------------------------------------------------------

pub struct Process {
    pub child: Child,
    out: Lines<BufReader<ChildStdout>>,
    /// Its lines so far, but for what the test harness prints.
    seen: Vec<String>,
}

pub struct Ended {
    pub status: ExitStatus,
    /// What it said to the registry.
    pub registry: Vec<String>,
    /// What it said of its listener.
    pub listener: Vec<String>,
    built: bool,
    /// All that it said.
    seen: Vec<String>,
    pub error: String,
}

impl Ended {
    /// Whether it said this.
    pub fn says(&self, line: &str) -> bool {
        self.seen.iter().any(|seen| seen == line)
    }
}

impl Process {
    pub fn start(role: &str) -> Self {
        Self::start_beside(role, "")
    }

    /// The same, told where its peer is.
    pub fn start_beside(role: &str, peer: &str) -> Self {
        Self::start_with(role, peer, Stdio::piped())
    }

    /// The same with this for stderr.
    pub fn start_with(role: &str, peer: &str, stderr: Stdio) -> Self {
        let command = Command::new(env::current_exe().expect("this program"));
        Self::spawn(command, role, peer, Stdio::null(), stderr)
    }

    /// A server that gets this listener as a service manager hands it over.
    pub fn start_inheriting(listener: std::net::TcpListener) -> Self {
        // The manager sets descriptor 3, and says which process it is for.
        let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 </dev/null";
        let mut command = Command::new("sh");
        let program = env::current_exe().expect("this program");
        command.args(["-c", script]).arg(program);
        let listener = std::os::fd::OwnedFd::from(listener);
        Self::spawn(command, "inherits", "", listener.into(), Stdio::piped())
    }

    fn spawn(mut command: Command, role: &str, peer: &str, input: Stdio, stderr: Stdio) -> Self {
        let mut child = command
            .args([
                "--exact",
                "provider::signals::child",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, role)
            .env(PEER, peer)
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        let out = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self {
            child,
            out,
            seen: Vec::new(),
        }
    }

    /// The rest of the first line that begins like this.
    pub async fn line(&mut self, begin: &str) -> String {
        loop {
            let line = within(self.out.next_line())
                .await
                .expect("a pipe")
                .expect("it says so");
            self.seen.push(line.clone());
            if let Some(rest) = line.strip_prefix(begin) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Starts it and waits until it serves; gives a connection with a request in flight too.
    pub async fn serving(role: &str) -> (Self, TcpStream) {
        let mut process = Self::start(role);
        let socket = process.asked().await;
        (process, socket)
    }

    /// Waits until it serves, and gives a connection with a request in flight.
    pub async fn asked(&mut self) -> TcpStream {
        let process = self;
        let address = process.line("built ").await;
        process.line("registry present").await;
        let mut socket = TcpStream::connect(&address).await.expect("it listens");
        say(&mut socket, "GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
        process.line("working").await;
        socket
    }

    pub fn signal(&self, signal: Signal) {
        let Some(id) = self.child.id() else { return };
        let id = i32::try_from(id)
            .ok()
            .and_then(Pid::from_raw)
            .expect("a process id");
        // It may have ended by itself just now.
        let _ = kill_process(id, signal);
    }

    pub async fn end(mut self) -> Ended {
        let status = within(self.child.wait()).await.expect("it was started");
        while let Some(line) = within(self.out.next_line()).await.expect("a pipe") {
            self.seen.push(line);
        }
        let mut error = String::new();
        if let Some(mut pipe) = self.child.stderr.take() {
            within(pipe.read_to_string(&mut error)).await.expect("text");
        }
        let said = |begin| {
            let lines = self.seen.iter();
            let rest = lines.filter_map(|line| line.strip_prefix(begin));
            rest.map(str::to_owned).collect()
        };
        Ended {
            status,
            registry: said("registry "),
            listener: said("listener "),
            built: self.seen.iter().any(|line| line.starts_with("built ")),
            seen: self.seen,
            error,
        }
    }
}

async fn stopped_in_its_start(delay: Duration) {
    let process = Process::start("slow to start");
    tokio::time::sleep(delay).await;
    process.signal(Signal::TERM);
    // One that waited for the end of its start would not end.
    let ended = process.end().await;
    assert!(ended.registry.is_empty(), "{delay:?}: {:?}", ended.registry);
    if ended.status.code() == Some(0) {
        let says = "orders stopped (sigterm) before it served";
        assert!(ended.error.contains(says), "{delay:?}: {}", ended.error);
    } else {
        // Before any handler exists the signal itself ends it, and nothing is left either.
        let by_signal = ended.status.signal() == Some(Signal::TERM.as_raw());
        assert!(by_signal && !ended.built, "{delay:?}: {:?}", ended.status);
    }
}

#[tokio::test]
async fn c03_signals_at_awkward_moments_of_the_start() {
    for delay in [0, 5, 20, 100, 1000, 2900].map(Duration::from_millis) {
        // Few at a time: it is their moments that differ, and a machine that is swamped moves all
        // of them to the first one.
        let all = (0..SPAWNS).map(|_| stopped_in_its_start(delay));
        let mut processes = futures_util::stream::iter(all)
            .map(tokio::spawn)
            .buffer_unordered(SPAWNS / 5);
        while let Some(process) = processes.next().await {
            process.expect("no panic");
        }
    }
}

#[tokio::test]
async fn c03_a_second_term_changes_nothing() {
    let (process, mut socket) = Process::serving("serve").await;
    process.signal(Signal::TERM);
    tokio::time::sleep(WORK / 4).await;
    process.signal(Signal::TERM);
    let answer = rest(&mut socket).await.expect("no reset");
    let answer = String::from_utf8(answer).expect("text");
    assert!(answer.ends_with("done"), "{answer:?}");
    let ended = process.end().await;
    assert_eq!(ended.status.code(), Some(0), "{}", ended.error);
    assert_eq!(ended.registry, ["present", "closing", "gone"]);
    assert!(
        ended
            .error
            .contains("in flight at the start 1, abandoned 0"),
        "{}",
        ended.error
    );
}

/// Interrupts until it ends: two signals that follow each other fast may be one to the kernel.
async fn interrupted_to_the_end(process: &mut Process) {
    for _ in 0..40 {
        process.signal(Signal::INT);
        let wait = tokio::time::timeout(Duration::from_millis(250), process.child.wait());
        if wait.await.is_ok() {
            return;
        }
    }
}

#[tokio::test]
async fn c03_the_second_interrupt_ends_at_once_and_says_what_is_abandoned() {
    let (mut process, socket) = Process::serving("serve").await;
    process.signal(Signal::TERM);
    interrupted_to_the_end(&mut process).await;
    // What was not waited for is abandoned, as it says below: work that was done would not be.
    let ended = process.end().await;
    assert_eq!(ended.status.code(), Some(11), "{}", ended.error);
    // Where the process is too slow for its own words it says that without the reason.
    assert!(
        ended.error.contains("was forced to stop"),
        "{}",
        ended.error
    );
    assert!(ended.error.contains("abandoned 1"), "{}", ended.error);
    let said: BTreeSet<_> = ended.registry.iter().map(String::as_str).collect();
    assert!(said.contains("gone"), "{said:?}");
    drop(socket);
}

#[tokio::test]
async fn signals_are_heard_while_every_worker_is_stuck() {
    let mut process = Process::start("stuck");
    process.line("stuck").await;
    process.signal(Signal::TERM);
    interrupted_to_the_end(&mut process).await;
    let ended = process.end().await;
    assert_eq!(ended.status.code(), Some(11), "{}", ended.error);
    assert!(
        ended.error.contains("was forced to stop"),
        "{}",
        ended.error
    );
}

#[tokio::test]
async fn c05_a_stuck_process_ends_with_its_budget() {
    let mut process = Process::start("stuck, on a budget");
    process.line("stuck").await;
    let asked = Instant::now();
    process.signal(Signal::TERM);
    let ended = process.end().await;
    assert!(asked.elapsed() >= BUDGET, "{:?}", asked.elapsed());
    assert_eq!(ended.status.code(), Some(10), "{}", ended.error);
    assert!(ended.error.contains("is stuck"), "{}", ended.error);
}

#[tokio::test]
async fn s02_a_signal_after_the_last_stop_does_what_it_does_in_any_program() {
    let mut process = Process::start("stops by itself");
    process.line("stopped").await;
    process.signal(Signal::TERM);
    let ended = process.end().await;
    let by = ended.status.signal();
    assert_eq!(by, Some(Signal::TERM.as_raw()), "{:?}", ended.status);
}
