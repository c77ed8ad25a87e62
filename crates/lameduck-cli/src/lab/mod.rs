//! `lameduck lab`: options in, a live view, a table or one JSON object, an exit code.

mod compare;
mod page;
mod sim;
mod table;
mod view;

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use lameduck_lab::real::compare::{Compared, compare as run_compare};
use lameduck_lab::real::error::LabError;
use lameduck_lab::real::flavour::Flavour;
use lameduck_lab::real::limits::{RATE, RATE_SLOW};
use lameduck_lab::real::options::{Options, Registry};
use lameduck_lab::real::progress::Onlooker;
use lameduck_lab::real::proxy::Proxy;
use lameduck_lab::real::report::Ending;
use lameduck_lab::real::run::{Outcome, run as run_lab};
use lameduck_lab::real::sabotage::Sabotage;
use lameduck_lab::real::{child, spec};

use crate::exit;
use crate::say::say;
use page::Page;

/// The name of the hidden subcommand.
pub const CHILD: &str = spec::SUBCOMMAND;

/// What the end of a run tells a script.
const EXIT_CODES: &str = "\
Exit codes: 0 the run was valid and nothing was lost in rolls; 20 calls were lost, or a rule was
broken; 21 the run proves nothing; 2 options without sense; 22 something that it needs is missing;
1 it could not be made.";

/// Options of `lameduck lab`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    /// Calls a second, of all callers together: 2000 unless said, 600 on slow links.
    #[arg(long)]
    rate: Option<u32>,
    /// Server processes.
    #[arg(long, default_value_t = 4)]
    servers: u16,
    /// Caller processes.
    #[arg(long, default_value_t = 2)]
    callers: u16,
    /// How often each server is rolled.
    #[arg(long, default_value_t = 2)]
    rolls: u32,
    /// Which calls, and which order of rolls.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// `dev` starts a development server and `etcd` a real etcd for the run, `none` tells callers the
    /// addresses, anything else is the target of a registry that is there: etcd://HOST:PORT.
    #[arg(long, default_value = "dev", value_parser = registry)]
    registry: Registry,
    /// Prints one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Breaks one rule in the children, to show that its loss is seen: permit-at-head,
    /// no-refuse-proof, no-announce, no-closing, no-tombstone.
    #[arg(long, value_name = "RULE")]
    sabotage: Option<Sabotage>,
    /// Callers place no call twice, not even one that was handed back unsent.
    #[arg(long)]
    no_failover: bool,
    /// Makes the same run on other libraries, too, each in its own fleet, and freezes a server and
    /// holds the registry back in all of them.
    #[arg(long, value_name = "WITH")]
    compare: Option<Rival>,
    /// After the kill, freezes a server for 3 s, then rolls one while the registry is held back.
    #[arg(long)]
    ordeals: bool,
    /// Puts a link of 48 Mbit/s before every connection to a server, and asks for answers of 1 to 4 MB
    /// among the others: bytes that a server has written are on their way for long.
    #[arg(long)]
    slow_link: bool,
    /// Puts this proxy between callers and all servers, and reloads it instead of the kill: nginx,
    /// haproxy, caddy or envoy, which must be installed.
    #[arg(long, value_name = "PROXY")]
    proxy: Option<Proxy>,
    /// nginx's keepalive_requests on both of its sides: after so many requests (500 unless said) it ends
    /// a connection of a caller, or one of its own to a server.
    #[arg(long, value_name = "N")]
    keepalive_requests: Option<u32>,
    /// Writes the outcome as one HTML page that needs nothing beside it.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Writes all files of the run into this directory, and leaves them there.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// What else the lab does.
#[derive(Subcommand)]
enum Other {
    /// Runs the production machines in simulated worlds made from seeds, in virtual time.
    Sim(sim::Arguments),
}

/// What a run can be compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Rival {
    /// tonic's own server and channel: as documented, and hardened.
    Tonic,
}

/// The one argument of a child.
#[derive(Args)]
pub struct ChildArguments {
    /// What it is to be, as JSON.
    spec: String,
}

/// Runs the lab; gives an exit code.
pub fn run(arguments: Arguments) -> u8 {
    if let Some(Other::Sim(arguments)) = &arguments.other {
        return sim::run(arguments);
    }
    let is_json = arguments.json;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => {
            let mut view = view::view();
            runtime.block_on(make(arguments, view.as_mut()))
        }
        Err(source) => Err(LabError::Io {
            doing: "starting the runtime".to_owned(),
            source,
        }),
    };
    match outcome {
        Ok(made) => print(&made.outcome, is_json),
        Err(error) => {
            say(format_args!("lameduck lab: {error}"));
            match error {
                LabError::Usage(_) => exit::USAGE,
                LabError::Missing(_) => exit::MISSING,
                _ => exit::ERROR,
            }
        }
    }
}

async fn make(arguments: Arguments, onlooker: &mut dyn Onlooker) -> Result<Compared, LabError> {
    let rival = arguments.compare;
    let report = arguments.report.as_deref().map(Page::open).transpose()?;
    let options = options(arguments);
    let made = match rival {
        Some(Rival::Tonic) => run_compare(options, onlooker).await?,
        None => {
            let outcome = run_lab(options, onlooker).await?;
            let others = Vec::new();
            Compared { outcome, others }
        }
    };
    if let Some(report) = report {
        report.write(&made)?;
    }
    Ok(made)
}

/// Is a child; gives an exit code.
pub fn child(arguments: &ChildArguments) -> u8 {
    match child::run(&arguments.spec) {
        Ok(code) => code,
        Err(error) => {
            say(format_args!("lameduck {CHILD}: {error}"));
            exit::ERROR
        }
    }
}

fn options(arguments: Arguments) -> Options {
    let usual = if arguments.slow_link { RATE_SLOW } else { RATE };
    Options {
        rate: arguments.rate.unwrap_or(usual),
        servers: arguments.servers,
        callers: arguments.callers,
        rolls: arguments.rolls,
        seed: arguments.seed,
        registry: arguments.registry,
        sabotage: arguments.sabotage,
        failover: !arguments.no_failover,
        flavour: Flavour::Lameduck,
        ordeals: arguments.ordeals,
        slow_link: arguments.slow_link,
        proxy: arguments.proxy,
        keepalive_requests: arguments.keepalive_requests,
        chart: arguments.report.is_some(),
        keep: arguments.keep,
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "clap wants a parser that can fail; a bad target is told by whoever reads it"
)]
fn registry(text: &str) -> Result<Registry, std::convert::Infallible> {
    Ok(match text {
        "dev" => Registry::Development,
        "etcd" => Registry::Etcd,
        "none" => Registry::None,
        target => Registry::At(target.to_owned()),
    })
}

fn print(outcome: &Outcome, is_json: bool) -> u8 {
    let report = &outcome.report;
    let text = if is_json {
        serde_json::to_string(report)
            .map(|text| text + "\n")
            .unwrap_or_default()
    } else {
        table::table(report)
    };
    // A reader that has gone wants no more of it; the exit code still tells.
    let _ = std::io::stdout().write_all(text.as_bytes());
    for story in &outcome.stories {
        say(format_args!("\n{story}"));
    }
    match report.ending() {
        Ending::Clean => exit::OK,
        Ending::Lost | Ending::Broken => exit::LOST,
        Ending::Invalid => exit::INVALID,
    }
}
