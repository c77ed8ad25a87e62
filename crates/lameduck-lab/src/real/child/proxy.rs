//! A proxy of others, for as long as the lab wants it.

use std::io;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;

use super::super::control::Word;
use super::super::proxy::ProxySpec;
use super::ChildError;

/// Runs the proxy until told to stop. SIGHUP reloads it, where it can be.
pub(super) async fn run(
    spec: ProxySpec,
    directory: &std::path::Path,
    mut words: UnboundedReceiver<Word>,
) -> Result<u8, ChildError> {
    // Envoy wants this ending; the others take any.
    let file = directory.join("proxy.yaml");
    std::fs::write(&file, spec.configuration(directory))?;
    let mut reload = signal(SignalKind::hangup())?;
    // The proxy ends with this process, however that ends.
    let mut proxy = Command::new("setpriv")
        .args(["--pdeathsig", "TERM", spec.proxy.as_str()])
        .args(spec.proxy.arguments(&file.display().to_string()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    let pid = proxy.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    loop {
        tokio::select! {
            status = proxy.wait() => {
                let ended = format!("{} ended by itself ({})", spec.proxy, status?);
                return Err(ChildError::Refused(ended));
            }
            _ = reload.recv() => {
                if let Some(signal) = spec.proxy.reload() {
                    kill_process(pid, signal).map_err(io::Error::from)?;
                }
            }
            _ = words.recv() => break,
        }
    }
    kill_process(pid, Signal::TERM).map_err(io::Error::from)?;
    proxy.wait().await?;
    Ok(0)
}
