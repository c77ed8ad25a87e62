//! What does not keep a stop from being quiet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use lameduck::Provider;
use lameduck::core::event::Phase;
use lameduck::provider::{BuildError, ClosingEnd, DrainReport, Handle};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::service::Routes;

use super::leaving::start;
use super::routes::Polite;
use crate::greeter::greeter_server::GreeterServer;
use crate::raw::{GOAWAY, HEADERS};
use crate::serve::client::Client;
use crate::serve::start::{head, rest, say, within};

/// A fifth of the quiet window.
const OFTEN: Duration = Duration::from_millis(20);

async fn status(handle: &Handle, method: &str, path: &str) -> Option<String> {
    let mut socket = TcpStream::connect(handle.local_addr()).await.ok()?;
    let request = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    say(&mut socket, &request).await;
    let answer = rest(&mut socket).await.ok()?;
    let text = String::from_utf8_lossy(&answer);
    text.split(' ').nth(1).map(str::to_owned)
}

/// Asks for `path` often, from before the stop until the listener is closed.
async fn stop_under_checks(
    (handle, running): (Handle, JoinHandle<DrainReport>),
    method: &'static str,
    path: &'static str,
) -> DrainReport {
    let closing_seen = Arc::new(AtomicBool::new(false));
    let checks = tokio::spawn({
        let (handle, closing_seen) = (handle.clone(), Arc::clone(&closing_seen));
        async move {
            while handle.phase() <= Phase::Closing {
                let closing = handle.phase() == Phase::Closing;
                let answer = status(&handle, method, path).await;
                if closing && handle.phase() == Phase::Closing {
                    assert!(answer.is_some(), "served while it closes");
                    closing_seen.store(true, Ordering::Relaxed);
                }
                tokio::time::sleep(OFTEN).await;
            }
        }
    });
    assert!(handle.stop("test").await);
    let report = within(running).await.expect("no panic");
    within(checks).await.expect("no panic");
    assert!(closing_seen.load(Ordering::Relaxed), "{path}");
    report
}

#[tokio::test]
async fn d24_checks_that_are_said_to_be_unobserved_keep_nothing_from_being_quiet() {
    let router = || {
        Router::new()
            .route("/healthz", get(async || "well").post(async || "well"))
            .route("/metrics", get(async || "up 1"))
    };
    for (method, path) in [
        ("GET", "/healthz"),
        ("POST", "/healthz"),
        ("GET", "/healthz?verbose=1"),
        ("GET", "/metrics"),
        ("GET", "/nowhere"),
        ("GET", "/livez"),
        ("HEAD", "/readyz"),
        ("GET", "/startupz"),
    ] {
        let builder = Provider::builder("orders")
            .router(router())
            .unobserved("/healthz")
            .unobserved("/metrics")
            .unobserved("/nowhere")
            .probes();
        let report = stop_under_checks(start(builder).await, method, path).await;
        assert_eq!(report.closing_end, ClosingEnd::Quiet, "{path}: {report}");
        assert_eq!(report.exit_code(), 0, "{path}: {report}");
    }
}

