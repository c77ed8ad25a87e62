//! The development server from outside.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;

use lameduck_registry::etcd::server::DevServer;
use tokio::sync::oneshot;

/// A development server on a thread of its own; ends on drop.
pub(crate) struct Dev {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Dev {
    pub(crate) fn start() -> Self {
        let (end, ended) = oneshot::channel::<()>();
        let (bound, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                let server = DevServer::bind(any).await.expect("a free port");
                bound.send(server.local_addr()).expect("the test waits");
                server.run(async { drop(ended.await) }).await;
            });
        });
        let address = address.recv().expect("it listens");
        Self {
            address,
            end: Some(end),
            thread: Some(thread),
        }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        drop(self.end.take());
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.expect("it was started").expect("it has not panicked");
        }
    }
}
