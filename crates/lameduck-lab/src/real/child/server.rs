//! A server: publishes itself, works, and leaves well when told.

use std::sync::Arc;

use lameduck::Provider;
use lameduck_core::drain::Problem;
use lameduck_core::event::Event;
use tokio::sync::mpsc::UnboundedReceiver;
use tonic::service::Routes;

use super::super::control::Word;
use super::super::flavour::Flavour;
use super::super::record::Record;
use super::super::spec::ServerSpec;
use super::recorder::Recorder;
use super::work::Worker;
use super::{ChildError, broken, plain, refused};

pub(super) async fn run(
    spec: ServerSpec,
    mut words: UnboundedReceiver<Word>,
) -> Result<u8, ChildError> {
    let recorder = Recorder::open(&spec.ledger)?;
    recorder.watch()?;
    tokio::select! {
        code = serve(&spec, recorder) => code,
        _ = words.recv() => Ok(0),
    }
}

async fn serve(spec: &ServerSpec, recorder: Recorder) -> Result<u8, ChildError> {
    match spec.sabotage {
        Some(rule) => broken::run(spec, recorder, rule).await,
        None if spec.flavour != Flavour::Lameduck => plain::server::run(spec, recorder).await,
        None => provide(spec, recorder).await,
    }
}

async fn provide(spec: &ServerSpec, recorder: Recorder) -> Result<u8, ChildError> {
    let provider = build(spec, &recorder)?;
    let report = provider.run().await;
    for problem in &report.problems {
        recorder.write(Record::Problem {
            is_left: matches!(problem, Problem::Registration(_)),
            what: format!("{problem:?}"),
        });
    }
    let (exit, abandoned) = (report.exit_code(), report.abandoned);
    recorder.write(Record::Drained { exit, abandoned });
    Ok(exit)
}

fn build(spec: &ServerSpec, recorder: &Recorder) -> Result<Provider, ChildError> {
    let builder = Provider::builder(&spec.service);
    let handle = builder.handle();
    let known = handle.clone();
    let worker = Worker::service(recorder.clone(), move || known.life());
    let observer = recorder.clone();
    let mut builder = builder
        .listen(&spec.listen.to_string())
        .advertise(&spec.address.to_string())
        .grpc(Routes::new(worker))
        .on_event(Arc::new(move |event: &Event| observer.write(record(event))));
    if let Some(registry) = &spec.registry {
        builder = builder.registry(registry);
    }
    let provider = builder.build().map_err(|error| refused(&error))?;
    recorder.write(Record::Born {
        life: handle.life(),
        address: spec.address,
    });
    Ok(provider)
}

fn record(event: &Event) -> Record {
    match event {
        Event::PhaseEntered { phase, .. } => Record::Phase(phase.as_str().to_owned()),
        other => Record::Note(format!("{other:?}")),
    }
}
