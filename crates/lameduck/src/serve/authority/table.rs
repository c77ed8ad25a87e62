//! Which name stands behind an index of HPACK (RFC 7541, 2.3), and how long it is.

/// SETTINGS_HEADER_TABLE_SIZE's default, which hyper does not change: no peer may have a larger table.
pub(super) const TABLE_BYTES: usize = 4096;
/// What an entry counts beyond its name and value.
const ENTRY_BYTES: usize = 32;
/// Entries that the largest table has room for.
const ENTRIES_MAX: usize = TABLE_BYTES / ENTRY_BYTES;

/// The lengths of the static table's names, from index 1 on.
const STATIC: [u8; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14,
    16, 13, 12, 6, 4, 4, 6, 7, 4, 4, 8, 17, 13, 8, 19, 13, 4, 8, 12, 18, 19, 5, 7, 7, 11, 6, 10,
    25, 17, 10, 4, 3, 16,
];
/// `:authority` is the static table's first entry, with no value.
pub(super) const AUTHORITY: usize = 1;
/// The last pseudo-header of the static table.
const LAST_PSEUDO: usize = 14;

/// What a field is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `:authority`.
    Authority,
    /// Another pseudo-header.
    Pseudo,
    /// A header.
    Field,
}

/// A name of which only this much matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) kind: Kind,
    pub(super) bytes: usize,
}

/// An entry, as small as it can be: every connection has room for all of them.
#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: Kind,
    name_bytes: u16,
    bytes: u16,
}

const _: () = assert!(TABLE_BYTES <= u16::MAX as usize);

/// The dynamic table that the peer's encoder and our decoder have in common, without its texts.
#[derive(Debug)]
pub(super) struct Table {
    entries: [Entry; ENTRIES_MAX],
    /// Where the newest entry is.
    newest: usize,
    count: usize,
    bytes: usize,
    bytes_max: usize,
}

impl Table {
    pub(super) const fn new() -> Self {
        let none = Entry {
            kind: Kind::Field,
            name_bytes: 0,
            bytes: 0,
        };
        Self {
            entries: [none; ENTRIES_MAX],
            newest: 0,
            count: 0,
            bytes: 0,
            bytes_max: TABLE_BYTES,
        }
    }

    /// The name behind an index. `None` where there is no such entry.
    pub(super) fn name(&self, index: usize) -> Option<Name> {
        let fixed = index.checked_sub(1)?;
        if let Some(bytes) = STATIC.get(fixed) {
            let kind = match index {
                AUTHORITY => Kind::Authority,
                ..=LAST_PSEUDO => Kind::Pseudo,
                _ => Kind::Field,
            };
            let bytes = usize::from(*bytes);
            return Some(Name { kind, bytes });
        }
        let age = fixed - STATIC.len();
        if age >= self.count {
            return None;
        }
        let entry = self.entries[self.place(age)];
        Some(Name {
            kind: entry.kind,
            bytes: entry.name_bytes.into(),
        })
    }

    /// Adds an entry, and drops the oldest ones as far as its size asks for.
    pub(super) fn insert(&mut self, name: Name, value_bytes: usize) {
        let bytes = ENTRY_BYTES
            .saturating_add(name.bytes)
            .saturating_add(value_bytes);
        self.evict(bytes);
        if bytes > self.bytes_max {
            return;
        }
        self.newest = (self.newest + 1) % ENTRIES_MAX;
        // No more than the table has, so both fit.
        self.entries[self.newest] = Entry {
            kind: name.kind,
            name_bytes: name.bytes as u16,
            bytes: bytes as u16,
        };
        self.count += 1;
        self.bytes += bytes;
    }

    /// The peer's encoder uses this much from now on. False where that is more than it may.
    pub(super) fn resize(&mut self, bytes_max: usize) -> bool {
        self.bytes_max = bytes_max.min(TABLE_BYTES);
        self.evict(0);
        bytes_max <= TABLE_BYTES
    }

    fn evict(&mut self, room: usize) {
        while self.count > 0 && self.bytes.saturating_add(room) > self.bytes_max {
            self.count -= 1;
            self.bytes -= usize::from(self.entries[self.place(self.count)].bytes);
        }
    }

    /// Where the entry is after which `age` entries came.
    const fn place(&self, age: usize) -> usize {
        (self.newest + ENTRIES_MAX - age) % ENTRIES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(bytes: usize) -> Name {
        Name {
            kind: Kind::Field,
            bytes,
        }
    }

    #[test]
    fn table_is_full_of_the_smallest_entries_and_the_oldest_goes_first() {
        let mut table = Table::new();
        for _ in 0..2 * ENTRIES_MAX {
            table.insert(field(0), 0);
        }
        assert_eq!((table.count, table.bytes), (ENTRIES_MAX, TABLE_BYTES));
        table.insert(field(1), 0);
        assert_eq!(table.name(62), Some(field(1)));
        // One byte more costs one entry more.
        assert_eq!(table.count, ENTRIES_MAX - 1);
        assert_eq!(table.name(62 + ENTRIES_MAX - 2), Some(field(0)));
        assert_eq!(table.name(62 + ENTRIES_MAX - 1), None);
    }

    #[test]
    fn entry_larger_than_the_table_empties_it() {
        let mut table = Table::new();
        table.insert(field(4), 10);
        table.insert(field(5), TABLE_BYTES);
        assert_eq!(table.name(62), None);
        table.insert(field(6), TABLE_BYTES - ENTRY_BYTES - 6);
        assert_eq!(table.name(62), Some(field(6)));
    }

    #[test]
    fn smaller_table_keeps_the_newest() {
        let mut table = Table::new();
        for bytes in 1..=4 {
            table.insert(field(bytes), 0);
        }
        assert!(table.resize(2 * ENTRY_BYTES + 7));
        assert_eq!(table.name(62), Some(field(4)));
        assert_eq!(table.name(63), Some(field(3)));
        assert_eq!(table.name(64), None);
        assert!(!table.resize(TABLE_BYTES + 1));
        assert_eq!(table.name(0), None);
    }
}
