//! How the answer to a request says that it did not end well.

use ::http::HeaderMap;
use ::http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

/// The first byte of a gRPC-web frame that holds trailers.
const TRAILERS: u8 = 0x80;
/// A frame's flags and length.
const HEAD: usize = 5;
/// Base64 has four characters for three bytes.
const QUAD: usize = 4;

/// What an answer is, for its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavour {
    /// Ends by the end of its stream; broken off, it is reset.
    Plain,
    /// gRPC: ends by a status in HTTP trailers.
    Grpc,
    /// gRPC-web: ends by a status in a frame of its body, since browsers do not show HTTP trailers.
    Web,
    /// The same in base64.
    WebText,
}

impl Flavour {
    /// What a request asks for.
    pub(super) fn of_request(headers: &HeaderMap) -> Self {
        let flavour = headers.get(CONTENT_TYPE).map_or(Self::Plain, Self::of);
        // A gRPC-web client says by `accept` in which of the two forms it wants its answer.
        match headers.get(ACCEPT).map(Self::of) {
            Some(wanted @ (Self::Web | Self::WebText)) if flavour.is_web() => wanted,
            _ => flavour,
        }
    }

    /// What the answer to such a request is, by its own head.
    pub(super) fn of_answer(self, headers: &HeaderMap) -> Self {
        let said = match headers.get(CONTENT_TYPE) {
            Some(content) => Self::of(content),
            None if self.is_web() => Self::Plain,
            None => self,
        };
        // Nothing can be added to a body whose length is said, or which is coded as a whole.
        let is_closed =
            headers.contains_key(CONTENT_LENGTH) || headers.contains_key(CONTENT_ENCODING);
        if said.is_web() && is_closed {
            return Self::Plain;
        }
        said
    }

    fn of(content: &HeaderValue) -> Self {
        let content = content.as_bytes().trim_ascii_start();
        let end = content.iter().position(|byte| b"+;, ".contains(byte));
        let essence = &content[..end.unwrap_or(content.len())];
        let kinds = [
            ("application/grpc", Self::Grpc),
            ("application/grpc-web", Self::Web),
            ("application/grpc-web-text", Self::WebText),
        ];
        let found = kinds
            .into_iter()
            .find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(essence));
        found.map_or(Self::Plain, |(_, flavour)| flavour)
    }

    /// Whether it is gRPC in any form.
    pub(super) const fn is_grpc(self) -> bool {
        !matches!(self, Self::Plain)
    }

    pub(super) const fn is_web(self) -> bool {
        matches!(self, Self::Web | Self::WebText)
    }

    /// The content type of an answer of our own.
    pub(super) const fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Plain => "text/plain",
            Self::Grpc => "application/grpc",
            Self::Web => "application/grpc-web+proto",
            Self::WebText => "application/grpc-web-text+proto",
        })
    }

    /// Trailers as the last frame of a gRPC-web body.
    pub(super) fn trailers_frame(self, trailers: &HeaderMap) -> Bytes {
        let mut text = Vec::new();
        for (name, value) in trailers {
            text.extend([name.as_str().as_bytes(), b":", value.as_bytes(), b"\r\n"].concat());
        }
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        let frame = [&[TRAILERS][..], &length.to_be_bytes(), &text].concat();
        match self {
            Self::WebText => STANDARD.encode(frame).into(),
            Self::Plain | Self::Grpc | Self::Web => frame.into(),
        }
    }
}

/// How far a gRPC-web body has come: between two of its frames one more can be put.
#[derive(Debug)]
pub(super) struct Framing {
    is_text: bool,
    /// Characters of a quad that has begun.
    quad: Vec<u8>,
    head: Vec<u8>,
    left: u64,
    /// Its trailers have begun.
    ended: bool,
    /// It is no gRPC-web body.
    broken: bool,
}

impl Framing {
    pub(super) fn new(flavour: Flavour) -> Self {
        Self {
            is_text: flavour == Flavour::WebText,
            quad: Vec::new(),
            head: Vec::new(),
            left: 0,
            ended: false,
            broken: false,
        }
    }

    /// Whether a frame may come next.
    pub(super) fn is_between_frames(&self) -> bool {
        let whole = self.quad.is_empty() && self.head.is_empty() && self.left == 0;
        whole && !self.ended && !self.broken
    }

