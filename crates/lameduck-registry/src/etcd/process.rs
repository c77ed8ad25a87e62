//! A real etcd as a child process: on free loopback ports, in a directory of its own, gone on drop.
//!
//! For tests and for the lab. It stays behind under no circumstances: a small shell stands between,
//! which kills it when this process ends in whatever way (its standard input closes then).

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lameduck_core::rng::Rng;

use super::ports;

/// From the start of the process to its first answer. Elections of a single member take about a
/// second; a loaded machine a few.
const START_MAX: Duration = Duration::from_secs(30);
/// Another process may take a port between our look and etcd's bind: tried again this often.
const STARTS_MAX: u32 = 4;
/// Kills etcd when standard input closes, ends when etcd does, prints etcd's process id first.
const GUARD: &str = r#"
program=$1; log=$2; shift 2; exec 3<&0 2>/dev/null
"$program" "$@" >>"$log" 2>&1 3<&- & etcd=$!
{ read x <&3; kill -9 $etcd; } & reader=$!
echo $etcd
wait $etcd; status=$?
kill $reader
exit $status
"#;

/// A running etcd of one member.
#[derive(Debug)]
pub struct Process {
    guard: Child,
    pid: u32,
    client: SocketAddr,
    peer: SocketAddr,
    directory: PathBuf,
    program: String,
    options: Vec<String>,
}

/// Whether `program` is found on the search path.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// What an etcd 3.6 is called on the search path, beside the distribution's own one.
pub const ETCD_3_6: &str = "etcd-3.6";

/// Whether `test` can use an etcd 3.6 beside the distribution's. Where not, says so on standard error;
/// `cargo xtask test` lists it among what did not run.
#[must_use]
pub fn newer_usable_in(test: &str) -> bool {
    let without = std::env::var("LAMEDUCK_WITHOUT").unwrap_or_default();
    let left_out = without.split([',', ' ']).any(|name| name == ETCD_3_6);
    if !left_out && is_installed(ETCD_3_6) {
        return usable_in(test);
    }
    eprintln!("{test}: left out: no {ETCD_3_6} on the search path");
    false
}

/// Whether `test` can use a real etcd and its `etcdctl`. Where not, says so on standard error.
///
/// `LAMEDUCK_WITHOUT` (a list of names) leaves it out where it contains `etcd`.
///
/// # Panics
///
/// Where `CI` is set: there a test must not be left out in silence.
#[must_use]
pub fn usable_in(test: &str) -> bool {
    let without = std::env::var("LAMEDUCK_WITHOUT").unwrap_or_default();
    let left_out = without.split([',', ' ']).any(|name| name == "etcd");
    if !left_out && is_installed("etcd") && is_installed("etcdctl") {
        return true;
    }
    let why = if left_out {
        "LAMEDUCK_WITHOUT names etcd"
    } else {
        "etcd or etcdctl is not installed (Debian: etcd-server, etcd-client)"
    };
    assert!(
        std::env::var_os("CI").is_none(),
        "{test} needs a real etcd where CI is set: {why}"
    );
    eprintln!("{test}: left out: {why}");
    false
}

impl Process {
    /// Starts etcd and waits until it answers.
    ///
    /// # Errors
    ///
    /// Where it cannot be started or does not answer within 30 s; the message ends with its last
    /// words.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// Starts etcd with further options on its command line.
    ///
    /// # Errors
    ///
    /// As [`Process::start`].
    pub fn start_with(options: &[&str]) -> io::Result<Self> {
        Self::start_in(&std::env::temp_dir(), options)
    }

    /// Starts etcd with its directory below `parent`.
    ///
    /// # Errors
    ///
    /// As [`Process::start`].
    pub fn start_in(parent: &Path, options: &[&str]) -> io::Result<Self> {
        Self::start_program("etcd", parent, options)
    }

    /// Starts `program`, an etcd of whatever version, with its directory below `parent`.
    ///
    /// # Errors
    ///
    /// As [`Process::start`].
    pub fn start_program(program: &str, parent: &Path, options: &[&str]) -> io::Result<Self> {
        let options: Vec<String> = options.iter().map(ToString::to_string).collect();
        let mut failure = io::Error::other("etcd was not started");
        for _ in 0..STARTS_MAX {
            let (client, peer) = free_ports()?;
            let name = format!("lameduck-etcd-{}-{}", std::process::id(), client.port());
            let directory = parent.join(name);
            let _ = fs::remove_dir_all(&directory);
            fs::create_dir_all(&directory)?;
            match launch(program, &directory, client, peer, &options) {
                Ok((guard, pid)) => {
                    return Ok(Self {
                        guard,
                        pid,
                        client,
                        peer,
                        directory,
                        program: program.to_owned(),
                        options,
                    });
                }
                Err(error) => failure = error,
            }
            let _ = fs::remove_dir_all(&directory);
        }
        Err(failure)
    }

