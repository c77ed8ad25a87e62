//! A process that has no file descriptor left for another connection.

use std::fs::File;
use std::net::SocketAddr;
use std::sync::Arc;

use lameduck::core::event::Event;
use lameduck::provider::Builder;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tokio::net::TcpStream;

use super::signals::Process;
use crate::serve::start::{rest, say, within};

const GET: &str = "GET / HTTP/1.1\r\nhost: test\r\n\r\n";
/// Connections with a request in flight.
const WORKING: usize = 4;
/// Descriptors left for connections. One more: the kernel takes a descriptor before it looks whether
/// anybody waits, so that without one the pause begins before the last request works, or after it.
const SPARE: usize = WORKING + 1;
/// Descriptors have numbers below this.
const LIMIT: i32 = 64;
/// Descriptors with numbers beyond it, as a shell or a supervisor leaves them open.
const INHERITED: usize = 8;
/// Connections that want one, and find none.
const WAITING: usize = 3;

// --- the process --------------------------------------------------------------------------------

/// Prints what it hears of the listener.
pub fn watched(server: Builder) -> Builder {
    server.on_event(Arc::new(|event: &Event| match event {
        Event::AcceptPaused { why, .. } => println!("listener paused: {why}"),
        Event::AcceptResumed { .. } => println!("listener resumed"),
        _ => {}
    }))
}

/// From here on there are `SPARE` descriptors left, whatever numbers the others have: the limit is on
/// numbers, and who started this process may have left it some beyond any limit. All are taken, and as
/// many given back.
pub fn limit() {
    let null = File::open("/dev/null").expect("there is one");
    for _ in 0..INHERITED {
        let high = fcntl_dupfd_cloexec(&null, LIMIT).expect("it is below the limit so far");
        std::mem::forget(high);
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(u64::try_from(LIMIT).expect("positive"));
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("a lower one is allowed");
    let taken = std::iter::from_fn(|| null.try_clone().ok());
    let mut taken: Vec<_> = taken.collect();
    taken.truncate(taken.len().checked_sub(SPARE).expect("LIMIT is more"));
    std::mem::forget((null, taken));
    println!("limited");
}

// --- who uses it up -----------------------------------------------------------------------------

async fn connect(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut sockets = Vec::new();
    for _ in 0..count {
        let socket = within(TcpStream::connect(address)).await;
        sockets.push(socket.expect("the kernel accepts"));
    }
    sockets
}

#[tokio::test]
async fn c03_a_stop_without_a_free_descriptor_is_a_whole_stop() {
    let mut process = Process::start("short of descriptors");
    let address: SocketAddr = process.line("built ").await.parse().expect("an address");
    process.line("registry present").await;
    process.line("limited").await;
    // Idle connections use the descriptors up; it is said once, and again when some are free.
    let idle = connect(address, SPARE + WAITING).await;
    process.line("listener paused").await;
    drop(idle);
    process.line("listener resumed").await;
    let mut working = connect(address, WORKING).await;
    for socket in &mut working {
        say(socket, GET).await;
        process.line("working").await;
    }
    let waiting = connect(address, WAITING).await;
    process.line("listener paused").await;
    process.signal(Signal::TERM);
    process.line("registry closing").await;
    for socket in &mut working {
        let answer = rest(socket).await.expect("no reset");
        let answer = String::from_utf8(answer).expect("text");
        assert!(answer.contains("done"), "{answer:?}");
    }
    let ended = process.end().await;
    assert_eq!(ended.status.code(), Some(0), "{}", ended.error);
    assert_eq!(ended.registry, ["present", "closing", "gone"]);
    let said: Vec<_> = ended.listener.iter().map(|line| &line[..6]).collect();
    assert_eq!(said, ["paused", "resume", "paused"], "{:?}", ended.listener);
    assert!(ended.listener[0].contains("files"), "{:?}", ended.listener);
    assert!(ended.error.contains("abandoned 0"), "{}", ended.error);
    drop(waiting);
}
