//! Blocks of every form, cut anywhere, against a whole HPACK decoder.

use std::ops::Range;

use http::uri::Authority;
use loona_hpack::Decoder;
use proptest::prelude::*;
use proptest::sample::Index;

use super::filter::{Filter, Passed};
use super::huffman;
use super::table::TABLE_BYTES;

const HEADERS: u8 = 1;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;

type Header = (Vec<u8>, Vec<u8>);

/// How a text is written.
#[derive(Clone, Copy, Debug)]
enum Text {
    Plain,
    Huffman,
}

/// How a header is written.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// By index where both are in a table.
    Indexed,
    Kept,
    NotKept,
    NeverKept,
}

#[derive(Clone, Debug)]
enum Step {
    Header {
        name: Vec<u8>,
        value: Vec<u8>,
        form: Form,
        /// The name is written out, even where a table has it.
        named: bool,
        texts: (Text, Text),
        /// Which of several entries is used; the newest of the first table if it does not matter.
        entry: Option<Index>,
    },
    /// At the head of a block alone.
    Resize(usize),
}

/// An encoder that writes every form there is. Its table is a list of whole headers.
#[derive(Default)]
struct Encoder {
    table: Vec<Header>,
    bytes_max: Option<usize>,
}

impl Encoder {
    fn write(&mut self, step: &Step, block: &mut Vec<u8>) {
        let (name, value, form, named, texts, entry) = match step {
            Step::Resize(bytes) => {
                integer(block, 0x20, 5, *bytes);
                self.bytes_max = Some(*bytes);
                return self.evict(0);
            }
            Step::Header {
                name,
                value,
                form,
                named,
                texts,
                entry,
            } => (name, value, *form, *named, *texts, entry),
        };
        let found = |wanted: &dyn Fn(&Header) -> bool| {
            let fixed = [
                (b":authority".to_vec(), Vec::new()),
                (b":method".to_vec(), b"GET".to_vec()),
            ];
            let fixed = fixed
                .into_iter()
                .enumerate()
                .map(|(at, header)| (at + 1, header));
            let kept = self
                .table
                .iter()
                .enumerate()
                .map(|(at, header)| (at + 62, header.clone()));
            let all: Vec<usize> = fixed
                .chain(kept)
                .filter(|(_, header)| wanted(header))
                .map(|(index, _)| index)
                .collect();
            let at = entry.map_or(0, |entry| entry.index(all.len().max(1)));
            all.get(at).copied()
        };
        if matches!(form, Form::Indexed)
            && let Some(index) = found(&|header| header.0 == *name && header.1 == *value)
        {
            return integer(block, 0x80, 7, index);
        }
        let (first, prefix) = match form {
            Form::Indexed | Form::Kept => (0x40, 6),
            Form::NotKept => (0, 4),
            Form::NeverKept => (0x10, 4),
        };
        match found(&|header| header.0 == *name).filter(|_| !named) {
            Some(index) => integer(block, first, prefix, index),
            None => {
                integer(block, first, prefix, 0);
                text(block, texts.0, name);
            }
        }
        text(block, texts.1, value);
        if first == 0x40 {
            self.evict(size(&(name.clone(), value.clone())));
            if size(&(name.clone(), value.clone())) <= self.bytes_max() {
                self.table.insert(0, (name.clone(), value.clone()));
            }
        }
    }

    fn bytes_max(&self) -> usize {
        self.bytes_max.unwrap_or(TABLE_BYTES)
    }

    fn evict(&mut self, room: usize) {
        while !self.table.is_empty()
            && self.table.iter().map(size).sum::<usize>() + room > self.bytes_max()
        {
            self.table.pop();
        }
    }
}

fn size(header: &Header) -> usize {
    32 + header.0.len() + header.1.len()
}

fn integer(block: &mut Vec<u8>, first: u8, prefix: u32, value: usize) {
    let most = (1 << prefix) - 1;
    if value < most {
        return block.push(first | value as u8);
    }
    block.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        block.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    block.push(rest as u8);
}

