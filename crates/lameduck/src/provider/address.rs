//! Under which address others are told to reach this process.
//!
//! `advertise`, else the address that was bound where it is one of its own, else `POD_IP`, else the
//! source address of the route to the registry. A loopback address is refused unless the registry
//! is on loopback too: others would dial themselves. Only what `advertise` says is believed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use lameduck_core::name::Address;

use crate::env::PodIp;

/// An address of no host (RFC 5737), only asked for its route: nothing is sent.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);

/// What helps whatever is wrong.
const SAY: &str = "say .advertise(\"host:port\")";

/// What is known when the address is chosen.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) advertise: Option<Address>,
    pub(super) pod_ip: PodIp,
    pub(super) bound: SocketAddr,
}

/// Where the registry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// Inside this process.
    Here,
    /// At these hosts, `host:port` each.
    At(Vec<String>),
}

impl Whereabouts {
    /// Whether it is on this machine.
    fn is_near(&self) -> bool {
        match self {
            Self::Here => true,
            Self::At(hosts) => hosts.iter().any(|host| is_loopback(host)),
        }
    }
}

impl Facts {
    /// The address to publish in a registry there; `Err` says why there is none.
    pub(super) fn address(&self, registry: &Whereabouts) -> Result<Address, String> {
        let address = match &self.advertise {
            Some(address) => address.clone(),
            None => Address::from(SocketAddr::new(self.ip(registry)?, self.bound.port())),
        };
        if address.is_unspecified() {
            return Err(format!("nobody can dial {address}; {SAY}"));
        }
        // What a program says in so many words is believed: callers may be on this machine too.
        if self.advertise.is_none() && address.is_loopback() && !registry.is_near() {
            let by_pod_ip = self.bound.ip().is_unspecified() && self.pod_ip != PodIp::Unset;
            let because = if by_pod_ip {
                " (the environment variable POD_IP says so: correct it, or unset it)"
            } else {
                ""
            };
            return Err(format!(
                "{address} reaches this machine only{because}, and the registry is elsewhere; {SAY}, \
                 with an address of this host that callers reach"
            ));
        }
        Ok(address)
    }

    /// Whether callers that read the registry there may not reach what the program advertises.
    pub(super) fn is_doubtful(&self, registry: &Whereabouts) -> bool {
        let advertised = self.advertise.as_ref();
        advertised.is_some_and(Address::is_loopback) && !registry.is_near()
    }

    fn ip(&self, registry: &Whereabouts) -> Result<IpAddr, String> {
        if !self.bound.ip().is_unspecified() {
            return Ok(self.bound.ip());
        }
        match &self.pod_ip {
            PodIp::Ip(ip) => return Ok(*ip),
            PodIp::NoIp(text) => {
                return Err(format!(
                    "the environment variable POD_IP is {text:?}, which is no IP address; correct it, unset it, or {SAY}"
                ));
            }
            PodIp::Unset => {}
        }
        match registry {
            Whereabouts::Here => Ok(Ipv4Addr::LOCALHOST.into()),
            Whereabouts::At(hosts) => hosts
                .iter()
                .filter_map(|host| host.to_socket_addrs().ok())
                .flatten()
                .chain([NOWHERE])
                .find_map(source)
                .ok_or_else(|| format!("no route to it; {SAY}")),
        }
    }
}

/// The source address of the route to `to`.
fn source(to: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified()).then_some(ip)
}

fn is_loopback(host: &str) -> bool {
    host.parse::<Address>()
        .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(bound: &str) -> Facts {
        Facts {
            advertise: None,
            pod_ip: PodIp::Unset,
            bound: bound.parse().expect("an address"),
        }
    }

    fn check(facts: &Facts, hosts: &[&str], expected: Result<&str, &str>) {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        let got = facts.address(&Whereabouts::At(hosts));
        match (got, expected) {
            (Ok(address), Ok(text)) => assert_eq!(address.to_string(), text),
            (Err(why), Err(text)) => assert!(why.contains(text), "{why}"),
            (got, _) => panic!("{got:?}, not {expected:?}"),
        }
    }

    #[test]
    fn the_first_that_is_known() {
        let told = Facts {
            advertise: Some("10.1.1.1:1".parse().expect("an address")),
            pod_ip: PodIp::Ip([10, 2, 2, 2].into()),
            ..facts("0.0.0.0:80")
        };
        check(&told, &["10.9.9.9:2379"], Ok("10.1.1.1:1"));
        let in_pod = Facts {
            advertise: None,
            ..told
        };
        check(&in_pod, &["10.9.9.9:2379"], Ok("10.2.2.2:80"));
        check(
            &facts("0.0.0.0:80"),
            &["127.0.0.1:2379"],
            Ok("127.0.0.1:80"),
        );
        check(
            &facts("127.0.0.1:80"),
            &["localhost:2379"],
            Ok("127.0.0.1:80"),
        );
    }

    #[test]
    fn the_route_to_a_registry_on_ipv6() {
        if let Err(error) = UdpSocket::bind((std::net::Ipv6Addr::LOCALHOST, 0)) {
            println!("not tested, this machine has no IPv6: {error}");
            return;
        }
        check(&facts("[::]:80"), &["[::1]:2379"], Ok("[::1]:80"));
    }

    #[test]
    fn a_pod_ip_that_is_none_is_told_where_it_would_be_published() {
        let wrong = |bound| Facts {
            pod_ip: PodIp::NoIp("nonsense".to_owned()),
            ..facts(bound)
        };
        let why = "variable POD_IP is \"nonsense\", which is no IP address";
        check(&wrong("0.0.0.0:80"), &["127.0.0.1:2379"], Err(why));
        check(&wrong("10.3.3.3:80"), &["10.9.9.9:2379"], Ok("10.3.3.3:80"));
    }

    #[test]
    fn d14_a_pod_ip_of_loopback_is_refused_with_its_name_and_advertise_is_believed() {
        let in_compose = Facts {
            pod_ip: PodIp::Ip([127, 0, 0, 1].into()),
            ..facts("0.0.0.0:80")
        };
        let why = "127.0.0.1:80 reaches this machine only (the environment variable POD_IP says so";
        check(&in_compose, &["etcd:4001"], Err(why));
        check(&in_compose, &["127.0.0.1:2379"], Ok("127.0.0.1:80"));
        let far = Whereabouts::At(vec!["10.9.9.9:2379".to_owned()]);
        assert!(!in_compose.is_doubtful(&far));
        for advertised in ["127.0.0.1:55032", "localhost:55032"] {
            let told = Facts {
                advertise: Some(advertised.parse().expect("an address")),
                ..in_compose.clone()
            };
            check(&told, &["10.9.9.9:2379"], Ok(advertised));
            assert!(told.is_doubtful(&far));
            assert!(!told.is_doubtful(&Whereabouts::Here));
        }
    }

    #[test]
    fn loopback_is_refused_where_the_registry_is_elsewhere() {
        check(
            &facts("127.0.0.1:80"),
            &["10.9.9.9:2379"],
            Err("reaches this machine only"),
        );
        let wild = Facts {
            advertise: Some("0.0.0.0:80".parse().expect("an address")),
            ..facts("0.0.0.0:80")
        };
        check(&wild, &["127.0.0.1:2379"], Err("nobody can dial"));
        assert!(facts("0.0.0.0:80").address(&Whereabouts::Here).is_ok());
    }
}
