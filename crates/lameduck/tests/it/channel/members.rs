//! Endpoints that come and go by the registry's word.

use lameduck::Hub;
use lameduck::core::registry::EntryId;

use super::leaving::both;
use super::node::{Deed, Node, life};
use super::*;

#[tokio::test]
async fn c34_removed_endpoints_cut_too_early_kept_too_long() {
    let hub = Hub::new();
    let memory = Memory::new();
    let (a, b) = (
        Node::start("a", Some(life(1))).await,
        Node::start("b", Some(life(2))).await,
    );
    register(&memory, 1, a.address, life(1));
    register(&memory, 2, b.address, life(2));
    let channel = in_memory(&hub, &memory).build().expect("a service");
    both(&channel).await;
    // Twenty calls are running there when it leaves the registry.
    b.facts.act(Deed::Hold);
    let calls: Vec<_> = (0..60)
        .map(|_| {
            let channel = channel.clone();
            tokio::spawn(async move { hello(&channel).await })
        })
        .collect();
    a.facts.act(Deed::Answer);
    until("twenty are there", || b.facts.started() >= 20).await;
    memory.withdraw(&orders(), EntryId(2));
    let gone = async { while hello(&channel).await.expect("a serves") != "a" {} };
    timeout(SOON, gone).await.expect("a serves");
    b.facts.let_go();
    for call in calls {
        call.await.expect("no panic").expect("it finishes");
    }
}
