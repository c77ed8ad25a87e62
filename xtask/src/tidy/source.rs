//! A Rust file as the rules see it: comments and literals blanked out, test code marked.
//!
//! A lexer of our own rather than `syn`: the rules need words, braces and lines, not a syntax tree,
//! and this keeps `xtask` quick to build. It knows nested comments, raw strings, characters and
//! lifetimes, which is all that can hide a word or a brace.

use std::collections::BTreeSet;
use std::ops::Range;

/// One Rust file.
pub struct Source {
    /// Path relative to the root.
    pub path: String,
    /// The text with every comment, string and character literal turned into blanks; lines stay.
    pub code: String,
    /// Byte ranges of `code` that are test code.
    tests: Vec<Range<usize>>,
    /// Modules declared `#[cfg(test)] mod name;`.
    test_modules: Vec<String>,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Self {
        let code = blank(text);
        let mut source = Self {
            path: path.to_owned(),
            code,
            tests: Vec::new(),
            test_modules: Vec::new(),
        };
        if ["tests", "benches", "examples"]
            .iter()
            .any(|d| path.split('/').any(|part| part == *d))
        {
            source.mark_as_test();
        }
        source.find_tests();
        source
    }

    /// Makes all of the file test code.
    pub fn mark_as_test(&mut self) {
        self.tests = std::iter::once(0..self.code.len()).collect();
    }

    /// Whether the byte at `offset` belongs to test code.
    pub fn is_test(&self, offset: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&offset))
    }

    /// The line of a byte, from 1.
    pub fn line_of(&self, offset: usize) -> usize {
        1 + self.code[..offset].bytes().filter(|b| *b == b'\n').count()
    }

    /// Number of lines that are not test code.
    pub fn lines_outside_tests(&self) -> usize {
        let mut offset = 0;
        let mut count = 0;
        for line in self.code.split_inclusive('\n') {
            let first = line.find(|c: char| !c.is_whitespace()).unwrap_or(0);
            count += usize::from(!self.is_test(offset + first));
            offset += line.len();
        }
        count
    }

    /// Offsets at which `pattern` stands as whole words.
    pub fn find<'a>(&'a self, pattern: &'a str) -> impl Iterator<Item = usize> + 'a {
        let code = self.code.as_bytes();
        let (first, last) = (pattern.as_bytes()[0], pattern.as_bytes()[pattern.len() - 1]);
        self.code
            .match_indices(pattern)
            .map(|(offset, _)| offset)
            .filter(move |&offset| {
                let before = offset.checked_sub(1).map(|at| code[at]);
                let after = code.get(offset + pattern.len()).copied();
                let joined_before = is_word(first) && before.is_some_and(is_word);
                let joined_after = is_word(last) && after.is_some_and(is_word);
                !joined_before && !joined_after
            })
    }

    /// The range of the item that begins at or after `from`: to its semicolon or closing brace.
    pub fn item_end(&self, from: usize) -> usize {
        let mut depth = 0_usize;
        for (at, byte) in self.code.bytes().enumerate().skip(from) {
            match byte {
                b'(' | b'[' => depth += 1,
                b')' | b']' => depth = depth.saturating_sub(1),
                b';' if depth == 0 => return at + 1,
                b'{' if depth == 0 => return self.block_end(at),
                _ => {}
            }
        }
        self.code.len()
    }

    /// Just past the brace that closes the one at `open`.
    fn block_end(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        for (at, byte) in self.code.bytes().enumerate().skip(open) {
            match byte {
                b'{' => depth += 1,
                b'}' if depth == 1 => return at + 1,
                b'}' => depth -= 1,
                _ => {}
            }
        }
        self.code.len()
    }

    /// Files (without `.rs` or `/mod.rs`) that hold modules which only tests compile.
    pub fn test_module_files(&self) -> Vec<String> {
        let (directory, file) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        let stem = file.trim_end_matches(".rs");
        let base = if matches!(stem, "mod" | "lib" | "main") {
            directory.to_owned()
        } else {
            format!("{directory}/{stem}")
        };
        self.test_modules
            .iter()
            .map(|name| format!("{base}/{name}"))
            .collect()
    }

    /// Whether the file is one of those modules, or lies below one.
    pub fn lies_in(&self, modules: &BTreeSet<String>) -> bool {
        modules.iter().any(|module| {
            self.path
                .strip_prefix(module.as_str())
                .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    }

    fn find_tests(&mut self) {
        let attributes = ["#[cfg(test)]", "#[cfg(all(test"];
        let starts: Vec<usize> = attributes
            .iter()
            .flat_map(|a| self.code.match_indices(a))
            .map(|(at, _)| at)
            .collect();
        for start in starts {
            let item = self.after_attributes(start);
            let end = if self.is_field(item) {
                self.line_end(item)
            } else {
                self.item_end(item)
            };
            let words: Vec<&str> = self.code[item..end].split_whitespace().collect();
            if let ["mod", name] | [.., "mod", name] = words.as_slice()
                && let Some(name) = name.strip_suffix(';')
            {
                self.test_modules.push(name.to_owned());
            }
            self.tests.push(start..end);
        }
    }

    /// Where the item begins whose attributes begin at `at`.
    fn after_attributes(&self, mut at: usize) -> usize {
        while self.code[at..].starts_with("#[") {
            let mut depth = 0_usize;
            let end = self.code[at..].bytes().position(|byte| {
                match byte {
                    b'[' => depth += 1,
                    b']' => depth -= 1,
                    _ => {}
                }
                byte == b']' && depth == 0
            });
            at += end.map_or(self.code.len() - at, |end| end + 1);
            at += self.code[at..].len() - self.code[at..].trim_start().len();
        }
        at
    }

    /// Whether a field (`name: ...`) begins at `at`, of a type or of a value.
    fn is_field(&self, at: usize) -> bool {
        let rest = self.code[at..].trim_start_matches("pub ");
        let name = rest.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
        name.len() < rest.len() && name.starts_with(": ")
    }

    fn line_end(&self, at: usize) -> usize {
        self.code[at..]
            .find('\n')
            .map_or(self.code.len(), |length| at + length)
    }
}

/// Whether a byte can be part of an identifier.
pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Turns comments and literals into blanks of the same length.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = hidden_end(bytes, at);
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8(out).expect("whole tokens were blanked, so no character was cut")
}

