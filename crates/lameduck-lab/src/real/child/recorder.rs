//! A child's own ledger file, shared by all its tasks.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::super::record::Record;
use super::super::sentinel;
use super::super::writer::Writer;

/// Writes records, or ends the process: a child that cannot keep its ledger must not go on.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    writer: Arc<Writer>,
}

impl Recorder {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let writer = Arc::new(Writer::open(path)?);
        Ok(Self { writer })
    }

    /// Writes down from now on when a thread of this process that only sleeps wakes up late.
    pub(super) fn watch(&self) -> io::Result<()> {
        let recorder = self.clone();
        sentinel::watch(move |late| recorder.write(Record::Stalled { late }))
    }

    /// Returns once the record is with the kernel.
    pub(super) fn write(&self, record: Record) {
        if let Err(error) = self.writer.write(record) {
            eprintln!("the ledger cannot be written: {error}");
            std::process::exit(1);
        }
    }
}
