//! The channel, against servers that behave as a test says.

mod ageing;
mod calls;
mod foreign;
mod late;
mod leaving;
#[cfg(target_os = "linux")]
mod link;
mod members;
mod names;
mod node;
#[cfg(target_os = "linux")]
mod partition;
mod rolls;
mod skipped;
mod streams;
mod unavailable;
mod vip;
mod waiting;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lameduck::core::event::Event;
use lameduck::core::instance::{Incarnation, Instance, Life, State};
use lameduck::core::name::ServiceName;
use lameduck::core::registry::{Entry, EntryId, Registry};
use lameduck::{Channel, ChannelBuilder, Hub, HubBuilder};
use lameduck_registry::memory::Memory;
use tokio::time::timeout;

use crate::greeter::HelloRequest;
use crate::greeter::greeter_client::GreeterClient;

const HELLO: &str = "/greeter.v1.Greeter/Hello";
/// Longer than anything takes that works; what does not fails by it.
const SOON: Duration = Duration::from_secs(10);

/// A target of just these addresses.
fn direct(addresses: &[SocketAddr]) -> String {
    let hosts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    format!("direct:///{}", hosts.join(","))
}

/// Calls once and gives who answered.
async fn hello(channel: &Channel) -> Result<String, tonic::Status> {
    let request = HelloRequest::default();
    let mut client = GreeterClient::new(channel.clone());
    let answer = timeout(SOON, client.hello(request)).await;
    answer
        .expect("a call ends")
        .map(|reply| reply.into_inner().text)
}

/// Waits until a condition holds that something else is bringing about.
async fn until(what: &str, condition: impl Fn() -> bool) {
    until_within(SOON, what, condition).await;
}

async fn until_within(time: Duration, what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(time, wait)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

/// All that a hub said.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Event>>>);

impl Log {
    fn hub(&self) -> Hub {
        self.builder().build()
    }

    fn builder(&self) -> HubBuilder {
        let events = Arc::clone(&self.0);
        let observer = move |event: &Event| events.lock().expect("no panic").push(event.clone());
        Hub::builder().on_event(Arc::new(observer))
    }

    fn count(&self, is: impl Fn(&Event) -> bool) -> usize {
        let events = self.0.lock().expect("no panic");
        events.iter().filter(|event| is(event)).count()
    }

    fn replaced(&self) -> usize {
        self.count(|event| matches!(event, Event::Replaced { .. }))
    }

    fn closings(&self) -> usize {
        self.count(|event| matches!(event, Event::Closing { .. }))
    }

    fn disconnections(&self) -> usize {
        self.count(|event| matches!(event, Event::Disconnected { .. }))
    }
}

fn orders() -> ServiceName {
    "orders".parse().expect("a name")
}

/// Registers a serving life.
fn register(memory: &Memory, id: i64, address: SocketAddr, life: Life) {
    let instance = Instance::new(address.into(), Incarnation::Life(life));
    put(memory, id, instance);
}

fn register_closing(memory: &Memory, id: i64, address: SocketAddr, life: Life) {
    let mut instance = Instance::new(address.into(), Incarnation::Life(life));
    instance.state = State::Closing;
    put(memory, id, instance);
}

fn put(memory: &Memory, id: i64, instance: Instance) {
    let entry = Entry {
        id: EntryId(id),
        instance,
    };
    memory.replay(&orders(), &entry).expect("room");
}

fn in_memory(hub: &Hub, memory: &Memory) -> ChannelBuilder {
    let registry: Arc<dyn Registry> = Arc::new(memory.clone());
    hub.channel_builder_with(registry, orders())
}

async fn ready(channel: &Channel) {
    timeout(SOON, channel.ready())
        .await
        .expect("an instance can be called");
}