    /// Takes what goes by.
    pub(super) fn feed(&mut self, mut data: &[u8]) {
        if !self.is_text {
            return self.feed_bytes(data);
        }
        while !data.is_empty() && !self.broken {
            let take = if self.quad.is_empty() {
                // As many whole quads as there are, but each piece may end by padding of its own.
                let padded = data.iter().position(|byte| *byte == b'=');
                padded.unwrap_or(data.len()) / QUAD * QUAD
            } else {
                0
            };
            let (now, rest) = data.split_at(take);
            self.decode(now);
            let (part, rest) = rest.split_at(rest.len().min(QUAD - self.quad.len()));
            self.quad.extend_from_slice(part);
            if self.quad.len() == QUAD {
                let quad = std::mem::take(&mut self.quad);
                self.decode(&quad);
            }
            data = rest;
        }
    }

    fn decode(&mut self, quads: &[u8]) {
        match STANDARD.decode(quads) {
            Ok(bytes) => self.feed_bytes(&bytes),
            Err(_) => self.broken = true,
        }
    }

    fn feed_bytes(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            if self.left == 0 {
                let (part, rest) = data.split_at(data.len().min(HEAD - self.head.len()));
                self.head.extend_from_slice(part);
                data = rest;
                if let [flags, l0, l1, l2, l3] = self.head[..] {
                    self.ended |= flags & TRAILERS != 0;
                    self.left = u32::from_be_bytes([l0, l1, l2, l3]).into();
                    self.head.clear();
                }
            } else {
                let take = usize::try_from(self.left).unwrap_or(usize::MAX);
                let take = take.min(data.len());
                self.left -= take as u64;
                data = &data[take..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            let name = ::http::HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        pairs.collect()
    }

    #[test]
    fn d39_what_a_content_type_means() {
        for (content, expected) in [
            ("application/grpc", Flavour::Grpc),
            ("application/grpc+proto", Flavour::Grpc),
            ("Application/gRPC; charset=utf-8", Flavour::Grpc),
            ("application/grpc-web", Flavour::Web),
            ("application/grpc-web+json", Flavour::Web),
            ("application/grpc-web-text", Flavour::WebText),
            ("application/grpc-web-text+proto;q=1", Flavour::WebText),
            ("application/grpcish", Flavour::Plain),
            ("application/connect+proto", Flavour::Plain),
            ("application/json", Flavour::Plain),
        ] {
            let headers = headers(&[("content-type", content)]);
            assert_eq!(Flavour::of_request(&headers), expected, "{content}");
            let answer = Flavour::Grpc.of_answer(&headers);
            assert_eq!(answer, expected, "{content}");
        }
        let wanted = headers(&[
            ("content-type", "application/grpc-web"),
            ("accept", "application/grpc-web-text"),
        ]);
        assert_eq!(Flavour::of_request(&wanted), Flavour::WebText);
        assert_eq!(Flavour::Grpc.of_answer(&HeaderMap::new()), Flavour::Grpc);
        assert_eq!(Flavour::Web.of_answer(&HeaderMap::new()), Flavour::Plain);
        for closed in [("content-length", "10"), ("content-encoding", "gzip")] {
            let headers = headers(&[("content-type", "application/grpc-web"), closed]);
            assert_eq!(Flavour::Web.of_answer(&headers), Flavour::Plain);
        }
    }

    fn message(size: usize) -> Vec<u8> {
        let length = u32::try_from(size).expect("short").to_be_bytes();
        [&[0][..], &length, &vec![7; size]].concat()
    }

    proptest! {
        #[test]
        fn d39_frames_end_where_they_end(
            sizes in prop::collection::vec(0_usize..40, 1..5),
            piece in 1_usize..20,
            piece_of_text in 1_usize..20,
            text in any::<bool>(),
        ) {
            let flavour = if text { Flavour::WebText } else { Flavour::Web };
            let mut framing = Framing::new(flavour);
            prop_assert!(framing.is_between_frames());
            for size in sizes {
                let bytes = message(size);
                let coded = if text {
                    // Each piece is coded for itself, as tonic-web does.
                    let pieces = bytes.chunks(piece).map(|piece| STANDARD.encode(piece));
                    pieces.collect::<String>().into_bytes()
                } else {
                    bytes
                };
                let mut left = coded.len();
                for part in coded.chunks(piece_of_text) {
                    framing.feed(part);
                    left -= part.len();
                    prop_assert_eq!(framing.is_between_frames(), left == 0);
                }
            }
            framing.feed(&flavour.trailers_frame(&headers(&[("grpc-status", "0")])));
            prop_assert!(!framing.is_between_frames());
        }

        #[test]
        fn d39_noise_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..300), text in any::<bool>()) {
            let mut framing = Framing::new(if text { Flavour::WebText } else { Flavour::Web });
            framing.feed(&bytes);
            framing.is_between_frames();
        }
    }
}
