//! A registry that holds something for a service, and no instance of it.

use std::task::{Context, Poll};

use lameduck::core::registry::{Publication, Registration, Subscription, Update};

use super::*;

/// A registry that tells these updates and then nothing more.
#[derive(Clone, Debug)]
struct Told(Vec<Update>);

impl Registry for Told {
    fn propagation(&self) -> Duration {
        Duration::ZERO
    }

    fn publish(&self, _: Registration) -> Box<dyn Publication> {
        panic!("nobody publishes here")
    }

    fn subscribe(&self, _: &lameduck::core::name::ServiceName) -> Box<dyn Subscription> {
        let mut updates = self.0.clone();
        updates.reverse();
        Box::new(Left(updates))
    }
}

struct Left(Vec<Update>);

impl Subscription for Left {
    fn poll_update(&mut self, _: &mut Context<'_>) -> Poll<Option<Update>> {
        self.0
            .pop()
            .map_or(Poll::Pending, |update| Poll::Ready(Some(update)))
    }
}

#[tokio::test(start_paused = true)]
async fn d08_c_a_call_that_finds_nothing_names_what_was_left_out() {
    let what = "key \"orders\": the key itself exists".to_owned();
    let empty = Update::Reset {
        entries: Vec::new(),
        revision: 0,
    };
    let registry = Told(vec![Update::Skipped { what: what.clone() }, empty]);
    let channel = Hub::new().channel_builder_with(Arc::new(registry), orders());
    let channel = channel.build().expect("a service");
    let none = hello(&channel).await.expect_err("nobody is there");
    assert_eq!(
        none.message(),
        format!(
            "service {}: the registry lists no instance; left out: {what}",
            orders()
        )
    );
}
