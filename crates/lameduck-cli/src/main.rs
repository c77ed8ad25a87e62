//! The `lameduck` command.

mod exit;
mod lab;
mod manual;
mod registry;
mod say;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Keeps requests alive while the processes that serve them come and go.
#[derive(Parser)]
#[command(name = "lameduck", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Rolls real processes under load, and shows that not one call is lost.
    Lab(lab::Arguments),
    /// One process of a lab. Started by the lab alone.
    #[command(name = lab::CHILD, hide = true)]
    LabChild(lab::ChildArguments),
    /// Runs an etcd-compatible registry for development, in memory, on loopback.
    Registry(registry::Options),
    /// Prints completions of this command for a shell.
    Completions(manual::Completions),
    /// Prints this command's manual page, or writes all of its pages.
    Man(manual::Man),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Lab(arguments) => lab::run(arguments).into(),
        Command::LabChild(arguments) => lab::child(&arguments).into(),
        Command::Registry(options) => registry::run(&options),
        Command::Completions(options) => manual::completions(Arguments::command(), &options).into(),
        Command::Man(options) => manual::man(Arguments::command(), &options).into(),
    }
}
