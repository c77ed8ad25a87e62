//! A plain tonic server, as other people run it.

use std::net::SocketAddr;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::raw::listen;

/// A running server. Dropped, it is told to stop gracefully.
pub struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    /// Stops gracefully: GOAWAY, then waits for what is open.
    pub async fn stop(self) {
        drop(self.stop);
        self.task.await.expect("no panic");
    }
}

/// Serves `router` on a free port.
pub async fn start(router: axum::Router) -> (SocketAddr, Running) {
    let (listener, address) = listen().await;
    let (stop, stopped) = oneshot::channel::<()>();
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let task = tokio::spawn(async move {
        let stopped = async {
            // Dropped is told.
            let _ = stopped.await;
        };
        Server::builder()
            // Calls given up before they were accepted end the connection at more than 20 otherwise.
            .http2_max_pending_accept_reset_streams(Some(10_000))
            .add_routes(Routes::from(router))
            .serve_with_incoming_shutdown(incoming, stopped)
            .await
            .expect("it served");
    });
    (address, Running { stop, task })
}
