//! A server in this process: plain tonic, marks and health as a test wants them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use lameduck::core::instance::{BootId, Life};
use lameduck::health::{Health, ServingStatus};
use lameduck::mark::{self, Identity};
use tokio::sync::Semaphore;

use crate::greeter::greeter_server::{Greeter, GreeterServer};
use crate::greeter::{HelloReply, HelloRequest};
use crate::tonic_server::{self, Running};

/// What a node does with a call, beside answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    Answer,
    /// Never answers.
    Hang,
    /// Answers once [`Node::let_go`] is called.
    Hold,
    /// Works for this long.
    Work(Duration),
    /// Says UNAVAILABLE, as an application would.
    Unavailable,
    /// Refuses by the mark.
    Refuse,
}

pub struct Node {
    pub address: SocketAddr,
    pub facts: Arc<Facts>,
    pub running: Option<Running>,
}

pub struct Facts {
    pub name: &'static str,
    pub health: Health,
    /// Calls whose handler began.
    pub started: AtomicU32,
    pub finished: AtomicU32,
    deed: Mutex<Deed>,
    life: Mutex<Option<Life>>,
    services: Mutex<Vec<String>>,
    closing: AtomicBool,
    /// The life that the closing mark names, where it is not the node's own.
    claimed: Mutex<Option<Life>>,
    held: Semaphore,
}

pub fn life(number: u128) -> Life {
    Life::first(BootId::from_bits(number))
}

impl Facts {
    pub fn new(name: &'static str, life: Option<Life>) -> Arc<Self> {
        let health = Health::new();
        health.set("orders", ServingStatus::Serving);
        health.open();
        Arc::new(Self {
            name,
            health,
            started: AtomicU32::new(0),
            finished: AtomicU32::new(0),
            deed: Mutex::new(Deed::Answer),
            life: Mutex::new(life),
            services: Mutex::new(vec!["orders".to_owned()]),
            closing: AtomicBool::new(false),
            claimed: Mutex::new(None),
            held: Semaphore::new(0),
        })
    }

    pub fn act(&self, deed: Deed) {
        *self.deed.lock().expect("no panic") = deed;
    }

    fn deed(&self) -> Deed {
        *self.deed.lock().expect("no panic")
    }

    pub fn let_go(&self) {
        self.held.add_permits(1_000);
    }

    /// One of the calls that are held.
    pub fn let_one_go(&self) {
        self.held.add_permits(1);
    }

    pub fn started(&self) -> u32 {
        self.started.load(Ordering::SeqCst)
    }

    pub fn announce(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    pub fn resume(&self) {
        let mut life = self.life.lock().expect("no panic");
        *life = life.map(Life::resumed);
        self.closing.store(false, Ordering::SeqCst);
    }

    pub fn claim(&self, life: Life) {
        *self.claimed.lock().expect("no panic") = Some(life);
    }

    pub fn live(&self, life: Life) {
        *self.life.lock().expect("no panic") = Some(life);
    }

    pub fn serve_instead(&self, service: &str) {
        *self.services.lock().expect("no panic") = vec![service.to_owned()];
    }

    fn mark(&self, response: &mut Response) {
        let Some(life) = *self.life.lock().expect("no panic") else {
            return;
        };
        let services = self.services.lock().expect("no panic").clone();
        let headers = response.headers_mut();
        headers.insert(mark::LIFE, Identity { life, services }.to_value());
        let claimed = self.claimed.lock().expect("no panic").unwrap_or(life);
        if self.closing.load(Ordering::SeqCst) {
            headers.insert(mark::CLOSING, mark::life_value(claimed));
        }
        if self.deed() == Deed::Refuse && headers.contains_key("grpc-status") {
            headers.insert(mark::REFUSED, mark::life_value(claimed));
        }
    }
}

#[tonic::async_trait]
impl Greeter for Node {
    async fn hello(
        &self,
        _: tonic::Request<HelloRequest>,
    ) -> Result<tonic::Response<HelloReply>, tonic::Status> {
        let facts = &self.facts;
        let deed = facts.deed();
        if deed == Deed::Refuse {
            return Err(tonic::Status::unavailable("refused"));
        }
        facts.started.fetch_add(1, Ordering::SeqCst);
        match deed {
            Deed::Hang => std::future::pending().await,
            Deed::Hold => facts.held.acquire().await.expect("never closed").forget(),
            Deed::Work(time) => tokio::time::sleep(time).await,
            Deed::Unavailable => return Err(tonic::Status::unavailable("no database")),
            Deed::Answer | Deed::Refuse => {}
        }
        facts.finished.fetch_add(1, Ordering::SeqCst);
        let text = facts.name.to_owned();
        Ok(tonic::Response::new(HelloReply { text }))
    }
}

async fn marked(State(facts): State<Arc<Facts>>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    facts.mark(&mut response);
    response
}

pub fn router(facts: &Arc<Facts>) -> axum::Router {
    let node = Node {
        address: ([0, 0, 0, 0], 0).into(),
        facts: Arc::clone(facts),
        running: None,
    };
    tonic::service::Routes::new(GreeterServer::new(node))
        .add_service(facts.health.service())
        .into_axum_router()
        .layer(from_fn_with_state(Arc::clone(facts), marked))
}

impl Node {
    pub async fn start(name: &'static str, life: Option<Life>) -> Self {
        let facts = Facts::new(name, life);
        let (address, running) = tonic_server::start(router(&facts)).await;
        Self {
            address,
            facts,
            running: Some(running),
        }
    }

    pub async fn stop(mut self) {
        self.running.take().expect("once").stop().await;
    }
}
