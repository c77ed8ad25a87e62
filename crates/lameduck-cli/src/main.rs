//! The `lameduck` command.

mod registry;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Keeps requests alive while the processes that serve them come and go.
#[derive(Parser)]
#[command(name = "lameduck", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs an etcd-compatible registry for development, in memory, on loopback.
    Registry(registry::Options),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Registry(options) => registry::run(&options),
    }
}
