//! A server on tonic's own.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::Server;

use super::super::super::flavour::Flavour;
use super::super::super::record::Record;
use super::super::super::spec::ServerSpec;
use super::super::ChildError;
use super::super::broken::{Presence, life};
use super::super::recorder::Recorder;
use super::super::refused;
use super::super::work::Worker;

/// How long a hardened server goes on after it left the registry: callers hear of it meanwhile.
const STAYS: Duration = Duration::from_secs(1);

/// Serves until SIGTERM, then as `serve_with_shutdown` does: no new connection, and every call that
/// is under way to its end.
pub(in super::super) async fn run(spec: &ServerSpec, recorder: Recorder) -> Result<u8, ChildError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let (life, address) = (life(), spec.address);
    let worker = Worker::service(recorder.clone(), move || life);
    let mut presence = match spec.flavour {
        Flavour::TonicHardened => Some(Presence::begin(spec, life)?),
        Flavour::Tonic | Flavour::Lameduck => None,
    };
    recorder.write(Record::Born { life, address });
    let writer = recorder.clone();
    let told = async move {
        terminate.recv().await;
        writer.write(Record::Phase("closing".to_owned()));
        if let Some(presence) = &mut presence {
            presence.end().await;
            tokio::time::sleep(STAYS).await;
        }
        writer.write(Record::Phase("draining".to_owned()));
    };
    let served = Server::builder()
        .add_service(worker)
        .serve_with_shutdown(spec.listen, told);
    served.await.map_err(|error| refused(&error))?;
    Ok(0)
}
