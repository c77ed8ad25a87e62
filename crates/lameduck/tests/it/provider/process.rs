//! Several providers in one process, one after the other or beside each other, and its signals.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use lameduck::Provider;
use lameduck::provider::DrainReport;
use rustix::process::Signal;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::signals::{Ended, Process, server};
use crate::serve::start::rest;

/// Build, run and stop, so often.
const ROUNDS: usize = 50;
/// What a program ends with after its own handler.
const OWN: i32 = 7;

// --- the process --------------------------------------------------------------------------------

/// Plays a role of this file, to its exit code.
pub fn play(role: &str) -> Option<i32> {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime")
    };
    Some(match role {
        "reload" => runtime().block_on(reload()),
        "built beside" => runtime().block_on(built_beside()),
        "the program's own" => runtime().block_on(own_handler()),
        "caught before" => runtime().block_on(caught_before()),
        "two runtimes" => two_runtimes(&[runtime(), runtime()]),
        "rounds" => runtime().block_on(rounds()),
        "dropped" => runtime().block_on(dropped()),
        "logs" => {
            tracing_subscriber::fmt()
                .with_writer(std::io::stderr)
                .init();
            runtime().block_on(served())
        }
        "built, then a signal, then built" => runtime().block_on(later()),
        _ => return None,
    })
}

fn small() -> lameduck::provider::Builder {
    Provider::builder("small")
        .listen("127.0.0.1:0")
        .floor(Duration::ZERO)
        .quiet(Duration::ZERO)
}

async fn run_and_stop(provider: Provider) -> DrainReport {
    let handle = provider.handle();
    let running = tokio::spawn(provider.run());
    handle.serving().await;
    assert!(handle.stop("reload").await);
    running.await.expect("no panic")
}

async fn served() -> i32 {
    let provider = server().build().expect("it builds");
    println!("\nbuilt {}", provider.handle().local_addr());
    provider.run().await.exit_code().into()
}

async fn reload() -> i32 {
    run_and_stop(small().build().expect("it builds")).await;
    served().await
}

async fn built_beside() -> i32 {
    let beside = small().build().expect("it builds");
    let code = served().await;
    // The signal was meant for this one too.
    let report = beside.run().await;
    println!("beside {}", report.reason);
    code
}

async fn own_handler() -> i32 {
    let provider = server().signals(false).build().expect("it builds");
    let handle = provider.handle();
    println!("\nbuilt {}", handle.local_addr());
    let running = tokio::spawn(provider.run());
    run_and_stop(small().build().expect("it builds")).await;
    let mut term = signal(SignalKind::terminate()).expect("a handler");
    println!("ready");
    term.recv().await;
    handle.stop("the program").await;
    let report = running.await.expect("no panic");
    assert_eq!(report.exit_code(), 0, "{report}");
    term.recv().await;
    OWN
}

async fn caught_before() -> i32 {
    let mut term = signal(SignalKind::terminate()).expect("a handler");
    run_and_stop(small().build().expect("it builds")).await;
    println!("\nstopped");
    term.recv().await;
    OWN
}

fn two_runtimes([one, two]: &[Runtime; 2]) -> i32 {
    let beside = one.spawn(async {
        let report = small().build().expect("it builds").run().await;
        println!("beside {}", report.reason);
    });
    let code = two.block_on(served());
    one.block_on(beside).expect("no panic");
    code
}

/// Threads and descriptors of this process.
fn counts() -> [usize; 2] {
    ["/proc/self/task", "/proc/self/fd"].map(|path| fs::read_dir(path).expect("Linux").count())
}

