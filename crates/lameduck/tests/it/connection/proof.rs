//! What each way to fail proves, and the chain of errors below it.

use std::error::Error;
use std::io::ErrorKind;

use http_body_util::BodyExt;
use lameduck::consumer::connection::{CallError, Cause, Failure, GoAway};
use lameduck::core::failover::Proof;

use super::{head, pair, unary, whole};
use crate::raw::{LAST_STREAM_MAX, MAX_CONCURRENT_STREAMS};

const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

/// The status that the application gets has our error below it, and that has h2's.
fn check(failure: Failure, proof: Proof, cause: Cause, code: tonic::Code) {
    let seen = (failure.error.proof, failure.error.cause);
    assert_eq!(seen, (proof, cause), "{:?}", failure.error);
    let status = failure.error.into_status();
    assert_eq!(status.code(), code, "{status:?}");
    check_chain(&status, cause);
}

fn check_chain(status: &tonic::Status, cause: Cause) {
    let ours = status
        .source()
        .and_then(|source| source.downcast_ref::<CallError>())
        .expect("our error is the status's source");
    assert_eq!(ours.cause, cause);
    let below = ours.source().expect("h2's error is below ours");
    assert!(below.downcast_ref::<h2::Error>().is_some(), "{below:?}");
}

#[tokio::test]
async fn goaway_below_the_stream() {
    for (code, expected) in [
        (NO_ERROR, tonic::Code::Unavailable),
        (INTERNAL_ERROR, tonic::Code::Unavailable),
        (ENHANCE_YOUR_CALM, tonic::Code::ResourceExhausted),
    ] {
        let (connection, mut peer, _listener) = pair(&[]).await;
        let (first, second) = (unary(&connection), unary(&connection));
        let low = peer.request().await;
        let high = peer.request().await;
        assert!(low < high);
        peer.goaway(low, code).await;
        let failure = second.await.expect_err("not processed");
        let cause = Cause::GoneAway(GoAway {
            last_stream: low,
            code,
        });
        check(failure, Proof::NotProcessed, cause, expected);
        peer.answer(low, b"answer").await;
        let answer = first.await.expect("it was processed");
        let body = answer.into_body().collect().await.expect("to its end");
        assert_eq!(body.to_bytes(), "answer");
    }
}

#[tokio::test]
async fn refused_and_reset() {
    for (code, proof, cause, expected) in [
        (
            REFUSED_STREAM,
            Proof::NotProcessed,
            Cause::Refused,
            tonic::Code::Unavailable,
        ),
        (
            CANCEL,
            Proof::Unknown,
            Cause::Reset(CANCEL),
            tonic::Code::Cancelled,
        ),
        (
            INTERNAL_ERROR,
            Proof::Unknown,
            Cause::Reset(INTERNAL_ERROR),
            tonic::Code::Internal,
        ),
        (
            NO_ERROR,
            Proof::Unknown,
            Cause::Reset(NO_ERROR),
            tonic::Code::Internal,
        ),
    ] {
        let (connection, mut peer, _listener) = pair(&[]).await;
        let call = unary(&connection);
        let stream = peer.request().await;
        peer.reset(stream, code).await;
        check(
            call.await.expect_err("it was reset"),
            proof,
            cause,
            expected,
        );
        assert!(connection.state().is_usable(), "a stream failed, no more");
        assert_eq!(connection.state().streams, 0);
        assert_eq!(connection.state().resets, 1);
    }
}

#[tokio::test]
async fn killed_peer_before_the_head() {
    let (connection, mut peer, _listener) = pair(&[]).await;
    let call = unary(&connection);
    peer.request().await;
    peer.kill();
    let failure = call.await.expect_err("the peer is dead");
    let cause = failure.error.cause;
    assert!(
        matches!(
            cause,
            Cause::Lost(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        ),
        "{cause:?}"
    );
    check(failure, Proof::Unknown, cause, tonic::Code::Unavailable);
}

#[tokio::test]
async fn killed_peer_in_the_body() {
    let (connection, mut peer, _listener) = pair(&[]).await;
    let call = unary(&connection);
    let stream = peer.request().await;
    peer.head(stream).await;
    peer.data(stream, b"half").await;
    let mut body = call.await.expect("a head").into_body();
    let frame = body.frame().await.expect("data").expect("data");
    assert_eq!(frame.into_data().expect("data"), "half");
    peer.kill();
    let status = body.frame().await.expect("an error").expect_err("no end");
    assert_eq!(status.code(), tonic::Code::Unavailable);
    let cause = status
        .source()
        .and_then(|source| source.downcast_ref::<CallError>())
        .expect("ours")
        .cause;
    assert!(matches!(cause, Cause::Lost(_)), "{cause:?}");
    check_chain(&status, cause);
    assert_eq!(connection.state().streams, 0);
}

#[tokio::test]
async fn a_slot_taken_before_goaway_never_leaves() {
    let (connection, mut peer, _listener) = pair(&[]).await;
    let slot = connection.reserve().expect("there is room");
    peer.goaway(LAST_STREAM_MAX, NO_ERROR).await;
    connection.unusable().await;
    let held = connection.call(slot, &head(), whole(b"question"));
    let failure = held.await.expect_err("it was told to go");
    assert_eq!(failure.error.proof, Proof::NeverLeft);
    assert!(failure.unsent.is_some(), "the body comes back");
    assert_eq!(connection.state().streams, 0);
}

#[tokio::test]
async fn a_handle_that_was_closed_never_sends() {
    let (connection, _peer, _listener) = pair(&[]).await;
    let slot = connection.reserve().expect("there is room");
    connection.close();
    let call = connection.call(slot, &head(), whole(b"question"));
    let failure = call.await.expect_err("it was closed");
    assert_eq!(failure.error.proof, Proof::NeverLeft);
    assert_eq!(failure.error.cause, Cause::Closed);
    assert!(failure.unsent.is_some(), "the body comes back");
}

#[tokio::test]
async fn a_head_that_is_still_queued_never_left() {
    let (connection, mut peer, _listener) = pair(&[(MAX_CONCURRENT_STREAMS, 2)]).await;
    let slots = [connection.reserve(), connection.reserve()].map(|slot| slot.expect("room"));
    // Lowered between the taking of the slots and the calls: the second must wait inside.
    peer.settings(&[(MAX_CONCURRENT_STREAMS, 1)]).await;
    let lowered = async {
        while connection.state().limit > 1 {
            tokio::task::yield_now().await;
        }
    };
    let soon = std::time::Duration::from_secs(10);
    let lowered = tokio::time::timeout(soon, lowered).await;
    lowered.expect("SETTINGS are read");
    let [first, second] = slots.map(|slot| connection.call(slot, &head(), whole(b"question")));
    peer.request().await;
    peer.kill();
    let first = first.await.expect_err("the peer is dead");
    assert_eq!(first.error.proof, Proof::Unknown);
    let second = second.await.expect_err("the peer is dead");
    assert_eq!(second.error.proof, Proof::NeverLeft, "{:?}", second.error);
}
