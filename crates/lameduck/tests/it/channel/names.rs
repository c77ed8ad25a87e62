//! Endpoints that are host names.

use std::io;

use lameduck::consumer::Lookup;
use lameduck::core::limits::{DIAL_MAX, DIAL_STAGGER, LOOKUP_INTERVAL};

use super::node::{Deed, Node};
use super::*;
use crate::standing::Standing;

/// A resolver that says what a test says: `None` is a failure of its own.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<(Option<Vec<SocketAddr>>, usize)>>);

impl Names {
    fn say(&self, addresses: Option<&[SocketAddr]>) {
        self.0.lock().expect("no panic").0 = addresses.map(<[_]>::to_vec);
    }

    fn asked(&self) -> usize {
        self.0.lock().expect("no panic").1
    }

    fn lookup(&self) -> Lookup {
        let names = self.clone();
        Arc::new(move |name, _| {
            assert_eq!(name, "orders.test");
            let mut said = names.0.lock().expect("no panic");
            said.1 += 1;
            let found = said.0.clone();
            Box::pin(async { found.ok_or_else(|| io::Error::other("no resolver answers")) })
        })
    }

    fn channel(&self) -> Channel {
        let hub = Hub::builder().lookup(self.lookup()).build();
        hub.channel("orders.test:80").expect("a target")
    }

    /// The next look-up has been made.
    async fn looked_up(&self) {
        let before = self.asked();
        tokio::time::pause();
        tokio::time::advance(LOOKUP_INTERVAL).await;
        tokio::time::resume();
        until("it is looked up again", || self.asked() > before).await;
    }
}

#[tokio::test]
async fn a_name_that_moves_takes_its_callers_along_and_costs_no_call() {
    let (old, new) = (
        Node::start("old", None).await,
        Node::start("new", None).await,
    );
    let names = Names::default();
    names.say(Some(&[old.address]));
    let channel = names.channel();
    assert_eq!(hello(&channel).await.expect("it serves"), "old");
    old.facts.act(Deed::Hold);
    let held = tokio::spawn({
        let channel = channel.clone();
        // Without a bound of its own: half a minute is going to pass at once.
        async move {
            GreeterClient::new(channel)
                .hello(HelloRequest::default())
                .await
        }
    });
    until("it has begun", || old.facts.started() == 2).await;
    names.say(Some(&[new.address]));
    names.looked_up().await;
    let moved = async {
        loop {
            let request = hello(&channel);
            // What still goes to the old address is answered there.
            old.facts.let_go();
            if request.await.expect("no call is lost") == "new" {
                return;
            }
        }
    };
    timeout(SOON, moved).await.expect("calls move");
    let held = held.await.expect("no panic").expect("it finishes");
    assert_eq!(held.into_inner().text, "old");
    let before = old.facts.started();
    for _ in 0..20 {
        assert_eq!(hello(&channel).await.expect("it serves"), "new");
    }
    assert_eq!(old.facts.started(), before);
    // Its connection is gone, so that a graceful stop has nothing to wait for.
    timeout(SOON, old.stop())
        .await
        .expect("nobody is connected");
}

/// As a headless Service is when one of its nodes died: the first address accepts, and says nothing.
#[tokio::test]
async fn r9_a_first_address_that_is_silent_does_not_use_up_the_time_of_all() {
    let node = Node::start("a", None).await;
    let (_port, nowhere) = crate::raw::nowhere();
    let (_silent, silent) = crate::raw::listen().await;
    for before in [vec![silent], vec![nowhere, silent], vec![silent, nowhere]] {
        let names = Names::default();
        names.say(Some(&[before.clone(), vec![node.address]].concat()));
        let standing = Standing::begin();
        let begun = tokio::time::Instant::now();
        let channel = names.channel();
        let call = tokio::spawn(async move { hello(&channel).await });
        while !call.is_finished() {
            // Lets sockets go on; time moves by what the next dial waits for alone.
            let looked = names.asked();
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
            if looked == 1 && !call.is_finished() {
                standing.advance(DIAL_STAGGER).await;
            }
        }
        assert_eq!(call.await.expect("no panic").expect("it serves"), "a");
        let elapsed = begun.elapsed();
        assert!(elapsed < DIAL_MAX, "{before:?}: {elapsed:?}");
        standing.end();
    }
}

#[tokio::test]
async fn a_name_that_leads_nowhere_loses_nobody() {
    let node = Node::start("a", None).await;
    let names = Names::default();
    names.say(Some(&[node.address]));
    let channel = names.channel();
    hello(&channel).await.expect("it serves");
    let (_port, nowhere) = crate::raw::nowhere();
    for said in [None, Some(vec![]), Some(vec![nowhere])] {
        names.say(said.as_deref());
        names.looked_up().await;
        for _ in 0..20 {
            assert_eq!(hello(&channel).await.expect("it serves on"), "a");
        }
    }
}
