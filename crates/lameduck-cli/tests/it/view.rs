//! What a person sees on a terminal, read back from a real one.

use std::process::Command;
use std::time::{Duration, Instant};

const LAMEDUCK: &str = env!("CARGO_BIN_EXE_lameduck");
/// Far longer than the lab takes, for machines that are busy.
const LONG: Duration = Duration::from_secs(120);

/// A terminal of its own, of the smallest size that is usual, on a socket of its own.
struct Terminal {
    socket: String,
}

impl Terminal {
    fn open(shell: &str) -> Self {
        let socket = format!("lameduck-test-{}", std::process::id());
        let terminal = Self { socket };
        terminal.tmux(&["new-session", "-d", "-x", "80", "-y", "24", shell]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.args(["-L", &self.socket, "-f", "/dev/null"]);
        let output = command.args(arguments).output().expect("tmux runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until the screen is as wanted, and gives it.
    #[expect(
        clippy::disallowed_methods,
        reason = "a terminal tells nobody that it has changed: it is looked at again and again"
    )]
    fn shows(&self, wanted: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]);
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
    let row = |screen: &str, server: u32, phase: &str| {
        let name = format!("server {server}");
        let mut lines = screen.lines().map(str::trim_start);
        lines.any(|line| line.starts_with(&name) && line.contains(phase))
    };
    let screen = terminal.shows(|screen| row(screen, 0, "serving") && row(screen, 1, "serving"));
    assert!(
        screen.contains("calls/s") && screen.contains("failed"),
        "{screen}"
    );
    terminal.shows(|screen| row(screen, 0, "closing") || row(screen, 1, "closing"));
    let screen = terminal.shows(|screen| screen.contains("ended with"));
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
