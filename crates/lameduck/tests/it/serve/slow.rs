//! Clients that take their time: what was answered reaches them, and nobody else waits for it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, Sleep, sleep};

use super::start::{Running, head, rest, say, start, within};

/// What a paced client reads at once.
const PIECE_BYTES: usize = 64 << 10;
/// Its pause between two pieces: 6 MB/s with it.
const PAUSE: Duration = Duration::from_millis(10);
/// More than one closing connection is kept for without asking the kernel, at that pace.
const LARGE: usize = 3 << 20;
/// More than both kernels hold of a connection: hyper holds the rest.
const LARGER: usize = 12 << 20;

/// A socket whose kernel holds little of what was not read.
async fn narrow(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(64 << 10).expect("a socket");
    socket.connect(address).await.expect("it listens")
}

/// A socket that is read at a pace.
struct Paced {
    socket: TcpStream,
    pause: Pin<Box<Sleep>>,
}

impl Paced {
    async fn connect(address: SocketAddr) -> Self {
        Self {
            socket: narrow(address).await,
            pause: Box::pin(sleep(Duration::ZERO)),
        }
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.pause.as_mut().poll(context));
        let mut piece = vec![0; PIECE_BYTES.min(buffer.remaining())];
        let mut part = ReadBuf::new(&mut piece);
        ready!(Pin::new(&mut self.socket).poll_read(context, &mut part))?;
        buffer.put_slice(part.filled());
        self.pause.as_mut().reset(Instant::now() + PAUSE);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Paced {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

fn router() -> Router {
    Router::new()
        .route("/large", get(|| async { vec![7; LARGE] }))
        .route("/larger", get(|| async { vec![7; LARGER] }))
}

/// How the server leaves while an answer is on its way.
#[derive(Clone, Copy, Debug)]
enum Leaving {
    /// Draining.
    Stops,
    /// Closing: the first GOAWAY of connections that existed.
    Hints,
}

impl Leaving {
    async fn begin(self, server: &Running) {
        server.control.announce();
        server.control.go_away_existing(Duration::ZERO);
        if matches!(self, Self::Stops) {
            within(server.control.close_listener()).await;
            server.control.go_away_all(Duration::from_secs(1));
            server.control.close_gate();
        }
    }
}

/// Reads an answer over HTTP/2 with windows as lameduck's callers have them; what arrived of it.
async fn by_http2(leaving: Leaving, path: &str) -> usize {
    let server = start(router());
    let io = Paced::connect(server.address).await;
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(2 << 20)
        .initial_connection_window_size(5 << 20);
    let (client, connection) = builder
        .handshake::<_, bytes::Bytes>(io)
        .await
        .expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let mut client = within(client.ready()).await.expect("a stream");
    let request = http::Request::get(format!("http://test{path}"));
    let (answer, _) = client
        .send_request(request.body(()).expect("a request"), true)
        .expect("a stream");
    let mut body = within(answer).await.expect("a head").into_body();
    server.idle_after(1).await;
    leaving.begin(&server).await;
    let mut got = 0;
    while let Some(data) = within(body.data()).await {
        let Ok(data) = data else { break };
        got += data.len();
        body.flow_control()
            .release_capacity(data.len())
            .expect("it was received");
    }
    drop(client);
    connection.abort();
    if matches!(leaving, Leaving::Stops) {
        server.end().await;
    }
    got
}

#[tokio::test]
async fn s1_an_answer_in_the_kernels_queue_arrives_whole() {
    for leaving in [Leaving::Stops, Leaving::Hints] {
        assert_eq!(by_http2(leaving, "/large").await, LARGE, "{leaving:?}");
    }
}

#[tokio::test]
async fn s28_an_answer_in_one_piece_arrives_whole_over_http1() {
    for (leaving, path, whole) in [
        (Leaving::Stops, "/larger", LARGER),
        (Leaving::Stops, "/large", LARGE),
        (Leaving::Hints, "/larger", LARGER),
    ] {
        let server = start(router());
        let mut socket = Paced::connect(server.address).await;
        say(
            &mut socket.socket,
            &format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"),
        )
        .await;
        head(&mut socket.socket).await;
        leaving.begin(&server).await;
        let mut got = 0;
        let mut piece = vec![0; PIECE_BYTES];
        // On a connection that was not told the client ends.
        while got < whole {
            let read = tokio::io::AsyncReadExt::read(&mut socket, &mut piece);
            let count = within(read).await.expect("no reset");
            assert!(count > 0, "{leaving:?} {path}: {got} of {whole}");
            got += count;
            // Its last bytes are out before its process may end.
            if got < whole / 2 {
                assert!(!server.ended.is_finished(), "{leaving:?} {path}: {got}");
            }
        }
        if matches!(leaving, Leaving::Stops) {
            assert_eq!(rest(&mut socket.socket).await.expect("FIN"), b"");
            server.end().await;
        }
    }
}

#[tokio::test]
async fn s1_a_client_that_reads_nothing_is_counted_until_it_is_cut() {
    let server = start(router());
    let mut one = narrow(server.address).await;
    say(
        &mut one,
        "GET /large HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
    )
    .await;
    // Whatever it is that still holds bytes: a permit, or the connection.
    let owed = async |server: &Running| {
        within(async {
            while server.gate.in_flight().total + server.control.connections().owing as u64 != 1
                || server.gate.admitted() == 0
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    };
    owed(&server).await;
    Leaving::Stops.begin(&server).await;
    within(server.control.final_goaways(Duration::ZERO)).await;
    owed(&server).await;
    assert!(!server.ended.is_finished());
    server.control.cut();
    server.end().await;
}

#[tokio::test]
async fn s1_idle_clients_that_never_close_are_not_waited_for() {
    let server = start(router().route("/", get(|| async { "hello" })));
    let mut idle = Vec::new();
    for _ in 0..20 {
        let mut socket = server.connect().await;
        say(&mut socket, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        head(&mut socket).await;
        idle.push(socket);
        // Silent, and HTTP/2 that reads nothing.
        idle.push(server.connect().await);
        let mut socket = server.connect().await;
        socket
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
            .await
            .expect("it listens");
        idle.push(socket);
    }
    server.idle_after(20).await;
    Leaving::Stops.begin(&server).await;
    // Within the time of a hang, which is shorter than a stalled client's.
    server.end().await;
    drop(idle);
}

#[tokio::test]
async fn s1_an_upload_without_end_after_the_answer_does_not_stop_the_runtime() {
    let router = Router::new().route("/", axum::routing::post(|| async { "no" }));
    let server = start(router);
    let address = server.address;
    let client = std::thread::spawn(move || {
        use std::io::Write;
        let mut socket = std::net::TcpStream::connect(address).expect("it listens");
        let head = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999\r\n\r\n";
        socket.write_all(head.as_bytes()).expect("it reads");
        let piece = vec![0; 1 << 20];
        (0..64)
            .take_while(|_| socket.write_all(&piece).is_ok())
            .count()
    });
    within(tokio::task::spawn_blocking(move || client.join()))
        .await
        .expect("no panic")
        .expect("no panic");
}
