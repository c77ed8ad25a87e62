//! Keeps the process listed in its registries, as the drain wants it.
//!
//! The drain says what is wanted, once; a publication repairs itself towards that. A registry that
//! is down is no reason not to serve, and never prolongs a stop.

use std::future::poll_fn;

use lameduck_core::drain::Problem;
use lameduck_core::event::Event;
use lameduck_core::limits::{REVOKE_MAX, REVOKE_SLOW_MAX};
use lameduck_core::name::Address;
use lameduck_core::registry::{ErrorClass, Publication, PublicationStatus, RegistryError, Want};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::foreign::quietly_await;
use crate::observe::Events;

/// How the registration in one registry stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrationStatus {
    /// Which registry, as its target says.
    pub registry: String,
    /// The address that is published there.
    pub address: Address,
    /// What is wanted; `None` before the process serves.
    pub want: Option<Want>,
    /// The last wanted state that the registry has confirmed.
    pub reached: Option<Want>,
    /// Whether callers can find this process there, as far as is known.
    pub registered: bool,
    /// Whether the registry has ever confirmed that it lists this process.
    pub was_registered: bool,
    /// `false` where the registry denies our own records, so that the address alone is published.
    pub metadata: bool,
    /// What is in the way.
    pub error: Option<String>,
}

impl RegistrationStatus {
    pub(super) const fn new(registry: String, address: Address) -> Self {
        Self {
            registry,
            address,
            want: None,
            reached: None,
            registered: false,
            was_registered: false,
            metadata: true,
            error: None,
        }
    }

    /// What there is to say. What was confirmed once and cannot be renewed now is not confirmed.
    /// What was never listed is not confirmed either when it leaves: that is said once.
    fn event(&self, before: &Self) -> Option<Event> {
        let want = self.want?;
        let (registry, error) = (self.registry.clone(), self.error.clone());
        if error.is_none() && is_leaving(want) && !self.was_registered {
            let first = self.reached == Some(want) && !before.reached.is_some_and(is_leaving);
            return first.then(|| Event::NeverRegistered {
                registry,
                error: before.error.clone(),
            });
        }
        (self.reached == Some(want) || error.is_some()).then_some(Event::Registration {
            registry,
            address: self.address.clone(),
            want,
            error,
        })
    }
}

const fn is_leaving(want: Want) -> bool {
    matches!(want, Want::Closing | Want::Gone)
}

/// All registrations of one process.
#[derive(Debug)]
pub(super) struct Registrations {
    want: watch::Sender<Option<Want>>,
    statuses: Vec<watch::Receiver<RegistrationStatus>>,
}

/// A registry's publication before the process serves.
pub(super) struct Planned {
    pub(super) publication: Box<dyn Publication>,
    pub(super) status: watch::Sender<RegistrationStatus>,
}

impl Registrations {
    /// Begins to keep them, on `tasks`.
    pub(super) fn keep(planned: Vec<Planned>, events: &Events, tasks: &mut JoinSet<()>) -> Self {
        let want = watch::Sender::new(None);
        let statuses = planned
            .iter()
            .map(|planned| planned.status.subscribe())
            .collect();
        for planned in planned {
            tasks.spawn(keep_quietly(planned, want.subscribe(), events.clone()));
        }
        Self { want, statuses }
    }

    /// Says what is wanted from here on.
    pub(super) fn want(&self, want: Want) {
        self.want.send_replace(Some(want));
    }

    /// The registries that never confirmed this process.
    pub(super) fn never_confirmed(&self) -> Vec<Problem> {
        let statuses = self.statuses.iter().map(|status| status.borrow());
        statuses
            .filter(|status| !status.was_registered)
            .map(|status| Problem::NeverRegistered(status.registry.clone()))
            .collect()
    }

    /// Waits until `want` is confirmed in every registry. Waits without end for closing (the
    /// publication tries on), but not for gone: one that fails may never answer, and one that is slow
    /// is waited for longer.
    ///
    /// # Errors
    /// The registries where the process was listed at some time and may be still: neither its own
    /// clock nor a failing registry says that a lease has ended, since a registry without a leader
    /// ends none, and gives each its whole time again once it has one.
    pub(super) fn reached(&self, want: Want) -> impl Future<Output = Result<(), String>> + use<> {
        let statuses = self.statuses.clone();
        async move {
            let confirmed = confirmed(statuses.clone(), want);
            if want != Want::Gone {
                confirmed.await;
                return Ok(());
            }
            // A little less than the drain waits, so that the names are known.
            let [soon, late] = [REVOKE_MAX, REVOKE_SLOW_MAX].map(|max| max * 9 / 10);
            if timeout(soon, confirmed).await.is_ok() {
                return Ok(());
            }
            // Over by then, or known to fail.
            let _ = timeout(late - soon, settled(statuses.clone())).await;
            left_behind(&statuses)
        }
    }
}

