//! A fixed list of addresses, as a registry.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lameduck_core::instance::{Incarnation, Instance};
use lameduck_core::limits;
use lameduck_core::name::{Address, ServiceName};
use lameduck_core::registry::{
    Connect, Entry, EntryId, ErrorClass, Publication, PublicationStatus, Registration, Registry,
    RegistryError, Subscription, Update, Want,
};

/// Just these addresses, whatever the service. Nothing is known about them before a connection
/// tells more.
#[derive(Clone, Debug)]
pub struct Direct {
    entries: Vec<Entry>,
}

impl Direct {
    /// A list of these addresses, in this order; an address that comes twice counts once.
    pub fn new(addresses: impl IntoIterator<Item = Address>) -> Self {
        let mut entries: Vec<Entry> = Vec::new();
        for (id, address) in (1..).zip(addresses) {
            if entries
                .iter()
                .all(|entry| entry.instance.address != address)
            {
                let instance = Instance::new(address, Incarnation::Unknown);
                entries.push(Entry {
                    id: EntryId(id),
                    instance,
                });
            }
        }
        Self { entries }
    }
}

impl Registry for Direct {
    /// Nobody is told anything by a fixed list: the time is that of a process without registry.
    fn propagation(&self) -> Duration {
        limits::FLOOR_NONE
    }

    /// `false`: it is written down where it is read, so nothing can be added.
    fn takes_registrations(&self) -> bool {
        false
    }

    /// Does nothing and says that it is done.
    fn publish(&self, _: Registration) -> Box<dyn Publication> {
        Box::new(Unpublished {
            want: None,
            told: false,
            waker: None,
        })
    }

    fn subscribe(&self, _: &ServiceName) -> Box<dyn Subscription> {
        Box::new(Fixed {
            entries: Some(self.entries.clone()),
        })
    }
}

/// Connects `direct:///host:port,host:port`.
pub(crate) fn connector() -> Arc<Connect> {
    Arc::new(|target| {
        let addresses = target.addresses().map_err(|error| RegistryError {
            class: ErrorClass::Refused,
            message: error.to_string(),
        })?;
        Ok(Arc::new(Direct::new(addresses)) as Arc<dyn Registry>)
    })
}

struct Unpublished {
    want: Option<Want>,
    told: bool,
    waker: Option<Waker>,
}

impl Publication for Unpublished {
    fn want(&mut self, want: Want) {
        if self.want == Some(Want::Gone) || self.want == Some(want) {
            return;
        }
        self.want = Some(want);
        self.told = false;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn poll_status(&mut self, context: &mut Context<'_>) -> Poll<PublicationStatus> {
        if self.told {
            self.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        self.told = true;
        Poll::Ready(PublicationStatus {
            reached: self.want,
            registered: matches!(self.want, Some(Want::Present { .. })),
            metadata: true,
            error: None,
        })
    }
}

struct Fixed {
    entries: Option<Vec<Entry>>,
}

impl Subscription for Fixed {
    fn poll_update(&mut self, _: &mut Context<'_>) -> Poll<Option<Update>> {
        let entries = self.entries.take();
        Poll::Ready(entries.map(|entries| Update::Reset {
            entries,
            revision: 0,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[tokio::test]
    async fn a_fixed_list_is_told_once() {
        let schemes = crate::builtin();
        let target = "direct:///127.0.0.1:1,h:2,127.0.0.1:1"
            .parse()
            .expect("a target");
        let direct = schemes.connect(&target).expect("addresses");
        let mut list = direct.subscribe(&"any".parse().expect("a name"));
        let first = poll_fn(|context| list.poll_update(context)).await;
        let Some(Update::Reset {
            entries,
            revision: 0,
        }) = first
        else {
            panic!("{first:?}")
        };
        let told: Vec<_> = entries
            .iter()
            .map(|entry| {
                (
                    entry.id.0,
                    entry.instance.address.to_string(),
                    entry.instance.incarnation,
                )
            })
            .collect();
        let unknown = Incarnation::Unknown;
        assert_eq!(
            told,
            [
                (1, "127.0.0.1:1".into(), unknown),
                (2, "h:2".into(), unknown)
            ]
        );
        assert_eq!(poll_fn(|context| list.poll_update(context)).await, None);
    }

    #[tokio::test]
    async fn nothing_to_publish_is_reached_at_once() {
        let direct = Direct::new([]);
        let instance = Instance::new("h:1".parse().expect("an address"), Incarnation::Unknown);
        let mut publication = direct.publish(Registration {
            services: vec![],
            instance,
        });
        publication.want(Want::Closing);
        let status = poll_fn(|context| publication.poll_status(context)).await;
        assert_eq!(status.reached, Some(Want::Closing));
        publication.want(Want::Gone);
        publication.want(Want::Closing);
        let status = poll_fn(|context| publication.poll_status(context)).await;
        assert_eq!(
            (status.reached, status.registered),
            (Some(Want::Gone), false)
        );
    }
}
