//! `lameduck lab sim`: many simulated worlds, or one again.

use std::io::{self, Write};
use std::time::Instant;

use clap::Args;
use lameduck_lab::sim::{Summary, run_seed, run_seeds};

use crate::exit;
use crate::say::say;

/// Options of `lameduck lab sim`.
#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 nothing was violated; 20 something was; 2 options without sense."
)]
pub struct Arguments {
    /// How many worlds, each made from a seed of its own.
    #[arg(
        long,
        default_value_t = 1_000,
        conflicts_with = "seed",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    seeds: u64,
    /// The seed of the first world.
    #[arg(long, default_value_t = 0, conflicts_with = "seed")]
    from: u64,
    /// Just the world of this seed. Its timeline is printed where something is violated in it.
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the worlds; gives an exit code.
pub fn run(arguments: &Arguments) -> u8 {
    if arguments.from.checked_add(arguments.seeds).is_none() {
        say(format_args!(
            "lameduck lab sim: --from: there are no seeds after 2^64 - 1"
        ));
        return exit::USAGE;
    }
    let begun = Instant::now();
    let summary = match arguments.seed {
        Some(seed) => run_seed(seed),
        None => run_seeds(arguments.from..arguments.from + arguments.seeds),
    };
    match print(&summary) {
        // How long it took is for people: what is on standard output is the same every time.
        Ok(()) => say(format_args!("{:.1} s", begun.elapsed().as_secs_f64())),
        Err(error) => {
            say(format_args!("lameduck lab sim: cannot print: {error}"));
            return exit::ERROR;
        }
    }
    if summary.violation.is_some() {
        exit::LOST
    } else {
        exit::OK
    }
}

fn print(summary: &Summary) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if let Some(violation) = &summary.violation {
        writeln!(out, "{violation}")?;
    }
    let Summary {
        worlds,
        answered,
        excused,
        drains,
        violation,
    } = summary;
    let verdict = if violation.is_some() {
        "something was violated"
    } else {
        "nothing was violated"
    };
    writeln!(
        out,
        "{worlds} worlds, {drains} graceful stops, {answered} calls answered, {excused} lost with \
         a process that was killed, frozen or cut off: {verdict}"
    )
}