async fn confirmed(statuses: Vec<watch::Receiver<RegistrationStatus>>, want: Want) {
    for mut status in statuses {
        // The sender lives as long as the process serves; without it nothing is published.
        let _ = status.wait_for(|status| status.reached == Some(want)).await;
    }
}

/// Waits until each has confirmed that the process is gone, or fails, or never listed it.
async fn settled(statuses: Vec<watch::Receiver<RegistrationStatus>>) {
    for mut status in statuses {
        let settled = |status: &RegistrationStatus| {
            let gone = status.reached == Some(Want::Gone);
            gone || status.error.is_some() || !status.was_registered
        };
        // Without the sender nothing is published.
        let _ = status.wait_for(settled).await;
    }
}

fn left_behind(statuses: &[watch::Receiver<RegistrationStatus>]) -> Result<(), String> {
    let left: Vec<String> = statuses
        .iter()
        .map(|status| status.borrow())
        .filter(|status| status.was_registered && status.reached != Some(Want::Gone))
        .map(|status| match &status.error {
            Some(error) => format!("{}: {error}", status.registry),
            None => status.registry.clone(),
        })
        .collect();
    if left.is_empty() {
        Ok(())
    } else {
        Err(left.join(", "))
    }
}

/// Keeps one, whose publication may be the program's own code. One that panics is an error of that
/// registration, and confirms nothing any more.
async fn keep_quietly(planned: Planned, wants: watch::Receiver<Option<Want>>, events: Events) {
    let Planned {
        publication,
        status,
    } = planned;
    let mut latest = wants.clone();
    let keeping = quietly_await(|| keep(publication, &status, wants, &events));
    let Err(panicked) = keeping.await else { return };
    let error = RegistryError {
        class: ErrorClass::Refused,
        message: panicked.to_string(),
    };
    let mut hindrance = None;
    loop {
        let want = *latest.borrow_and_update();
        status.send_modify(|status| status.want = want);
        let dead = PublicationStatus {
            reached: None,
            registered: false,
            metadata: status.borrow().metadata,
            error: Some(error.clone()),
        };
        take(&status, dead, &mut hindrance, &events);
        if latest.changed().await.is_err() {
            return;
        }
    }
}

async fn keep(
    mut publication: Box<dyn Publication>,
    status: &watch::Sender<RegistrationStatus>,
    mut wants: watch::Receiver<Option<Want>>,
    events: &Events,
) {
    let mut hindrance = None;
    loop {
        let next = tokio::select! {
            biased;
            changed = wants.changed() => match changed {
                Ok(()) => Err(*wants.borrow_and_update()),
                Err(_) => return,
            },
            next = poll_fn(|context| publication.poll_status(context)) => Ok(next),
        };
        match next {
            Err(Some(want)) => {
                publication.want(want);
                status.send_modify(|status| status.want = Some(want));
            }
            Err(None) => {}
            Ok(next) => take(status, next, &mut hindrance, events),
        }
    }
}

