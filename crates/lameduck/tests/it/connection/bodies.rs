//! Request bodies taken whole or streamed, and answers as long as they like.

use std::pin::pin;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, StreamBody};
use lameduck::consumer::connection::{Body, Cause, Connection, Failure, Outgoing};
use lameduck::core::limits::REPLAY_BYTES_MAX;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::{Codec, EncodeBody};
use tonic_prost::ProstCodec;

use super::{dial, head, pair};
use crate::greeter::HelloRequest;
use crate::raw::{HEADERS, RST_STREAM};
use crate::tonic_server::{self, Running};

type Item = Result<HelloRequest, tonic::Status>;

/// A request body as tonic's clients make it.
fn encoded(source: impl Stream<Item = Item> + Send + 'static) -> tonic::body::Body {
    let encoder = ProstCodec::<HelloRequest, HelloRequest>::default().encoder();
    tonic::body::Body::new(EncodeBody::new_client(encoder, source, None, None))
}

fn of_size(bytes: usize) -> Item {
    Ok(HelloRequest {
        name: "x".repeat(bytes),
    })
}

fn take(body: tonic::body::Body) -> Outgoing {
    Outgoing::take(body, REPLAY_BYTES_MAX)
}

fn start(
    connection: &Connection,
    body: Outgoing,
) -> impl Future<Output = Result<http::Response<Body>, Failure>> + Send + use<> {
    let slot = connection.reserve().expect("there is room");
    connection.call(slot, &head(), body)
}

fn fed() -> (mpsc::Sender<Item>, tonic::body::Body) {
    let (sender, receiver) = mpsc::channel(1);
    (sender, encoded(ReceiverStream::new(receiver)))
}

#[test]
fn what_is_there_is_taken_whole() {
    // The prefix of a message, and of its one field.
    for (size, extra) in [(0, 5), (64, 7), (40_000, 9), (900_000, 9)] {
        let body = take(encoded(stream::iter([of_size(size)])));
        let again = body.replay().expect("a whole body");
        for body in [body, again] {
            let Outgoing::Whole { data, trailers } = body else {
                panic!("{size} bytes were streamed");
            };
            assert_eq!(data.len(), size + extra);
            assert_eq!(trailers, None);
        }
    }
    let three = take(encoded(stream::iter([1, 2, 3].map(of_size))));
    let Outgoing::Whole { data, .. } = three else {
        panic!("three ready items were streamed");
    };
    assert_eq!(data.len(), 3 * 7 + 1 + 2 + 3);
}

#[tokio::test]
async fn what_is_not_there_is_streamed() {
    let long = take(encoded(stream::iter([of_size(3 << 20)])));
    assert!(long.replay().is_none(), "too long to keep");
    let (sender, body) = fed();
    sender.try_send(of_size(1)).expect("room");
    assert!(take(body).replay().is_none(), "the second item is to come");
    let failed = take(encoded(stream::iter([Err(tonic::Status::aborted("no"))])));
    assert!(failed.replay().is_none(), "it has no end");
}

/// Answers every request with its body, as it comes.
async fn an_echo() -> (Connection, Running) {
    let echo = |request: axum::extract::Request| async {
        axum::response::Response::new(request.into_body())
    };
    let (address, server) = tonic_server::start(axum::Router::new().fallback(echo)).await;
    (dial(address).await, server)
}

#[tokio::test]
async fn sixteen_mebibytes_both_ways() {
    const PARTS: usize = 256;
    const PART: usize = 64 << 10;
    let (connection, _server) = an_echo().await;
    let parts = stream::iter(0..PARTS).map(|n| {
        let part = vec![u8::try_from(n).expect("256 parts"); PART];
        Ok::<_, tonic::Status>(Frame::data(Bytes::from(part)))
    });
    let body = take(tonic::body::Body::new(StreamBody::new(parts)));
    let mut answer = start(&connection, body).await.expect("a head").into_body();
    let mut read = 0;
    while let Some(frame) = answer.frame().await {
        let Ok(data) = frame.expect("no error").into_data() else {
            continue;
        };
        for byte in data {
            assert_eq!(usize::from(byte), read / PART);
            read += 1;
        }
    }
    assert_eq!(read, PARTS * PART);
    assert_eq!(connection.state().streams, 0);
}

