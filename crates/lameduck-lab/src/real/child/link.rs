//! Slow links: a relay in front of each server that reads its answers at a fixed rate.
//!
//! It takes little from the server at once, so that what is not on its way yet waits in the server's
//! kernel. Loopback hides that: there every answer has left as soon as it is written.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

use super::super::control::Word;
use super::super::limits::{LINK_BUFFER, LINK_RATE};
use super::super::spec::LinkSpec;
use super::ChildError;

/// Bytes that go by at once: a few milliseconds of the rate, so that it is even.
const PIECE: usize = 16 * 1024;

/// Carries every connection until told to stop.
pub(super) async fn run(
    links: &[LinkSpec],
    mut words: UnboundedReceiver<Word>,
) -> Result<u8, ChildError> {
    for link in links {
        let listener = TcpListener::bind(link.listen).await?;
        tokio::spawn(accept(listener, link.to));
    }
    words.recv().await;
    Ok(0)
}

async fn accept(listener: TcpListener, to: SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((caller, _)) => drop(tokio::spawn(carry(caller, to))),
            // No descriptor is free: connections end all the time.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// One connection, until both directions have ended or one has broken. A server that does not listen
/// is a connection that ends at once.
async fn carry(caller: TcpStream, to: SocketAddr) {
    if let Ok(server) = connect(to).await {
        let (from_caller, to_caller) = caller.into_split();
        let (from_server, to_server) = server.into_split();
        // Either ends the other where it breaks: both halves of a broken connection are of no use.
        let _ = tokio::try_join!(
            forward(from_caller, to_server, None),
            forward(from_server, to_caller, Some(LINK_RATE)),
        );
    }
}

async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(LINK_BUFFER)?;
    let server = socket.connect(to).await?;
    server.set_nodelay(true)?;
    Ok(server)
}

/// Passes bytes on, at so many a second at most, and then the end.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    rate: Option<u32>,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    let mut next = Instant::now();
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        if let Some(rate) = rate {
            // What has not been used of the rate is gone: a link stores nothing.
            next = next.max(Instant::now()) + Duration::from_secs(1) * length as u32 / rate;
        }
        to.write_all(&piece[..length]).await?;
        tokio::time::sleep_until(next).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that has closed is a connection that ends, and what it wrote before arrives whole.
    #[tokio::test]
    async fn a_link_carries_everything_and_then_the_end() {
        let server = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let to = server.local_addr().expect("bound");
        let at = listener.local_addr().expect("bound");
        let link = tokio::spawn(accept(listener, to));
        let mut caller = TcpStream::connect(at).await.expect("a link");
        let (mut served, _) = server.accept().await.expect("the link connects");
        drop(server);
        let answer = vec![7; 200_000];
        let writing = async {
            served.write_all(&answer).await.expect("written");
            drop(served);
        };
        let mut got = Vec::new();
        let reading = caller.read_to_end(&mut got);
        let ((), read) = tokio::join!(writing, reading);
        assert_eq!(read.expect("an end"), answer.len());
        assert_eq!(got, answer);
        let mut late = TcpStream::connect(at).await.expect("a link");
        let read = late.read_to_end(&mut got).await;
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
        link.abort();
    }
}
