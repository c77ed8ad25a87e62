//! The development server of a run that brings its own.

use std::net::SocketAddr;

use lameduck_registry::etcd::server::DevServer;
use tokio::sync::mpsc::UnboundedReceiver;

use super::super::control::Word;
use super::ChildError;

/// Serves until told to stop.
pub(super) async fn run(
    address: SocketAddr,
    mut words: UnboundedReceiver<Word>,
) -> Result<u8, ChildError> {
    let server = DevServer::bind(address).await?;
    let stopped = async {
        words.recv().await;
    };
    server.run(stopped).await;
    Ok(0)
}