/// Where the comment or literal that begins at `at` ends; `at` itself where none begins.
fn hidden_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let in_word = at > 0 && is_word(bytes[at - 1]);
    let length = match rest {
        [b'/', b'/', ..] => rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment(rest),
        [b'"', ..] => quoted(rest, b'"'),
        [b'r', b'"' | b'#', ..] if !in_word => raw_string(rest, 1),
        [b'b' | b'c', b'r', b'"' | b'#', ..] if !in_word => raw_string(rest, 2),
        [b'\'', ..] => character(rest),
        _ => 0,
    };
    at + length
}

fn block_comment(rest: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    rest.len()
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// A raw string whose hashes begin at `prefix`; 0 for a raw identifier.
fn raw_string(rest: &[u8], prefix: usize) -> usize {
    let hashes = rest[prefix..].iter().take_while(|b| **b == b'#').count();
    if rest.get(prefix + hashes) != Some(&b'"') {
        return 0;
    }
    let close: Vec<u8> = std::iter::once(b'"')
        .chain(std::iter::repeat_n(b'#', hashes))
        .collect();
    let body = prefix + hashes + 1;
    let found = rest[body..].windows(close.len()).position(|w| w == close);
    found.map_or(rest.len(), |at| body + at + close.len())
}

/// A character literal; 0 for a lifetime.
fn character(rest: &[u8]) -> usize {
    match rest {
        [_, b'\\', ..] => quoted(rest, b'\''),
        [_, first, ..] => {
            let width = match first {
                0..0x80 => 1,
                0x80..0xe0 => 2,
                0xe0..0xf0 => 3,
                _ => 4,
            };
            if rest.get(1 + width) == Some(&b'\'') {
                width + 2
            } else {
                0
            }
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that exactly the words in capitals survive the blanking.
    fn check(text: &str, words: &[&str]) {
        let code = blank(text);
        assert_eq!(code.len(), text.len());
        assert_eq!(code.matches('\n').count(), text.matches('\n').count());
        let left: Vec<&str> = code
            .split(|c: char| !c.is_alphanumeric())
            .filter(|w| w.chars().all(|c| c.is_ascii_uppercase()) && !w.is_empty())
            .collect();
        assert_eq!(left, words, "in {text:?}");
    }

    #[test]
    fn comments_and_literals_are_blanked() {
        check("A // B\nC", &["A", "C"]);
        check("A /* B /* C */ D */ E", &["A", "E"]);
        check(r#"A "B \" C" D"#, &["A", "D"]);
        check("A r#\"B \" C\"# D br\"E\" F", &["A", "D", "F"]);
        check("A b\"B\" C", &["A", "C"]);
        check("A 'B' '\\'' '\\u{41}' C 'é' '→' D", &["A", "C", "D"]);
    }

    #[test]
    fn lifetimes_and_raw_identifiers_stay() {
        check(
            "fn f<'a>(A: &'a B) -> &'static C { r#D }",
            &["A", "B", "C", "D"],
        );
        check("for \"A\" B", &["B"]);
    }

    #[test]
    fn test_modules_do_not_count() {
        let text = "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
        let source = Source::new("crates/x/src/a.rs", text);
        assert_eq!(source.lines_outside_tests(), 3);
        let of = |needle: &str| source.is_test(text.find(needle).expect("it is in the text"));
        assert_eq!((of("fn a"), of("fn b"), of("fn c")), (false, true, false));
    }

    #[test]
    fn test_fields_and_attributed_items_end_where_they_end() {
        let text = "struct A {\n    #[cfg(test)]\n    b: u8,\n    c: u8,\n}\n\
                    #[cfg(test)]\n#[derive(Debug)]\nstruct D {\n    e: [u8; 4],\n}\nfn f() {}\n";
        let source = Source::new("crates/x/src/a.rs", text);
        let of = |needle: &str| source.is_test(text.find(needle).expect("it is in the text"));
        let found = ["b:", "c:", "struct D", "e:", "fn f"].map(of);
        assert_eq!(found, [true, false, true, true, false]);
    }

    #[test]
    fn test_modules_in_files_of_their_own_do_not_count() {
        let parent = Source::new("crates/x/src/a.rs", "#[cfg(test)]\nmod tests;\n");
        let modules: BTreeSet<String> = parent.test_module_files().into_iter().collect();
        let lies = |path: &str| Source::new(path, "").lies_in(&modules);
        assert!(lies("crates/x/src/a/tests.rs"));
        assert!(lies("crates/x/src/a/tests/more.rs"));
        assert!(!lies("crates/x/src/tests.rs"));
        assert!(!lies("crates/x/src/a/tests_of_ours.rs"));
    }

    #[test]
    fn files_of_tests_benches_and_examples_are_tests() {
        let whole = |path: &str| Source::new(path, "fn a() {}\n").lines_outside_tests() == 0;
        assert!(whole("crates/x/tests/it/main.rs"));
        assert!(whole("crates/x/benches/a.rs"));
        assert!(whole("crates/x/examples/a.rs"));
        assert!(!whole("crates/x/src/a.rs"));
    }
}
