//! The pipe from the lab to a child: a start, a stop, and an end that means the lab is gone.

use std::fmt;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use lameduck_core::time::Timestamp;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// What the lab says to a child: one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The plan begins at this instant.
    Start(Timestamp),
    /// Finish what is under way and exit; leave all files.
    Stop,
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(at) => write!(f, "start {}", at.as_nanos()),
            Self::Stop => f.write_str("stop"),
        }
    }
}

/// A line that is no word of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoWord;

impl FromStr for Word {
    type Err = NoWord;

    fn from_str(text: &str) -> Result<Self, NoWord> {
        match text.split_once(' ') {
            Some(("start", at)) => {
                let at = at.parse().map_err(|_| NoWord)?;
                Ok(Self::Start(Timestamp::from_nanos(at)))
            }
            None if text == "stop" => Ok(Self::Stop),
            _ => Err(NoWord),
        }
    }
}

/// Names of the directories that a run makes, so that nothing else is ever removed.
pub const HOME_PREFIX: &str = "lameduck-lab-";

/// Listens to the lab from a thread of its own, which ends this process at once where the pipe ends
/// without a stop: then the lab is gone, however it went, and `home` with it.
///
/// # Errors
///
/// Where the system starts no thread.
pub fn listen(home: Option<PathBuf>) -> io::Result<UnboundedReceiver<Word>> {
    let (sender, words) = mpsc::unbounded_channel();
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            if !pass_on(&sender) {
                if let Some(home) = home {
                    remove_home(&home);
                }
                std::process::exit(1);
            }
        })?;
    Ok(words)
}

/// True once a stop was passed on; false where the pipe ended or broke before.
fn pass_on(sender: &UnboundedSender<Word>) -> bool {
    for line in io::stdin().lock().lines() {
        let Some(word) = line.ok().and_then(|line| line.parse().ok()) else {
            return false;
        };
        // A child that no longer listens is ending already.
        let _ = sender.send(word);
        if word == Word::Stop {
            return true;
        }
    }
    false
}

/// Removes a directory of a run with everything in it, as far as it is there. Several children may
/// do so at once, each removing files under the other's hands: then it is tried again.
pub fn remove_home(home: &Path) {
    let name = home.file_name().unwrap_or_default().to_string_lossy();
    if !name.starts_with(HOME_PREFIX) {
        return;
    }
    for _ in 0..10 {
        match std::fs::remove_dir_all(home) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for word in [Word::Start(Timestamp::from_nanos(7)), Word::Stop] {
            assert_eq!(word.to_string().parse(), Ok(word));
        }
        for bad in ["", "start", "start x", "stop now"] {
            assert_eq!(bad.parse::<Word>(), Err(NoWord), "{bad:?}");
        }
    }

    #[test]
    fn only_homes_are_removed() {
        let base = std::env::temp_dir().join(format!("lab-control-{}", std::process::id()));
        let (home, other) = (base.join("lameduck-lab-1"), base.join("else"));
        for path in [&home, &other] {
            std::fs::create_dir_all(path.join("deep")).unwrap();
            remove_home(path);
        }
        assert!(!home.exists() && other.exists());
        std::fs::remove_dir_all(&base).unwrap();
    }
}
