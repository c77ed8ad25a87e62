//! `lameduck registry`: the development server as a process.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Args;
use lameduck_registry::etcd::server::{DevServer, NOTICE};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit;

/// What can be said on the command line.
#[derive(Args)]
pub(crate) struct Options {
    /// Loopback address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:2379")]
    listen: SocketAddr,
}

/// Runs until SIGTERM or SIGINT.
///
/// Says on standard error what it is, and on standard output, once it listens, the target that
/// names it.
pub(crate) fn run(options: &Options) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = runtime.and_then(|runtime| runtime.block_on(serve(options.listen)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody may be listening there either.
            let _ = writeln!(io::stderr(), "lameduck registry: {error}");
            let usage = error.kind() == io::ErrorKind::InvalidInput;
            ExitCode::from(if usage {
                exit::USAGE
            } else {
                exit::NOT_STARTED
            })
        }
    }
}

async fn serve(listen: SocketAddr) -> io::Result<()> {
    // Before anything can be seen of it, so that who sees it can also end it.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let server = DevServer::bind(listen).await?;
    let _ = writeln!(io::stderr(), "lameduck registry: {NOTICE}");
    let _ = writeln!(io::stdout(), "etcd://{}", server.local_addr());
    let signalled = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    server.run(signalled).await;
    Ok(())
}
