//! A process that is frozen (SIGSTOP) while it leaves, and goes on later.

use std::io;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::sleep;

use super::signals::{Ended, Process, WORK};
use crate::serve::start::rest;

/// The whole stop of a server that is frozen for longer.
pub const BUDGET: Duration = Duration::from_secs(4);

/// Asks a server with a request in flight to stop, freezes it once it has said so, and gives what its
/// client and its end were like.
async fn frozen(role: &str, frozen: Duration) -> (io::Result<Vec<u8>>, Ended) {
    let (mut process, mut socket) = Process::serving(role).await;
    process.signal(Signal::TERM);
    process.line("registry closing").await;
    process.signal(Signal::STOP);
    sleep(frozen).await;
    // Signals that come meanwhile wait with it, and change nothing.
    process.signal(Signal::TERM);
    process.signal(Signal::CONT);
    (rest(&mut socket).await, process.end().await)
}

#[tokio::test]
async fn c03_a_process_frozen_while_it_leaves_goes_on_leaving() {
    let (answer, ended) = frozen("serve", WORK * 2).await;
    let answer = String::from_utf8(answer.expect("no reset")).expect("text");
    assert!(answer.ends_with("done"), "{answer:?}");
    assert_eq!(ended.status.code(), Some(0), "{}", ended.error);
    assert_eq!(ended.registry, ["present", "closing", "gone"]);
    assert!(ended.error.contains("abandoned 0"), "{}", ended.error);
}

#[tokio::test]
async fn c05_a_process_frozen_past_its_budget_ends_when_it_goes_on() {
    let (answer, ended) = frozen("serve, on a budget", BUDGET * 2).await;
    // Its work and its budget end in the same instant: either may come first.
    let code = ended.status.code();
    assert!(matches!(code, Some(0 | 10)), "{code:?}: {}", ended.error);
    assert!(ended.error.contains("abandoned"), "{}", ended.error);
    let answered = answer.is_ok_and(|answer| answer.ends_with(b"done"));
    assert!(answered || code == Some(10), "{}", ended.error);
    let told: Vec<_> = ended.registry.iter().map(String::as_str).collect();
    assert!(told.starts_with(&["present", "closing"]), "{told:?}");
}
