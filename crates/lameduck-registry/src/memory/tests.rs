use super::*;
use lameduck_core::instance::{BootId, Incarnation, Instance, Life, State};
use lameduck_core::registry::{PublicationStatus, Update, Want};
use std::future::poll_fn;
use std::task::Poll;

fn orders() -> ServiceName {
    "orders".parse().expect("a name")
}

fn first_life() -> Life {
    Life::first(BootId::from_bits(1))
}

fn present(life: Life) -> Want {
    Want::Present { life, ready: true }
}

fn registration(services: &[&str]) -> Registration {
    let address = "10.0.0.1:8080".parse().expect("an address");
    let services = services
        .iter()
        .map(|name| name.parse().expect("a name"))
        .collect();
    let mut instance = Instance::new(address, Incarnation::Life(first_life()));
    instance
        .labels
        .insert("tier".into(), "\u{fc}ber \"all\"".into());
    instance.protocols.push("grpc".into());
    Registration { services, instance }
}

fn away() -> RegistryError {
    RegistryError {
        class: ErrorClass::Retry,
        message: "away".into(),
    }
}

async fn status(publication: &mut Box<dyn Publication>) -> PublicationStatus {
    poll_fn(|context| publication.poll_status(context)).await
}

async fn update(subscription: &mut Box<dyn Subscription>) -> Update {
    let update = poll_fn(|context| subscription.poll_update(context)).await;
    update.expect("a memory registry never ends")
}

async fn silent(subscription: &mut Box<dyn Subscription>) {
    let polled = poll_fn(|context| Poll::Ready(subscription.poll_update(context))).await;
    assert!(polled.is_pending(), "{polled:?}");
}

/// What an update says, one word each: `+serving 1.0`, `-`.
fn words(update: &Update) -> Vec<String> {
    let word = |entry: &Entry| {
        let state = if entry.instance.state == State::Closing {
            "closing"
        } else {
            "serving"
        };
        let epoch = match entry.instance.incarnation {
            Incarnation::Life(life) => life.epoch.to_string(),
            other => other.to_string(),
        };
        format!("{state} {epoch}")
    };
    match update {
        Update::Reset { entries, .. } => entries.iter().map(word).collect(),
        Update::Delta {
            changed, removed, ..
        } => {
            let gone = removed.iter().map(|_| "gone".to_owned());
            changed.iter().map(word).chain(gone).collect()
        }
        Update::Stale(_) => vec!["stale".to_owned()],
        Update::Live => vec!["live".to_owned()],
        Update::Skipped { what } => vec![format!("skipped {what}")],
    }
}

#[tokio::test(start_paused = true)]
async fn a_life_comes_closes_and_goes() {
    let memory = Memory::new();
    let mut list = memory.subscribe(&orders());
    assert!(words(&update(&mut list).await).is_empty());
    let mut publication = memory.publish(registration(&["orders", "billing"]));
    assert_eq!(status(&mut publication).await.reached, None);
    publication.want(present(first_life()));
    let reached = status(&mut publication).await;
    assert_eq!(
        (reached.reached, reached.registered),
        (Some(present(first_life())), true)
    );
    let told = update(&mut list).await;
    let Update::Delta { changed, .. } = &told else {
        panic!("{told:?}")
    };
    assert_eq!(changed[0].instance, registration(&[]).instance);
    assert_eq!(memory.entries(&"billing".parse().expect("a name")).len(), 1);
    publication.want(Want::Present {
        life: first_life(),
        ready: false,
    });
    let told = update(&mut list).await;
    let Update::Delta { changed, .. } = &told else {
        panic!("{told:?}")
    };
    assert!(!changed[0].instance.ready);
    publication.want(Want::Closing);
    assert_eq!(words(&update(&mut list).await), ["closing 0"]);
    assert!(!status(&mut publication).await.registered);
    publication.want(Want::Gone);
    assert_eq!(words(&update(&mut list).await), ["gone"]);
    publication.want(present(first_life()));
    assert_eq!(status(&mut publication).await.reached, Some(Want::Gone));
    silent(&mut list).await;
}

#[tokio::test(start_paused = true)]
async fn a_resumed_life_is_another_registration() {
    let memory = Memory::new();
    let mut publication = memory.publish(registration(&["orders"]));
    publication.want(present(first_life()));
    publication.want(Want::Closing);
    let mut list = memory.subscribe(&orders());
    assert_eq!(words(&update(&mut list).await), ["closing 0"]);
    publication.want(present(first_life().resumed()));
    assert_eq!(words(&update(&mut list).await), ["serving 1", "gone"]);
}

