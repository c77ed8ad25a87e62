//! Reads HTTP/2 frame heads (RFC 9113, 4.1) as the bytes go by, without keeping them.
//!
//! h2 tells a caller about a GOAWAY only when it next tries to open a stream, and about SETTINGS
//! not at all; it tells a server nothing of the GOAWAYs that it sends. Nine bytes a frame say all of
//! that as soon as they pass.

const HEAD: usize = 9;

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// SETTINGS_MAX_CONCURRENT_STREAMS (RFC 9113, 6.5.2).
const MAX_CONCURRENT_STREAMS: u16 = 3;
/// SETTINGS_MAX_HEADER_LIST_SIZE.
const MAX_HEADER_LIST_SIZE: u16 = 6;
/// gRPC's GRPC_ALLOW_TRUE_BINARY_METADATA, which C-core alone sends.
const TRUE_BINARY_METADATA: u16 = 0xfe03;
const SETTING_BYTES: usize = 6;
const GOAWAY_BYTES: usize = 8;

/// What went by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// HEADERS of this stream (the head alone; the payload follows).
    Headers { stream: u32 },
    /// RST_STREAM.
    Reset,
    /// SETTINGS, not an acknowledgement.
    Settings(Settings),
    /// GOAWAY, with the highest stream that is or may be processed.
    GoAway { last_stream: u32, code: u32 },
}

/// What a SETTINGS frame says that anybody here wants to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Streams that the other side may have open.
    pub(crate) max_streams: Option<u32>,
    /// Bytes of the largest header list that it takes.
    pub(crate) headers_max: Option<u32>,
    /// It is gRPC's C-core, which takes only a part of that for sure.
    pub(crate) is_c_core: bool,
}

/// A parser of frame heads over a byte stream that is cut anywhere.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    head: [u8; HEAD],
    head_len: usize,
    left: usize,
    kind: Kind,
    kept: [u8; GOAWAY_BYTES],
    kept_len: usize,
    settings: Settings,
    /// A header block has begun and goes on in the next frame.
    in_block: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Skipped,
    Settings,
    GoAway,
}

impl Parser {
    /// A parser that ignores the first `bytes` (the client's preface).
    pub(crate) fn after(bytes: usize) -> Self {
        Self {
            // A frame of no interest whose head has been read.
            head_len: HEAD,
            left: bytes,
            ..Self::default()
        }
    }

