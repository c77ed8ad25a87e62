//! Dialling: which address of which host takes a connection.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::uri::Authority;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use lameduck_core::limits;
use lameduck_core::name::{Address, Host};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic::body::Body;

/// Looks up the addresses of a host name and a port.
pub(super) type Lookup = Arc<dyn Fn(String, u16) -> Found + Send + Sync>;
type Found = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// The system's resolver.
pub(super) fn system() -> Lookup {
    Arc::new(|name, port| {
        Box::pin(async move { Ok(tokio::net::lookup_host((name, port)).await?.collect()) })
    })
}

/// A connection that was made.
pub(super) struct Dialled {
    /// Which host, and at which of its addresses.
    pub(super) host: usize,
    pub(super) address: SocketAddr,
    pub(super) sender: SendRequest<Body>,
    pub(super) authority: Authority,
    pub(super) life: Life,
}

/// Runs all tasks of one connection, and ends them all at once. hyper gives the connection itself to a
/// task of its own, which ends only with its last stream.
#[derive(Clone, Debug)]
pub(super) struct Life(watch::Sender<bool>);

impl Life {
    fn begin() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Closes the connection now; everything on it fails.
    pub(super) fn end(&self) {
        self.0.send_replace(true);
    }
}

impl<F> Executor<F> for Life
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        let mut is_over = self.0.subscribe();
        tokio::spawn(async move {
            let over = async {
                // Where nobody can end it any more, it ends by itself.
                if is_over.wait_for(|is_over| *is_over).await.is_err() {
                    pending::<()>().await;
                }
            };
            tokio::select! {
                () = over => {}
                _ = task => {}
            }
        });
    }
}

/// One thing to try.
#[derive(Clone, Copy)]
enum Step {
    Host(usize),
    Address(usize, SocketAddr),
}

/// What became of it.
enum Outcome {
    Found(usize, Result<Vec<SocketAddr>, Status>),
    Dialled(Result<Dialled, Status>),
}

/// What is still to be tried, in order.
struct Plan {
    steps: VecDeque<Step>,
    /// Tried after everything else.
    shunned: Option<SocketAddr>,
    last: VecDeque<Step>,
    seen: BTreeSet<SocketAddr>,
}

impl Plan {
    /// The addresses of a host, which come next.
    fn add(&mut self, host: usize, found: Vec<SocketAddr>) {
        let new = found
            .into_iter()
            .filter(|address| self.seen.insert(*address))
            .take(limits::DIAL_ADDRESSES_MAX);
        let new: Vec<SocketAddr> = new.collect();
        for address in new.into_iter().rev() {
            let step = Step::Address(host, address);
            if self.shunned == Some(address) {
                self.last.push_back(step);
            } else {
                self.steps.push_front(step);
            }
        }
    }

    fn next(&mut self) -> Option<Step> {
        self.steps.pop_front().or_else(|| self.last.pop_front())
    }

    fn is_done(&self) -> bool {
        self.steps.is_empty() && self.last.is_empty()
    }

    /// Addresses that were there to choose from.
    fn choice(&self) -> usize {
        self.seen.len()
    }
}

/// The first address of any host that takes a connection, and how many addresses were found on the
/// way. One that says no is followed by the next at once, one that says nothing has the next tried
/// beside it; so with look-ups.
pub(super) async fn dial_any(
    hosts: &[Address],
    lookup: &Lookup,
    first: usize,
    shunned: Option<SocketAddr>,
) -> Result<(Dialled, usize), Status> {
    let order = (0..hosts.len()).map(|n| Step::Host((first + n) % hosts.len()));
    let mut plan = Plan {
        steps: order.collect(),
        shunned,
        last: VecDeque::new(),
        seen: BTreeSet::new(),
    };
    let mut running = FuturesUnordered::new();
    let mut failure = Status::unavailable("etcd: no host is known");
    loop {
        if let Some(step) = plan.next() {
            running.push(run(hosts, lookup, step));
        }
        let next = tokio::select! {
            next = running.next() => next,
            () = sleep(limits::REGISTRY_DIAL_STAGGER), if !plan.is_done() => continue,
        };
        match next {
            Some(Outcome::Dialled(Ok(dialled))) => return Ok((dialled, plan.choice())),
            Some(Outcome::Found(host, Ok(found))) => plan.add(host, found),
            Some(Outcome::Dialled(Err(error)) | Outcome::Found(_, Err(error))) => failure = error,
            None => return Err(failure),
        }
    }
}