#[tokio::test(start_paused = true)]
async fn a_registration_lasts_as_long_as_it_is_renewed() {
    let memory = Memory::new();
    let mut publication = memory.publish(registration(&["orders"]));
    publication.want(present(first_life()));
    let mut list = memory.subscribe(&orders());
    update(&mut list).await;
    tokio::time::sleep(limits::LEASE_TTL * 5).await;
    silent(&mut list).await;
    let id = memory.entries(&orders())[0].id;
    let start = tokio::time::Instant::now();
    drop(publication);
    assert_eq!(words(&update(&mut list).await), ["gone"]);
    let lasted = start.elapsed();
    assert!(
        lasted <= limits::LEASE_TTL && lasted >= limits::LEASE_TTL / 2,
        "{lasted:?}"
    );
    assert!(memory.entries(&orders()).iter().all(|entry| entry.id != id));
}

#[tokio::test(start_paused = true)]
async fn what_is_withdrawn_is_put_back_but_never_for_a_leaver() {
    let memory = Memory::new();
    let mut publication = memory.publish(registration(&["orders"]));
    publication.want(present(first_life()));
    let mut list = memory.subscribe(&orders());
    update(&mut list).await;
    let entry = memory.entries(&orders()).remove(0);
    memory.withdraw(&orders(), entry.id);
    assert_eq!(words(&update(&mut list).await), ["gone"]);
    assert_eq!(words(&update(&mut list).await), ["serving 0"]);
    publication.want(Want::Gone);
    assert_eq!(words(&update(&mut list).await), ["gone"]);
    memory.replay(&orders(), &entry).expect("room");
    assert_eq!(words(&update(&mut list).await), ["serving 0"]);
    tokio::time::sleep(limits::LEASE_TTL * 5).await;
    assert_eq!(
        memory.entries(&orders()),
        std::slice::from_ref(&entry),
        "old news hang on no lease"
    );
    memory.withdraw(&orders(), entry.id);
    assert_eq!(words(&update(&mut list).await), ["gone"]);
}

#[tokio::test(start_paused = true)]
async fn away_is_stale_and_never_empty() {
    let memory = Memory::new();
    let mut publication = memory.publish(registration(&["orders"]));
    publication.want(present(first_life()));
    let mut list = memory.subscribe(&orders());
    update(&mut list).await;
    status(&mut publication).await;
    memory.fail(away());
    assert_eq!(words(&update(&mut list).await), ["stale"]);
    silent(&mut list).await;
    assert_eq!(status(&mut publication).await.error, Some(away()));
    memory.recover();
    assert_eq!(words(&update(&mut list).await), ["live"]);
    memory.fail(away());
    assert_eq!(words(&update(&mut list).await), ["stale"]);
    publication.want(Want::Closing);
    memory.recover();
    assert_eq!(words(&update(&mut list).await), ["closing 0"]);
    memory.fail(away());
    let mut late = memory.subscribe(&orders());
    assert_eq!(words(&update(&mut late).await), ["stale"]);
    tokio::time::sleep(limits::LEASE_TTL * 2).await;
    assert!(memory.entries(&orders()).is_empty(), "nothing was renewed");
    publication.want(present(first_life()));
    memory.recover();
    assert_eq!(words(&update(&mut late).await), ["serving 0"]);
    // This one did not look in between: it only hears what has changed.
    assert_eq!(words(&update(&mut list).await), ["serving 0", "gone"]);
}

#[tokio::test]
async fn equal_names_of_one_table_are_one_registry() {
    let (schemes, others) = (crate::builtin(), crate::builtin());
    let connect = |schemes: &lameduck_core::registry::Schemes, target: &str| {
        schemes
            .connect(&target.parse().expect("a target"))
            .expect("memory is always there")
    };
    let mut publication = connect(&schemes, "memory:///a").publish(registration(&["orders"]));
    publication.want(present(first_life()));
    for (table, target, listed) in [
        (&schemes, "memory:///a?key=orders", 1),
        (&schemes, "memory:///b", 0),
        (&others, "memory:///a", 0),
    ] {
        let told = update(&mut connect(table, target).subscribe(&orders())).await;
        assert_eq!(words(&told).len(), listed, "{target}");
    }
}

#[tokio::test]
async fn every_identity_is_read_as_it_was_written() {
    for incarnation in [
        Incarnation::Life(first_life().resumed()),
        Incarnation::Lease(-5),
        Incarnation::Revision(7),
        Incarnation::Unknown,
    ] {
        let memory = Memory::new();
        let instance = Instance {
            incarnation,
            weight: 7,
            ..registration(&[]).instance
        };
        let entry = Entry {
            id: EntryId(i64::MIN),
            instance,
        };
        memory.replay(&orders(), &entry).expect("room");
        assert_eq!(memory.entries(&orders()), [entry]);
    }
}
