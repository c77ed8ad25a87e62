//! A caller: sends every call of its plan at its instant, and writes down what became of it.

use std::sync::Arc;
use std::time::Duration;

use lameduck::Hub;
use lameduck_core::event::Event;
use lameduck_core::time::Timestamp;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tonic::Request;

use super::super::clock;
use super::super::control::Word;
use super::super::flavour::Flavour;
use super::super::limits::{DEADLINE_GRACE, LARGE};
use super::super::plan::{Plan, Planned};
use super::super::record::{CallId, Kind, Record};
use super::super::sabotage::Sabotage;
use super::super::sequence::{Claim, Fault, Sequence};
use super::super::spec::CallerSpec;
use super::super::stalls::NO_END;
use super::line::Line;
use super::observe::{self, CALL};
use super::recorder::Recorder;
use super::{ChildError, forgetful, plain, refused};
use crate::pb;
use crate::pb::work_client::WorkClient;

/// The generated client, over either channel.
#[derive(Clone)]
struct Client {
    work: WorkClient<Line>,
    /// How often a call that is told UNAVAILABLE is tried again by the caller itself.
    again: u32,
}

/// The path of the only method that is declared idempotent.
const IDEMPOTENT: &str = "/lameduck.lab.v1.Work/Get";

pub(super) async fn run(
    spec: CallerSpec,
    mut words: UnboundedReceiver<Word>,
) -> Result<u8, ChildError> {
    let recorder = Recorder::open(&spec.ledger)?;
    recorder.watch()?;
    let client = client(&spec, &recorder)?;
    let Some(Word::Start(start)) = words.recv().await else {
        return Ok(0);
    };
    let mut plan = spec.plan;
    plan.start_ns = start.as_nanos();
    let caller = Caller {
        number: spec.caller,
        plan,
        recorder,
        client,
    };
    caller.run(words).await;
    Ok(0)
}

fn client(spec: &CallerSpec, recorder: &Recorder) -> Result<Client, ChildError> {
    let (line, again) = match spec.flavour {
        Flavour::Lameduck => (lameduck(spec, recorder)?, 0),
        Flavour::Tonic => (Line::Tonic(plain::caller::listed(spec, recorder)?), 0),
        Flavour::TonicHardened => (Line::Tonic(plain::caller::followed(spec, recorder)?), 1),
    };
    // Twice the largest answer: tonic's own 4 MiB would refuse some.
    let work = WorkClient::new(line).max_decoding_message_size(2 * LARGE.1 as usize);
    Ok(Client { work, again })
}

fn lameduck(spec: &CallerSpec, recorder: &Recorder) -> Result<Line, ChildError> {
    let recorder = recorder.clone();
    let write = move |event: &Event| {
        if let Some(record) = observe::record(event) {
            recorder.write(record);
        }
    };
    let mut hub = Hub::builder().on_event(Arc::new(write));
    if spec.sabotage == Some(Sabotage::NoTombstone) {
        hub = hub.schemes(forgetful::schemes().map_err(|error| refused(&error))?);
    }
    let hub = hub.build();
    let channel = hub
        .channel_builder(&spec.target)
        .idempotent(IDEMPOTENT)
        .failover(spec.failover)
        .build()
        .map_err(|error| refused(&error))?;
    Ok(Line::Lameduck(channel))
}

struct Caller {
    number: u16,
    plan: Plan,
    recorder: Recorder,
    client: Client,
}

impl Caller {
    /// An open loop: what is due is sent, whatever became of what was sent before.
    async fn run(self, mut words: UnboundedReceiver<Word>) {
        let mut calls = JoinSet::new();
        let mut next = 0;
        loop {
            next = self.send_due(&mut calls, next, clock::now());
            let due = self.call(next).1.due;
            let wait = due.saturating_since(clock::now());
            tokio::select! {
                _ = words.recv() => break,
                () = tokio::time::sleep(wait) => {}
            }
            while calls.try_join_next().is_some() {}
        }
        next = self.send_due(&mut calls, next, clock::now());
        while calls.join_next().await.is_some() {}
        self.recorder.write(Record::Stopped { next });
    }

    /// Sends every call from `next` on that is due at `now`; gives the first one that is not.
    fn send_due(&self, calls: &mut JoinSet<()>, mut next: u32, now: Timestamp) -> u32 {
        loop {
            let (id, planned) = self.call(next);
            if planned.due > now {
                return next;
            }
            let (client, recorder) = (self.client.clone(), self.recorder.clone());
            calls.spawn(CALL.scope(id, call(client, recorder, id, planned)));
            next += 1;
        }
    }

    fn call(&self, number: u32) -> (CallId, Planned) {
        let caller = self.number;
        let id = CallId { caller, number };
        (id, self.plan.call(id))
    }
}

