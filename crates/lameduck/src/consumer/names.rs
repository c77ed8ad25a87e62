//! Host names: at which addresses they are, now and later.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use lameduck_core::limits::{DIAL_ADDRESSES_MAX, DIAL_STAGGER, LOOKUP_INTERVAL};
use lameduck_core::name::{Address, Host};
use tokio::time::timeout;

use super::connection::{Connection, DialConfig, DialError, DialFailure};
use super::descriptors::is_starved;
use crate::foreign::quietly_await;

/// Looks up the addresses of a host name and a port; all are tried, and the first that answers is used.
pub type Lookup = Arc<dyn Fn(String, u16) -> Found + Send + Sync>;

/// What a [`Lookup`] resolves with.
pub type Found = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// The system's resolver, as in `/etc/hosts` and `/etc/resolv.conf`.
pub(crate) fn system() -> Lookup {
    Arc::new(|name, port| {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name, port)).await?;
            Ok(found.collect())
        })
    })
}

/// A dial of an endpoint that failed.
#[derive(Debug)]
pub(super) struct DialFailed {
    /// What happened, in words.
    pub(super) why: String,
    /// Nothing listens there, at any of its addresses.
    pub(super) refused: bool,
    /// The process has no descriptor for it.
    pub(super) starved: bool,
}

impl From<String> for DialFailed {
    fn from(why: String) -> Self {
        Self {
            why,
            refused: false,
            starved: false,
        }
    }
}

impl From<DialError> for DialFailed {
    fn from(error: DialError) -> Self {
        Self {
            why: error.to_string(),
            refused: error.failure == DialFailure::Refused,
            starved: error.failure == DialFailure::NoDescriptor,
        }
    }
}

/// Connects to the first of the host's addresses that answers.
pub(super) async fn dial(
    lookup: &Lookup,
    address: &Address,
    config: &DialConfig,
) -> Result<Connection, DialFailed> {
    let name = match address.host() {
        Host::Name(name) => name,
        Host::Ip(ip) => {
            let socket = (*ip, address.port()).into();
            return Ok(Connection::dial(socket, config).await?);
        }
    };
    // The system's resolver waits far longer for a name server that is away than a dial may take.
    let found = timeout(config.deadline, asked(lookup, name, address.port()))
        .await
        .map_err(|_| {
            format!(
                "{name} cannot be looked up: no answer in {:?}",
                config.deadline
            )
        })?
        .map_err(|error| DialFailed {
            why: format!("{name} cannot be looked up: {error}"),
            refused: false,
            starved: is_starved(&error),
        })?;
    let none = || DialFailed::from(format!("{name} has no address"));
    dial_each(found, config)
        .await
        .map_err(|why| why.unwrap_or_else(none))
}

/// Dials one address after the other, the next one as soon as the last has failed, or beside those that
/// have not answered for [`DIAL_STAGGER`]; an address that drops packets costs no more than that. The
/// first that answers is used, and the others are given up. Without one: why the last failed.
async fn dial_each(
    found: Vec<SocketAddr>,
    config: &DialConfig,
) -> Result<Connection, Option<DialFailed>> {
    let mut found = found.into_iter().take(DIAL_ADDRESSES_MAX);
    let mut dials = FuturesUnordered::new();
    let mut failed: Option<DialFailed> = None;
    loop {
        let next = found.next();
        let is_last = next.is_none();
        dials.extend(next.map(|socket| Connection::dial(socket, config)));
        let outcome = if is_last {
            dials.next().await
        } else {
            match timeout(DIAL_STAGGER, dials.next()).await {
                Ok(outcome) => outcome,
                Err(_) => continue,
            }
        };
        match outcome {
            None if is_last => return Err(failed),
            None => {}
            Some(Ok(connection)) => return Ok(connection),
            Some(Err(error)) => {
                let last = DialFailed::from(error);
                let all_refused = failed.as_ref().is_none_or(|one| one.refused);
                failed = Some(DialFailed {
                    refused: last.refused && all_refused,
                    ..last
                });
            }
        }
    }
}

/// Asks the resolver, which may be the program's own code: one that panics has not found the name.
async fn asked(lookup: &Lookup, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found = quietly_await(|| lookup(name.to_owned(), port)).await;
    found.unwrap_or_else(|panicked| Err(io::Error::other(panicked.to_string())))
}

/// Looks the host's name up again and again until `ended` resolves, and tells each time whether
/// `socket` is still among its addresses. A name that cannot be looked up, or has no address at
/// all, tells nothing: an error is never an empty list. A look-up that does not end is given up, with the
/// connection at the latest.
pub(super) async fn follow(
    lookup: Lookup,
    address: Address,
    socket: SocketAddr,
    ended: impl Future,
    tell: impl Fn(bool),
) {
    let Host::Name(name) = address.host() else {
        return;
    };
    let mut ended = pin!(ended);
    while timeout(LOOKUP_INTERVAL, &mut ended).await.is_err() {
        let found = timeout(LOOKUP_INTERVAL, asked(&lookup, name, address.port()));
        let Either::Left((found, _)) = select(pin!(found), &mut ended).await else {
            return;
        };
        let found = found.ok().and_then(Result::ok).unwrap_or_default();
        if !found.is_empty() {
            tell(found.contains(&socket));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use tokio::sync::{mpsc, oneshot};

    #[tokio::test(start_paused = true)]
    async fn r23_a_look_up_that_never_ends_is_given_up_with_its_connection_at_the_latest() {
        let (asked, mut asks) = mpsc::unbounded_channel();
        let lookup: Lookup = Arc::new(move |_, _| {
            asked.send(()).expect("it is awaited");
            Box::pin(pending::<io::Result<Vec<SocketAddr>>>())
        });
        let (end, ended) = oneshot::channel::<()>();
        let address = "orders.test:80".parse().expect("an address");
        let socket = "127.0.0.1:80".parse().expect("an address");
        let following = tokio::spawn(follow(lookup, address, socket, ended, |_| {}));
        // One that hangs does not keep the next one from being made.
        asks.recv().await.expect("it is looked up");
        asks.recv().await.expect("it is looked up again");
        drop(end);
        let bound = timeout(LOOKUP_INTERVAL / 2, following).await;
        bound.expect("it ends").expect("no panic");
    }
}
