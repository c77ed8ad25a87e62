//! `etcdctl`, unchanged, says the same of the development server as of a real etcd, word for word.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lameduck_registry::etcd::process::{Process, usable_in};

use crate::server::Dev;

/// Longest wait for a process that has only to do one thing.
const PATIENCE: Duration = Duration::from_secs(20);

fn etcdctl(address: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new("etcdctl");
    command
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &address.to_string()])
        // Its own limits of a few seconds are not what is tested.
        .args(["--dial-timeout=60s", "--command-timeout=60s"])
        .args(arguments);
    command
}

fn run(address: SocketAddr, arguments: &[&str], input: &str) -> Output {
    let mut child = etcdctl(address, arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("etcdctl starts");
    let mut stdin = child.stdin.take().expect("piped");
    // One that does not read its input has ended early, and its answer tells why.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("etcdctl ends")
}

/// What it printed, its errors without the log lines of its client, and how it ended.
fn transcript(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> = stderr
        .lines()
        .filter(|line| !line.starts_with('{'))
        .collect();
    format!(
        "{stdout}{}\n[{}]",
        errors.join("\n"),
        output.status.code().unwrap_or(-1)
    )
}

/// Replaces what differs from server to server: long numbers (names of leases, members, clusters),
/// the address, and how much is left of a lease in the moment of asking.
fn masked(text: &str, address: SocketAddr) -> String {
    let text = text.replace(&address.to_string(), "ADDRESS");
    let text = without_what_is_left(&text);
    let mut masked = String::new();
    let mut word = String::new();
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_alphanumeric() {
            word.push(c);
            continue;
        }
        let is_id = word.len() >= 12 && word.bytes().all(|b| b.is_ascii_hexdigit());
        masked.push_str(if is_id { "ID" } else { &word });
        masked.push(c);
        word.clear();
    }
    masked
}

/// `-1` stays: that lease is gone.
fn without_what_is_left(text: &str) -> String {
    const LEFT: &str = "\"ttl\":";
    let mut parts = text.split(LEFT);
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        masked.push_str(LEFT);
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        masked.push_str(if rest.len() < part.len() { "LEFT" } else { "" });
        masked.push_str(rest);
    }
    masked
}

#[test]
fn what_is_left_of_a_lease_is_masked_and_its_end_is_not() {
    let told = r#"{"ttl":99,"granted-ttl":100} {"id":1,"ttl":-1}"#;
    let expected = r#"{"ttl":LEFT,"granted-ttl":100} {"id":1,"ttl":-1}"#;
    assert_eq!(without_what_is_left(told), expected);
}

/// Runs each line of `script` and notes what is said. `LEASE` is the lease granted last; what
/// follows `<<` is typed in, with `|` for the ends of lines and an empty line at its end.
fn play(address: SocketAddr, script: &str) -> Vec<String> {
    let mut lease = "0".to_owned();
    let lines = script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let (command, input) = line.split_once("<<").unwrap_or((line, ""));
            let command = command.replace("LEASE", &lease);
            let arguments: Vec<&str> = command
                .split_whitespace()
                .map(|word| if word == "''" { "" } else { word })
                .collect();
            let input = input.trim().replace('|', "\n") + "\n\n";
            let output = run(address, &arguments, &input);
            let said = transcript(&output);
            if command.starts_with("lease grant") && output.status.success() {
                lease = said.split(' ').nth(1).expect("lease ID granted").to_owned();
            }
            format!("$ {line}\n{}", masked(&said, address))
        })
        .collect()
}

/// The same on both; returns what was said.
fn compare(test: &str, script: &str) {
    if !usable_in(test) {
        return;
    }
    let etcd = Process::start().expect("etcd starts");
    let dev = Dev::start();
    let (real, ours) = (play(etcd.address(), script), play(dev.address(), script));
    for (real, ours) in real.iter().zip(&ours) {
        assert_eq!(ours, real, "left: the development server, right: etcd");
    }
}

#[test]
fn keys_are_put_found_and_deleted_as_by_etcd() {
    compare(
        "keys_are_put_found_and_deleted_as_by_etcd",
        "
        get a
        put a 1
        put a/1 one
        put a/2 two
        put b 3 --prev-kv
        put b 4 --prev-kv
        get a
        get a -w json
        get a/ --prefix
        get a/ --prefix -w json
        get a/ --prefix --keys-only
        get '' --prefix --limit 2 -w json
        get '' --from-key
        get a a/2
        get '' --prefix --sort-by VALUE --order DESCEND
        get '' --prefix --sort-by MODIFY --order DESCEND --limit 1 -w json
        get '' --prefix --sort-by VERSION
        get '' --prefix --sort-by CREATE --order ASCEND
        get b --rev 5
        get b --rev 2
        get b --rev 99
        get '' --prefix --rev 3 -w json
        get a --print-value-only
        get a --consistency s
        get a --user root:password
        put b 5 --ignore-lease
        put b --ignore-value
        put none --ignore-value
        put none 1 --ignore-lease
        del none -w json
        del b --prev-kv
        del a/ --prefix -w json
        get '' --prefix -w json
        put ''
        del a
        del a
        ",
    );
}