fn text(block: &mut Vec<u8>, how: Text, text: &[u8]) {
    match how {
        Text::Plain => {
            integer(block, 0, 7, text.len());
            block.extend(text);
        }
        Text::Huffman => {
            let bits: usize = text
                .iter()
                .map(|byte| usize::from(huffman::BITS[usize::from(*byte)]))
                .sum();
            let mut coded = vec![0; bits.div_ceil(8)];
            huffman::encode(text, &mut coded);
            integer(block, 0x80, 7, coded.len());
            block.extend(coded);
        }
    }
}

/// How one block is put into frames.
#[derive(Clone, Debug)]
struct Cuts {
    /// Where a CONTINUATION begins.
    at: Vec<Index>,
    padding: Option<u8>,
    priority: bool,
}

fn frame(bytes: &mut Vec<u8>, kind: u8, flags: u8, payload: &[u8]) {
    bytes.extend(&u32::try_from(payload.len()).expect("short").to_be_bytes()[1..]);
    bytes.extend([kind, flags, 0, 0, 0, 1]);
    bytes.extend(payload);
}

fn frames(bytes: &mut Vec<u8>, block: &[u8], cuts: &Cuts) {
    let mut at: Vec<usize> = cuts
        .at
        .iter()
        .map(|cut| cut.index(block.len() + 1))
        .collect();
    at.push(block.len());
    at.sort_unstable();
    let mut begin = 0;
    for (number, end) in at.iter().enumerate() {
        let last = if number + 1 == at.len() { 4 } else { 0 };
        let part = &block[begin..*end];
        begin = *end;
        if number > 0 {
            frame(bytes, CONTINUATION, last, part);
            continue;
        }
        let mut payload = Vec::new();
        let mut flags = last;
        if let Some(padding) = cuts.padding {
            flags |= 8;
            payload.push(padding);
        }
        if cuts.priority {
            flags |= 0x20;
            payload.extend([0, 0, 0, 0, 7]);
        }
        payload.extend(part);
        payload.resize(payload.len() + usize::from(cuts.padding.unwrap_or(0)), b',');
        frame(bytes, HEADERS, flags, &payload);
    }
}

/// The header blocks in a whole stream of frames.
fn blocks(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    let mut block = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (mut payload, rest) = rest.split_at(length);
        bytes = rest;
        if ![HEADERS, CONTINUATION].contains(&head[3]) {
            continue;
        }
        if head[4] & 8 != 0 {
            payload = &payload[1..payload.len() - usize::from(payload[0])];
        }
        if head[4] & 0x20 != 0 {
            payload = &payload[5..];
        }
        block.extend(payload);
        if head[4] & 4 != 0 {
            blocks.push(std::mem::take(&mut block));
        }
    }
    blocks
}

/// Passes a stream through a filter, in pieces, as a connection does.
fn pass(filter: &mut Filter, stream: &[u8], sizes: &[usize]) -> (Vec<u8>, usize) {
    let (mut out, mut held, mut refused) = (Vec::new(), Vec::new(), 0);
    let mut rest = stream;
    for size in sizes.iter().cycle() {
        let (piece, later) = rest.split_at(rest.len().min(*size));
        rest = later;
        held.extend(piece);
        let passed = filter.look(&mut held);
        refused += usize::from(passed.refused.is_some());
        out.extend(held.drain(..passed.bytes));
        if rest.is_empty() {
            break;
        }
    }
    assert!(held.is_empty(), "all blocks are whole");
    (out, refused)
}

fn is_taken(authority: &[u8]) -> bool {
    Authority::try_from(authority).is_ok()
}

