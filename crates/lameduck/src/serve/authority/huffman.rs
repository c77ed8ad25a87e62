//! HPACK's Huffman code (RFC 7541, appendix B).
//!
//! The code is canonical: codes of one length follow each other in the order of their symbols, and a
//! longer code begins where the shorter ones end. So the lengths alone define it.

/// Bits of the code of each byte.
pub(super) const BITS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];
/// The longest code.
const BITS_MAX: usize = 30;
/// The end of a text is padded with fewer bits than this, all of them 1.
const PADDING_MAX: u32 = 8;

/// The code, computed from [`BITS`].
struct Code {
    /// The code of each byte, in its lowest bits.
    codes: [u32; 256],
    /// All bytes, by the length of their code and then by value.
    symbols: [u8; 256],
    /// The first code of each length.
    first: [u32; BITS_MAX + 1],
    /// How many codes of each length there are.
    count: [u32; BITS_MAX + 1],
    /// Where the symbols of each length begin in `symbols`.
    begin: [usize; BITS_MAX + 1],
    /// For each value of 8 bits: the bits of the code that they begin with, 0 for a longer one.
    short: [u8; 256],
}

static CODE: Code = Code::new();

impl Code {
    const fn new() -> Self {
        let mut code = Self {
            codes: [0; 256],
            symbols: [0; 256],
            first: [0; BITS_MAX + 1],
            count: [0; BITS_MAX + 1],
            begin: [0; BITS_MAX + 1],
            short: [0; 256],
        };
        let (mut bits, mut next, mut filled) = (1, 0_u32, 0);
        while bits <= BITS_MAX {
            next <<= 1;
            code.first[bits] = next;
            code.begin[bits] = filled;
            let mut symbol = 0;
            while symbol < 256 {
                if BITS[symbol] as usize == bits {
                    code.codes[symbol] = next;
                    code.symbols[filled] = symbol as u8;
                    if bits <= 8 {
                        let mut rest = 0;
                        while rest < 1 << (8 - bits) {
                            code.short[((next as usize) << (8 - bits)) + rest] = bits as u8;
                            rest += 1;
                        }
                    }
                    next += 1;
                    filled += 1;
                }
                symbol += 1;
            }
            code.count[bits] = next - code.first[bits];
            bits += 1;
        }
        code
    }
}

/// A text that is no Huffman code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Invalid;

/// The bytes of a coded text, one by one.
pub(super) struct Symbols<'a> {
    coded: &'a [u8],
    /// Bits that were taken from `coded` and not used yet, from the highest bit down.
    ahead: u64,
    ahead_bits: u32,
}

impl<'a> Symbols<'a> {
    pub(super) fn of(coded: &'a [u8]) -> Self {
        Self {
            coded,
            ahead: 0,
            ahead_bits: 0,
        }
    }

    fn refill(&mut self) {
        while self.ahead_bits <= 56
            && let Some((byte, rest)) = self.coded.split_first()
        {
            self.ahead |= u64::from(*byte) << (56 - self.ahead_bits);
            self.ahead_bits += 8;
            self.coded = rest;
        }
    }

    /// The length of the next code, with its place in the order of symbols. `None` where no code begins
    /// like this: the end of a text, or an error.
    fn next_code(&self) -> Option<(u32, usize)> {
        let short = CODE.short[(self.ahead >> 56) as usize];
        let lengths = if short > 0 { short..=short } else { 9..=30 };
        for bits in lengths {
            let code = (self.ahead >> (64 - u32::from(bits))) as u32;
            let length = usize::from(bits);
            let offset = code.wrapping_sub(CODE.first[length]);
            if offset < CODE.count[length] {
                return Some((u32::from(bits), CODE.begin[length] + offset as usize));
            }
        }
        None
    }
}

impl Iterator for Symbols<'_> {
    type Item = Result<u8, Invalid>;

    fn next(&mut self) -> Option<Self::Item> {
        self.refill();
        match self.next_code() {
            Some((bits, place)) if bits <= self.ahead_bits => {
                self.ahead <<= bits;
                self.ahead_bits -= bits;
                Some(Ok(CODE.symbols[place]))
            }
            _ => {
                let padded =
                    self.ahead_bits < PADDING_MAX && self.ahead.leading_ones() >= self.ahead_bits;
                self.ahead = 0;
                self.ahead_bits = 0;
                self.coded = &[];
                (!padded).then_some(Err(Invalid))
            }
        }
    }
}

/// How many bytes a coded text stands for.
pub(super) fn decoded_len(coded: &[u8]) -> Result<usize, Invalid> {
    Symbols::of(coded).try_fold(0, |count, symbol| symbol.map(|_| count + 1))
}

/// Writes the code of `symbols` over all of `into`, which has room for it and less than a byte more.
pub(super) fn encode(symbols: &[u8], into: &mut [u8]) {
    let mut bytes = into.iter_mut();
    let (mut ahead, mut ahead_bits) = (0_u64, 0_u32);
    for symbol in symbols {
        let bits = u32::from(BITS[usize::from(*symbol)]);
        ahead = ahead << bits | u64::from(CODE.codes[usize::from(*symbol)]);
        ahead_bits += bits;
        while ahead_bits >= 8 {
            ahead_bits -= 8;
            if let Some(byte) = bytes.next() {
                *byte = (ahead >> ahead_bits) as u8;
            }
        }
    }
    if ahead_bits > 0
        && let Some(byte) = bytes.next()
    {
        let padding = 8 - ahead_bits;
        *byte = (ahead << padding) as u8 | ((1 << padding) - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes that `symbols` take as a code.
    fn coded(symbols: &[u8]) -> Vec<u8> {
        let bits: usize = symbols
            .iter()
            .map(|symbol| usize::from(BITS[usize::from(*symbol)]))
            .sum();
        let mut bytes = vec![0; bits.div_ceil(8)];
        encode(symbols, &mut bytes);
        bytes
    }

    fn decode(coded: &[u8]) -> Result<Vec<u8>, Invalid> {
        Symbols::of(coded).collect()
    }

    #[test]
    fn code_is_that_of_the_rfc() {
        // RFC 7541, C.4.1, C.4.3, C.6.1.
        let examples: [(&[u8], &[u8]); 4] = [
            (
                b"www.example.com",
                &[
                    0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
                ],
            ),
            (
                b"custom-value",
                &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf],
            ),
            (b"302", &[0x64, 0x02]),
            (b"private", &[0xae, 0xc3, 0x77, 0x1a, 0x4b]),
        ];
        for (text, code) in examples {
            assert_eq!(coded(text), code);
            assert_eq!(decode(code), Ok(text.to_vec()));
        }
        // The last code but one of 30 bits; the last is the end of a text, which none may have.
        assert_eq!(CODE.codes[22], 0x3fff_fffe);
        assert_eq!(decode(&[0xff, 0xff, 0xff, 0xff]), Err(Invalid));
        assert_eq!(decode(&[0xff]), Err(Invalid), "a byte of padding");
        assert_eq!(decode(&[0x00]), Err(Invalid), "padding of zeroes");
    }

    proptest! {
        #[test]
        fn every_text_comes_back(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let code = coded(&text);
            prop_assert_eq!(decoded_len(&code), Ok(text.len()));
            prop_assert_eq!(decode(&code), Ok(text));
        }

        #[test]
        fn noise_is_survived(noise in prop::collection::vec(any::<u8>(), 0..200)) {
            let full = decode(&noise);
            prop_assert_eq!(decoded_len(&noise), full.map(|text| text.len()));
        }
    }
}