    /// Where clients reach it.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.client
    }

    /// Its process id.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.pid
    }

    /// The registry target that names it: `etcd://127.0.0.1:PORT`.
    #[must_use]
    pub fn target(&self) -> String {
        format!("etcd://{}", self.client)
    }

    /// Kills it as a crash would; its data stay for [`Process::restart`].
    ///
    /// # Errors
    ///
    /// Where waiting for its end fails.
    pub fn kill(&mut self) -> io::Result<()> {
        drop(self.guard.stdin.take());
        self.guard.wait().map(drop)
    }

    /// Starts it again on the same ports and data, after [`Process::kill`] or instead of it.
    ///
    /// # Errors
    ///
    /// As [`Process::start`].
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill()?;
        (self.guard, self.pid) = launch(
            &self.program,
            &self.directory,
            self.client,
            self.peer,
            &self.options,
        )?;
        Ok(())
    }

    /// Stops it without ending it: connections stay open and silent.
    ///
    /// # Errors
    ///
    /// Where the signal cannot be sent.
    pub fn freeze(&self) -> io::Result<()> {
        self.signal("STOP")
    }

    /// Lets it go on after [`Process::freeze`].
    ///
    /// # Errors
    ///
    /// Where the signal cannot be sent.
    pub fn thaw(&self) -> io::Result<()> {
        self.signal("CONT")
    }

    fn signal(&self, name: &str) -> io::Result<()> {
        let command = format!("kill -{name} {}", self.pid);
        let status = Command::new("sh").args(["-c", &command]).status()?;
        if status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!("{command:?} failed: {status}")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Two that stay free where it is away for a while and then comes back.
fn free_ports() -> io::Result<(SocketAddr, SocketAddr)> {
    let seed = getrandom::u64().map_err(io::Error::other)?;
    let found = ports::free(2, &mut Rng::from_seed(seed))?;
    Ok((found[0], found[1]))
}

fn launch(
    program: &str,
    directory: &Path,
    client: SocketAddr,
    peer: SocketAddr,
    options: &[String],
) -> io::Result<(Child, u32)> {
    let log = directory.join("log");
    let (client_url, peer_url) = (format!("http://{client}"), format!("http://{peer}"));
    let mut command = Command::new("sh");
    // Its settings are those given here, not what the environment has for another one.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCD_") {
            command.env_remove(name);
        }
    }
    let mut guard = command
        .args(["-c", GUARD, "sh", program])
        .arg(&log)
        .arg("--data-dir")
        .arg(directory.join("data"))
        .args(["--listen-client-urls", &client_url])
        .args(["--advertise-client-urls", &client_url])
        .args(["--listen-peer-urls", &peer_url])
        .args(["--initial-advertise-peer-urls", &peer_url])
        .args(["--initial-cluster", &format!("default={peer_url}")])
        .args(["--logger", "zap"])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    match settle(&mut guard, client, &log) {
        Ok(pid) => Ok((guard, pid)),
        Err(error) => {
            drop(guard.stdin.take());
            guard.wait()?;
            Err(error)
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "no event tells that a process of another project listens"
)]
fn settle(guard: &mut Child, client: SocketAddr, log: &Path) -> io::Result<u32> {
    let mut line = String::new();
    if let Some(stdout) = guard.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    let pid = line.trim().parse().map_err(io::Error::other)?;
    let deadline = Instant::now() + START_MAX;
    while !is_healthy(client) {
        let ended = guard.try_wait()?;
        if ended.is_some() || Instant::now() > deadline {
            let text = fs::read_to_string(log).unwrap_or_default();
            let words: Vec<&str> = text.lines().rev().take(3).collect();
            let how = ended.map_or("does not answer".to_owned(), |status| status.to_string());
            return Err(io::Error::other(format!(
                "etcd on {client}: {how}: {words:?}"
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(pid)
}

fn is_healthy(client: SocketAddr) -> bool {
    let ask = || -> io::Result<String> {
        let mut stream = TcpStream::connect(client)?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains(r#""health":"true""#))
}
