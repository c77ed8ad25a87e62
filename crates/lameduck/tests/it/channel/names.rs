//! Endpoints that are host names.

use std::io;

use lameduck::consumer::Lookup;
use lameduck::core::limits::LOOKUP_INTERVAL;

use super::node::{Deed, Node};
use super::*;

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