#[test]
fn transactions_do_what_they_do_in_etcd() {
    compare(
        "transactions_do_what_they_do_in_etcd",
        r#"
        txn << create("a") = "0"||put a 1|put b 1|get a|get a --rev 1||get a
        txn << create("a") = "0"||put a 2||get a|get b
        txn -w json << mod("a") > "1"|ver("b") = "1"||put a 3|del b|get a||get b
        txn -w json << val("a") = "3"|create("a") < "9"||del none|get none||put failed yes
        txn -w json << val("none") = ""||get a||put failed yes
        txn << |put a 1|put a 2||
        txn << |put a 1|del a||
        txn << |put a 1 --lease=12ab|put c 1||
        txn << |put a 1|put ""||
        txn << |put a 9|get a --rev 99||
        get '' --prefix -w json
        "#,
    );
}

#[test]
fn leases_live_and_end_as_in_etcd() {
    compare(
        "leases_live_and_end_as_in_etcd",
        "
        lease list
        lease grant 100
        put leased/a 1 --lease LEASE
        lease timetolive LEASE --keys -w json
        put leased/b 1 --lease LEASE
        put free 1 --lease 12ab
        get leased/a -w json
        lease timetolive LEASE -w json
        lease keep-alive --once LEASE
        lease keep-alive --once 12ab
        lease timetolive 12ab
        lease timetolive 12ab -w json
        lease list
        put leased/b 2
        lease revoke LEASE
        lease revoke LEASE
        get '' --prefix -w json
        lease list -w json
        lease grant 1
        lease grant 0
        lease grant 9000000001
        lease grant -1
        ",
    );
}

#[test]
fn the_past_is_compacted_as_in_etcd() {
    compare(
        "the_past_is_compacted_as_in_etcd",
        "
        put a 1
        put a 2
        put a 3
        compaction 3
        compaction 3
        compaction 99
        get a --rev 2
        get a --rev 3
        watch a --rev 2
        ",
    );
}

#[test]
fn clients_are_told_who_is_there() {
    if !usable_in("clients_are_told_who_is_there") {
        return;
    }
    let etcd = Process::start().expect("etcd starts");
    let dev = Dev::start();
    let said = |address| {
        let members = run(address, &["member", "list"], "");
        let status = run(address, &["endpoint", "status"], "");
        let alarms = transcript(&run(address, &["alarm", "list"], ""));
        let health = run(address, &["endpoint", "health"], "");
        let members = masked(&String::from_utf8_lossy(&members.stdout), address);
        let status = masked(&String::from_utf8_lossy(&status.stdout), address);
        let health = transcript(&health)
            .split(" took")
            .next()
            .map(|text| masked(text, address));
        let columns = |text: &str, kept: &[usize]| {
            let words: Vec<String> = text.trim().split(", ").map(str::to_owned).collect();
            let kept: Vec<String> = kept.iter().map(|column| words[*column].clone()).collect();
            (words.len(), kept)
        };
        // Not the name, the peers, the version and the sizes.
        (
            columns(&members, &[0, 1, 4, 5]),
            columns(&status, &[0, 1, 4, 5]),
            alarms,
            health,
        )
    };
    assert_eq!(said(dev.address()), said(etcd.address()));
    let members = run(dev.address(), &["member", "list"], "");
    let text = String::from_utf8_lossy(&members.stdout).into_owned();
    assert!(
        text.contains(&format!("http://{}", dev.address())),
        "{text}"
    );
}

#[test]
fn d46_what_is_missing_is_refused_with_a_sentence() {
    if !usable_in("d46_what_is_missing_is_refused_with_a_sentence") {
        return;
    }
    let dev = Dev::start();
    let missing: &[(&[&str], &str)] = &[
        (&["user", "list"], "UserList"),
        (&["role", "add", "a"], "RoleAdd"),
        (&["auth", "enable"], "password"),
        (&["defrag"], "Defragment"),
        (&["endpoint", "hashkv"], "HashKV"),
        (&["snapshot", "save", "/dev/null/none"], ""),
        (&["member", "remove", "1"], "MemberRemove"),
        (&["move-leader", "1"], ""),
    ];
    for (arguments, word) in missing {
        let said = transcript(&run(dev.address(), arguments, ""));
        assert!(!said.ends_with("[0]"), "{arguments:?}: {said}");
        if !word.is_empty() {
            let told = ["development registry", "use an etcd", word];
            assert!(told.iter().all(|told| said.contains(told)), "{said}");
        }
    }
}