/// What must hold between a block and what was made of it.
fn check(before: &[Header], after: &[Header]) -> Result<bool, TestCaseError> {
    prop_assert_eq!(before.len(), after.len());
    let mut refused = false;
    for (place, (old, new)) in before.iter().zip(after).enumerate() {
        if old.0 != b":authority" || is_taken(&old.1) {
            prop_assert_eq!(old, new);
        } else if old.1.is_empty() && new.0 == b"set-cookie" {
            prop_assert!(new.1.is_empty());
            let later = &before[place + 1..];
            prop_assert!(later.iter().all(|(name, _)| !name.starts_with(b":")));
        } else {
            prop_assert_eq!(&old.0, &new.0);
            prop_assert_eq!(old.1.len(), new.1.len());
            refused |= !is_taken(&new.1);
            prop_assert!(is_taken(&new.1) || old.1 == new.1);
        }
    }
    Ok(refused)
}

fn authorities() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(b"127.0.0.1:2379".to_vec()),
        Just(b"127.0.0.1:2379,127.0.0.1:2380".to_vec()),
        Just(b"[::1]:1,[::2]:2".to_vec()),
        Just(b"grp%2Fsvc".to_vec()),
        Just(b"user:pass@host:1".to_vec()),
        Just(Vec::new()),
        "[a-z0-9:,%/@\\[\\] ;]{0,40}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..30),
        // About as large as the table.
        long(4_050..4_110),
    ]
}

/// A pattern that comes again and again.
fn long(bytes: Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    (prop::collection::vec(b','..b'z', 1..8), bytes)
        .prop_map(|(pattern, bytes)| pattern.into_iter().cycle().take(bytes).collect())
}

fn headers() -> impl Strategy<Value = Header> {
    let name = |name: &str| Just(name.as_bytes().to_vec());
    prop_oneof![
        4 => (name(":authority"), authorities()),
        1 => (name(":method"), Just(b"GET".to_vec())),
        1 => (name(":path"), "/[a-z]{0,10}".prop_map(String::into_bytes)),
        1 => (name(":authorit"), authorities()),
        3 => ("[a-z]{1,12}".prop_map(String::into_bytes), "[ -~]{0,60}".prop_map(String::into_bytes)),
        1 => (name("a"), long(300..1_500)),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let form = prop_oneof![
        Just(Form::Indexed),
        Just(Form::Kept),
        Just(Form::NotKept),
        Just(Form::NeverKept)
    ];
    let text = || prop_oneof![Just(Text::Plain), Just(Text::Huffman)];
    let parts = (
        headers(),
        form,
        any::<bool>(),
        (text(), text()),
        any::<Index>().prop_map(Some),
    );
    parts.prop_map(|((name, value), form, named, texts, entry)| Step::Header {
        name,
        value,
        form,
        named,
        texts,
        entry,
    })
}

fn block() -> impl Strategy<Value = (Vec<Step>, Cuts)> {
    let resizes = prop::collection::vec((0..=TABLE_BYTES).prop_map(Step::Resize), 0..3);
    let resizes = prop_oneof![5 => Just(Vec::new()), 1 => resizes];
    let cuts = (
        prop_oneof![
            Just(Vec::new()),
            prop::collection::vec(any::<Index>(), 0..4)
        ],
        prop::option::of(any::<u8>()),
        any::<bool>(),
    );
    (resizes, prop::collection::vec(steps(), 1..12), cuts).prop_map(
        |(mut all, steps, (at, padding, priority))| {
            all.extend(steps);
            (
                all,
                Cuts {
                    at,
                    padding,
                    priority,
                },
            )
        },
    )
}

/// A case is a conversation of many blocks: a quarter of the usual number, or of what PROPTEST_CASES says.
fn few() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig {
        cases: usual.cases / 4,
        ..usual
    }
}

