//! Walks a header block (RFC 7541, 6) to the values of `:authority`, and mends those that h2 refuses.

use super::huffman::{self, Symbols};
use super::mend;
use super::table::{AUTHORITY, Kind, Name, Table};

/// `:authority` with no value, as a field of the static table.
const EMPTY_AUTHORITY: u8 = 0x80 | 1;
/// `set-cookie` with no value, as a field of the static table: it means nothing in a request.
const HARMLESS: u8 = 0x80 | 55;
/// An integer has at most this many bytes: h2 refuses longer ones.
const INTEGER_BYTES_MAX: usize = 5;

/// The block is none: h2 ends the connection for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl From<huffman::Invalid> for Malformed {
    fn from(_: huffman::Invalid) -> Self {
        Self
    }
}

/// A text within the block.
#[derive(Clone, Copy, Debug)]
struct Text {
    begin: usize,
    end: usize,
    huffman: bool,
    /// Decoded.
    bytes: usize,
}

/// Mends a whole header block in place, and keeps `table` as the peer's encoder has it. Gives an
/// authority that h2 refuses still, where there is one.
pub(super) fn mend_block(
    table: &mut Table,
    block: &mut [u8],
) -> Result<Option<Vec<u8>>, Malformed> {
    let mut walk = Walk {
        table,
        block,
        at: 0,
        empty: None,
        refused: None,
    };
    while walk.at < walk.block.len() {
        walk.field()?;
    }
    if let Some(at) = walk.empty {
        walk.block[at] = HARMLESS;
    }
    Ok(walk.refused)
}

struct Walk<'a> {
    table: &'a mut Table,
    block: &'a mut [u8],
    at: usize,
    /// Where `:authority` with no value is, as long as no other pseudo-header followed it.
    empty: Option<usize>,
    refused: Option<Vec<u8>>,
}

impl Walk<'_> {
    fn field(&mut self) -> Result<(), Malformed> {
        match self.block[self.at] {
            0x80.. => self.indexed(),
            0x40.. => self.literal(6, true),
            0x20.. => {
                let bytes = self.integer(5)?;
                self.table.resize(bytes).then_some(()).ok_or(Malformed)
            }
            _ => self.literal(4, false),
        }
    }

    fn indexed(&mut self) -> Result<(), Malformed> {
        let begin = self.at;
        let index = self.integer(7)?;
        let name = self.table.name(index).ok_or(Malformed)?;
        self.sees(name);
        // Longer forms of the same number are nobody's.
        if index == AUTHORITY && self.block[begin] == EMPTY_AUTHORITY {
            self.empty = Some(begin);
        }
        Ok(())
    }

    fn literal(&mut self, prefix: u32, is_kept: bool) -> Result<(), Malformed> {
        let index = self.integer(prefix)?;
        let name = if index == 0 {
            let text = self.text(true)?;
            self.literal_name(text)?
        } else {
            self.table.name(index).ok_or(Malformed)?
        };
        self.sees(name);
        let is_authority = name.kind == Kind::Authority;
        let value = self.text(is_kept)?;
        if is_authority {
            let coded = &mut self.block[value.begin..value.end];
            if let Err(refused) = mend::mend(coded, value.huffman)? {
                self.refused = Some(refused);
            }
        }
        if is_kept {
            self.table.insert(name, value.bytes);
        }
        Ok(())
    }

    /// A pseudo-header after one that was replaced by a header would be malformed.
    fn sees(&mut self, name: Name) {
        if name.kind != Kind::Field && self.empty.take().is_some() {
            self.refused = Some(Vec::new());
        }
    }

    fn literal_name(&self, text: Text) -> Result<Name, Malformed> {
        let bytes = &self.block[text.begin..text.end];
        let kind = if text.huffman {
            kind(Symbols::of(bytes).map(|symbol| symbol.unwrap_or_default()))
        } else {
            kind(bytes.iter().copied())
        };
        Ok(Name {
            kind,
            bytes: text.bytes,
        })
    }

    /// The text that begins here. Its decoded length is only found out where it is needed.
    fn text(&mut self, counted: bool) -> Result<Text, Malformed> {
        let huffman = self.block.get(self.at).ok_or(Malformed)? & 0x80 != 0;
        let length = self.integer(7)?;
        let begin = self.at;
        let end = begin.checked_add(length).ok_or(Malformed)?;
        let coded = self.block.get(begin..end).ok_or(Malformed)?;
        self.at = end;
        let bytes = match huffman {
            true if counted => huffman::decoded_len(coded)?,
            _ => length,
        };
        Ok(Text {
            begin,
            end,
            huffman,
            bytes,
        })
    }

    /// An integer of which `prefix` bits are in the first byte (RFC 7541, 5.1).
    fn integer(&mut self, prefix: u32) -> Result<usize, Malformed> {
        let rest = self.block.get(self.at..).ok_or(Malformed)?;
        let most = (1_usize << prefix) - 1;
        let (first, more) = rest.split_first().ok_or(Malformed)?;
        let mut value = usize::from(*first) & most;
        if value < most {
            self.at += 1;
            return Ok(value);
        }
        for (place, byte) in more.iter().take(INTEGER_BYTES_MAX - 1).enumerate() {
            value += usize::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                self.at += 2 + place;
                return Ok(value);
            }
        }
        Err(Malformed)
    }
}

fn kind(name: impl Iterator<Item = u8>) -> Kind {
    let mut name = name.peekable();
    if name.peek() != Some(&b':') {
        Kind::Field
    } else if name.eq(*b":authority") {
        Kind::Authority
    } else {
        Kind::Pseudo
    }
}
