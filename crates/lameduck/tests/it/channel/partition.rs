//! Links that fall silent between a caller, a server and their registry, and speak again.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::SeqCst;

use lameduck::core::event::Tier;
use lameduck::provider::Handle;
use lameduck_registry::etcd::server::DevServer;
use lameduck_registry::etcd::{Client, Etcd};
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;

use super::leaving::both;
use super::link::{Behind, link};
use super::node::{Deed, Facts, Node, life, router};
use super::rolls::{Listing, Load, Running, provide};
use super::*;
use crate::tonic_server;

/// Far longer than a silent connection is kept, and than the longest pause between dials.
const LONG: Duration = Duration::from_secs(60);
/// Of a call behind the link.
const DEADLINE: Duration = Duration::from_secs(1);
/// So many answers in a row, and nobody is sent behind the link any more.
const SETTLED: u32 = 200;
/// How long a registration outlives the link: short, so that it is lost soon.
const TTL: Duration = Duration::from_secs(3);

async fn call(channel: &Channel) -> Result<String, tonic::Status> {
    let mut request = tonic::Request::new(HelloRequest::default());
    request.set_timeout(DEADLINE);
    let answer = GreeterClient::new(channel.clone()).hello(request).await;
    answer.map(|reply| reply.into_inner().text)
}

#[tokio::test]
async fn callers_leave_a_server_that_falls_silent_and_return_to_it() {
    let test = "callers_leave_a_server_that_falls_silent_and_return_to_it";
    let Some(behind) = link(test) else { return };
    let near = Node::start("near", Some(life(1))).await;
    let listener = behind.listen();
    let there = listener.local_addr().expect("bound");
    let far = Facts::new("far", Some(life(2)));
    let listener = tokio::net::TcpListener::from_std(listener).expect("a runtime");
    let _far = tonic_server::serve(listener, router(&far));
    let target = direct(&[near.address, there]);
    let channel = Hub::new().channel(&target).expect("a target");
    let answers_from_far = async || while call(&channel).await.as_deref().ok() != Some("far") {};
    timeout(LONG, answers_from_far()).await.expect("both serve");

    // One call is under way there when the link falls silent, and runs into its deadline.
    far.act(Deed::Hold);
    let under_way = async { while call(&channel).await.is_ok() {} };
    let silence = async {
        until("a call is there", || {
            far.started() > far.finished.load(SeqCst)
        })
        .await;
        behind.falls_silent();
        far.act(Deed::Answer);
        far.let_go();
    };
    let both = async { tokio::join!(under_way, silence) };
    timeout(LONG, both).await.expect("it runs out of time");

    // Later ones may be sent there too, until the silence is noticed; none afterwards.
    let (mut row, mut lost) = (0, 0);
    let settle = async {
        while row < SETTLED {
            match call(&channel).await {
                Ok(who) => {
                    assert_eq!(who, "near");
                    row += 1;
                }
                Err(status) => {
                    // The last one is under way when the connection is given up.
                    let expected = [Code::DeadlineExceeded, Code::Unavailable];
                    assert!(expected.contains(&status.code()), "{status}");
                    (row, lost) = (0, lost + 1);
                }
            }
        }
    };
    timeout(LONG, settle).await.expect("the silence is noticed");
    assert!(lost < 30, "{lost} calls of a second each");

    behind.speaks_again();
    let returned = timeout(LONG, answers_from_far()).await;
    returned.expect("it is dialled again");
}

/// A registry, reached as usual and by way of the link.
struct Etcds {
    near: Arc<dyn Registry>,
    far: Arc<dyn Registry>,
    _running: [AbortOnDropHandle<()>; 2],
}

impl Etcds {
    async fn start(behind: &Behind) -> Self {
        let loopback = "127.0.0.1:0".parse().expect("an address");
        let server = DevServer::bind(loopback).await.expect("a free port");
        let here = server.local_addr();
        let run = tokio::spawn(server.run(std::future::pending()));
        let (there, door) = behind.door(here);
        let at = |address: SocketAddr| {
            let client = Client::new(vec![address.into()]);
            Arc::new(Etcd::new(client).with_lease_ttl(TTL))
        };
        Self {
            near: at(here),
            far: at(there),
            _running: [AbortOnDropHandle::new(run), door],
        }
    }
}

