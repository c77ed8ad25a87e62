//! What a person sees on a terminal, read back from a real one.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const LAMEDUCK: &str = env!("CARGO_BIN_EXE_lameduck");
/// Far longer than the lab takes, for machines that are busy.
const LONG: Duration = Duration::from_secs(120);

/// A terminal of its own, of the smallest size that is usual, on a socket of its own.
struct Terminal {
    socket: String,
    /// All that was ever written to it.
    drawn: PathBuf,
}

impl Terminal {
    fn open(shell: &str) -> Self {
        let socket = format!("lameduck-test-{}", std::process::id());
        let drawn = std::env::temp_dir().join(format!("{socket}.drawn"));
        let _none_there = fs::remove_file(&drawn);
        let terminal = Self { socket, drawn };
        // What is run waits for a key, which comes once all that it draws is kept.
        let shell = format!("read go; {shell}");
        terminal.tmux(&["new-session", "-d", "-x", "80", "-y", "24", &shell]);
        let keep = format!("cat >'{}'", terminal.drawn.display());
        terminal.tmux(&["pipe-pane", "-O", &keep]);
        terminal.tmux(&["send-keys", "Enter"]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.args(["-L", &self.socket, "-f", "/dev/null"]);
        let output = command.args(arguments).output().expect("tmux runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// All that was ever written there, however short a time it stood: to be asked once the end is shown.
    fn drawn(&self) -> String {
        let begun = Instant::now();
        loop {
            let drawn = fs::read(&self.drawn).unwrap_or_default();
            let drawn = String::from_utf8_lossy(&drawn).into_owned();
            if drawn.contains("ended with") {
                return drawn;
            }
            assert!(begun.elapsed() < LONG, "{drawn}");
            std::thread::yield_now();
        }
    }

    /// Waits until the screen is as wanted, and gives it, with what has left it at the top.
    #[expect(
        clippy::disallowed_methods,
        reason = "a terminal tells nobody that it has changed: it is looked at again and again"
    )]
    fn shows(&self, wanted: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let screen = self.tmux(&["capture-pane", "-p", "-S", "-"]);
            if wanted(&screen) {
                return screen;
            }
            assert!(begun.elapsed() < LONG, "{screen}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
        let _unless_never_opened = fs::remove_file(&self.drawn);
    }
}

/// Whether the terminal multiplexer that this needs is there; without it nothing is shown.
fn has_tmux() -> bool {
    let without = std::env::var("LAMEDUCK_WITHOUT").unwrap_or_default();
    if !without.split(',').any(|name| name == "tmux") {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "tmux is missing");
    eprintln!("not run: tmux is missing");
    false
}

#[test]
fn a_terminal_shows_a_row_for_each_server_and_then_the_table() {
    if !has_tmux() {
        return;
    }
    let lab = "lab --registry none --rate 100 --servers 2 --rolls 1";
    let terminal = Terminal::open(&format!("'{LAMEDUCK}' {lab}; echo ended with $?; cat"));
    let screen = terminal.shows(|screen| screen.contains("ended with"));
    let drawn = terminal.drawn();
    let row = |server: u32, phase: &str| {
        let name = format!("server {server} ");
        let mut pieces = drawn.split(['\n', '\r', '\x1b']);
        pieces.any(|piece| piece.contains(&name) && piece.contains(phase))
    };
    assert!(row(0, " serving ") && row(1, " serving "), "{drawn}");
    assert!(row(0, " closing ") || row(1, " closing "), "{drawn}");
    assert!(drawn.contains(" calls/s  0 failed"), "{drawn}");
    let whole = |line: &str, begin: &str, end: &str| line.starts_with(begin) && line.ends_with(end);
    let is_whole = |begin: &str, end: &str| screen.lines().any(|line| whole(line, begin, end));
    assert!(is_whole("after the signal, in ms", "  cut"), "{screen}");
    assert!(is_whole("  server 0", " 0"), "{screen}");
    assert!(
        is_whole("a sleeping thread was late", "in 99 of 100)"),
        "{screen}"
    );
    assert!(!screen.contains("serving"), "the view is gone:\n{screen}");
}
