//! Ports for servers that come back where they left.
//!
//! A port in the system's ephemeral range may be taken by any outgoing connection while its server
//! is away, so they are drawn from below that range.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use lameduck_core::rng::Rng;

/// Drawn from here up to the ephemeral range.
const LOWEST: u16 = 10_000;
/// Where the range is unknown: Linux's own default.
const EPHEMERAL: u16 = 32_768;
/// Ports tried for each one wanted.
const TRIES: usize = 200;

/// Free loopback addresses, each with another port.
///
/// # Errors
///
/// Where too few are free.
pub fn free(count: usize, rng: &mut Rng) -> io::Result<Vec<SocketAddr>> {
    let mut held: Vec<TcpListener> = Vec::with_capacity(count);
    let span = usize::from(ephemeral().max(LOWEST + 1_000) - LOWEST);
    for _ in 0..count * TRIES {
        if held.len() == count {
            break;
        }
        let port = LOWEST + rng.below(span) as u16;
        held.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
    }
    if held.len() < count {
        let message = format!(
            "{} of {count} ports below the ephemeral range are free",
            held.len()
        );
        return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
    }
    held.iter().map(TcpListener::local_addr).collect()
}

fn ephemeral() -> u16 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let lowest = range.split_whitespace().next();
    lowest
        .and_then(|text| text.parse().ok())
        .unwrap_or(EPHEMERAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn they_are_free_different_and_below_the_ephemeral_range() {
        let all = free(20, &mut Rng::from_seed(1)).unwrap();
        let ports: BTreeSet<u16> = all.iter().map(SocketAddr::port).collect();
        assert_eq!(ports.len(), 20);
        assert!(
            ports
                .iter()
                .all(|port| *port < ephemeral().max(LOWEST + 1_000))
        );
        let bound = all.iter().map(TcpListener::bind);
        assert_eq!(bound.filter(Result::is_ok).count(), 20);
    }
}
