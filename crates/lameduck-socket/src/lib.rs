//! What lameduck asks the kernel about a socket, and no safe crate offers.
//!
//! ```
//! use std::net::{TcpListener, TcpStream};
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let stream = TcpStream::connect(listener.local_addr()?)?;
//! assert_eq!(lameduck_socket::unacknowledged(&stream)?, 0);
//! # Ok::<(), std::io::Error>(())
//! ```

use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{Getter, Opcode, ioctl};

/// `SIOCOUTQ` of tcp(7), which is `TIOCOUTQ`.
#[cfg(not(any(
    target_arch = "mips",
    target_arch = "mips64",
    target_arch = "powerpc",
    target_arch = "powerpc64",
    target_arch = "sparc",
    target_arch = "sparc64"
)))]
const SIOCOUTQ: Opcode = 0x5411;

/// How many bytes of a TCP connection the peer has not acknowledged: those in the send queue, and one
/// for a FIN. 0 once it has all of them.
///
/// # Errors
///
/// What the kernel says: the socket listens, or is no stream.
pub fn unacknowledged(socket: impl AsFd) -> io::Result<u64> {
    #[expect(unsafe_code, reason = "no safe crate has this question")]
    // SAFETY: the kernel writes one `int` for this request and reads nothing; for whatever else the
    // descriptor may be, the request is refused or writes one `int` as well (`TIOCOUTQ`).
    let bytes: i32 = unsafe { ioctl(socket.as_fd(), Getter::<SIOCOUTQ, i32>::new()) }?;
    Ok(u64::try_from(bytes).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn bytes_are_counted_until_the_peer_has_them() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let mut sender = TcpStream::connect(address).expect("it listens");
        let (mut reader, _) = listener.accept().expect("a client");
        sender.set_nonblocking(true).expect("a socket");
        // Until both queues are full.
        let piece = [0; 64 << 10];
        let mut sent = 0;
        while let Ok(count) = sender.write(&piece) {
            sent += count;
        }
        let left = unacknowledged(&sender).expect("a TCP socket");
        assert!(left > 0 && left <= sent as u64, "{left} of {sent}");
        sender.shutdown(Shutdown::Write).expect("a socket");
        let mut got = Vec::new();
        reader.read_to_end(&mut got).expect("a FIN");
        assert_eq!(got.len(), sent);
        // The FIN is acknowledged by a kernel, not by a program: soon, and by itself.
        while unacknowledged(&sender).expect("a TCP socket") > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_listener_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        assert!(unacknowledged(&listener).is_err());
    }
}