/// A server that takes its time, in a registry.
async fn server(name: &'static str, registry: &Arc<dyn Registry>) -> Running {
    let listing = Listing::In(Arc::clone(registry));
    let server = provide(name, "127.0.0.1:0", &listing).await;
    server.facts.act(Deed::Work(Duration::from_millis(20)));
    server
}

fn caller(log: &Log, registry: &Arc<dyn Registry>) -> Channel {
    let builder = log
        .hub()
        .channel_builder_with(Arc::clone(registry), orders());
    builder.build().expect("a service")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_cut_off_from_its_registry_loses_no_call() {
    let Some(behind) = link("a_caller_cut_off_from_its_registry_loses_no_call") else {
        return;
    };
    let (log, etcds) = (Log::default(), Etcds::start(&behind).await);
    let leaver = server("leaver", &etcds.near).await;
    let _stayer = server("stayer", &etcds.near).await;
    let channel = caller(&log, &etcds.far);
    both(&channel).await;
    let load = Load::start(&channel);
    behind.falls_silent();
    let stale = |event: &Event| matches!(event, Event::DirectoryStale { .. });
    until_within(LONG, "the silence is noticed", || log.count(stale) > 0).await;
    load.go_on(50).await;

    // One joins, of which it cannot hear; one leaves, and says so on its answers.
    let joiner = server("joiner", &etcds.near).await;
    assert!(leaver.handle.stop("a test").await);
    let report = timeout(LONG, leaver.run).await.expect("in time");
    let report = report.expect("no panic");
    assert_eq!(report.abandoned, 0, "{report}");
    load.go_on(50).await;
    assert_eq!(joiner.facts.started(), 0);

    behind.speaks_again();
    until_within(LONG, "the new one is called", || joiner.facts.started() > 0).await;
    load.end().await;
    let gone = Incarnation::Life(leaver.handle.life());
    let is_its =
        |event: &Event| matches!(event, Event::Closing { incarnation, .. } if *incarnation == gone);
    // By its health and then by its own word, where the first GOAWAY was faster than an answer.
    let closings = log.closings();
    assert!(closings > 0, "it was heard");
    assert_eq!(log.count(is_its), closings, "and nobody else");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_cut_off_from_its_registry_serves_on_and_is_listed_again() {
    let test = "a_server_cut_off_from_its_registry_serves_on_and_is_listed_again";
    let Some(behind) = link(test) else { return };
    let (log, etcds) = (Log::default(), Etcds::start(&behind).await);
    let cut_off = server("cut off", &etcds.far).await;
    let _other = server("other", &etcds.near).await;
    let channel = caller(&log, &etcds.near);
    both(&channel).await;
    let load = Load::start(&channel);
    let own = cut_off.handle.life();
    let was = |ready: bool| {
        log.count(|event| {
            matches!(event, Event::TierChanged { incarnation, tier, .. }
                if *incarnation == Incarnation::Life(own) && (*tier == Tier::Ready) == ready)
        })
    };
    let (once, never) = (was(true), was(false));
    behind.falls_silent();
    let listed = |handle: &Handle| handle.registrations().iter().all(|one| one.registered);
    until_within(LONG, "its lease is lost", || !listed(&cut_off.handle)).await;
    until_within(LONG, "it is not listed any more", || was(false) > never).await;
    load.go_on(50).await;

    behind.speaks_again();
    until_within(LONG, "it is registered again", || listed(&cut_off.handle)).await;
    until_within(LONG, "it is listed again", || was(true) > once).await;
    let before = cut_off.facts.started();
    until_within(LONG, "it is called again", || {
        cut_off.facts.started() > before
    })
    .await;
    load.end().await;
    assert_eq!(cut_off.handle.life(), own, "the same life all along");
    assert_eq!(log.closings(), 0, "nobody said that it closes");
}
