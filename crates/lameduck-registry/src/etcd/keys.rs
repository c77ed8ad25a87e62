//! The transactions that publish and withdraw: what a session's outputs mean in etcd's terms.
//!
//! Every write is conditional. Keys are named after the lease, so they are our own; still nothing
//! is written over what hangs on another lease, and under one lease nothing comes after *closing*.

use bytes::Bytes;
use lameduck_core::instance::{Incarnation, Instance, Life, State};
use lameduck_core::limits;
use lameduck_core::name::ServiceName;
use lameduck_core::registry::{ErrorClass, Registration, RegistryError};
use lameduck_core::session::LeaseId;
use lameduck_etcd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use lameduck_etcd_proto::etcdserverpb::request_op::Request;
use lameduck_etcd_proto::etcdserverpb::response_op::Response;
use lameduck_etcd_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse,
};
use lameduck_etcd_proto::mvccpb::KeyValue;

use super::client::{Client, Error};
use crate::layout::{gozero, lameduck};

/// What is published under one lease.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    pub(super) client: Client,
    pub(super) registration: Registration,
    pub(super) lease: LeaseId,
}

/// What is to stand there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    Serving { ready: bool },
    Closing,
}

impl Keys {
    /// Writes the keys of `life`, or puts them right. A foreign key has no word for *not ready*: it is absent
    /// then.
    pub(super) async fn put(&self, life: Life, ready: bool, records: bool) -> Result<(), Error> {
        let instance = self.instance(life, Aim::Serving { ready })?;
        let address = instance.address.to_string();
        let record = if records {
            Some(lameduck::encode(&instance).map_err(|error| refused(error.to_string()))?)
        } else {
            None
        };
        for services in self.chunks() {
            let address = ready.then_some(address.as_str());
            let puts: Vec<_> = self.puts(services, address, record.as_deref()).collect();
            let deletes = self.shadow_deletes(if ready { &[] } else { services });
            let absent = puts.iter().map(|put| created_never(&put.key)).collect();
            let writes = puts.iter().cloned().map(Request::RequestPut);
            let writes: Vec<Request> = writes.chain(deletes).collect();
            let reads = puts.iter().map(|put| Request::RequestRange(read(&put.key)));
            let answer = self.transact(absent, writes.clone(), reads.collect());
            let answer = answer.await?;
            if !answer.succeeded {
                self.rewrite(&puts, &found(answer), writes).await?;
            }
        }
        Ok(())
    }

    /// Lets the records say *closing* and deletes the foreign keys, a chunk in one step.
    pub(super) async fn put_closing(&self, life: Life) -> Result<(), Error> {
        let instance = self.instance(life, Aim::Closing)?;
        let record = lameduck::encode(&instance).map_err(|error| refused(error.to_string()))?;
        for services in self.chunks() {
            let puts: Vec<_> = services
                .iter()
                .map(|service| self.record_put(service, &record))
                .collect();
            let deletes = self.shadow_deletes(services);
            let writes = puts.iter().cloned().map(Request::RequestPut);
            let writes: Vec<Request> = writes.chain(deletes).collect();
            let own = puts.iter().map(|put| hangs_on(&put.key, self.lease));
            let reads = puts.iter().map(|put| Request::RequestRange(read(&put.key)));
            let answer = self.transact(own.collect(), writes.clone(), reads.collect());
            let answer = answer.await?;
            if !answer.succeeded {
                self.rewrite(&puts, &found(answer), writes).await?;
            }
        }
        Ok(())
    }

