//! What a child is to be: one JSON argument, written by the lab and read by the same binary.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::flavour::Flavour;
use super::plan::Plan;
use super::proxy::ProxySpec;
use super::sabotage::Sabotage;

/// A child's whole instruction, but for start and stop, which come over its stdin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildSpec {
    /// What it is.
    pub role: Role,
    /// A directory that is to go when the lab is gone without a word; none where it is kept.
    pub home: Option<PathBuf>,
}

/// What a child is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Serves.
    Server(ServerSpec),
    /// Calls.
    Caller(CallerSpec),
    /// A development server that listens here.
    Registry(SocketAddr),
    /// A proxy of others before all servers.
    Proxy {
        /// Which, and where.
        spec: ProxySpec,
        /// For its files.
        directory: PathBuf,
    },
    /// Slow links to servers.
    Links(Vec<LinkSpec>),
}

/// A slow link: what connects here is connected to a server, and reads its answers slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSpec {
    /// Where callers connect.
    pub listen: SocketAddr,
    /// Where the server listens.
    pub to: SocketAddr,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSpec {
    /// Where callers reach it.
    pub address: SocketAddr,
    /// Where it listens: the same, but for a link between.
    pub listen: SocketAddr,
    /// Where it is published; none where callers know it anyway.
    pub registry: Option<String>,
    /// Under which name.
    pub service: String,
    /// Its ledger file.
    pub ledger: PathBuf,
    /// What it is made of.
    pub flavour: Flavour,
    /// What it does wrong.
    pub sabotage: Option<Sabotage>,
}

/// A caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallerSpec {
    /// Which one, from 0.
    pub caller: u16,
    /// Whom it calls.
    pub target: String,
    /// What it calls; the start comes with the word to start.
    pub plan: Plan,
    /// Its ledger file.
    pub ledger: PathBuf,
    /// Whether a call may be placed more than once.
    pub failover: bool,
    /// What it is made of.
    pub flavour: Flavour,
    /// What it does wrong.
    pub sabotage: Option<Sabotage>,
}

/// The name of the hidden subcommand that turns the binary into a child.
pub const SUBCOMMAND: &str = "lab-child";
/// What the name of the service begins with that all servers of a run publish: runs that share a
/// registry must not meet.
pub const SERVICE: &str = "lameduck.lab";