/// One call: the intent is written before, the end after.
async fn call(mut client: Client, recorder: Recorder, id: CallId, planned: Planned) {
    let (kind, due) = (planned.kind, planned.due);
    recorder.write(Record::Intent { id, kind, due });
    let left = planned.deadline.saturating_since(clock::now());
    let answer = client.answer(&recorder, id, &planned);
    let end = match tokio::time::timeout(left + DEADLINE_GRACE, answer).await {
        Ok(Ok((life, items))) => match life.parse() {
            Ok(life) => Record::Answered { id, life, items },
            Err(error) => failed(id, format!("answered by a life that is none: {error}")),
        },
        Ok(Err(error)) => failed(id, error),
        Err(_) => failed(id, NO_END.to_owned()),
    };
    recorder.write(end);
}

/// An answer that did not come.
enum Lost {
    /// A status, and nothing before it.
    Refused(tonic::Status),
    /// Anything else, in words.
    Broken(String),
}

impl Client {
    /// The life that answered, and the number of items.
    async fn answer(
        &mut self,
        recorder: &Recorder,
        id: CallId,
        planned: &Planned,
    ) -> Result<(String, u32), String> {
        for _ in 0..self.again {
            match self.attempt(id, planned).await {
                Err(Lost::Refused(status)) if status.code() == tonic::Code::Unavailable => {
                    recorder.write(Record::Replaced {
                        id: Some(id),
                        address: plain::caller::SOMEWHERE,
                        proven: false,
                    });
                }
                other => return other.map_err(in_words),
            }
        }
        self.attempt(id, planned).await.map_err(in_words)
    }

    async fn attempt(&mut self, id: CallId, planned: &Planned) -> Result<(String, u32), Lost> {
        let left = planned.deadline.saturating_since(clock::now());
        match planned.kind {
            Kind::Get => unary(self.work.get(request(id, planned, left)).await, id, planned),
            Kind::Put => unary(self.work.put(request(id, planned, left)).await, id, planned),
            Kind::Stream => stream(&mut self.work, id, planned, left).await,
        }
    }
}

fn in_words(lost: Lost) -> String {
    match lost {
        Lost::Refused(status) => said(&status),
        Lost::Broken(what) => what,
    }
}

const fn failed(id: CallId, error: String) -> Record {
    Record::Failed { id, error }
}

fn request(id: CallId, planned: &Planned, left: Duration) -> Request<pb::Request> {
    let (id, work_us) = (id.to_string(), micros(planned.work));
    let payload_bytes = planned.payload_bytes;
    let mut request = Request::new(pb::Request {
        id,
        work_us,
        payload_bytes,
    });
    request.set_timeout(left);
    request
}

fn unary(
    answer: Result<tonic::Response<pb::Reply>, tonic::Status>,
    id: CallId,
    planned: &Planned,
) -> Result<(String, u32), Lost> {
    let reply = answer.map_err(Lost::Refused)?.into_inner();
    if reply.id != id.to_string() {
        return Err(Lost::Broken(format!("the answer of call {}", reply.id)));
    }
    whole(reply.payload.len(), planned)?;
    Ok((reply.life, 1))
}

/// A payload is as long as it was asked for.
fn whole(length: usize, planned: &Planned) -> Result<(), Lost> {
    let wanted = planned.payload_bytes;
    if length == wanted as usize {
        return Ok(());
    }
    let what = format!("{length} bytes of payload, not {wanted}");
    Err(Lost::Broken(what))
}

async fn stream(
    client: &mut WorkClient<Line>,
    id: CallId,
    planned: &Planned,
    left: Duration,
) -> Result<(String, u32), Lost> {
    let (id, count) = (id.to_string(), planned.items);
    let mut sequence = Sequence::new(id.clone(), count);
    let gap_us = micros(planned.work);
    let payload_bytes = planned.payload_bytes;
    let mut request = Request::new(pb::StreamRequest {
        id,
        count,
        gap_us,
        payload_bytes,
    });
    request.set_timeout(left);
    let answer = client.stream(request).await.map_err(Lost::Refused)?;
    let mut items = answer.into_inner();
    let cut = |status| Lost::Broken(said(&status));
    while let Some(item) = items.message().await.map_err(cut)? {
        let claim = Claim {
            id: &item.id,
            life: &item.life,
            seq: item.seq,
            count: item.count,
        };
        sequence.item(&claim).map_err(wrong)?;
        whole(item.payload.len(), planned)?;
    }
    sequence.end().map_err(wrong)
}

fn wrong(fault: Fault) -> Lost {
    Lost::Broken(fault.to_string())
}

/// A status with everything behind it, each thing said once: a lost call's story is read by whoever
/// must explain it.
fn said(status: &tonic::Status) -> String {
    let mut text = format!("{:?}: {}", status.code(), status.message());
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let status = error.downcast_ref::<tonic::Status>();
        let said = status.map_or_else(|| error.to_string(), |status| status.message().to_owned());
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}
