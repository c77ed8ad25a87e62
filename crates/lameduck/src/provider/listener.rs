//! Sockets that others have opened: a service manager, or the program itself.

use std::net::TcpListener;

use listenfd::ListenFd;
use socket2::{Domain, SockRef, Type};

use super::error::BuildError;

/// The first socket that a service manager handed over; `None` where it handed none over.
pub(super) fn inherited() -> Result<Option<TcpListener>, BuildError> {
    let taken = ListenFd::from_env().take_tcp_listener(0);
    taken.map_err(|error| {
        BuildError::Listen(format!(
            "the socket that LISTEN_FDS hands over is no TCP listener ({error}); correct ListenStream= \
             of the .socket unit, or say .listen_inherited(false)"
        ))
    })
}

/// Whether this is a listening TCP socket; `Err` says what it is.
pub(super) fn check(listener: &TcpListener) -> Result<(), String> {
    let socket = SockRef::from(listener);
    let domain = socket.domain().map_err(|error| error.to_string())?;
    let wrong = if domain == Domain::UNIX {
        "a unix socket, which is not served yet; put a proxy before it"
    } else if domain != Domain::IPV4 && domain != Domain::IPV6 {
        "no TCP socket"
    } else if socket.r#type().ok() != Some(Type::STREAM) {
        "no TCP socket (datagrams)"
    } else if socket.is_listener().is_ok_and(|listens| !listens) {
        "not listening; call listen(2) on it first"
    } else {
        return Ok(());
    };
    Err(format!(
        "the given listener is {wrong}; give a listening TCP socket"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::Socket;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixListener;

    #[test]
    fn s24_what_is_no_tcp_listener_is_refused_by_what_it_is() {
        let path = std::env::temp_dir().join(format!("lameduck {}", std::process::id()));
        let unix = UnixListener::bind(&path).expect("a path of our own");
        std::fs::remove_file(&path).expect("it was made");
        let udp = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
        let silent = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        for (given, says) in [
            (
                OwnedFd::from(unix),
                "is a unix socket, which is not served yet",
            ),
            (OwnedFd::from(udp), "is no TCP socket"),
            (OwnedFd::from(silent), "is not listening"),
        ] {
            let why = check(&TcpListener::from(given)).expect_err(says);
            assert!(why.contains(says), "{why}");
        }
        let good = TcpListener::bind("127.0.0.1:0").expect("a port");
        assert_eq!(check(&good), Ok(()));
    }
}
