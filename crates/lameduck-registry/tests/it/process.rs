use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use lameduck_registry::etcd::process::{Process, usable_in};

/// Longer than a loaded machine takes to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Long enough for a process that runs.
const GLANCE: Duration = Duration::from_millis(300);

/// Whether it answers within this time.
fn answers(etcd: &Process, within: Duration) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect(etcd.address())?;
        stream.set_read_timeout(Some(within))?;
        stream.write_all(b"GET /version HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        std::io::Result::Ok(text)
    };
    ask().is_ok_and(|text| text.contains("etcdserver"))
}

#[test]
fn an_etcd_lives_as_long_as_its_value() {
    if !usable_in("an_etcd_lives_as_long_as_its_value") {
        return;
    }
    let mut etcd = Process::start().expect("etcd starts");
    assert!(answers(&etcd, PATIENCE));
    etcd.freeze().expect("stopped");
    assert!(!answers(&etcd, GLANCE));
    etcd.thaw().expect("continued");
    assert!(answers(&etcd, PATIENCE));
    etcd.kill().expect("killed");
    assert!(!answers(&etcd, PATIENCE));
    etcd.restart().expect("etcd starts again");
    assert!(answers(&etcd, PATIENCE));
    let pid = etcd.id();
    drop(etcd);
    // Another process may have its port by now.
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}