async fn rounds() -> i32 {
    // What tokio keeps once it has been used.
    drop(signal(SignalKind::user_defined1()));
    tokio::spawn(async {}).await.expect("no panic");
    let before = counts();
    for _ in 0..ROUNDS {
        run_and_stop(
            small()
                .hook("one", async || Ok(()))
                .build()
                .expect("it builds"),
        )
        .await;
    }
    // The last threads may be on their way.
    while counts() != before {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    println!("\nnothing left");
    0
}

async fn dropped() -> i32 {
    let provider = server().build().expect("it builds");
    let handle = provider.handle();
    let running = tokio::spawn(provider.run());
    handle.serving().await;
    running.abort();
    handle.closing().await;
    println!("\nstopped");
    std::future::pending().await
}

/// Built after a signal began a stop: another life, which that signal did not mean.
async fn later() -> i32 {
    let first = small().build().expect("it builds");
    let handle = first.handle();
    let running = tokio::spawn(first.run());
    // A signal that comes before it runs ends a process that never ran any.
    handle.serving().await;
    println!("\nfirst");
    let report = running.await.expect("no panic");
    assert_eq!(report.exit_code(), 0, "{report}");
    served().await
}

// --- its signals --------------------------------------------------------------------------------

async fn finishes(mut process: Process, signal: Signal) -> Ended {
    let mut socket = process.asked().await;
    process.signal(signal);
    let answer = rest(&mut socket).await.expect("no reset");
    let answer = String::from_utf8(answer).expect("text");
    assert!(answer.ends_with("done"), "{answer:?}");
    let ended = process.end().await;
    assert_eq!(ended.status.code(), Some(0), "{}", ended.error);
    assert_eq!(ended.registry, ["present", "closing", "gone"]);
    let says = "in flight at the start 1, abandoned 0";
    assert!(ended.error.contains(says), "{}", ended.error);
    ended
}

#[tokio::test]
async fn s02_b_after_a_reload_a_signal_drains_the_one_that_serves() {
    finishes(Process::start("reload"), Signal::TERM).await;
}

#[tokio::test]
async fn s02_c_a_provider_that_is_built_ends_nobody_else_and_hears_of_the_signal() {
    let ended = finishes(Process::start("built beside"), Signal::TERM).await;
    assert!(ended.says("beside sigterm"), "{}", ended.error);
}

#[tokio::test]
async fn s02_d_a_program_that_catches_signals_itself_is_left_alone() {
    let mut process = Process::start("the program's own");
    let mut socket = process.asked().await;
    process.line("ready").await;
    process.signal(Signal::TERM);
    let answer = rest(&mut socket).await.expect("no reset");
    assert!(answer.ends_with(b"done"), "{answer:?}");
    process.line("registry gone").await;
    // After the last has ended, its own handler counts still.
    for _ in 0..200 {
        process.signal(Signal::TERM);
        let waited = tokio::time::timeout(Duration::from_millis(50), process.child.wait());
        if waited.await.is_ok() {
            break;
        }
    }
    let ended = process.end().await;
    assert_eq!(ended.status.code(), Some(OWN), "{}", ended.error);
}

#[tokio::test]
async fn s02_e_a_handler_from_before_counts_after_the_last_has_ended() {
    let mut process = Process::start("caught before");
    process.line("stopped").await;
    process.signal(Signal::TERM);
    let ended = process.end().await;
    assert_eq!(ended.status.code(), Some(OWN), "{}", ended.error);
}

#[tokio::test]
async fn s02_f_one_signal_stops_the_providers_of_two_runtimes() {
    let ended = finishes(Process::start("two runtimes"), Signal::TERM).await;
    assert!(ended.says("beside sigterm"), "{}", ended.error);
}

#[tokio::test]
async fn s02_g_the_next_provider_is_not_meant_by_the_signal_of_the_one_before() {
    let mut process = Process::start("built, then a signal, then built");
    process.line("first").await;
    process.signal(Signal::TERM);
    finishes(process, Signal::INT).await;
}

#[tokio::test]
async fn s20_nothing_is_left_of_providers_that_have_ended() {
    let mut process = Process::start("rounds");
    process.line("nothing left").await;
    let ended = process.end().await;
    assert_eq!(ended.status.code(), Some(0), "{}", ended.error);
}

#[tokio::test]
async fn s07_a_signal_after_a_dropped_run_ends_the_process() {
    let mut process = Process::start("dropped");
    process.line("stopped").await;
    process.signal(Signal::TERM);
    let ended = process.end().await;
    let by = ended.status.signal();
    assert_eq!(by, Some(Signal::TERM.as_raw()), "{}", ended.error);
    assert!(!ended.error.contains("stuck"), "{}", ended.error);
}

#[tokio::test]
async fn d23_other_signals_that_ask_to_stop() {
    for (signal, reason) in [(Signal::QUIT, "sigquit"), (Signal::HUP, "sighup")] {
        // As a job of a shell it may have been started with these ignored.
        if is_ignored(signal) {
            println!("not tested, {reason} is ignored here");
            continue;
        }
        let ended = finishes(Process::start("serve"), signal).await;
        assert!(ended.error.contains(reason), "{}", ended.error);
    }
}

fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.expect("a mask") >> (signal.as_raw() - 1) & 1 == 1
}

#[tokio::test]
async fn d23_b_a_broken_pipe_is_no_signal_to_stop() {
    let mut process = Process::start("reload");
    process.line("built ").await;
    process.signal(Signal::PIPE);
    process.line("registry present").await;
    process.signal(Signal::TERM);
    let ended = process.end().await;
    assert_eq!(ended.status.code(), Some(0), "{}", ended.error);
}
