//! How long the disk takes to keep a small write, beside an etcd that waits for the same disk.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;

use super::clock;
use super::limits::{DISK_EVERY, STALL_MIN};
use super::stalls::{Stall, Whose};

/// A thread that writes a byte now and then. Dropping it ends the thread.
#[derive(Debug)]
pub struct Disk {
    stop: Sender<()>,
    thread: JoinHandle<Vec<Stall>>,
}

impl Disk {
    /// Starts to ask the disk that `directory` is on, by a file there.
    ///
    /// # Errors
    ///
    /// What the file system says, or where the system starts no thread.
    pub fn start(directory: &Path) -> io::Result<Self> {
        let file = File::create(directory.join("disk"))?;
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("disk".to_owned())
            .spawn(move || ask(&file, &stopped))?;
        Ok(Self { stop, thread })
    }

    /// Ends, and tells when the disk kept everybody waiting.
    #[must_use]
    pub fn finish(self) -> Vec<Stall> {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

fn ask(mut file: &File, stopped: &Receiver<()>) -> Vec<Stall> {
    let mut stalls = Vec::new();
    while stopped.recv_timeout(DISK_EVERY) == Err(RecvTimeoutError::Timeout) {
        let before = clock::now();
        // A disk that is full or fails is seen by all who write ledgers there, and ends them.
        let _kept = file.write_all(b"x").and_then(|()| file.sync_data());
        let kept = clock::now();
        let took = kept.saturating_since(before);
        if took >= STALL_MIN {
            stalls.push(Stall::new(Whose::Disk, kept, took));
        }
    }
    stalls
}

#[cfg(test)]
mod tests {
    use super::super::home::Home;
    use super::*;

    #[test]
    fn it_asks_until_told() {
        let home = Home::make(None, 0).unwrap();
        let disk = Disk::start(home.path()).unwrap();
        let asked = || std::fs::metadata(home.path().join("disk")).unwrap().len();
        while asked() < 2 {
            std::thread::yield_now();
        }
        let _as_the_disk_is = disk.finish();
    }
}
