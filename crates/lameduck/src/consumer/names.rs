//! Host names: at which addresses they are, now and later.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;

use lameduck_core::limits::LOOKUP_INTERVAL;
use lameduck_core::name::{Address, Host};
use tokio::time::timeout;

use super::connection::{Connection, DialConfig};
use crate::foreign::quietly_await;

/// Looks up the addresses of a host name and a port; the first that answers is used.
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

/// Connects to the first of the host's addresses that answers.
pub(super) async fn dial(
    lookup: &Lookup,
    address: &Address,
    config: &DialConfig,
) -> Result<Connection, String> {
    let name = match address.host() {
        Host::Name(name) => name,
        Host::Ip(ip) => {
            let socket = (*ip, address.port()).into();
            let dialled = Connection::dial(socket, config).await;
            return dialled.map_err(|error| error.to_string());
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
        .map_err(|error| format!("{name} cannot be looked up: {error}"))?;
    let mut why = format!("{name} has no address");
    for socket in found {
        match Connection::dial(socket, config).await {
            Ok(connection) => return Ok(connection),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}

/// Asks the resolver, which may be the program's own code: one that panics has not found the name.
async fn asked(lookup: &Lookup, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found = quietly_await(|| lookup(name.to_owned(), port)).await;
    found.unwrap_or_else(|panicked| Err(io::Error::other(panicked.to_string())))
}

/// Looks the host's name up again and again until `ended` resolves, and tells each time whether
/// `socket` is still among its addresses. A name that cannot be looked up, or has no address at
/// all, tells nothing: an error is never an empty list.
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
        let found = asked(&lookup, name, address.port()).await;
        let found = found.unwrap_or_default();
        if !found.is_empty() {
            tell(found.contains(&socket));
        }
    }
}
