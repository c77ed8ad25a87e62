//! Readiness: the program's conditions, and who sees them.

use std::time::Duration;

use lameduck::Provider;
use lameduck::core::event::Phase;
use lameduck::core::instance::Life;
use lameduck::core::registry::{
    Publication, PublicationStatus, Registration, Registry, Subscription, Want,
};
use lameduck::health::ServingStatus;
use lameduck::provider::{Builder, DrainReport, Handle};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::serve::start::{head, say, within};

/// Writes down what is wanted of it.
#[derive(Debug)]
struct Notes(mpsc::UnboundedSender<Want>);

struct Noting {
    notes: mpsc::UnboundedSender<Want>,
    want: Option<Want>,
    told: bool,
}

impl Registry for Notes {
    fn propagation(&self) -> Duration {
        Duration::ZERO
    }

    fn publish(&self, _: Registration) -> Box<dyn Publication> {
        Box::new(Noting {
            notes: self.0.clone(),
            want: None,
            told: true,
        })
    }

    fn subscribe(&self, _: &lameduck::core::name::ServiceName) -> Box<dyn Subscription> {
        unreachable!("nobody looks")
    }
}

impl Publication for Noting {
    fn want(&mut self, want: Want) {
        self.notes.send(want).expect("a test listens");
        (self.want, self.told) = (Some(want), false);
    }

    fn poll_status(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<PublicationStatus> {
        if std::mem::replace(&mut self.told, true) {
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(PublicationStatus {
            reached: self.want,
            registered: matches!(self.want, Some(Want::Present { .. })),
            metadata: true,
            error: None,
        })
    }
}

struct Running {
    handle: Handle,
    wants: mpsc::UnboundedReceiver<Want>,
    task: JoinHandle<DrainReport>,
}

impl Running {
    fn start(with: impl FnOnce(Builder) -> Builder) -> Self {
        let (notes, wants) = mpsc::unbounded_channel();
        let builder = Provider::builder("orders")
            .service("payments")
            .listen("127.0.0.1:0")
            .signals(false)
            .floor(Duration::from_millis(20))
            .quiet(Duration::from_millis(20))
            .registry_with(std::sync::Arc::new(Notes(notes)), "notes");
        let provider = with(builder).build().expect("it builds");
        let handle = provider.handle();
        handle.health().set("further", ServingStatus::Serving);
        handle.health().set("broken", ServingStatus::NotServing);
        Self {
            handle,
            wants,
            task: tokio::spawn(provider.run()),
        }
    }

    /// What is wanted next; health is told before.
    async fn wants(&mut self) -> Want {
        within(self.wants.recv()).await.expect("it runs")
    }

    async fn present(&mut self, ready: bool) {
        let life: Life = self.handle.life();
        assert_eq!(self.wants().await, Want::Present { life, ready });
        self.shows(ready);
    }

    fn shows(&self, ready: bool) {
        let expected = if ready {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        for name in ["", "orders", "payments", "further"] {
            assert_eq!(self.handle.health().status(name), Some(expected), "{name}");
        }
        let broken = self.handle.health().status("broken");
        assert_eq!(broken, Some(ServingStatus::NotServing));
        assert_eq!(self.handle.is_ready(), ready);
    }
}

#[tokio::test]
async fn s9_every_condition_counts_and_reaches_every_name_and_registry() {
    let mut running = Running::start(|builder| builder.ready("db", false).ready("cache", false));
    let handle = running.handle.clone();
    running.present(false).await;
    assert_eq!(handle.phase(), Phase::Serving);
    assert_eq!(handle.unmet(), ["cache", "db"]);
    handle.ready("db", true);
    running.shows(false);
    handle.ready("cache", true);
    running.present(true).await;
    // What changes nothing is not told again.
    handle.ready("cache", true);
    handle.ready("never named", true);
    handle.ready("queue", false);
    handle.ready("queue", false);
    running.present(false).await;
    handle.ready("queue", true);
    running.present(true).await;
    assert!(handle.stop("test").await);
    assert_eq!(running.wants().await, Want::Closing);
    let report = within(running.task).await.expect("no panic");
    assert_eq!(report.exit_code(), 0, "{report}");
}

#[tokio::test]
async fn s9_who_leaves_is_not_ready_whatever_is_said() {
    let mut running = Running::start(|builder| builder);
    let handle = running.handle.clone();
    running.present(true).await;
    assert!(handle.hold().await);
    assert_eq!(running.wants().await, Want::Closing);
    handle.ready("db", false);
    handle.ready("db", true);
    handle.ready("queue", false);
    running.shows(false);
    assert!(handle.resume().await);
    running.present(false).await;
    handle.ready("queue", true);
    running.present(true).await;
    assert!(handle.stop("test").await);
    assert_eq!(running.wants().await, Want::Closing);
    handle.ready("db", false);
    handle.ready("db", true);
    running.shows(false);
    assert_eq!(running.wants().await, Want::Gone);
    within(running.task).await.expect("no panic");
    handle.ready("db", true);
    running_is_over(&handle);
}

fn running_is_over(handle: &Handle) {
    assert!(!handle.is_ready());
    let status = handle.health().status("orders");
    assert_eq!(status, Some(ServingStatus::NotServing));
}

#[tokio::test]
async fn s9_a_name_serves_where_it_and_the_process_do() {
    let mut running = Running::start(|builder| builder.ready("db", false));
    let handle = running.handle.clone();
    running.present(false).await;
    handle.health().set("orders", ServingStatus::Serving);
    running.shows(false);
    handle.health().set("orders", ServingStatus::NotServing);
    handle.ready("db", true);
    let life = handle.life();
    let ready = true;
    assert_eq!(running.wants().await, Want::Present { life, ready });
    let status = |name| handle.health().status(name);
    assert_eq!(status("orders"), Some(ServingStatus::NotServing));
    assert_eq!(status(""), Some(ServingStatus::Serving));
    handle.abort();
    within(running.task).await.expect("no panic");
}

#[tokio::test]
async fn s9_readyz_says_whether_it_is_ready_and_livez_does_not() {
    let mut running = Running::start(|builder| builder.probes().ready("db", false));
    let handle = running.handle.clone();
    running.present(false).await;
    for (holds, readyz) in [(false, "503"), (true, "200")] {
        handle.ready("db", holds);
        for (path, expected) in [("/readyz", readyz), ("/livez", "200"), ("/startupz", "200")] {
            let mut socket = tokio::net::TcpStream::connect(handle.local_addr())
                .await
                .expect("it listens");
            say(
                &mut socket,
                &format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n"),
            )
            .await;
            let answer = head(&mut socket).await;
            assert!(
                answer.starts_with(&format!("http/1.1 {expected}")),
                "{path}: {answer}"
            );
        }
    }
    handle.abort();
    within(running.task).await.expect("no panic");
}