#[tokio::test]
async fn d24_a_route_beside_an_unobserved_one_is_in_flight() {
    let wait = async |handle: Handle| {
        handle.closing().await;
        "well"
    };
    let router = Router::new()
        .route("/work", get(wait))
        .route("/healthz", get(wait));
    let builder = Provider::builder("orders")
        .router(router)
        .unobserved("/healthz");
    let (handle, running) = start(builder).await;
    let mut sockets = Vec::new();
    for path in ["/work", "/healthz", "/healthz/", "/nowhere"] {
        let mut socket = TcpStream::connect(handle.local_addr())
            .await
            .expect("it listens");
        say(
            &mut socket,
            &format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n"),
        )
        .await;
        sockets.push(socket);
    }
    let gate = handle.gate();
    within(async {
        loop {
            let connections = handle.connections();
            if connections.open - connections.idle >= 2 && gate.admitted() == 3 {
                break;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!((gate.admitted(), gate.in_flight().total), (3, 1));
    assert!(handle.stop("test").await);
    for (socket, code) in sockets.iter_mut().zip([200, 200, 404, 404]) {
        let answer = head(socket).await;
        assert!(answer.starts_with(&format!("http/1.1 {code}")), "{answer}");
    }
    drop(sockets);
    let report = within(running).await.expect("no panic");
    assert_eq!((report.exit_code(), report.in_flight), (0, 1), "{report}");
}

#[tokio::test]
async fn d24_probes_say_how_the_process_does() {
    let (handle, running) = start(Provider::builder("orders").probes()).await;
    let said = async |path| status(&handle, "GET", path).await.expect("an answer");
    for path in ["/livez", "/readyz", "/startupz"] {
        assert_eq!(said(path).await, "200", "{path}");
    }
    assert!(handle.hold().await);
    assert_eq!(said("/livez").await, "200");
    assert_eq!(said("/readyz").await, "503");
    assert_eq!(said("/startupz").await, "200");
    assert!(handle.resume().await);
    assert_eq!(said("/readyz").await, "200");
    assert_eq!(handle.gate().admitted(), 0);
    assert!(handle.stop("test").await);
    within(running).await.expect("no panic");
    let router = Router::new().route("/", get(async || "hello"));
    let (handle, _running) = start(Provider::builder("orders").router(router)).await;
    assert_eq!(
        status(&handle, "GET", "/livez").await.as_deref(),
        Some("404"),
        "where nobody asked for it"
    );
}

#[tokio::test]
async fn d24_paths_that_no_request_has_and_probes_twice_are_refused() {
    let builder = || {
        Provider::builder("orders")
            .listen("127.0.0.1:0")
            .signals(false)
    };
    for path in ["", "healthz", "*", "/healthz?verbose", "/a#b"] {
        let error = builder().unobserved(path).build().expect_err(path);
        assert!(matches!(error, BuildError::Unobserved(_)), "{error}");
        assert!(error.to_string().contains(&format!("{path:?}")), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
    for path in ["/livez", "/readyz", "/startupz"] {
        let mine = Router::new().route(path, get(async || "mine"));
        let error = builder().router(mine).probes().build().expect_err(path);
        assert!(error.to_string().contains(path), "{error}");
    }
}

#[tokio::test]
async fn s6_a_worker_that_takes_permits_keeps_nothing_from_being_quiet() {
    let router = Router::new().route("/", post(async || "accepted"));
    let (handle, running) = start(Provider::builder("orders").router(router)).await;
    let gate = handle.gate();
    let worker = tokio::spawn(async move {
        let mut jobs = 0;
        while let Some(permit) = gate.enter_task() {
            tokio::time::sleep(OFTEN / 4).await;
            drop(permit);
            jobs += 1;
        }
        jobs
    });
    assert!(handle.stop("test").await);
    let report = within(running).await.expect("no panic");
    assert_eq!(report.closing_end, ClosingEnd::Quiet, "{report}");
    assert_eq!((report.exit_code(), report.abandoned), (0, 0), "{report}");
    assert!(within(worker).await.expect("no panic") > 0);
}

/// A caller with one fixed address, which neither a registry nor a health watch tells anything: nginx,
/// grpc-go without health, and their like.
#[tokio::test]
async fn s6_an_http1_caller_that_was_told_and_comes_back_does_not_prolong_closing() {
    let router = Router::new().route("/work", post(async || "done"));
    let provider = start(Provider::builder("orders").router(router)).await;
    let report = stop_under_checks(provider, "POST", "/work").await;
    assert_eq!(report.closing_end, ClosingEnd::Quiet, "{report}");
    assert_eq!((report.exit_code(), report.abandoned), (0, 0), "{report}");
}

#[tokio::test]
async fn s6_an_http2_caller_that_was_told_and_comes_back_does_not_prolong_closing() {
    let router = Router::new().route("/work", get(async || "done"));
    let (handle, running) = start(Provider::builder("orders").router(router)).await;
    let mut client = Client::connect(handle.local_addr()).await;
    let caller = tokio::spawn({
        let handle = handle.clone();
        async move {
            let (mut told, mut back) = (0, 0);
            while handle.phase() <= Phase::Closing {
                let stream = client.get("/work").await;
                loop {
                    let Some(frame) = client.frame().await else {
                        assert!(handle.phase() > Phase::Closing, "served while it closes");
                        return (told, back);
                    };
                    match frame.kind {
                        GOAWAY => told += 1,
                        HEADERS if frame.stream == stream => break,
                        _ => {}
                    }
                }
                if told > back && handle.phase() == Phase::Closing {
                    client = Client::connect(handle.local_addr()).await;
                    back += 1;
                }
                tokio::time::sleep(OFTEN).await;
            }
            (told, back)
        }
    });
    assert!(handle.stop("test").await);
    let report = within(running).await.expect("no panic");
    let (told, back) = within(caller).await.expect("no panic");
    assert!(told >= 1 && back == 1, "{told} {back}");
    assert_eq!(report.closing_end, ClosingEnd::Quiet, "{report}");
    assert_eq!((report.exit_code(), report.abandoned), (0, 0), "{report}");
}

#[tokio::test]
async fn d25_a_port_of_grpc_alone_is_well_to_no_http_probe() {
    let mut mixed = Routes::new(GreeterServer::new(Polite));
    let all = mixed.axum_router_mut();
    *all = std::mem::take(all).route("/mine", get(async || "well"));
    let greeter = || Routes::new(GreeterServer::new(Polite));
    for builder in [
        Provider::builder("orders"),
        Provider::builder("orders").grpc(greeter()),
        Provider::builder("orders").grpc(greeter()).health(false),
        Provider::builder("orders").grpc(mixed.clone()),
    ] {
        let (handle, _running) = start(builder).await;
        for _ in 0..2 {
            for path in [
                "/",
                "/healthz",
                "/greeter.Greeter/Hello",
                "/grpc.health.v1.Health/Check",
            ] {
                let answer = status(&handle, "GET", path).await;
                assert_eq!(answer.as_deref(), Some("415"), "{path}");
            }
            let answer = status(&handle, "HEAD", "/healthz").await;
            assert_eq!(answer.as_deref(), Some("415"));
            // In Closing too.
            assert!(handle.hold().await);
        }
    }
    let (handle, _running) = start(Provider::builder("orders").grpc(mixed)).await;
    assert_eq!(
        status(&handle, "GET", "/mine").await.as_deref(),
        Some("200")
    );
}
