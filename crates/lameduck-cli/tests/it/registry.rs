use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

fn lameduck(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lameduck"));
    command
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn output(arguments: &[&str]) -> Output {
    lameduck(arguments).output().expect("the command runs")
}

/// A registry on a free port.
struct Started {
    child: Child,
    address: String,
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn started() -> Started {
    let mut child = lameduck(&["registry", "--listen", "127.0.0.1:0"])
        .spawn()
        .expect("the command runs");
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    let address = line
        .trim()
        .strip_prefix("etcd://")
        .expect("its target")
        .to_owned();
    Started { child, address }
}

fn check_signal(name: &str) {
    let mut started = started();
    let mut client = TcpStream::connect(&started.address).expect("it listens");
    let command = format!("kill -{name} {}", started.child.id());
    Command::new("sh")
        .args(["-c", &command])
        .status()
        .expect("the signal is sent");
    let status = started.child.wait().expect("it ends");
    assert_eq!(status.code(), Some(0), "{name}");
    let mut told = String::new();
    started
        .child
        .stderr
        .take()
        .expect("piped")
        .read_to_string(&mut told)
        .expect("text");
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(
        told.contains("for development") && told.contains("loopback"),
        "{told}"
    );
    // Ends in whatever way: connections are closed. Whether the port is free cannot be asked: whoever
    // wants one may have it by now.
    let _ = client.read_to_end(&mut Vec::new());
}

#[test]
fn a_registry_ends_cleanly_when_it_is_told_to() {
    check_signal("TERM");
    check_signal("INT");
}

#[test]
fn only_loopback_is_listened_on() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:2379"] {
        let refused = output(&["registry", "--listen", address]);
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{told}");
        assert!(
            told.contains(address) && told.contains("127.0.0.1"),
            "{told}"
        );
    }
    let nonsense = output(&["registry", "--listen", "nonsense"]);
    assert_eq!(nonsense.status.code(), Some(2));
}

#[test]
fn a_taken_address_is_named() {
    let started = started();
    let refused = output(&["registry", "--listen", &started.address]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(12), "{told}");
    assert!(told.contains(&started.address), "{told}");
}
