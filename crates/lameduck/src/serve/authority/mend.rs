//! Makes an authority that h2 refuses one that it takes, of the same length, decoded and coded.

use http::uri::Authority;

use super::block::Malformed;
use super::huffman::{self, BITS, Symbols};

/// For each length of a code that has a letter: that letter.
const LETTERS: [(u8, u8); 4] = [(5, b'a'), (6, b'A'), (7, b'B'), (8, b'X')];
/// The letter with the longest code, and the length of that.
const LONGEST: (u8, u8) = LETTERS[3];

/// Mends a value in place where h2 would refuse it. The inner error is the value that cannot be mended.
pub(super) fn mend(coded: &mut [u8], is_huffman: bool) -> Result<Result<(), Vec<u8>>, Malformed> {
    if is_huffman {
        let symbols = || Symbols::of(coded).map(Result::unwrap_or_default);
        // Looks for errors too.
        let length = huffman::decoded_len(coded)?;
        if is_plain(symbols()) {
            return Ok(Ok(()));
        }
        let mut value = Vec::with_capacity(length);
        value.extend(symbols());
        if is_taken(&value) {
            return Ok(Ok(()));
        }
        let Some(mended) = mended(&value) else {
            return Ok(Err(value));
        };
        huffman::encode(&mended, coded);
        return Ok(Ok(()));
    }
    if is_plain(coded.iter().copied()) || is_taken(coded) {
        return Ok(Ok(()));
    }
    if coded.is_empty() {
        return Ok(Err(Vec::new()));
    }
    for byte in coded {
        if !is_kept(*byte) {
            *byte = letter(BITS[usize::from(*byte)]).unwrap_or(LONGEST.1);
        }
    }
    Ok(Ok(()))
}

/// Whether this is an authority like nearly all: letters, digits and at most one colon.
fn is_plain(value: impl Iterator<Item = u8>) -> bool {
    let (mut bytes, mut colons) = (0, 0);
    for byte in value {
        bytes += 1;
        match byte {
            b':' => colons += 1,
            _ if is_kept(byte) => {}
            _ => return false,
        }
    }
    bytes > 0 && colons <= 1
}

/// Whether h2 takes it: it asks the same.
fn is_taken(value: &[u8]) -> bool {
    Authority::try_from(value).is_ok()
}

const fn is_kept(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')
}

fn letter(bits: u8) -> Option<u8> {
    LETTERS
        .iter()
        .find(|(of, _)| *of == bits)
        .map(|(_, letter)| *letter)
}

/// A text of as many bytes whose code has as many bits. Each byte that an authority may not have becomes a
/// letter whose code is as long; where there is none, the longest of a letter, and other bytes make good for
/// the bits that are missing. `None` where no letters have so long a code on average.
fn mended(value: &[u8]) -> Option<Vec<u8>> {
    let mut text = value.to_vec();
    let mut missing = 0_usize;
    for byte in &mut text {
        if !is_kept(*byte) {
            let bits = BITS[usize::from(*byte)];
            *byte = letter(bits).unwrap_or_else(|| {
                missing += usize::from(bits - LONGEST.0);
                LONGEST.1
            });
        }
    }
    for byte in &mut text {
        let bits = BITS[usize::from(*byte)];
        let more = missing.min(usize::from(LONGEST.0 - bits));
        if more > 0 {
            *byte = letter(bits + more as u8)?;
            missing -= more;
        }
    }
    (missing == 0 && !text.is_empty()).then_some(text)
}
