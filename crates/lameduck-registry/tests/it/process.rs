use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use lameduck_registry::etcd::process::{Process, usable_in};

fn answers(etcd: &Process) -> bool {
    let Ok(mut stream) = TcpStream::connect(etcd.address()) else {
        return false;
    };
    stream
        .set_read_timeout(Some(Duration::from_millis(300)))
        .expect("a socket");
    stream
        .write_all(b"GET /version HTTP/1.0\r\n\r\n")
        .expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).is_ok() && text.contains("etcdserver")
}

#[test]
fn an_etcd_lives_as_long_as_its_value() {
    if !usable_in("an_etcd_lives_as_long_as_its_value") {
        return;
    }
    let mut etcd = Process::start().expect("etcd starts");
    assert!(answers(&etcd));
    etcd.freeze().expect("stopped");
    assert!(!answers(&etcd));
    etcd.thaw().expect("continued");
    assert!(answers(&etcd));
    etcd.kill().expect("killed");
    assert!(!answers(&etcd));
    etcd.restart().expect("etcd starts again");
    assert!(answers(&etcd));
    let address = etcd.address();
    drop(etcd);
    assert!(TcpStream::connect(address).is_err());
}