    /// Takes the next bytes and tells `sink` what they complete.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], mut sink: impl FnMut(Seen)) {
        while !bytes.is_empty() {
            if self.head_len < HEAD {
                bytes = self.feed_head(bytes, &mut sink);
            } else {
                bytes = self.feed_payload(bytes, &mut sink);
            }
            if self.head_len == HEAD && self.left == 0 {
                self.end_of_frame(&mut sink);
            }
        }
    }

    /// How many bytes may pass before one has to look again whether a frame of any kind may come; 0
    /// where it may now. Within a header block nothing but its CONTINUATION may (RFC 9113, 6.10).
    pub(crate) const fn to_boundary(&self) -> usize {
        match self.head_len {
            0 if !self.in_block => 0,
            HEAD => self.left,
            part => HEAD - part,
        }
    }

    fn feed_head<'a>(&mut self, bytes: &'a [u8], sink: &mut impl FnMut(Seen)) -> &'a [u8] {
        let count = bytes.len().min(HEAD - self.head_len);
        self.head[self.head_len..][..count].copy_from_slice(&bytes[..count]);
        self.head_len += count;
        if self.head_len == HEAD {
            self.begin_frame(sink);
        }
        &bytes[count..]
    }

    fn begin_frame(&mut self, sink: &mut impl FnMut(Seen)) {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = self.head;
        self.left = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        self.kept_len = 0;
        self.settings = Settings::default();
        self.in_block = match kind {
            HEADERS | CONTINUATION => flags & END_HEADERS == 0,
            _ => self.in_block,
        };
        self.kind = match kind {
            SETTINGS if flags & ACK == 0 => Kind::Settings,
            GOAWAY => Kind::GoAway,
            _ => Kind::Skipped,
        };
        match kind {
            HEADERS => sink(Seen::Headers {
                stream: u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]),
            }),
            RST_STREAM => sink(Seen::Reset),
            _ => {}
        }
    }

    fn feed_payload<'a>(&mut self, bytes: &'a [u8], sink: &mut impl FnMut(Seen)) -> &'a [u8] {
        let (payload, rest) = bytes.split_at(bytes.len().min(self.left));
        self.left -= payload.len();
        match self.kind {
            Kind::Skipped => {}
            Kind::Settings => self.feed_settings(payload),
            Kind::GoAway => self.feed_goaway(payload, sink),
        }
        rest
    }

    fn feed_settings(&mut self, mut payload: &[u8]) {
        while !payload.is_empty() {
            payload = self.keep(payload, SETTING_BYTES);
            if self.kept_len == SETTING_BYTES {
                let [i0, i1, v0, v1, v2, v3, ..] = self.kept;
                let value = u32::from_be_bytes([v0, v1, v2, v3]);
                match u16::from_be_bytes([i0, i1]) {
                    MAX_CONCURRENT_STREAMS => self.settings.max_streams = Some(value),
                    MAX_HEADER_LIST_SIZE => self.settings.headers_max = Some(value),
                    TRUE_BINARY_METADATA => self.settings.is_c_core = true,
                    _ => {}
                }
                self.kept_len = 0;
            }
        }
    }

    fn feed_goaway(&mut self, payload: &[u8], sink: &mut impl FnMut(Seen)) {
        self.keep(payload, GOAWAY_BYTES);
        if self.kept_len == GOAWAY_BYTES {
            let [s0, s1, s2, s3, c0, c1, c2, c3] = self.kept;
            sink(Seen::GoAway {
                last_stream: u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]),
                code: u32::from_be_bytes([c0, c1, c2, c3]),
            });
            // What follows is debug data.
            self.kind = Kind::Skipped;
        }
    }

    fn keep<'a>(&mut self, payload: &'a [u8], wanted: usize) -> &'a [u8] {
        let count = payload.len().min(wanted - self.kept_len);
        self.kept[self.kept_len..][..count].copy_from_slice(&payload[..count]);
        self.kept_len += count;
        &payload[count..]
    }

    fn end_of_frame(&mut self, sink: &mut impl FnMut(Seen)) {
        self.head_len = 0;
        if self.kind == Kind::Settings {
            sink(Seen::Settings(self.settings));
        }
        self.kind = Kind::Skipped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn a_conversation() -> (Vec<u8>, Vec<Seen>) {
        let settings = [0, 4, 0, 1, 0, 0, 0, 3, 0, 0, 0, 10, 0, 5, 0, 0, 64, 0];
        let mut goaway = vec![0xff, 0xff, 0xff, 0xff, 0, 0, 0, 11];
        goaway.extend(b"too_many_pings");
        let bytes = [
            frame(SETTINGS, 0, 0, &settings),
            frame(SETTINGS, ACK, 0, &[]),
            frame(SETTINGS, 0, 0, &[]),
            frame(SETTINGS, 0, 0, &[0, 6, 0, 0, 0x40, 0, 0xfe, 3, 0, 0, 0, 1]),
            frame(HEADERS, 4, 0x8000_0003, b"head"),
            frame(0, 1, 3, &[7; 700]),
            frame(RST_STREAM, 0, 5, &[0, 0, 0, 7]),
            frame(GOAWAY, 0, 0, &goaway),
            frame(GOAWAY, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]),
            frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 0]),
        ]
        .concat();
        let goaway = |last_stream, code| Seen::GoAway { last_stream, code };
        let settings = |max_streams| {
            Seen::Settings(Settings {
                max_streams,
                ..Settings::default()
            })
        };
        let seen = vec![
            settings(Some(10)),
            settings(None),
            Seen::Settings(Settings {
                max_streams: None,
                headers_max: Some(0x4000),
                is_c_core: true,
            }),
            Seen::Headers { stream: 3 },
            Seen::Reset,
            goaway(0x7fff_ffff, 11),
            goaway(3, 0),
            settings(Some(0)),
        ];
        (bytes, seen)
    }

    fn parse<'a>(mut parser: Parser, chunks: impl Iterator<Item = &'a [u8]>) -> Vec<Seen> {
        let mut seen = Vec::new();
        for chunk in chunks {
            parser.feed(chunk, |one| seen.push(one));
        }
        seen
    }

    #[test]
    fn boundaries_are_where_frames_end() {
        let mut parser = Parser::after(24);
        let bytes = [vec![b'x'; 24], frame(0, 0, 1, b"data"), frame(4, 1, 0, b"")].concat();
        let down = |from: usize| (1..=from).rev();
        let head = || std::iter::once(0).chain(down(8));
        // The preface and a payload are known to their last byte, a head only once it is whole.
        let expected = down(24).chain(head()).chain(down(4)).chain(head());
        for (byte, expected) in bytes.iter().zip(expected) {
            assert_eq!(parser.to_boundary(), expected);
            parser.feed(&[*byte], |_| {});
        }
        assert_eq!(parser.to_boundary(), 0);
    }

    #[test]
    fn d03_no_frame_may_come_between_the_parts_of_a_header_block() {
        let mut parser = Parser::default();
        parser.feed(&frame(HEADERS, 1, 1, b"he"), |_| {});
        assert_eq!(parser.to_boundary(), HEAD, "it goes on");
        parser.feed(&frame(CONTINUATION, 0, 1, b"a"), |_| {});
        assert_eq!(parser.to_boundary(), HEAD, "it goes on");
        parser.feed(&frame(CONTINUATION, END_HEADERS, 1, b"d"), |_| {});
        assert_eq!(parser.to_boundary(), 0);
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(size in 1_usize..900) {
            let (bytes, expected) = a_conversation();
            prop_assert_eq!(parse(Parser::default(), bytes.chunks(size)), expected.clone());
            let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), bytes].concat();
            prop_assert_eq!(parse(Parser::after(24), preface.chunks(size)), expected);
        }

        #[test]
        fn noise_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..2_000), size in 1_usize..64) {
            let whole = parse(Parser::default(), std::iter::once(&bytes[..]));
            prop_assert_eq!(parse(Parser::default(), bytes.chunks(size)), whole);
        }
    }
}
