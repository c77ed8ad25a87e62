//! Sends a streaming request body while its answer comes in.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use h2::{Reason, SendStream};
use http::HeaderMap;
use http_body::{Body as _, Frame};
use tokio::task::JoinHandle;

use super::outgoing::Streaming;

/// The task that sends a body. Ends with the call: dropped, it takes the task along.
#[derive(Debug)]
pub(super) struct Pump {
    task: JoinHandle<Option<tonic::Status>>,
}

impl Pump {
    pub(super) fn start(stream: SendStream<Bytes>, body: Streaming) -> Self {
        Self {
            task: tokio::spawn(run(stream, body)),
        }
    }

    /// Waits for the end of the task: the body's own error, where it failed.
    pub(super) async fn outcome(mut self) -> Option<tonic::Status> {
        (&mut self.task).await.ok().flatten()
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.task.abort();
    }
}

enum Next {
    Data(Bytes),
    Trailers(HeaderMap),
    End,
    Failed(tonic::Status),
    /// The peer wants no more, or the connection is gone: the answer tells.
    Stop,
}

async fn run(mut stream: SendStream<Bytes>, mut body: Streaming) -> Option<tonic::Status> {
    loop {
        match next(&mut stream, &mut body).await {
            Next::Data(data) => match send(&mut stream, data).await {
                Some(()) => {}
                None => return None,
            },
            Next::Trailers(trailers) => {
                // A stream that is gone by now has told its answer so.
                let _ = stream.send_trailers(trailers);
                return None;
            }
            Next::End => {
                let _ = stream.send_data(Bytes::new(), true);
                return None;
            }
            Next::Failed(status) => {
                // A request that was cut must not look complete.
                stream.send_reset(Reason::CANCEL);
                return Some(status);
            }
            Next::Stop => return None,
        }
    }
}

async fn next(stream: &mut SendStream<Bytes>, body: &mut Streaming) -> Next {
    poll_fn(|cx| {
        // First, so that an early answer ends a body that is always ready.
        if stream.poll_reset(cx).is_ready() {
            return Poll::Ready(Next::Stop);
        }
        let frame = match body.prefix.pop_front() {
            Some(frame) => Some(Ok(frame)),
            None => std::task::ready!(Pin::new(&mut body.rest).poll_frame(cx)),
        };
        Poll::Ready(match frame {
            None => Next::End,
            Some(Err(status)) => Next::Failed(status),
            Some(Ok(frame)) => sort(frame),
        })
    })
    .await
}

fn sort(frame: Frame<Bytes>) -> Next {
    match frame.into_data() {
        Ok(data) => Next::Data(data),
        Err(frame) => frame
            .into_trailers()
            .map_or(Next::Data(Bytes::new()), Next::Trailers),
    }
}

/// Sends `data` as the peer's windows allow. `None` where the stream is gone.
async fn send(stream: &mut SendStream<Bytes>, mut data: Bytes) -> Option<()> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = room(stream).await?;
        let part = data.split_to(room.min(data.len()));
        stream.send_data(part, false).ok()?;
    }
    Some(())
}

async fn room(stream: &mut SendStream<Bytes>) -> Option<usize> {
    poll_fn(|cx| {
        if stream.poll_reset(cx).is_ready() {
            return Poll::Ready(None);
        }
        loop {
            let room = stream.capacity();
            if room > 0 {
                return Poll::Ready(Some(room));
            }
            match std::task::ready!(stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Poll::Ready(None),
            }
        }
    })
    .await
}
