//! An HTTP/2 client of frames: says exactly what a test wants said, and nothing else.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::start::within;
use crate::raw::{DATA, END_STREAM, Frame, HEADERS, SETTINGS, literal};

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// What h2 puts into the PING that goes with its first GOAWAY.
pub const SHUTDOWN_PING: [u8; 8] = [0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54];

/// The client's end of a connection.
pub struct Client {
    pub socket: TcpStream,
    next: u32,
}

impl Client {
    /// Connects, and says preface and SETTINGS.
    pub async fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.expect("it listens");
        socket.set_nodelay(true).expect("a socket");
        Self::resume(socket, 0).await
    }

    /// The same where some bytes of the preface have been sent.
    pub async fn resume(socket: TcpStream, sent: usize) -> Self {
        let mut client = Self { socket, next: 1 };
        let rest = &PREFACE[sent..];
        client.socket.write_all(rest).await.expect("it reads");
        client.send(SETTINGS, 0, 0, &[]).await;
        // Its SETTINGS, and its acknowledgement of ours.
        client.frame_of(SETTINGS).await;
        client.frame_of(SETTINGS).await;
        client.send(SETTINGS, ACK, 0, &[]).await;
        client
    }

    pub async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let bytes = Frame::bytes(kind, flags, stream, payload);
        // A server that has ended resets: the test sees it where it reads.
        let _ = self.socket.write_all(&bytes).await;
    }

    /// Sends a request's head; the body is to come.
    pub async fn open(&mut self, path: &str) -> u32 {
        self.head(0x83, path, 0).await
    }

    /// Sends a whole request.
    pub async fn get(&mut self, path: &str) -> u32 {
        self.head(0x82, path, END_STREAM).await
    }

    async fn head(&mut self, method: u8, path: &str, flags: u8) -> u32 {
        // HPACK: method and `:scheme: http` by index, `:path` by a literal.
        let mut block = vec![method, 0x86];
        block.extend(literal(":path", path));
        block.extend(literal(":authority", "test"));
        self.open_block(&block, flags).await
    }

    /// Opens a stream with this header block.
    pub async fn open_block(&mut self, block: &[u8], flags: u8) -> u32 {
        let stream = self.next;
        self.next += 2;
        self.send(HEADERS, END_HEADERS | flags, stream, block).await;
        stream
    }

    pub async fn data(&mut self, stream: u32, bytes: &[u8], flags: u8) {
        self.send(DATA, flags, stream, bytes).await;
    }

    /// Answers the shutdown PING.
    pub async fn pong(&mut self) {
        self.send(PING, ACK, 0, &SHUTDOWN_PING).await;
    }

    /// The next frame, but for WINDOW_UPDATEs; `None` at the end.
    pub async fn frame(&mut self) -> Option<Frame> {
        loop {
            let frame = within(Frame::read(&mut self.socket)).await?;
            if frame.kind != WINDOW_UPDATE {
                return Some(frame);
            }
        }
    }

    /// The next frame of `kind`; others are passed over.
    pub async fn frame_of(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.frame().await.expect("the server is there");
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// Reads the answer on `stream` to its end; gives its body. Other frames are passed over.
    pub async fn answer(&mut self, stream: u32) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let frame = self.frame().await.expect("the server is there");
            if frame.stream == stream && frame.kind == DATA {
                body.extend(&frame.payload);
            }
            if frame.stream == stream && frame.ends_stream() {
                return body;
            }
        }
    }

    /// Reads to the server's end; gives what came.
    pub async fn rest(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.frame().await {
            frames.push(frame);
        }
        frames
    }
}

/// The last stream that a GOAWAY names.
pub fn last_stream(frame: &Frame) -> u32 {
    u32::from_be_bytes(frame.payload[..4].try_into().expect("four bytes"))
}

/// The code of an RST_STREAM.
pub fn code(frame: &Frame) -> u32 {
    u32::from_be_bytes(frame.payload[..4].try_into().expect("four bytes"))
}