    /// Whether all keys are there, under this lease, and those that are to be absent are.
    pub(super) async fn check(&self, ready: bool, records: bool) -> Result<bool, Error> {
        for services in self.chunks() {
            let shadows = services.iter().map(|service| {
                let key = Bytes::from(gozero::key(service, self.lease.0));
                if ready {
                    hangs_on(&key, self.lease)
                } else {
                    created_never(&key)
                }
            });
            let ours = services.iter().filter(|_| records);
            let ours = ours.map(|service| lameduck::key(service, self.lease.0));
            let ours = ours.map(|key| hangs_on(&Bytes::from(key), self.lease));
            let answer = self.transact(shadows.chain(ours).collect(), Vec::new(), Vec::new());
            if !answer.await?.succeeded {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes where `found` says how the keys of `puts` are: each absent or our own, and unchanged
    /// since.
    async fn rewrite(
        &self,
        puts: &[PutRequest],
        found: &[Option<KeyValue>],
        writes: Vec<Request>,
    ) -> Result<(), Error> {
        let mut unchanged = Vec::new();
        for (put, found) in puts.iter().zip(found) {
            if let Some(kv) = found {
                self.refuse_foreign(kv, put)?;
            }
            let revision = found.as_ref().map_or(0, |kv| kv.mod_revision);
            unchanged.push(modified_at(&put.key, revision));
        }
        let answer = self.transact(unchanged, writes, Vec::new()).await?;
        if answer.succeeded {
            return Ok(());
        }
        Err(Error::Registry(RegistryError {
            class: ErrorClass::Retry,
            message: "etcd: our keys changed while they were written".to_owned(),
        }))
    }

    fn refuse_foreign(&self, kv: &KeyValue, put: &PutRequest) -> Result<(), Error> {
        let key = kv.key.escape_ascii();
        if kv.lease != self.lease.0 {
            return Err(refused(format!(
                "etcd: {key} hangs on lease {:x}, ours is {:x}",
                kv.lease, self.lease.0
            )));
        }
        let state = |value: &[u8]| lameduck::decode(value).ok().map(|instance| instance.state);
        let serving = state(&put.value) == Some(State::Serving);
        if serving && state(&kv.value) == Some(State::Closing) {
            return Err(refused(format!("etcd: {key} says closing already")));
        }
        Ok(())
    }

    fn instance(&self, life: Life, aim: Aim) -> Result<Instance, Error> {
        let instance = &self.registration.instance;
        gozero::dialable(&instance.address)
            .map_err(|why| refused(format!("{}: {why}", instance.address)))?;
        let (state, ready) = match aim {
            Aim::Serving { ready } => (State::Serving, ready),
            Aim::Closing => (State::Closing, false),
        };
        Ok(Instance {
            incarnation: Incarnation::Life(life),
            state,
            ready,
            ..instance.clone()
        })
    }

    fn chunks(&self) -> impl Iterator<Item = &[ServiceName]> {
        self.registration
            .services
            .chunks(limits::SERVICES_PER_TRANSACTION)
    }

    fn puts(
        &self,
        services: &[ServiceName],
        address: Option<&str>,
        record: Option<&[u8]>,
    ) -> impl Iterator<Item = PutRequest> {
        let shadow = move |service| {
            let key = gozero::key(service, self.lease.0);
            address.map(|address| self.put_request(key, address.as_bytes()))
        };
        services.iter().flat_map(move |service| {
            let record = record.map(|record| self.record_put(service, record));
            [shadow(service), record].into_iter().flatten()
        })
    }

    fn shadow_deletes(&self, services: &[ServiceName]) -> Vec<Request> {
        let keys = services
            .iter()
            .map(|service| gozero::key(service, self.lease.0));
        keys.map(|key| Request::RequestDeleteRange(delete(&key)))
            .collect()
    }

    fn record_put(&self, service: &ServiceName, record: &[u8]) -> PutRequest {
        self.put_request(lameduck::key(service, self.lease.0), record)
    }

    fn put_request(&self, key: String, value: &[u8]) -> PutRequest {
        PutRequest {
            key: Bytes::from(key),
            value: Bytes::copy_from_slice(value),
            lease: self.lease.0,
            ..Default::default()
        }
    }

    async fn transact(
        &self,
        compare: Vec<Compare>,
        success: Vec<Request>,
        failure: Vec<Request>,
    ) -> Result<TxnResponse, Error> {
        let op = |request| RequestOp {
            request: Some(request),
        };
        let request = TxnRequest {
            compare,
            success: success.into_iter().map(op).collect(),
            failure: failure.into_iter().map(op).collect(),
        };
        self.client.transact(&request).await
    }
}

fn refused(message: String) -> Error {
    Error::Registry(RegistryError {
        class: ErrorClass::Refused,
        message,
    })
}

/// What the reads of a transaction found, in their order.
fn found(answer: TxnResponse) -> Vec<Option<KeyValue>> {
    let first = |response| match response {
        Some(Response::ResponseRange(range)) => range.kvs.into_iter().next(),
        _ => None,
    };
    let responses = answer.responses.into_iter();
    responses.map(|op| first(op.response)).collect()
}

fn equal(key: &Bytes, target: CompareTarget, union: TargetUnion) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: key.clone(),
        range_end: Bytes::new(),
        target_union: Some(union),
    }
}

fn created_never(key: &Bytes) -> Compare {
    equal(key, CompareTarget::Create, TargetUnion::CreateRevision(0))
}

fn modified_at(key: &Bytes, revision: i64) -> Compare {
    equal(key, CompareTarget::Mod, TargetUnion::ModRevision(revision))
}

fn hangs_on(key: &Bytes, lease: LeaseId) -> Compare {
    equal(key, CompareTarget::Lease, TargetUnion::Lease(lease.0))
}

fn read(key: &Bytes) -> RangeRequest {
    RangeRequest {
        key: key.clone(),
        ..Default::default()
    }
}

fn delete(key: &str) -> DeleteRangeRequest {
    DeleteRangeRequest {
        key: Bytes::copy_from_slice(key.as_bytes()),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use lameduck_core::instance::BootId;

    use super::*;
    use crate::etcd::server::DevServer;

    fn life(epoch: u32) -> Life {
        let boot = BootId::from_bits(1);
        Life { boot, epoch }
    }

    /// A registry that lasts as long as the test, and keys under a fresh lease in it.
    async fn keys(services: &[&str]) -> Keys {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = DevServer::bind(any).await.expect("a free port");
        let client = Client::new(vec![server.local_addr().into()]);
        tokio::spawn(server.run(std::future::pending()));
        let address = "10.0.0.1:80".parse().expect("an address");
        let instance = Instance::new(address, Incarnation::Life(life(0)));
        let services = services.iter().map(|name| name.parse().expect("a name"));
        let services = services.collect();
        let (lease, _) = client
            .grant(Duration::from_secs(30))
            .await
            .expect("granted");
        Keys {
            client,
            registration: Registration { services, instance },
            lease,
        }
    }

    async fn shown(keys: &Keys) -> Vec<String> {
        let mut lines = Vec::new();
        for prefix in ["_lameduck/", "a"] {
            let listing = keys.client.list(prefix).await.expect("listed");
            lines.extend(listing.kvs.iter().map(|kv| {
                let record = lameduck::decode(&kv.value).ok();
                let what = match record.map(|instance| (instance.state, instance.ready)) {
                    Some((State::Closing, _)) => "closing",
                    Some((State::Serving, true)) => "serving",
                    Some((State::Serving, false)) => "unready",
                    None => "address",
                };
                what.to_owned()
            }));
        }
        lines
    }

    fn class(result: Result<(), Error>) -> ErrorClass {
        result.expect_err("it fails").into_registry().class
    }

    #[tokio::test]
    async fn nothing_comes_after_closing_under_one_lease() {
        let keys = keys(&["a", "a/b"]).await;
        keys.put(life(0), true, true).await.expect("put");
        assert_eq!(
            shown(&keys).await,
            ["serving", "serving", "address", "address"]
        );
        keys.put(life(0), false, true).await.expect("put again");
        assert_eq!(shown(&keys).await, ["unready", "unready"]);
        assert_eq!(keys.check(false, true).await, Ok(true));
        assert_eq!(keys.check(true, true).await, Ok(false));
        keys.put_closing(life(0)).await.expect("closing");
        assert_eq!(shown(&keys).await, ["closing", "closing"]);
        assert_eq!(
            class(keys.put(life(0), true, true).await),
            ErrorClass::Refused
        );
        assert_eq!(shown(&keys).await, ["closing", "closing"]);
        keys.put_closing(life(0)).await.expect("once more");
        assert_eq!(keys.check(true, true).await, Ok(false));
    }

    #[tokio::test]
    async fn s9_the_foreign_key_is_there_while_it_is_ready() {
        for records in [true, false] {
            let keys = keys(&["a"]).await;
            let record = |what: &'static str| records.then_some(what);
            let shows =
                |expected: [Option<&'static str>; 2]| expected.into_iter().flatten().collect();
            for _ in 0..2 {
                keys.put(life(0), false, records).await.expect("put");
                let expected: Vec<&str> = shows([record("unready"), None]);
                assert_eq!(shown(&keys).await, expected);
                assert_eq!(keys.check(false, records).await, Ok(true));
                assert_eq!(keys.check(true, records).await, Ok(false));
                keys.put(life(0), true, records).await.expect("put again");
                let expected: Vec<&str> = shows([record("serving"), Some("address")]);
                assert_eq!(shown(&keys).await, expected);
                assert_eq!(keys.check(true, records).await, Ok(true));
                assert_eq!(keys.check(false, records).await, Ok(false));
            }
        }
    }

    #[tokio::test]
    async fn closing_is_written_where_the_record_was_deleted() {
        let keys = keys(&["a"]).await;
        keys.put(life(0), true, false).await.expect("put");
        assert_eq!(keys.check(true, true).await, Ok(false));
        assert_eq!(keys.check(true, false).await, Ok(true));
        keys.put_closing(life(0)).await.expect("closing");
        assert_eq!(shown(&keys).await, ["closing"]);
    }

    #[tokio::test]
    async fn what_hangs_on_another_lease_is_left_alone() {
        let keys = keys(&["a"]).await;
        let granted = keys.client.grant(Duration::from_secs(30)).await;
        let (other, _) = granted.expect("granted");
        let mut stranger = keys.put_request(
            gozero::key(&"a".parse().expect("a name"), keys.lease.0),
            b"10.0.0.9:1",
        );
        stranger.lease = other.0;
        let put = keys.transact(Vec::new(), vec![Request::RequestPut(stranger)], Vec::new());
        put.await.expect("put");
        assert_eq!(
            class(keys.put(life(0), true, true).await),
            ErrorClass::Refused
        );
        let listing = keys.client.list("a/").await.expect("listed");
        assert_eq!(listing.kvs[0].value.as_ref(), b"10.0.0.9:1");
    }

    #[tokio::test]
    async fn a_lease_that_is_gone_is_told_by_every_call() {
        let keys = keys(&["a"]).await;
        keys.client.revoke(keys.lease).await.expect("revoked");
        keys.client.revoke(keys.lease).await.expect("gone is gone");
        assert_eq!(keys.put(life(0), true, true).await, Err(Error::LeaseGone));
        assert_eq!(keys.put_closing(life(0)).await, Err(Error::LeaseGone));
        assert_eq!(keys.client.renew(keys.lease).await, Err(Error::LeaseGone));
    }

    #[tokio::test]
    async fn metadata_too_large_are_refused_and_the_address_alone_is_not() {
        let mut keys = keys(&["a"]).await;
        keys.registration.instance.zone = "z".repeat(limits::RECORD_BYTES_MAX);
        assert_eq!(
            class(keys.put(life(0), true, true).await),
            ErrorClass::Refused
        );
        keys.put(life(0), true, false).await.expect("put");
        assert_eq!(shown(&keys).await, ["address"]);
    }
}
