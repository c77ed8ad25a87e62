//! Just enough of HTTP/2 framing (RFC 9113 §4.1) to see frames pass: a nine-byte header, a payload.

use std::ops::ControlFlow;

const HEADER: usize = 9;
const GOAWAY: u8 = 7;
const NO_LAST_ID: u32 = (1 << 31) - 1;

/// The answer to the PING that hyper and h2 send with the first GOAWAY. Its payload is a constant of
/// h2 that no document names; a conformance test watches over it.
pub(super) const SHUTDOWN_PONG: [u8; 17] = [
    0, 0, 8, 6, 1, 0, 0, 0, 0, 0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54,
];

/// What passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// A frame's header.
    Frame,
    /// A GOAWAY that still admits every stream.
    FirstGoAway,
    /// A GOAWAY that names the last stream taken.
    FinalGoAway,
}

/// Follows one direction of a connection, byte by byte, without keeping any payload.
#[derive(Debug)]
pub(super) struct Frames {
    // Bytes before the first frame: the client's preface.
    skip: usize,
    header: [u8; HEADER],
    have: usize,
    payload: usize,
    // What is known of the first four bytes of a GOAWAY's payload, and how many that are.
    last_id: Option<(u32, u8)>,
}

impl Frames {
    /// Follows a direction whose frames begin after `skip` bytes.
    pub(super) const fn after(skip: usize) -> Self {
        Self {
            skip,
            header: [0; HEADER],
            have: 0,
            payload: 0,
            last_id: None,
        }
    }

    /// Takes the bytes that passed; calls `seen` for what is of interest in them.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut seen: impl FnMut(Seen)) {
        while !bytes.is_empty() {
            bytes = if self.skip > 0 {
                let taken = self.skip.min(bytes.len());
                self.skip -= taken;
                &bytes[taken..]
            } else if self.payload > 0 {
                self.feed_payload(bytes, &mut seen)
            } else {
                self.feed_header(bytes, &mut seen)
            };
        }
    }

    fn feed_header<'a>(&mut self, bytes: &'a [u8], seen: &mut impl FnMut(Seen)) -> &'a [u8] {
        let taken = (HEADER - self.have).min(bytes.len());
        let (now, rest) = bytes.split_at(taken);
        self.header[self.have..self.have + taken].copy_from_slice(now);
        self.have += taken;
        if self.have == HEADER {
            self.have = 0;
            let [a, b, c, kind, ..] = self.header;
            self.payload = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            self.last_id = (kind == GOAWAY).then_some((0, 0));
            seen(Seen::Frame);
        }
        rest
    }

    fn feed_payload<'a>(&mut self, bytes: &'a [u8], seen: &mut impl FnMut(Seen)) -> &'a [u8] {
        let (now, rest) = bytes.split_at(self.payload.min(bytes.len()));
        self.payload -= now.len();
        for byte in now {
            if self.feed_last_id(*byte, seen).is_break() {
                break;
            }
        }
        rest
    }

    fn feed_last_id(&mut self, byte: u8, seen: &mut impl FnMut(Seen)) -> ControlFlow<()> {
        let Some((id, have)) = self.last_id else {
            return ControlFlow::Break(());
        };
        let id = id << 8 | u32::from(byte);
        if have < 3 {
            self.last_id = Some((id, have + 1));
            return ControlFlow::Continue(());
        }
        self.last_id = None;
        seen(if id & NO_LAST_ID == NO_LAST_ID {
            Seen::FirstGoAway
        } else {
            Seen::FinalGoAway
        });
        ControlFlow::Break(())
    }

    /// How many bytes may pass before one has to look again whether a frame begins; 0 where one
    /// begins now.
    pub(super) const fn to_boundary(&self) -> usize {
        if self.skip > 0 {
            self.skip
        } else if self.payload > 0 {
            self.payload
        } else if self.have > 0 {
            HEADER - self.have
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).expect("short");
        [&[0, 0, length, kind, 0, 0, 0, 0, 0], payload].concat()
    }

    fn go_away(last: u32) -> Vec<u8> {
        frame(GOAWAY, &[last.to_be_bytes(), [0; 4]].concat())
    }

    proptest! {
        /// However the bytes are cut into pieces, the same frames are seen, and the boundary is
        /// where a frame ends.
        #[test]
        fn pieces_do_not_matter(
            payloads in prop::collection::vec((0_u8..10, prop::collection::vec(any::<u8>(), 0..40)), 0..8),
            sizes in prop::collection::vec(1_usize..20, 1..20),
        ) {
            let mut bytes = vec![b'x'; 24];
            let mut expected = Vec::new();
            for (kind, payload) in payloads {
                expected.push(Seen::Frame);
                if kind == GOAWAY {
                    bytes.extend(go_away(7));
                    expected.push(Seen::FinalGoAway);
                    bytes.extend(go_away(u32::MAX));
                    expected.extend([Seen::Frame, Seen::FirstGoAway]);
                } else {
                    bytes.extend(frame(kind, &payload));
                }
            }
            let (mut frames, mut seen, mut rest) = (Frames::after(24), Vec::new(), &bytes[..]);
            for size in sizes.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at((*size).min(rest.len()));
                frames.feed(now, |what| seen.push(what));
                prop_assert!(frames.to_boundary() <= later.len());
                rest = later;
            }
            prop_assert_eq!(seen, expected);
            prop_assert_eq!(frames.to_boundary(), 0);
        }
    }
}
