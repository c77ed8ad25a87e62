//! Servers and proxies that end connections by number of requests: nginx, Envoy, HAProxy.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;
use crate::raw::{LAST_STREAM_MAX, Peer, listen};

/// An empty message: no flags, no bytes.
const EMPTY: &[u8] = b"\0\0\0\0\0";
/// `ENHANCE_YOUR_CALM`.
const CALM: u32 = 11;

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
enum Conduct {
    /// With this request it says which is the last one, then answers it, as nginx does.
    GoAwayAt(u32),
    /// It answers so many, and then says so, with this code.
    GoAwayAfter(u32, u32),
    /// It announces the end with this request, and answers those that come until it names the last one.
    TwoSteps(u32),
    /// It closes after so many answers, without a word.
    ClosesAfter(u32),
    /// Its kernel resets after so many answers.
    ResetsAfter(u32),
    /// It answers so many, and closes in the middle of the next answer.
    BreaksOffAfter(u32),
}

/// A server that ends each of its connections so.
struct Ageing {
    address: SocketAddr,
    counts: Arc<Counts>,
    _serving: tokio_util::task::AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Counts {
    connections: AtomicU32,
    /// Calls that were begun here.
    begun: AtomicU32,
    /// Those whose connection's end was not told as theirs.
    answered: AtomicU32,
}

/// Starts one. `health`: the first stream of each connection is a Watch, which it does not know.
async fn start(conduct: Conduct, health: bool) -> Ageing {
    let (listener, address) = listen().await;
    let counts = Arc::new(Counts::default());
    let serving = tokio::spawn(accept(listener, conduct, health, Arc::clone(&counts)));
    Ageing {
        address,
        counts,
        _serving: tokio_util::task::AbortOnDropHandle::new(serving),
    }
}

async fn accept(listener: TcpListener, conduct: Conduct, health: bool, counts: Arc<Counts>) {
    let mut connections = JoinSet::new();
    loop {
        let mut peer = Peer::ready(&listener, &[]).await;
        counts.connections.fetch_add(1, SeqCst);
        let counts = Arc::clone(&counts);
        connections.spawn(async move {
            if health {
                let Some(watch) = next(&mut peer).await else {
                    return;
                };
                peer.trailers_only(watch).await;
            }
            run(peer, conduct, &counts).await;
        });
    }
}

/// The next request's stream; `None` at the client's end.
async fn next(peer: &mut Peer) -> Option<u32> {
    loop {
        let frame = peer.frame().await?;
        if frame.ends_stream() {
            return Some(frame.stream);
        }
    }
}

async fn run(mut peer: Peer, conduct: Conduct, counts: &Counts) {
    for number in 1.. {
        let Some(stream) = next(&mut peer).await else {
            return;
        };
        counts.begun.fetch_add(1, SeqCst);
        match conduct {
            Conduct::GoAwayAt(last) if number == last => peer.goaway(stream, 0).await,
            Conduct::TwoSteps(last) if number == last => peer.goaway(LAST_STREAM_MAX, 0).await,
            Conduct::BreaksOffAfter(last) if number > last => {
                peer.head(stream).await;
                return;
            }
            _ => {}
        }
        peer.answer(stream, EMPTY).await;
        counts.answered.fetch_add(1, SeqCst);
        let over = match conduct {
            Conduct::GoAwayAt(last) => number == last,
            Conduct::GoAwayAfter(last, code) if number == last => {
                peer.goaway(stream, code).await;
                true
            }
            Conduct::TwoSteps(last) if number == last => {
                peer.goaway(stream, 0).await;
                true
            }
            Conduct::ClosesAfter(last) if number == last => return,
            Conduct::ResetsAfter(last) if number == last => return peer.kill(),
            _ => false,
        };
        if over {
            peer.rest().await;
            return;
        }
    }
}

fn hub(health: bool) -> Hub {
    Hub::builder().health(health).build()
}

/// So many calls, one after the other. Each is answered, and begun once.
async fn all_are_answered(conduct: Conduct, health: bool, calls: u32) -> u32 {
    let server = start(conduct, health).await;
    let channel = hub(health).channel(&direct(&[server.address]));
    let channel = channel.expect("a target");
    ready(&channel).await;
    for number in 0..calls {
        let answer = hello(&channel).await;
        assert!(answer.is_ok(), "{conduct:?}, call {number}: {answer:?}");
    }
    assert_eq!(server.counts.begun.load(SeqCst), calls, "{conduct:?}");
    server.counts.connections.load(SeqCst)
}

#[tokio::test]
async fn d01_a_connection_that_has_answered_is_replaced_at_once() {
    for health in [false, true] {
        for conduct in [
            Conduct::GoAwayAt(3),
            Conduct::GoAwayAfter(3, 0),
            Conduct::GoAwayAfter(3, CALM),
            Conduct::TwoSteps(3),
        ] {
            let connections = all_are_answered(conduct, health, 60).await;
            assert!(connections >= 20, "{conduct:?}: {connections}");
        }
    }
}

#[tokio::test]
async fn d01_b_one_stream_a_connection() {
    for health in [false, true] {
        all_are_answered(Conduct::GoAwayAt(1), health, 30).await;
    }
}

/// Like one whose keep-alive is switched off, when asked for its health too.
#[tokio::test]
async fn d01_c_one_stream_a_connection_is_not_spent_on_the_watch() {
    let (listener, address) = listen().await;
    let counts = Arc::new(Counts::default());
    let accepting = accept(listener, Conduct::GoAwayAt(1), false, Arc::clone(&counts));
    let _serving = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(accepting));
    let channel = hub(true).channel(&direct(&[address])).expect("a target");
    ready(&channel).await;
    for number in 0..10 {
        let answer = hello(&channel).await;
        assert!(answer.is_ok(), "call {number}: {answer:?}");
    }
}

