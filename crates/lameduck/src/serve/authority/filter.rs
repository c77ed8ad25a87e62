//! Finds the header blocks in what a peer sends, however it is cut.

use std::ops::Range;

use lameduck_core::limits::HEADERS_HELD_BYTES_MAX;

use super::block::{Malformed, mend_block};
use super::table::Table;

const HEAD: usize = 9;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// What PRIORITY puts before the block: a dependency and a weight.
const PRIORITY_BYTES: usize = 5;

/// Looks at all that a peer of HTTP/2 sends, before h2 does.
///
/// Everything passes at once but the payloads of header frames, which are held until their block is
/// whole: h2 could do nothing with a part of one.
#[derive(Debug)]
pub(in crate::serve) struct Filter {
    at: At,
    /// What is to be looked at begins this far behind the first byte that has not passed yet.
    seen: usize,
    /// The parts of a header block that is not whole yet, among what has not passed.
    parts: Vec<Range<usize>>,
    table: Table,
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// This much is of no interest.
    Skipped(usize),
    /// In a frame's head, of which so many bytes are there.
    Head([u8; HEAD], usize),
    /// At the beginning of a header frame's payload.
    Block(Frame),
    /// The peer broke HTTP/2 or HPACK, or its block is too large: everything passes.
    Blind,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    kind: u8,
    flags: u8,
    bytes: usize,
}

/// How much may pass.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::serve) struct Passed {
    /// So many bytes, from the first on.
    pub(in crate::serve) bytes: usize,
    /// An authority among them that h2 refuses, and that cannot be mended.
    pub(in crate::serve) refused: Option<Vec<u8>>,
}

impl Filter {
    /// A filter that ignores the first `bytes` (the client's preface).
    pub(in crate::serve) const fn after(bytes: usize) -> Self {
        Self {
            at: At::Skipped(bytes),
            seen: 0,
            parts: Vec::new(),
            table: Table::new(),
        }
    }

    /// Looks at what has not passed yet: what was held the last time, and what has come since. Mends it
    /// in place and says how much of it passes.
    pub(in crate::serve) fn look(&mut self, bytes: &mut [u8]) -> Passed {
        let mut refused = None;
        while self.seen < bytes.len() {
            match self.at {
                At::Blind => self.seen = bytes.len(),
                At::Skipped(left) => self.skip(left, bytes.len()),
                At::Head(head, count) => self.read_head(head, count, bytes),
                At::Block(frame) => {
                    if frame.bytes > bytes.len() - self.seen {
                        break;
                    }
                    match self.read_block(frame, bytes) {
                        Ok(None) => {}
                        Ok(Some(authority)) => refused = Some(authority),
                        Err(Malformed) => self.give_up(),
                    }
                }
            }
        }
        let passed = self.parts.first().map_or(self.seen, |part| part.start);
        if bytes.len() - passed > HEADERS_HELD_BYTES_MAX {
            self.give_up();
            self.seen = 0;
            return Passed {
                bytes: bytes.len(),
                refused,
            };
        }
        self.seen -= passed;
        for part in &mut self.parts {
            *part = part.start - passed..part.end - passed;
        }
        Passed {
            bytes: passed,
            refused,
        }
    }

    fn give_up(&mut self) {
        self.at = At::Blind;
        self.parts = Vec::new();
    }

    fn skip(&mut self, left: usize, length: usize) {
        let count = left.min(length - self.seen);
        self.seen += count;
        self.at = if count == left {
            At::Head([0; HEAD], 0)
        } else {
            At::Skipped(left - count)
        };
    }

    fn read_head(&mut self, mut head: [u8; HEAD], mut count: usize, bytes: &[u8]) {
        let more = &bytes[self.seen..];
        let more = &more[..more.len().min(HEAD - count)];
        head[count..][..more.len()].copy_from_slice(more);
        count += more.len();
        self.seen += more.len();
        if count < HEAD {
            self.at = At::Head(head, count);
            return;
        }
        let [l0, l1, l2, kind, flags, ..] = head;
        let bytes = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        let frame = Frame { kind, flags, bytes };
        match (kind, self.parts.is_empty()) {
            // A frame of another kind, or of none, within a block, or a block that goes on and never began.
            (CONTINUATION, true) => self.give_up(),
            (HEADERS, true) | (CONTINUATION, false) => self.at = At::Block(frame),
            (_, false) => self.give_up(),
            (_, true) => self.at = At::Skipped(bytes),
        }
    }

    /// Reads a header frame whose payload is there.
    fn read_block(&mut self, frame: Frame, bytes: &mut [u8]) -> Result<Option<Vec<u8>>, Malformed> {
        let part = frame.block(&bytes[self.seen..][..frame.bytes], self.seen)?;
        self.seen += frame.bytes;
        self.at = At::Head([0; HEAD], 0);
        if frame.flags & END_HEADERS == 0 {
            self.parts.push(part);
            return Ok(None);
        }
        if self.parts.is_empty() {
            return mend_block(&mut self.table, &mut bytes[part]);
        }
        let mut parts = std::mem::take(&mut self.parts);
        parts.push(part);
        let mut block = Vec::with_capacity(parts.iter().map(Range::len).sum());
        for part in &parts {
            block.extend_from_slice(&bytes[part.clone()]);
        }
        let refused = mend_block(&mut self.table, &mut block)?;
        let mut mended = &block[..];
        for part in parts {
            let (now, later) = mended.split_at(part.len());
            bytes[part].copy_from_slice(now);
            mended = later;
        }
        Ok(refused)
    }
}

impl Frame {
    /// Where its part of a header block is, where its payload begins at `begin`.
    fn block(self, payload: &[u8], begin: usize) -> Result<Range<usize>, Malformed> {
        let (mut from, mut to) = (0, payload.len());
        if self.kind == HEADERS {
            if self.flags & PADDED != 0 {
                let padding = usize::from(*payload.first().ok_or(Malformed)?);
                from += 1;
                to = to.checked_sub(padding).ok_or(Malformed)?;
            }
            if self.flags & PRIORITY != 0 {
                from += PRIORITY_BYTES;
            }
        }
        (from <= to)
            .then_some(begin + from..begin + to)
            .ok_or(Malformed)
    }
}
