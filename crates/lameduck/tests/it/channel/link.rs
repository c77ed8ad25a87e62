//! A link that can fall silent: a network namespace, where this process may make one.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

fn ip(arguments: &str) -> std::io::Result<Output> {
    Command::new("ip").args(arguments.split(' ')).output()
}

/// A network namespace at the other end of a link, gone on drop.
pub struct Behind {
    name: String,
    /// Our end of the link.
    link: String,
    /// The addresses: ours, and theirs.
    ends: [Ipv4Addr; 2],
}

/// Takes away what tests that were killed have left: their links go with their namespaces.
fn sweep() {
    let Ok(listed) = ip("netns list") else { return };
    for line in String::from_utf8_lossy(&listed.stdout).lines() {
        let name = line.split(' ').next().unwrap_or_default();
        let owner = name
            .strip_prefix("lameduck-")
            .and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !std::path::Path::new("/proc").join(pid).exists()) {
            // Somebody else may have been faster.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

impl Behind {
    /// `None` where this process may not make one, and why; nothing is left of the attempt.
    fn make() -> Result<Self, String> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        let (process, number) = (std::process::id(), MADE.fetch_add(1, Relaxed));
        // The range for measurements between networks (RFC 2544), nobody's in particular: four
        // addresses for each link, two bits for a process's links, the rest for the process.
        let block = (process << 2 | number & 3) & 0x7fff;
        let end =
            |last| Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(198, 18, 0, last)) | block << 2);
        let behind = Self {
            name: format!("lameduck-{process}-{number}"),
            link: format!("lmd{process}-{number}"),
            ends: [end(1), end(2)],
        };
        let (name, link, [ours, theirs]) = (&behind.name, &behind.link, behind.ends);
        for step in [
            format!("netns add {name}"),
            format!("link add {link} type veth peer name far0 netns {name}"),
            format!("addr add {ours}/30 dev {link}"),
            format!("link set {link} up"),
            format!("-n {name} addr add {theirs}/30 dev far0"),
            format!("-n {name} link set far0 up"),
        ] {
            let output = ip(&step).map_err(|error| format!("ip: {error}"))?;
            if !output.status.success() {
                let why = String::from_utf8_lossy(&output.stderr);
                return Err(format!("ip {step}: {}", why.trim()));
            }
        }
        Ok(behind)
    }

    /// A listener there: a socket stays where it was made.
    pub fn listen(&self) -> TcpListener {
        let path = format!("/var/run/netns/{}", self.name);
        let address = SocketAddr::from((self.ends[1], 0));
        let there = std::thread::spawn(move || {
            let namespace = std::fs::File::open(path).expect("it was made");
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), network)
                .expect("who made it may enter it");
            TcpListener::bind(address).expect("a free port")
        });
        let listener = there.join().expect("no panic");
        listener.set_nonblocking(true).expect("a socket");
        listener
    }

    /// A port there that leads to one here, and what ends it on drop.
    pub fn door(&self, to: SocketAddr) -> (SocketAddr, AbortOnDropHandle<()>) {
        let listener = self.listen();
        let address = listener.local_addr().expect("bound");
        let listener = tokio::net::TcpListener::from_std(listener).expect("a runtime");
        let pass_on = async move {
            let mut passing = JoinSet::new();
            while let Ok((mut there, _)) = listener.accept().await {
                passing.spawn(async move {
                    let mut here = TcpStream::connect(to).await?;
                    copy_bidirectional(&mut there, &mut here).await
                });
            }
        };
        (address, AbortOnDropHandle::new(tokio::spawn(pass_on)))
    }

    /// From here on everything gets there, and nothing comes back: the silence of a lost route.
    pub fn falls_silent(&self) {
        self.route("add");
    }

    pub fn speaks_again(&self) {
        self.route("del");
    }

    fn route(&self, verb: &str) {
        let (name, ours) = (&self.name, self.ends[0]);
        let output = ip(&format!("-n {name} route {verb} blackhole {ours}/32")).expect("it ran");
        assert!(output.status.success(), "{output:?}");
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        // The namespace itself lives on for as long as the kernel sends for a socket in it.
        let _ = ip(&format!("link del {}", self.link));
        let _ = ip(&format!("netns del {}", self.name));
    }
}

/// A link, or why there is none.
pub fn link(test: &str) -> Option<Behind> {
    let without = std::env::var("LAMEDUCK_WITHOUT").unwrap_or_default();
    let left_out = without.split(',').any(|name| name == "ip");
    let in_ci = std::env::var_os("CI").is_some();
    assert!(
        !(left_out && in_ci),
        "{test} needs iproute2 where CI is set"
    );
    let made = if left_out {
        Err("LAMEDUCK_WITHOUT names ip".to_owned())
    } else {
        Behind::make()
    };
    made.inspect_err(|why| eprintln!("{test}: left out: {why}"))
        .ok()
}
