//! `cargo xtask stock`: three servers of ours are rolled under the load of stock callers, each of which
//! knows several hosts and so sends a list of them as its `:authority`. No call may fail.
//!
//! The callers are small programs in `xtask/stock`. What they need of others is built or installed once,
//! outside of the tree.

mod caller;
mod process;
mod programs;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rustix::process::Signal;

use crate::metadata::Workspace;
use crate::shell::{self, Failure, Outcome};
use caller::Caller;
use process::Process;
use programs::Programs;

/// The server that is rolled, an example of the library.
const SERVER: &str = "named_greeter";
/// The service that it registers.
const SERVICE: &str = "greeter";
/// Where the servers listen, at ports that are free. No connection begins at these addresses, so that
/// none takes the port of a server that is away for a moment.
const HOSTS: [&str; 3] = ["127.77.0.1", "127.77.0.2", "127.77.0.3"];
/// Fewer calls of one caller mean that there was no load.
const CALLS_MIN: u64 = 300;

pub fn run(arguments: &[String]) -> Outcome {
    if !arguments.is_empty() {
        return Err(Failure("it takes no argument".to_owned()));
    }
    let programs = Programs::provide()?;
    // With the features that the tests are built with, so that nothing is built twice.
    let build = ["build", "--quiet", "--locked", "--workspace"];
    let build = build
        .into_iter()
        .chain(["--bin", "lameduck", "--example", SERVER]);
    shell::run(&mut shell::cargo(build))?;
    let built = Workspace::load()?.target_directory.join("debug");

    let registry = Registry::start(&built)?;
    let mut servers = Vec::new();
    for host in HOSTS {
        servers.push(Server::start(&built, &format!("{host}:0"), &registry)?);
    }
    let mut callers = start_callers(&programs, &registry, &servers)?;
    for index in 0..servers.len() {
        served_by_all(&mut callers, &servers)?;
        let address = servers[index].stop()?;
        servers[index] = Server::start(&built, &address, &registry)?;
    }
    served_by_all(&mut callers, &servers)?;
    judge(callers)
}

/// Waits until every caller has had answers of every server that runs.
fn served_by_all(callers: &mut [Caller], servers: &[Server]) -> Outcome {
    for caller in callers {
        for server in servers {
            caller.served_by(&server.name)?;
        }
    }
    Ok(())
}

/// Each caller with a list of hosts, as its own documentation gives one.
fn start_callers(
    programs: &Programs,
    registry: &Registry,
    servers: &[Server],
) -> Result<Vec<Caller>, Failure> {
    let etcd = registry.hosts();
    let addresses: Vec<&str> = servers.iter().map(Server::address).collect();
    let addresses = addresses.join(",");
    Ok(vec![
        Caller::start("go-zero", programs.go(&["go-zero", &etcd, SERVICE]))?,
        Caller::start("Kratos", programs.go(&["kratos", &addresses]))?,
        Caller::start("grpcio", programs.python(&[&addresses]))?,
    ])
}

/// Lets the callers end. None of them may have lost a call.
fn judge(callers: Vec<Caller>) -> Outcome {
    let mut faults = Vec::new();
    for caller in callers {
        let name = caller.name();
        let account = caller.finish()?;
        println!(
            "{name}: {} calls, {} failed",
            account.calls,
            account.failed.len()
        );
        faults.extend(account.faults(name, CALLS_MIN));
    }
    match faults.is_empty() {
        true => Ok(()),
        false => Err(Failure(faults.join("; "))),
    }
}

/// The development registry.
struct Registry {
    _process: Process,
    target: String,
}

impl Registry {
    fn start(built: &Path) -> Result<Self, Failure> {
        let mut command = Command::new(built.join("lameduck"));
        command.args(["registry", "--listen", "127.0.0.1:0"]);
        let process = Process::start("the registry", command)?;
        let target = process.line("its target")?;
        Ok(Self {
            _process: process,
            target,
        })
    }

    /// It by two names: a list of hosts, such as a real etcd of three is given by.
    fn hosts(&self) -> String {
        let host = self.target.trim_start_matches("etcd://");
        let port = host.rsplit(':').next().unwrap_or_default();
        format!("{host},localhost:{port}")
    }
}

/// One server.
struct Server {
    process: Process,
    /// What it answers to calls: its address and its process.
    name: String,
}

impl Server {
    /// Starts it and waits until it is registered.
    fn start(built: &Path, listen: &str, registry: &Registry) -> Result<Self, Failure> {
        let program: PathBuf = built.join("examples").join(SERVER);
        let mut command = Command::new(program);
        command.args([listen, &registry.target]);
        let process = Process::start(SERVER, command)?;
        let name = process.line("its name")?;
        Ok(Self { process, name })
    }

    fn address(&self) -> &str {
        self.name.split('#').next().unwrap_or_default()
    }

    /// Stops it by SIGTERM, and gives its address for the next one.
    fn stop(&mut self) -> Result<String, Failure> {
        let begun = Instant::now();
        self.process.signal(Signal::TERM);
        let status = self.process.end()?;
        eprintln!("{}: {status} after {:.1?}", self.name, begun.elapsed());
        match status.success() {
            true => Ok(self.address().to_owned()),
            false => Err(Failure(format!("{} stopped with {status}", self.name))),
        }
    }
}