proptest! {
    #![proptest_config(few())]
    #[test]
    fn d37_only_what_h2_refuses_is_changed_and_a_decoder_stays_in_step(
        written in prop::collection::vec(block(), 1..8),
        sizes in prop::collection::vec(prop_oneof![1_usize..40, 100_usize..9_000], 1..20),
    ) {
        let mut encoder = Encoder::default();
        let mut stream = b"PREFACE".to_vec();
        for (steps, cuts) in &written {
            let mut block = Vec::new();
            steps.iter().for_each(|step| encoder.write(step, &mut block));
            frames(&mut stream, &block, cuts);
            frame(&mut stream, PING, 0, b"\x01\x04\x00,,,,,");
        }
        let mut filter = Filter::after(7);
        let (mended, told) = pass(&mut filter, &stream, &sizes);
        prop_assert_eq!(mended.len(), stream.len());
        let (before, after) = (blocks(&stream[7..]), blocks(&mended[7..]));
        prop_assert_eq!(before.len(), written.len());
        let (mut old, mut new) = (Decoder::new(), Decoder::new());
        let mut refused = false;
        for (before, after) in before.iter().zip(&after) {
            let decoded = old.decode(before).expect("the encoder is right");
            let now = new.decode(after).expect("what was mended is a block");
            refused |= check(&decoded, &now)?;
            if decoded.iter().all(|(name, value)| name != b":authority" || is_taken(value)) {
                prop_assert_eq!(before, after);
            }
        }
        // An entry of the table is told of when it is written, not each time that it is used.
        prop_assert_eq!(refused, told > 0);
    }

    #[test]
    fn noise_passes_whole(
        noise in prop::collection::vec(any::<u8>(), 0..3_000),
        sizes in prop::collection::vec(1_usize..400, 1..20),
    ) {
        // A head that promises a little more than there is, so that there is something to hold.
        let mut stream = Vec::new();
        let (some, rest) = noise.split_at(noise.len() / 2);
        frame(&mut stream, HEADERS, 4, some);
        frame(&mut stream, CONTINUATION, 4, rest);
        let mut filter = Filter::after(0);
        let (out, _) = pass(&mut filter, &stream, &sizes);
        prop_assert_eq!(out.len(), stream.len());
    }
}

#[test]
fn d37_a_block_without_end_is_held_within_bounds_and_passes_then() {
    let mut stream = Vec::new();
    frame(&mut stream, HEADERS, 0, b"");
    let mut filter = Filter::after(0);
    let (mut held, mut passed) = (Vec::new(), 0);
    let mut most = 0;
    for _ in 0..40 {
        frame(&mut stream, CONTINUATION, 0, &[0; 10_000]);
        held.append(&mut stream);
        let Passed { bytes, .. } = filter.look(&mut held);
        passed += bytes;
        held.drain(..bytes);
        most = most.max(held.len());
    }
    assert!(held.is_empty() && passed > 400_000);
    assert!(most > 100_000 && most <= lameduck_core::limits::HEADERS_HELD_BYTES_MAX);
}

#[test]
fn ordinary_requests_cost_no_allocation() {
    let mut encoder = Encoder::default();
    let mut stream = Vec::new();
    let header = |name: &str, value: &str, form| Step::Header {
        name: name.into(),
        value: value.into(),
        form,
        named: false,
        texts: (Text::Huffman, Text::Huffman),
        entry: None,
    };
    for number in 0..10 {
        let mut block = Vec::new();
        for step in [
            header(":method", "GET", Form::Indexed),
            header(
                ":authority",
                "orders.shop.svc.cluster.local:8080",
                Form::Kept,
            ),
            header("grpc-timeout", &format!("{number}m"), Form::NotKept),
        ] {
            encoder.write(&step, &mut block);
        }
        let cuts = Cuts {
            at: Vec::new(),
            padding: None,
            priority: number % 2 == 0,
        };
        frames(&mut stream, &block, &cuts);
    }
    let mut filter = Filter::after(0);
    let mut passed = Passed::default();
    let counted = allocation_counter::measure(|| passed = filter.look(&mut stream));
    assert_eq!(passed.bytes, stream.len());
    assert_eq!(counted.count_total, 0);
}
