//! A plain tonic server, as other people run it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::raw::listen;

/// A running server. Dropped, it is told to stop gracefully.
pub struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    sockets: Sockets,
}

/// The sockets that it accepted, for a death without a word.
type Sockets = Arc<Mutex<Vec<std::net::TcpStream>>>;

impl Running {
    /// Dies as by SIGKILL, seen from the network: every connection ends at once.
    pub fn kill(&self) {
        self.task.abort();
        for socket in self.sockets.lock().expect("no panic").drain(..) {
            // Gone already is dead enough.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Stops gracefully: GOAWAY, then waits for what is open.
    pub async fn stop(self) {
        drop(self.stop);
        self.task.await.expect("no panic");
        // Our copies of its sockets would keep them open.
        self.sockets.lock().expect("no panic").clear();
    }
}

/// Serves `router` on a free port.
pub async fn start(router: axum::Router) -> (SocketAddr, Running) {
    let (listener, address) = listen().await;
    (address, serve(listener, router))
}

/// Serves `router` there.
pub fn serve(listener: TcpListener, router: axum::Router) -> Running {
    serve_counted(listener, router, Arc::default())
}

/// The same, counting what it accepts.
pub fn serve_counted(
    listener: TcpListener,
    router: axum::Router,
    accepted: Arc<AtomicU32>,
) -> Running {
    let (stop, stopped) = oneshot::channel::<()>();
    let sockets = Sockets::default();
    let kept = Arc::clone(&sockets);
    let incoming = TcpListenerStream::new(listener).map(move |incoming| {
        let socket = incoming?;
        accepted.fetch_add(1, Ordering::SeqCst);
        socket.set_nodelay(true)?;
        let socket = socket.into_std()?;
        kept.lock().expect("no panic").push(socket.try_clone()?);
        TcpStream::from_std(socket)
    });
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
    Running {
        stop,
        task,
        sockets,
    }
}
