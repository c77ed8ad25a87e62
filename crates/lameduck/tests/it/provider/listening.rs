//! Where a provider listens, what it publishes of that, and to whom it says who it is.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::routing::any;
use lameduck::core::event::Event;
use lameduck::env::{Environment, PodIp};
use lameduck::provider::{Builder, ShowLife};
use lameduck::{Hub, Provider};
use tokio::net::TcpStream;

use super::signals::Process;
use crate::raw::listen;
use crate::serve::start::{head, say, within};

/// No host (RFC 5737): nothing is dialled before a provider runs.
const ELSEWHERE: &str = "etcd://192.0.2.1:2379";

fn orders() -> Builder {
    Provider::builder("orders")
        .router(Router::new().fallback(any(async || "hello")))
        .signals(false)
        .floor(Duration::ZERO)
        .quiet(Duration::ZERO)
}

#[tokio::test]
async fn s24_a_port_may_be_shared() {
    let first = orders().listen("127.0.0.1:0").share_port(true);
    let first = first.build().expect("a free port");
    let address = first.handle().local_addr().to_string();
    let second = orders().listen(&address).share_port(true).build();
    let second = second.expect("both share it");
    assert_eq!(second.handle().local_addr(), first.handle().local_addr());
    let third = orders().listen(&address).build();
    assert_eq!(third.expect_err("it does not share").exit_code(), 12);
}

#[tokio::test]
async fn s24_b_a_socket_of_the_service_manager_is_served() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let mut process = Process::start_inheriting(listener);
    assert_eq!(process.line("built ").await, address);
    process.line("registry present").await;
    let mut socket = within(TcpStream::connect(&address))
        .await
        .expect("it listens");
    say(&mut socket, "GET /nothing HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(head(&mut socket).await.starts_with("http/1.1 404 "));
}

#[tokio::test]
async fn s24_c_without_one_it_listens_where_it_is_said() {
    let provider = orders().listen("127.0.0.1:0").listen_inherited(true);
    assert!(provider.build().is_ok());
    let error = orders().listen_inherited(true).build();
    assert_eq!(error.expect_err("nowhere").exit_code(), 2);
}

#[tokio::test]
async fn s24_d_a_unix_socket_is_refused_as_what_it_is() {
    let path = std::env::temp_dir().join(format!("lameduck s24 {}", std::process::id()));
    let unix = std::os::unix::net::UnixListener::bind(&path).expect("a path of our own");
    std::fs::remove_file(&path).expect("it was made");
    let given = TcpListener::from(std::os::fd::OwnedFd::from(unix));
    let error = orders().listener(given).build().expect_err("no TCP");
    assert_eq!(error.exit_code(), 2);
    let text = error.to_string();
    assert!(
        text.contains("the given listener is a unix socket"),
        "{text}"
    );
}

#[tokio::test]
async fn d14_what_is_advertised_is_believed_and_said_once() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&said);
    let environment = Environment {
        pod_ip: PodIp::Ip([127, 0, 0, 1].into()),
        ..Environment::default()
    };
    let at = || {
        let any = orders().listen("0.0.0.0:0").registry(ELSEWHERE);
        any.environment(environment.clone())
    };
    let error = at().build().expect_err("nobody reaches it");
    assert_eq!(error.exit_code(), 2);
    assert!(
        error.to_string().contains("variable POD_IP says so"),
        "{error}"
    );
    let observer = move |event: &Event| notes.lock().expect("no panic").push(event.clone());
    let provider = at()
        .advertise("127.0.0.1:55032")
        .registry("etcd://192.0.2.2:2379")
        .on_event(Arc::new(observer))
        .build()
        .expect("it is believed");
    let published = provider.handle().registrations();
    assert_eq!(published[0].address.to_string(), "127.0.0.1:55032");
    let expected = Event::AdvertisedLoopback {
        registry: ELSEWHERE.to_owned(),
        address: "127.0.0.1:55032".parse().expect("an address"),
    };
    // Observers have a thread of their own; what it is told is in order, and this comes last.
    let last = |event: &Event| matches!(event, Event::PhaseEntered { .. });
    let running = tokio::spawn(provider.run());
    within(async {
        while !said.lock().expect("no panic").iter().any(last) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let said = said.lock().expect("no panic").clone();
    let same = said.iter().filter(|event| **event == expected).count();
    assert_eq!(same, 1, "{said:?}");
    running.abort();
}

#[tokio::test]
async fn s26_who_answers_is_shown_to_those_who_may_know() {
    for (to, expected) in [
        (ShowLife::Always, [true, false, false]),
        (ShowLife::Asked, [false, true, false]),
        (ShowLife::Never, [false, false, false]),
    ] {
        let provider = orders().listen("127.0.0.1:0").show_life(to);
        let provider = provider.build().expect("it builds");
        let handle = provider.handle();
        let running = tokio::spawn(provider.run());
        within(handle.serving()).await;
        let mut socket = within(TcpStream::connect(handle.local_addr())).await;
        let socket = socket.as_mut().expect("it listens");
        for (ask, expected) in ["", "lameduck-ask: life\r\n", "lameduck-ask: life\r\n"]
            .into_iter()
            .zip(expected)
        {
            // No body: the next answer's head follows this one's.
            say(socket, &format!("HEAD / HTTP/1.1\r\nhost: a\r\n{ask}\r\n")).await;
            let answer = head(socket).await;
            let shown = answer.contains("\r\nlameduck-life: ");
            assert_eq!(shown, expected, "{to:?}, {ask:?}: {answer}");
        }
        // Our own caller goes on with all of them.
        let hub = Hub::new();
        let channel = hub.channel(&handle.local_addr().to_string());
        let channel = channel.expect("a target");
        for _ in 0..3 {
            let status = call(channel.clone()).await.status();
            assert_eq!(status, 200, "{to:?}");
        }
        handle.stop("enough").await;
        within(running).await.expect("no panic");
    }
}

async fn call(mut channel: lameduck::Channel) -> http::Response<tonic::body::Body> {
    let request = http::Request::get("/").body(tonic::body::Body::empty());
    let request = request.expect("a request");
    let answer = tower_service::Service::call(&mut channel, request);
    within(answer).await.expect("an answer")
}

#[tokio::test]
async fn s26_b_our_caller_asks_once_a_connection() {
    let (listener, address) = listen().await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&asked);
    let route = async move |request: Request| {
        // Its health Watch asks too, where it is the first.
        let ask = request.headers().get("lameduck-ask").cloned();
        notes.lock().expect("no panic").push(ask);
        match request.uri().path() {
            "/" => StatusCode::OK,
            _ => StatusCode::NOT_FOUND,
        }
    };
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(route)).await });
    let channel = Hub::new().channel(&address.to_string()).expect("a target");
    for _ in 0..3 {
        assert_eq!(call(channel.clone()).await.status(), 200);
    }
    let asked = asked.lock().expect("no panic");
    let values: Vec<_> = asked.iter().flatten().collect();
    assert_eq!(values, ["life"], "{asked:?}");
    assert_eq!(asked[0].as_ref(), Some(values[0]), "the first request asks");
}
