//! What the command tells of itself: shell completions and manual pages, made of its options.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;

use crate::exit;

/// Options of `lameduck completions`.
#[derive(Args)]
pub struct Completions {
    /// For which shell.
    shell: Shell,
}

/// Options of `lameduck man`.
#[derive(Args)]
pub struct Man {
    /// Writes a page for the command and one for each of its subcommands into this directory.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints completions; gives an exit code.
pub fn completions(mut command: Command, options: &Completions) -> u8 {
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut command, name, &mut text);
    told("completions", io::stdout().write_all(&text))
}

/// Prints the page, or writes all; gives an exit code.
pub fn man(command: Command, options: &Man) -> u8 {
    let done = match &options.dir {
        Some(directory) => pages(command, directory),
        None => page(command).and_then(|text| io::stdout().write_all(&text)),
    };
    told("man", done)
}

fn page(command: Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text)?;
    Ok(text)
}

fn pages(command: Command, directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(command, directory)
}

/// A reader that has gone wants no more of it.
fn told(what: &str, done: io::Result<()>) -> u8 {
    match done {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("lameduck {what}: {error}");
            exit::ERROR
        }
        _ => exit::OK,
    }
}
