//! A clock that stands: sockets go on, timers wait until the test moves time.

use std::sync::mpsc;
use std::time::Duration;

/// How long it stands if the test hangs: then time runs to the next timer, and `within` says so.
const WATCHDOG: Duration = Duration::from_secs(20);
/// tokio's timers are due at the next whole millisecond.
pub const TICK: Duration = Duration::from_millis(1);

/// Time moves by [`advance`](Self::advance) alone, on this runtime, while this is held. A process that is
/// not scheduled for a second changes nothing then.
pub struct Standing(mpsc::Sender<()>);

impl Standing {
    /// Stops the clock. For a runtime of one thread.
    pub fn begin() -> Self {
        tokio::time::pause();
        let (hold, held) = mpsc::channel::<()>();
        // Paused time runs to the next timer where nothing else is to be done, unless work blocks.
        tokio::task::spawn_blocking(move || {
            // Ended by the sender's end, which is the error, or by the watchdog.
            let _ = held.recv_timeout(WATCHDOG);
        });
        Self(hold)
    }

    /// Moves time on, by a [`TICK`] more, so that a timer of `by` is due; what is due has its turn at the
    /// next await.
    pub async fn advance(&self, by: Duration) {
        tokio::time::advance(by + TICK).await;
    }

    /// Lets time go on by itself.
    pub fn end(self) {
        drop(self.0);
        tokio::time::resume();
    }
}

#[tokio::test]
async fn time_stands_while_sockets_go_on() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::Instant;

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let standing = Standing::begin();
    let begun = Instant::now();
    let due = tokio::spawn(tokio::time::sleep(Duration::from_secs(5)));
    let mut client = TcpStream::connect(address).await.expect("it listens");
    let (mut server, _) = listener.accept().await.expect("a client");
    client.write_all(b"a").await.expect("it reads");
    assert_eq!(server.read_u8().await.expect("a byte"), b'a');
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert!(!due.is_finished());
    standing.advance(Duration::from_secs(5)).await;
    due.await.expect("no panic");
    assert_eq!(begun.elapsed(), Duration::from_secs(5) + TICK);
    standing.end();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(begun.elapsed() > Duration::from_secs(5) + TICK);
}