#[tokio::test]
async fn a_whole_body_larger_than_every_window() {
    let (connection, _server) = an_echo().await;
    let body = take(encoded(stream::iter([of_size(900_000)])));
    let answer = start(&connection, body).await.expect("a head");
    let back = answer.into_body().collect().await.expect("an end");
    assert_eq!(back.to_bytes().len(), 900_009);
}

#[tokio::test]
async fn items_go_out_as_they_come_and_answers_come_meanwhile() {
    let (connection, _server) = an_echo().await;
    let (sender, body) = fed();
    sender.try_send(of_size(1)).expect("room");
    let answer = start(&connection, take(body)).await.expect("a head");
    let mut answer = answer.into_body();
    for size in 2..10 {
        let data = answer.frame().await.expect("data").expect("data");
        assert_eq!(data.into_data().expect("data").len(), 7 + size - 1);
        sender.send(of_size(size)).await.expect("it is read");
    }
    drop(sender);
    let last = answer.collect().await.expect("an end");
    assert_eq!(last.to_bytes().len(), 7 + 9);
}

#[tokio::test]
async fn a_body_that_fails_resets_the_stream() {
    let (connection, mut peer, _listener) = pair(&[]).await;
    for first in [true, false] {
        // Failing while it is taken, and failing later.
        let (sender, body) = fed();
        let failure = Err(tonic::Status::data_loss("the disk is gone"));
        let body = if first {
            sender.try_send(failure).expect("room");
            take(body)
        } else {
            let body = take(body);
            sender.try_send(failure).expect("room");
            body
        };
        let call = start(&connection, body);
        assert_eq!(peer.frame_of(RST_STREAM).await.payload, [0, 0, 0, 8]);
        let failure = call.await.expect_err("the body failed");
        assert_eq!(failure.error.cause, Cause::RequestBody);
        assert_eq!(failure.error.into_status().code(), tonic::Code::DataLoss);
        assert_eq!(connection.state().streams, 0);
    }
}

#[tokio::test]
async fn a_body_is_let_go_when_its_call_is_dropped_or_answered() {
    let (connection, mut peer, _listener) = pair(&[]).await;
    let (sender, body) = fed();
    drop(start(&connection, take(body)));
    // Its end is what this waits for.
    sender.closed().await;

    let (sender, body) = fed();
    let call = start(&connection, take(body));
    let stream = loop {
        let head = peer.frame_of(HEADERS).await;
        if head.stream > 1 {
            break head.stream;
        }
    };
    peer.answer(stream, b"enough").await;
    let answer = call.await.expect("a head").into_body();
    let mut answer = pin!(answer);
    while !answer.is_end_stream() {
        answer.frame().await.expect("a frame").expect("no error");
    }
    sender.closed().await;
    assert_eq!(connection.state().streams, 0);
}

#[tokio::test]
async fn a_streaming_body_comes_back_from_a_closed_handle() {
    let (connection, _peer, _listener) = pair(&[]).await;
    let slot = connection.reserve().expect("there is room");
    connection.close();
    let (sender, body) = fed();
    sender.try_send(of_size(1)).expect("room");
    let failure = connection
        .call(slot, &head(), take(body))
        .await
        .expect_err("it was closed");
    let body = *failure.unsent.expect("nothing was sent of it");
    let (connection, _server) = an_echo().await;
    drop(sender);
    let answer = start(&connection, body).await.expect("a head");
    let back = answer.into_body().collect().await.expect("an end");
    assert_eq!(back.to_bytes().len(), 8);
}