/// An `etcdctl` that goes on, line by line.
struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Running {
    fn start(address: SocketAddr, arguments: &[&str]) -> Self {
        let mut child = etcdctl(address, arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("etcdctl starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("another line")
    }

    fn lines(&self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.line()).collect()
    }

    /// Up to the last line, which contains `end`.
    fn lines_to(&self, end: &str) -> Vec<String> {
        let mut lines = vec![self.line()];
        while lines.last().is_some_and(|line| !line.contains(end)) {
            lines.push(self.line());
        }
        lines
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The events of one answer: how they are put together is a matter of chance.
fn events(line: &str, address: SocketAddr) -> Vec<String> {
    let answer: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let events = answer["Events"].as_array().expect("events");
    events
        .iter()
        .map(|event| masked(&event.to_string(), address))
        .collect()
}

/// What each watcher says while keys come and go.
fn watched(address: SocketAddr) -> Vec<Vec<String>> {
    let past = play(address, "put w/a 1\nput w/b 1\ndel w/a\nput x 1");
    assert!(
        past.iter().all(|said| said.trim().ends_with("[0]")),
        "{past:?}"
    );
    let all = Running::start(address, &["watch", "w/", "--prefix", "--rev", "2"]);
    let one = Running::start(address, &["watch", "w/b", "--rev", "1", "--prev-kv"]);
    let json = Running::start(
        address,
        &["watch", "w/", "--prefix", "--rev", "4", "-w", "json"],
    );
    let range = Running::start(address, &["watch", "w/a", "w/b", "--rev", "6"]);
    let moves = "put w/b 2\nlease grant 100\nput w/a 3 --lease LEASE\nlease revoke LEASE\n\
                 txn << |put w/1 1|put w/2 2|del w/b||\nput w/a END\nput w/b END";
    play(address, moves);
    let json = json.lines_to("RU5E");
    let events = json.iter().flat_map(|line| events(line, address));
    let mut json: Vec<String> = events.collect();
    // The last answer may hold more than one end.
    let end = json.iter().position(|event| event.contains("RU5E"));
    json.truncate(end.expect("it has come") + 1);
    vec![
        all.lines_to("END"),
        one.lines_to("END"),
        json,
        range.lines_to("END"),
    ]
}

#[test]
fn watchers_hear_what_they_hear_from_etcd() {
    if !usable_in("watchers_hear_what_they_hear_from_etcd") {
        return;
    }
    let etcd = Process::start().expect("etcd starts");
    let dev = Dev::start();
    assert_eq!(watched(dev.address()), watched(etcd.address()));
}

/// What a lease has to live where nobody renews it.
const TTL: Duration = Duration::from_secs(4);
/// Attempts at a course of events in which every renewal came in time.
const ATTEMPTS_MAX: u32 = 10;

#[test]
fn a_lease_lives_for_as_long_as_etcdctl_renews_it() {
    if !usable_in("a_lease_lives_for_as_long_as_etcdctl_renews_it") {
        return;
    }
    let proved = (0..ATTEMPTS_MAX).any(|_| a_lease_is_renewed());
    assert!(proved, "this machine stands still too often");
}

/// Renews a lease and looks that it is there. False, and nothing is judged, where a renewal was late
/// by the clock of this machine.
fn a_lease_is_renewed() -> bool {
    let dev = Dev::start();
    // The lease was renewed after the first of these: etcdctl renews after it has said the line before.
    let mut said = [Instant::now(); 2];
    let granted = transcript(&run(dev.address(), &["lease", "grant", "4"], ""));
    let id = granted
        .split(' ')
        .nth(1)
        .expect("lease ID granted")
        .to_owned();
    run(dev.address(), &["put", "a", "1", "--lease", &id], "");
    let watch = Running::start(dev.address(), &["watch", "a", "--rev", "2"]);
    if watch.lines(3) != ["PUT", "a", "1"] || said[0].elapsed() >= TTL {
        return false;
    }
    let renewing = Running::start(dev.address(), &["lease", "keep-alive", &id]);
    // Longer than it would live alone.
    let end = Instant::now() + TTL * 3 / 2;
    while Instant::now() < end {
        let line = renewing.line();
        let ended = watch.lines.try_recv().is_ok();
        if said[0].elapsed() >= TTL {
            return false;
        }
        said = [said[1], Instant::now()];
        assert_eq!(line, format!("lease {id} keepalived with TTL(4)"));
        assert!(!ended, "it is still there");
    }
    drop(renewing);
    assert_eq!(watch.lines(2), ["DELETE", "a"]);
    true
}

#[test]
fn a_lock_of_etcdctl_works() {
    if !usable_in("a_lock_of_etcdctl_works") {
        return;
    }
    let dev = Dev::start();
    let locked = transcript(&run(dev.address(), &["lock", "door", "echo", "inside"], ""));
    assert!(
        locked.starts_with("inside") && locked.ends_with("[0]"),
        "{locked}"
    );
}
