//! A server behind a link of its own (a network namespace) that falls silent, and comes back.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::sync::atomic::Ordering::SeqCst;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tonic::Code;

use super::node::{Deed, Facts, Node, life, router};
use super::*;
use crate::tonic_server;

/// Far longer than a silent connection is kept, and than the longest pause between dials.
const LONG: Duration = Duration::from_secs(60);
/// Of a call behind the link.
const DEADLINE: Duration = Duration::from_secs(1);
/// So many answers in a row, and nobody is sent behind the link any more.
const SETTLED: u32 = 200;

fn ip(arguments: &str) -> std::io::Result<Output> {
    Command::new("ip").args(arguments.split(' ')).output()
}

/// A network namespace at the other end of a link, gone on drop.
struct Behind {
    name: String,
    /// Our end of the link.
    link: String,
    /// The addresses: ours, and theirs.
    ends: [Ipv4Addr; 2],
}

impl Behind {
    /// `None` where this process may not make one, and why; nothing is left of the attempt.
    fn make() -> Result<Self, String> {
        let number = std::process::id();
        let [_, _, high, low] = number.to_be_bytes();
        // The range for measurements between networks (RFC 2544): nobody's in particular.
        let end = |last| Ipv4Addr::new(198, 18, high ^ low, last);
        let behind = Self {
            name: format!("lameduck-{number}"),
            link: format!("lmd{number}"),
            ends: [end(1), end(2)],
        };
        let (name, link, [ours, theirs]) = (&behind.name, &behind.link, behind.ends);
        for step in [
            format!("netns add {name}"),
            format!("link add {link} type veth peer name far0 netns {name}"),
            format!("addr add {ours}/24 dev {link}"),
            format!("link set {link} up"),
            format!("-n {name} addr add {theirs}/24 dev far0"),
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
    fn listen(&self) -> TcpListener {
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

    /// From here on everything gets there, and nothing comes back: the silence of a lost route.
    fn falls_silent(&self) {
        self.route("add");
    }

    fn speaks_again(&self) {
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
fn link(test: &str) -> Option<Behind> {
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

async fn call(channel: &Channel) -> Result<String, tonic::Status> {
    let mut request = tonic::Request::new(HelloRequest::default());
    request.set_timeout(DEADLINE);
    let answer = GreeterClient::new(channel.clone()).hello(request).await;
    answer.map(|reply| reply.into_inner().text)
}

#[tokio::test]
async fn callers_leave_a_server_that_falls_silent_and_return_to_it() {
    let test = "callers_leave_a_server_that_falls_silent_and_return_to_it";
    let Some(behind) = link(test) else { return };
    let near = Node::start("near", Some(life(1))).await;
    let listener = behind.listen();
    let there = listener.local_addr().expect("bound");
    let far = Facts::new("far", Some(life(2)));
    let listener = tokio::net::TcpListener::from_std(listener).expect("a runtime");
    let _far = tonic_server::serve(listener, router(&far));
    let target = direct(&[near.address, there]);
    let channel = Hub::new().channel(&target).expect("a target");
    let answers_from_far = async || while call(&channel).await.as_deref().ok() != Some("far") {};
    timeout(LONG, answers_from_far()).await.expect("both serve");

    // One call is under way there when the link falls silent, and runs into its deadline.
    far.act(Deed::Hold);
    let under_way = async { while call(&channel).await.is_ok() {} };
    let silence = async {
        until("a call is there", || {
            far.started() > far.finished.load(SeqCst)
        })
        .await;
        behind.falls_silent();
        far.act(Deed::Answer);
        far.let_go();
    };
    let both = async { tokio::join!(under_way, silence) };
    timeout(LONG, both).await.expect("it runs out of time");

    // Later ones may be sent there too, until the silence is noticed; none afterwards.
    let (mut row, mut lost) = (0, 0);
    let settle = async {
        while row < SETTLED {
            match call(&channel).await {
                Ok(who) => {
                    assert_eq!(who, "near");
                    row += 1;
                }
                Err(status) => {
                    // The last one is under way when the connection is given up.
                    let expected = [Code::DeadlineExceeded, Code::Unavailable];
                    assert!(expected.contains(&status.code()), "{status}");
                    (row, lost) = (0, lost + 1);
                }
            }
        }
    };
    timeout(LONG, settle).await.expect("the silence is noticed");
    assert!(lost < 30, "{lost} calls of a second each");

    behind.speaks_again();
    let returned = timeout(LONG, answers_from_far()).await;
    returned.expect("it is dialled again");
}