/// Takes a publication's news. `hindrance` is of what kind the last error was: another wording of the
/// same outage (a connection that breaks, then one that is refused) is not told again.
fn take(
    status: &watch::Sender<RegistrationStatus>,
    next: PublicationStatus,
    hindrance: &mut Option<ErrorClass>,
    events: &Events,
) {
    let (mut event, mut denied) = (None, None);
    let class = next.error.as_ref().map(|error| error.class);
    let another = std::mem::replace(hindrance, class) != class;
    status.send_if_modified(|status| {
        let before = status.clone();
        status.reached = next.reached;
        status.registered = next.registered;
        let present = matches!(next.reached, Some(Want::Present { .. }));
        status.was_registered |= next.registered || present;
        status.metadata = next.metadata;
        status.error = next.error.map(|error| error.message);
        let changed = *status != before;
        let news = status.reached != before.reached || another;
        event = status.event(&before).filter(|_| news);
        denied = (before.metadata && !status.metadata).then(|| Event::MetadataDenied {
            registry: status.registry.clone(),
        });
        changed
    });
    for event in denied.into_iter().chain(event) {
        events.emit(&event);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use lameduck_core::instance::{BootId, Life};
    use lameduck_core::registry::RegistryError;

    fn address() -> Address {
        "10.0.0.1:80".parse().expect("an address")
    }

    #[test]
    fn a_registry_that_cannot_be_reached_any_more_is_no_confirmation_and_said_once() {
        let heard: Arc<Mutex<Vec<Option<String>>>> = Arc::default();
        let ears = Arc::clone(&heard);
        let events = Events::new(vec![Arc::new(move |event: &Event| {
            if let Event::Registration { error, .. } = event {
                ears.lock().expect("no panic").push(error.clone());
            }
        })]);
        let status = watch::Sender::new(RegistrationStatus::new("etcd".to_owned(), address()));
        let want = Some(Want::Closing);
        status.send_modify(|status| status.want = want);
        let failed = |class, message: &str| {
            let message = message.to_owned();
            Some(RegistryError { class, message })
        };
        let mut hindrance = None;
        for error in [
            None,
            failed(ErrorClass::Retry, "no answer"),
            failed(ErrorClass::Retry, "refused"),
            failed(ErrorClass::Refused, "denied"),
            None,
        ] {
            let next = PublicationStatus {
                reached: want,
                registered: true,
                metadata: true,
                error,
            };
            take(&status, next, &mut hindrance, &events);
        }
        let said = |message: &str| Some(message.to_owned());
        let expected = [None, said("no answer"), said("denied"), None];
        assert_eq!(*heard.lock().expect("no panic"), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_that_outlasts_the_lease_does_not_mean_that_nothing_is_left() {
        let entry = |was_registered, reached, error: Option<&str>| {
            let mut status = RegistrationStatus::new("etcd".to_owned(), address());
            (status.was_registered, status.reached) = (was_registered, reached);
            status.error = error.map(str::to_owned);
            watch::Sender::new(status)
        };
        let silent = Some("no answer");
        let senders = [
            entry(true, Some(Want::Closing), silent),
            entry(false, None, silent),
            entry(true, Some(Want::Gone), None),
        ];
        let registrations = Registrations {
            want: watch::Sender::new(None),
            statuses: senders.iter().map(watch::Sender::subscribe).collect(),
        };
        let left = registrations.reached(Want::Gone).await;
        assert_eq!(left, Err("etcd: no answer".to_owned()));
        senders[0].send_modify(|status| status.reached = Some(Want::Gone));
        assert_eq!(registrations.reached(Want::Gone).await, Ok(()));
    }

    #[test]
    fn what_was_never_registered_is_not_confirmed_when_it_leaves() {
        let heard: Arc<Mutex<Vec<Event>>> = Arc::default();
        let ears = Arc::clone(&heard);
        let events = Events::new(vec![Arc::new(move |event: &Event| {
            ears.lock().expect("no panic").push(event.clone());
        })]);
        let status = watch::Sender::new(RegistrationStatus::new("etcd".to_owned(), address()));
        let present = Want::Present {
            life: Life::first(BootId::from_bits(1)),
            ready: true,
        };
        let mut hindrance = None;
        let mut go = |want, reached, error: Option<&str>| {
            status.send_modify(|status| status.want = Some(want));
            let next = PublicationStatus {
                reached,
                registered: false,
                metadata: true,
                error: error.map(|message| RegistryError {
                    class: ErrorClass::Retry,
                    message: message.to_owned(),
                }),
            };
            take(&status, next, &mut hindrance, &events);
        };
        go(present, None, Some("refused"));
        go(Want::Closing, Some(Want::Closing), None);
        go(Want::Gone, Some(Want::Gone), None);
        let (registry, error) = ("etcd".to_owned(), Some("refused".to_owned()));
        let failed = Event::Registration {
            registry: registry.clone(),
            address: address(),
            want: present,
            error: error.clone(),
        };
        let never = Event::NeverRegistered { registry, error };
        assert_eq!(*heard.lock().expect("no panic"), [failed, never]);
    }

    #[test]
    fn a_registry_that_takes_the_address_alone_is_told_once() {
        let heard: Arc<Mutex<Vec<Event>>> = Arc::default();
        let ears = Arc::clone(&heard);
        let events = Events::new(vec![Arc::new(move |event: &Event| {
            ears.lock().expect("no panic").push(event.clone());
        })]);
        let status = watch::Sender::new(RegistrationStatus::new("etcd".to_owned(), address()));
        let next = |registered| PublicationStatus {
            reached: None,
            registered,
            metadata: false,
            error: None,
        };
        let mut hindrance = None;
        for registered in [false, true, true] {
            take(&status, next(registered), &mut hindrance, &events);
        }
        let registry = "etcd".to_owned();
        assert_eq!(
            *heard.lock().expect("no panic"),
            [Event::MetadataDenied { registry }]
        );
        assert!(status.borrow().registered && !status.borrow().metadata);
    }
}