async fn run(hosts: &[Address], lookup: &Lookup, step: Step) -> Outcome {
    match step {
        Step::Host(host) => Outcome::Found(host, find(&hosts[host], lookup).await),
        Step::Address(host, address) => Outcome::Dialled(dial(&hosts[host], host, address).await),
    }
}

async fn find(host: &Address, lookup: &Lookup) -> Result<Vec<SocketAddr>, Status> {
    let name = match host.host() {
        Host::Ip(ip) => return Ok(vec![SocketAddr::new(*ip, host.port())]),
        Host::Name(name) => name.as_str().to_owned(),
    };
    let away = |why: &dyn fmt::Display| Status::unavailable(format!("etcd {host}: {why}"));
    let found = timeout(limits::REGISTRY_DIAL_MAX, lookup(name, host.port())).await;
    match found {
        Ok(Ok(found)) if found.is_empty() => Err(away(&"the name has no address")),
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(away(&error)),
        Err(_) => {
            let why = format!("no address within {:?}", limits::REGISTRY_DIAL_MAX);
            Err(away(&why))
        }
    }
}

async fn dial(host: &Address, number: usize, address: SocketAddr) -> Result<Dialled, Status> {
    let whom = match host.host() {
        Host::Ip(_) => host.to_string(),
        Host::Name(_) => format!("{host} ({})", address.ip()),
    };
    let away = |why: &dyn fmt::Display| Status::unavailable(format!("etcd {whom}: {why}"));
    let life = Life::begin();
    let connect = async {
        let stream = TcpStream::connect(address).await;
        let stream = stream.map_err(|error| away(&error))?;
        stream.set_nodelay(true).map_err(|error| away(&error))?;
        http2::Builder::new(life.clone())
            .timer(TokioTimer::new())
            .initial_stream_window_size(limits::WINDOW_BYTES)
            .initial_connection_window_size(limits::WINDOW_BYTES)
            .keep_alive_interval(limits::REGISTRY_PING_INTERVAL)
            .keep_alive_timeout(limits::REGISTRY_PING_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| away(&error))
    };
    let (sender, connection) = match timeout(limits::REGISTRY_DIAL_MAX, connect).await {
        Ok(connected) => connected?,
        Err(_) => {
            let why = format!("no connection within {:?}", limits::REGISTRY_DIAL_MAX);
            return Err(away(&why));
        }
    };
    let authority = Authority::try_from(host.to_string()).map_err(|error| away(&error))?;
    // Ends with the last sender and the last stream; its error is told by each of its streams.
    life.execute(connection);
    Ok(Dialled {
        host: number,
        address,
        sender,
        authority,
        life,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};

    fn any() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind(any()).await.expect("a port");
        let address = listener.local_addr().expect("bound");
        (listener, address)
    }

    /// Bound and not listening: refused, and nobody else's.
    fn refusing() -> (TcpSocket, SocketAddr) {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(any()).expect("a port");
        let address = socket.local_addr().expect("bound");
        (socket, address)
    }

    /// Drops what comes, as a node does that has died: its queue is full.
    async fn dropping() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(any()).expect("a port");
        // The kernel takes one more than it is asked for.
        let listener = socket.listen(1).expect("it listens");
        let address = listener.local_addr().expect("bound");
        let mut queue = Vec::new();
        for _ in 0..2 {
            queue.push(TcpStream::connect(address).await.expect("room"));
        }
        (listener, queue, address)
    }

    fn names(found: &[(&'static str, Vec<SocketAddr>)]) -> Lookup {
        let found = found.to_vec();
        Arc::new(move |name, _| {
            let mut found = found.iter().filter(|(known, _)| *known == name);
            let found = found.next().map(|(_, found)| found.clone());
            Box::pin(async move {
                match found {
                    // No resolver answers.
                    Some(found) if found.is_empty() => pending().await,
                    found => found.ok_or_else(|| io::Error::other("no such name")),
                }
            })
        })
    }

    fn host(text: &str) -> Address {
        text.parse().expect("an address")
    }

    #[tokio::test]
    async fn b5_one_dead_host_of_two_is_no_failure() {
        let (_gone, gone) = refusing();
        let (_alive, address) = listener().await;
        let hosts = [Address::from(gone), Address::from(address)];
        let lookup = names(&[]);
        let (dialled, _) = dial_any(&hosts, &lookup, 0, None)
            .await
            .expect("the second answers");
        assert_eq!(
            (dialled.host, dialled.authority.as_str()),
            (1, address.to_string().as_str())
        );
        let error = dial_any(&hosts[..1], &lookup, 0, None).await.err();
        let error = error.expect("nobody answers");
        assert!(error.message().contains("etcd 127.0.0.1:"), "{error}");
    }

    #[tokio::test]
    async fn r9_all_addresses_of_all_names_are_tried() {
        let (_alive, alive) = listener().await;
        let (_gone, gone) = refusing();
        let (_listener, _queue, silent) = dropping().await;
        let (_other, _queue2, mute) = dropping().await;
        let lookup = names(&[
            ("etcd", vec![silent, alive]),
            ("mixed", vec![gone, silent, gone, mute, alive]),
            ("silent", vec![silent, mute]),
            ("gone", vec![gone]),
            ("unanswered", vec![]),
        ]);
        let tries: &[&[&str]] = &[
            &["etcd:2379"],
            &["mixed:2379"],
            &["silent:2379", "gone:2379", "etcd:2379"],
            &["unanswered:2379", "unknown:2379", "etcd:2379"],
        ];
        for hosts in tries {
            let hosts: Vec<Address> = hosts.iter().map(|text| host(text)).collect();
            let (dialled, _) = dial_any(&hosts, &lookup, 0, None)
                .await
                .expect("one answers");
            assert_eq!(dialled.address, alive, "{hosts:?}");
            // As the user wrote it: a proxy or a certificate may need the name.
            assert_eq!(dialled.authority.as_str(), hosts[dialled.host].to_string());
        }
        let error = dial_any(&[host("unknown:2379")], &lookup, 0, None).await;
        let error = error.err().expect("there is nothing");
        assert_eq!(error.message(), "etcd unknown:2379: no such name");
        let error = dial_any(&[host("gone:2379")], &lookup, 0, None).await;
        let error = error.err().expect("nobody answers");
        assert!(
            error.message().starts_with("etcd gone:2379 (127.0.0.1): "),
            "{error}"
        );
    }

    #[tokio::test]
    async fn r9_the_address_that_failed_is_tried_last() {
        let ((_one, one), (_two, two)) = (listener().await, listener().await);
        let lookup = names(&[("etcd", vec![one, two])]);
        let hosts = [host("etcd:2379")];
        for (shunned, wanted) in [(None, one), (Some(one), two), (Some(two), one)] {
            let dialled = dial_any(&hosts, &lookup, 0, shunned).await;
            let (dialled, choice) = dialled.expect("both answer");
            assert_eq!((dialled.address, choice), (wanted, 2), "{shunned:?}");
        }
        // Where there is nothing else, it is better than nothing.
        let alone = names(&[("etcd", vec![one])]);
        let dialled = dial_any(&hosts, &alone, 0, Some(one)).await;
        assert_eq!(dialled.expect("it answers").0.address, one);
    }
}
