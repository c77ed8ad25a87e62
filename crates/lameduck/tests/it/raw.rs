//! An HTTP/2 server of frames: says exactly what a test wants said, when it wants it.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const GOAWAY: u8 = 7;

pub const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

pub const MAX_CONCURRENT_STREAMS: u16 = 3;
pub const LAST_STREAM_MAX: u32 = 0x7fff_ffff;

/// HPACK: `:status: 200` is entry 8 of the static table.
const STATUS_200: u8 = 0x88;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// Reads one; `None` at the end.
    pub async fn read(socket: &mut TcpStream) -> Option<Self> {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        socket.read_exact(&mut payload).await.ok()?;
        Some(Self {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]),
            payload,
        })
    }

    /// One as it is sent.
    pub fn bytes(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    pub fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }
}

/// The server's end of a connection.
pub struct Peer {
    socket: TcpStream,
}

/// A listener on a free port of loopback.
pub async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    (listener, address)
}

/// A port of loopback that nobody listens on, and that nobody else gets while the socket is kept. A server
/// may bind it: once that has gone, nobody listens again.
pub fn nowhere() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let socket = socket.expect("a socket");
    socket.set_reuse_address(true).expect("a socket");
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    socket.bind(&any.into()).expect("a free port");
    let address = socket.local_addr().expect("it is bound").as_socket();
    (socket, address.expect("an IP address"))
}

impl Peer {
    /// Accepts and reads the client's preface. Says nothing yet.
    pub async fn accept(listener: &TcpListener) -> Self {
        let (mut socket, _) = listener.accept().await.expect("a client");
        socket.set_nodelay(true).expect("a socket");
        let mut preface = [0; 24];
        socket.read_exact(&mut preface).await.expect("a preface");
        assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        Self { socket }
    }

    /// Accepts and sends SETTINGS.
    pub async fn ready(listener: &TcpListener, settings: &[(u16, u32)]) -> Self {
        let mut peer = Self::accept(listener).await;
        peer.settings(settings).await;
        peer
    }

    /// The next frame; `None` at the end.
    pub async fn frame(&mut self) -> Option<Frame> {
        Frame::read(&mut self.socket).await
    }

    /// The next frame of `kind`; others are passed over, the client's SETTINGS acknowledged.
    pub async fn frame_of(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.frame().await.expect("the client is there");
            if frame.kind == SETTINGS && frame.flags & ACK == 0 {
                self.send(SETTINGS, ACK, 0, &[]).await;
            }
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// Reads a request to its end and gives its stream's id.
    pub async fn request(&mut self) -> u32 {
        loop {
            let frame = self.frame().await.expect("the client is there");
            if frame.ends_stream() {
                return frame.stream;
            }
        }
    }

    /// Reads to the client's end; gives what came.
    pub async fn rest(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.frame().await {
            frames.push(frame);
        }
        frames
    }

    pub async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let bytes = Frame::bytes(kind, flags, stream, payload);
        self.socket
            .write_all(&bytes)
            .await
            .expect("the client reads");
    }

    pub async fn settings(&mut self, settings: &[(u16, u32)]) {
        let mut payload = Vec::new();
        for (id, value) in settings {
            payload.extend(id.to_be_bytes());
            payload.extend(value.to_be_bytes());
        }
        self.send(SETTINGS, 0, 0, &payload).await;
    }

    /// The head of an answer.
    pub async fn head(&mut self, stream: u32) {
        self.send(HEADERS, END_HEADERS, stream, &[STATUS_200]).await;
    }

    pub async fn data(&mut self, stream: u32, data: &[u8]) {
        self.send(DATA, 0, stream, data).await;
    }

    /// `grpc-status: 0`
    pub async fn trailers(&mut self, stream: u32) {
        let block = literal("grpc-status", "0");
        self.send(HEADERS, END_HEADERS | END_STREAM, stream, &block)
            .await;
    }

    /// An answer of trailers alone.
    pub async fn trailers_only(&mut self, stream: u32) {
        let mut block = vec![STATUS_200];
        block.extend(literal("grpc-status", "12"));
        self.send(HEADERS, END_HEADERS | END_STREAM, stream, &block)
            .await;
    }

    /// A whole answer.
    pub async fn answer(&mut self, stream: u32, data: &[u8]) {
        self.head(stream).await;
        self.data(stream, data).await;
        self.trailers(stream).await;
    }

    pub async fn goaway(&mut self, last: u32, code: u32) {
        let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
        self.send(GOAWAY, 0, 0, &payload).await;
    }

    pub async fn reset(&mut self, stream: u32, code: u32) {
        self.send(RST_STREAM, 0, stream, &code.to_be_bytes()).await;
    }

    /// Dies like a killed process whose kernel still speaks: TCP RST.
    pub fn kill(self) {
        let socket = socket2::SockRef::from(&self.socket);
        socket.set_linger(Some(Duration::ZERO)).expect("a socket");
    }
}

/// A header as an HPACK literal without indexing.
pub fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut block = vec![0];
    for text in [name, value] {
        block.push(u8::try_from(text.len()).expect("short"));
        block.extend(text.as_bytes());
    }
    block
}
