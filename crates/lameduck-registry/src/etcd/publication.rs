//! One process's presence: the session machine and its effects.

use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use lameduck_core::machine::Ticket;
use lameduck_core::registry::{Publication, PublicationStatus, Registration, Want};
use lameduck_core::rng::Rng;
use lameduck_core::session::{Input, LeaseId, Output, Session};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio_stream::wrappers::WatchStream;

use super::client::{Client, Error};
use super::keys::Keys;
use crate::driver::{Clock, Effects, drive};

struct Runner {
    client: Client,
    registration: Registration,
    ttl: Duration,
    inputs: mpsc::UnboundedSender<Input>,
    /// Everything under way; ends with the publication.
    tasks: JoinSet<()>,
    status: watch::Sender<PublicationStatus>,
}

impl Effects<Output> for Runner {
    fn perform(&mut self, output: Output) -> ControlFlow<()> {
        while self.tasks.try_join_next().is_some() {}
        match output {
            Output::Status(status) => drop(self.status.send_replace(status)),
            Output::Grant { ticket } => self.grant(ticket),
            Output::Renew { ticket, lease } => self.renew(ticket, lease),
            Output::Put {
                ticket,
                lease,
                life,
                ready,
                records,
            } => {
                let keys = self.keys(lease);
                self.run(ticket, async move {
                    keys.put(life, ready, records).await?;
                    Ok(Input::Done { ticket })
                });
            }
            Output::PutClosing {
                ticket,
                lease,
                life,
            } => {
                let keys = self.keys(lease);
                self.run(ticket, async move {
                    keys.put_closing(life).await?;
                    Ok(Input::Done { ticket })
                });
            }
            Output::Check {
                ticket,
                lease,
                ready,
                records,
            } => {
                let keys = self.keys(lease);
                self.run(ticket, async move {
                    let intact = keys.check(ready, records).await?;
                    Ok(Input::Checked { ticket, intact })
                });
            }
            Output::Revoke { ticket, lease } => {
                let client = self.client.clone();
                self.run(ticket, async move {
                    client.revoke(lease).await?;
                    Ok(Input::Done { ticket })
                });
            }
        }
        ControlFlow::Continue(())
    }
}

impl Runner {
    fn keys(&self, lease: LeaseId) -> Keys {
        Keys {
            client: self.client.clone(),
            registration: self.registration.clone(),
            lease,
        }
    }

    fn grant(&mut self, ticket: Ticket) {
        let (client, ttl) = (self.client.clone(), self.ttl);
        self.run(ticket, async move {
            let (lease, ttl) = client.grant(ttl).await?;
            Ok(Input::Granted { ticket, lease, ttl })
        });
    }

    fn renew(&mut self, ticket: Ticket, lease: LeaseId) {
        let client = self.client.clone();
        self.run(ticket, async move {
            let ttl = client.renew(lease).await?;
            Ok(Input::Renewed { ticket, ttl })
        });
    }

    fn run(
        &mut self,
        ticket: Ticket,
        work: impl Future<Output = Result<Input, Error>> + Send + 'static,
    ) {
        let inputs = self.inputs.clone();
        self.tasks.spawn(async move {
            let input = match work.await {
                Ok(input) => input,
                Err(Error::LeaseGone) => Input::LeaseGone { ticket },
                Err(error) => Input::Failed {
                    ticket,
                    error: error.into_registry(),
                },
            };
            // Fails only where the publication has just been dropped.
            let _ = inputs.send(input);
        });
    }
}

/// A publication that is kept right by a task of its own, which ends with it.
#[derive(Debug)]
pub(super) struct Published {
    /// Unbounded: the session has at most two pieces of work under way, and its owner says what is
    /// wanted a few times in its life.
    inputs: mpsc::UnboundedSender<Input>,
    status: WatchStream<PublicationStatus>,
    task: AbortHandle,
}

impl Published {
    pub(super) fn start(
        client: Client,
        registration: Registration,
        ttl: Duration,
        seed: u64,
    ) -> Self {
        let (inputs, receiver) = mpsc::unbounded_channel();
        let (sender, status) = watch::channel(Session::initial_status());
        let runner = Runner {
            client,
            registration,
            ttl,
            inputs: inputs.clone(),
            tasks: JoinSet::new(),
            status: sender,
        };
        let session = Session::new(Rng::from_seed(seed));
        let task = drive(session, Clock::start(), receiver, runner);
        let task = tokio::spawn(async { drop(task.await) }).abort_handle();
        let status = WatchStream::new(status);
        Self {
            inputs,
            status,
            task,
        }
    }
}

impl Publication for Published {
    fn want(&mut self, want: Want) {
        // The task outlives every call: it ends when this value is dropped.
        let _ = self.inputs.send(Input::Want(want));
    }

    fn poll_status(&mut self, context: &mut Context<'_>) -> Poll<PublicationStatus> {
        match Pin::new(&mut self.status).poll_next(context) {
            Poll::Ready(Some(status)) => Poll::Ready(status),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.task.abort();
    }
}