/// A client that waits for each answer's connection to end loses nothing to an end without a word.
#[tokio::test]
async fn d01_d_connections_that_end_without_a_word_after_an_answer() {
    for conduct in [Conduct::ClosesAfter(1), Conduct::ResetsAfter(1)] {
        let server = start(conduct, true).await;
        let log = Log::default();
        let channel = log.hub().channel(&direct(&[server.address]));
        let channel = channel.expect("a target");
        for number in 1..=30 {
            let answer = hello(&channel).await;
            assert!(answer.is_ok(), "{conduct:?}, call {number}: {answer:?}");
            until("the connection ended", || log.disconnections() >= number).await;
        }
        assert_eq!(server.counts.begun.load(SeqCst), 30);
    }
}

#[tokio::test]
async fn d01_e_an_answer_that_breaks_off_each_time_costs_that_call_alone() {
    let server = start(Conduct::BreaksOffAfter(2), true).await;
    let channel = hub(true).channel(&direct(&[server.address]));
    let channel = channel.expect("a target");
    let mut outcomes = Vec::new();
    for _ in 0..30 {
        outcomes.push(hello(&channel).await.is_ok());
    }
    let expected: Vec<bool> = (0..30).map(|number| number % 3 < 2).collect();
    assert_eq!(outcomes, expected);
}

/// Many callers at once: what the GOAWAY leaves out is placed on the next connection, and is no refusal.
#[tokio::test]
async fn d01_f_many_callers_at_once() {
    for conduct in [Conduct::GoAwayAt(5), Conduct::TwoSteps(5)] {
        let server = start(conduct, true).await;
        let channel = hub(true).channel(&direct(&[server.address]));
        let channel = channel.expect("a target");
        ready(&channel).await;
        let mut callers = JoinSet::new();
        for _ in 0..20 {
            let channel = channel.clone();
            callers.spawn(async move {
                for _ in 0..10 {
                    hello(&channel).await.expect("it is answered");
                }
            });
        }
        while let Some(caller) = callers.join_next().await {
            caller.unwrap_or_else(|error| panic!("{conduct:?}: {error}"));
        }
        assert_eq!(server.counts.begun.load(SeqCst), 200, "{conduct:?}");
        assert_eq!(server.counts.answered.load(SeqCst), 200, "{conduct:?}");
    }
}

/// One that has not taken any call yet is dialled once more, and serves then.
#[tokio::test]
async fn d01_g_goaway_before_anything_was_served_then_a_connection_that_serves() {
    let (listener, address) = listen().await;
    let channel = hub(false).channel(&direct(&[address])).expect("a target");
    let serve = async {
        let mut first = Peer::ready(&listener, &[]).await;
        first.request().await;
        first.goaway(0, 0).await;
        let mut second = Peer::ready(&listener, &[]).await;
        let stream = second.request().await;
        second.answer(stream, EMPTY).await;
        (first, second)
    };
    let (answer, _peers) = tokio::join!(hello(&channel), serve);
    answer.expect("placed once more");
}
