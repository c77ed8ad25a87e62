//! A client that hangs up takes its work with it.

use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::permits::request;
use super::start::{head, rest, say, start, start_with, within};

/// Routes whose handlers end by being dropped alone, or after 20 ms.
fn slow() -> Router {
    Router::new()
        .route("/never", get(std::future::pending::<&'static str>))
        .route("/unread", post(std::future::pending::<&'static str>))
        .route(
            "/soon",
            get(|| async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                "hello"
            }),
        )
}

#[tokio::test]
async fn s4_a_client_that_hangs_up_cancels_its_handler() {
    let server = start(slow());
    let whole = [
        "GET /never HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET /never HTTP/1.0\r\n\r\n",
        "GET /never HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        "HEAD /never HTTP/1.1\r\nhost: a\r\n\r\n",
        "POST /unread HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n",
    ];
    let mut admitted = 0;
    // It shuts down its side, and it closes.
    for shuts_down in [true, false] {
        for request in whole {
            let mut socket = server.connect().await;
            say(&mut socket, request).await;
            admitted += 1;
            server.admitted(admitted).await;
            if shuts_down {
                socket.shutdown().await.expect("a socket");
                server.idle_after(admitted).await;
                assert_eq!(
                    rest(&mut socket).await.ok().unwrap_or_default(),
                    b"",
                    "{request}"
                );
            } else {
                drop(socket);
                server.idle_after(admitted).await;
            }
        }
    }
    // On a connection that was used before, too.
    let mut socket = request(&server, "GET", "/soon").await;
    head(&mut socket).await;
    let mut body = [0; 5];
    within(socket.read_exact(&mut body)).await.expect("a body");
    say(&mut socket, whole[0]).await;
    server.admitted(admitted + 2).await;
    drop(socket);
    server.idle_after(admitted + 2).await;
}

#[tokio::test]
async fn s4_clients_that_have_hung_up_do_not_hold_a_stop() {
    let server = start(slow());
    let mut sockets = Vec::new();
    for _ in 0..5 {
        sockets.push(request(&server, "GET", "/never").await);
    }
    server.admitted(5).await;
    within(server.control.close_listener()).await;
    server.control.go_away_all(Duration::ZERO);
    drop(sockets);
    server.idle_after(5).await;
    server.end().await;
}

#[tokio::test]
async fn s4_a_half_closed_client_gets_its_answer_where_that_is_set() {
    let server = start_with(slow(), |limits| limits.http1_half_close = true);
    let mut socket = request(&server, "GET", "/soon").await;
    socket.shutdown().await.expect("a socket");
    let answer = rest(&mut socket).await.expect("FIN");
    assert!(answer.ends_with(b"hello"));
}
