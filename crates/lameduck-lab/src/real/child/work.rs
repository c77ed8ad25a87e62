//! The service: it writes down that it starts, works, and answers.

use std::pin::Pin;
use std::time::Duration;

use axum::body::Bytes;
use futures_util::{Stream, StreamExt, stream};
use lameduck_core::instance::Life;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::super::record::{CallId, Record};
use super::recorder::Recorder;
use crate::pb;
use crate::pb::work_server::{Work, WorkServer};

/// Any bytes: their number is what counts.
fn payload(bytes: u32) -> Bytes {
    vec![0; bytes as usize].into()
}

/// Says which life this process is in.
pub(super) trait Alive: Send + Sync + 'static {
    fn life(&self) -> Life;
}

impl<F: Fn() -> Life + Send + Sync + 'static> Alive for F {
    fn life(&self) -> Life {
        self()
    }
}

/// The tonic service.
pub(super) struct Worker<A> {
    recorder: Recorder,
    alive: A,
}

impl<A: Alive> Worker<A> {
    pub(super) fn service(recorder: Recorder, alive: A) -> WorkServer<Self> {
        WorkServer::new(Self { recorder, alive })
    }

    /// Writes the start down before any work is done; gives the life that works.
    fn start(&self, id: &str) -> Result<Life, Status> {
        let id: CallId = id
            .parse()
            .map_err(|error| Status::invalid_argument(format!("{error}")))?;
        let life = self.alive.life();
        self.recorder.write(Record::Started { id, life });
        Ok(life)
    }

    async fn unary(&self, request: pb::Request) -> Result<Response<pb::Reply>, Status> {
        let life = self.start(&request.id)?;
        tokio::time::sleep(Duration::from_micros(request.work_us.into())).await;
        let (id, life) = (request.id, life.to_string());
        let payload = payload(request.payload_bytes);
        Ok(Response::new(pb::Reply { id, life, payload }))
    }
}

#[tonic::async_trait]
impl<A: Alive> Work for Worker<A> {
    async fn put(&self, request: Request<pb::Request>) -> Result<Response<pb::Reply>, Status> {
        self.unary(request.into_inner()).await
    }

    async fn get(&self, request: Request<pb::Request>) -> Result<Response<pb::Reply>, Status> {
        self.unary(request.into_inner()).await
    }

    type StreamStream = Pin<Box<dyn Stream<Item = Result<pb::Item, Status>> + Send>>;

    async fn stream(
        &self,
        request: Request<pb::StreamRequest>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        let request = request.into_inner();
        let life = self.start(&request.id)?.to_string();
        let gap = Duration::from_micros(request.gap_us.into());
        let count = request.count;
        let payload = payload(request.payload_bytes);
        let begun = Instant::now();
        let items = stream::iter(0..count).then(move |seq| {
            let (id, life, payload) = (request.id.clone(), life.clone(), payload.clone());
            async move {
                // From the beginning, not from the last item: timers round up, and would add up.
                tokio::time::sleep_until(begun + gap * (seq + 1)).await;
                Ok(pb::Item {
                    id,
                    life,
                    seq,
                    count,
                    payload,
                })
            }
        });
        Ok(Response::new(items.boxed()))
    }
}
