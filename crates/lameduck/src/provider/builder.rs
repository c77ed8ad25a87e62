//! From what a program says to a provider that is ready to run.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use lameduck_core::drain::{Input, Plan};
use lameduck_core::event::{Event, Phase};
use lameduck_core::instance::{BootId, Incarnation, Instance, Life};
use lameduck_core::limits;
use lameduck_core::name::{Address, NameError, ServiceName, Target};
use lameduck_core::registry::{Registration, Registry, Schemes};
use tokio::sync::{mpsc, watch};
use tonic::service::Routes;

use super::address::{Facts, Whereabouts};
use super::error::BuildError;
use super::handle::{Commands, Handle, Shared, Status};
use super::hooks::Hook;
use super::registration::{Planned, RegistrationStatus};
use super::routes;
use super::signals::{self, Progress};
use crate::cell::gate::Gate;
use crate::env::Environment;
use crate::health::{Health, ServingStatus};
use crate::observe::{Events, Observer};
use crate::serve::Server;

/// Collects what a provider is to be. Every mistake is told by [`build`](Self::build).
#[derive(Default)]
#[must_use = "a builder does nothing before build()"]
pub struct Builder {
    services: Vec<String>,
    listen: Option<String>,
    listener: Option<TcpListener>,
    advertise: Option<String>,
    targets: Vec<String>,
    registries: Vec<(Arc<dyn Registry>, String)>,
    schemes: Option<Schemes>,
    router: Option<Router>,
    grpc: Option<Routes>,
    without_health: bool,
    without_signals: bool,
    environment: Option<Environment>,
    times: Times,
    hooks: Vec<Hook>,
    observers: Vec<Observer>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    budget: Option<Duration>,
    floor: Option<Duration>,
    quiet: Option<Duration>,
}

/// A process that serves, before it does: [`run`](Self::run) it.
pub struct Provider {
    pub(super) services: Vec<ServiceName>,
    pub(super) plan: Plan,
    pub(super) server: Server,
    pub(super) shared: Arc<Shared>,
    pub(super) inputs: mpsc::UnboundedReceiver<Input>,
    pub(super) planned: Vec<Planned>,
    pub(super) hooks: Vec<Hook>,
    pub(super) events: Events,
    pub(super) progress: Progress,
}

impl Provider {
    /// Begins to build a provider of `service`.
    pub fn builder(service: &str) -> Builder {
        Builder::default().service(service)
    }

    /// What may be asked of it, also while it runs.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Provider({})", names(&self.services))
    }
}

impl Builder {
    /// Serves one more service on the same port.
    pub fn service(mut self, service: &str) -> Self {
        self.services.push(service.to_owned());
        self
    }

    /// Listens here: `host:port`; port 0 takes any free one.
    pub fn listen(mut self, address: &str) -> Self {
        self.listen = Some(address.to_owned());
        self
    }

    /// Listens on a socket that is bound and listening already (handed over, or made by a test).
    pub fn listener(mut self, listener: TcpListener) -> Self {
        self.listener = Some(listener);
        self
    }

    /// The address under which others reach this process. Default: the bound address where it is
    /// one host's own, else `POD_IP`, else the source address of the route to the registry.
    pub fn advertise(mut self, address: &str) -> Self {
        self.advertise = Some(address.to_owned());
        self
    }

    /// Publishes in this registry, e.g. `etcd://127.0.0.1:2379`. May be said several times. A service
    /// in the target (`?key=`) has to be the only one of this process; a list of addresses
    /// (`direct://`, `host:port`) takes no registration and is refused.
    pub fn registry(mut self, target: &str) -> Self {
        self.targets.push(target.to_owned());
        self
    }

    /// Publishes in a registry that the program made, named `name` in logs.
    pub fn registry_with(mut self, registry: Arc<dyn Registry>, name: &str) -> Self {
        self.registries.push((registry, name.to_owned()));
        self
    }

    /// Which registries [`registry`](Self::registry) knows. Default: those of lameduck-registry.
    pub fn schemes(mut self, schemes: Schemes) -> Self {
        self.schemes = Some(schemes);
        self
    }

    /// Serves these HTTP routes.
    pub fn router(mut self, router: Router) -> Self {
        self.router = Some(router);
        self
    }

    /// Serves these gRPC services, on the same port. Where there is a health service among them
    /// already, say [`health(false)`](Self::health): two cannot have one path.
    pub fn grpc(mut self, routes: Routes) -> Self {
        self.grpc = Some(routes);
        self
    }

    /// Whether `grpc.health.v1` is served on the port (default: yes).
    pub fn health(mut self, served: bool) -> Self {
        self.without_health = !served;
        self
    }

    /// The whole time that a stop may take. Default: [`limits::STOP_BUDGET`].
    pub fn budget(mut self, budget: Duration) -> Self {
        self.times.budget = Some(budget);
        self
    }

    /// How long Closing lasts at least: what news takes to reach every caller. Default: what the
    /// registries say.
    pub fn floor(mut self, floor: Duration) -> Self {
        self.times.floor = Some(floor);
        self
    }

    /// Closing ends once no request came for this long. Default: [`limits::QUIET_WINDOW`].
    pub fn quiet(mut self, quiet: Duration) -> Self {
        self.times.quiet = Some(quiet);
        self
    }

    /// Runs `work` once everything in flight is done. Hooks run one after another, in this order,
    /// for [`limits::HOOK_MAX`] each at most.
    pub fn hook<F, Fut>(mut self, name: &str, work: F) -> Self
    where
        F: FnOnce() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        self.hooks.push(Hook::new(name, work));
        self
    }

    /// Whether SIGTERM and SIGINT are caught from `build` on (default: yes). A signal before
    /// [`Provider::run`] ends the process at once, with code 0: nothing is registered yet. Where
    /// one process has several providers, let one of them catch signals and stop the others.
    pub fn signals(mut self, caught: bool) -> Self {
        self.without_signals = !caught;
        self
    }

    /// What to take for the environment. Default: [`Environment::read`].
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = Some(environment);
        self
    }

    /// Shows every [`Event`] to `observer`, on the thread on which it happens: be quick.
    pub fn on_event(mut self, observer: Observer) -> Self {
        self.observers.push(observer);
        self
    }

    /// Opens the port, prepares the registrations (nothing is published before
    /// [`Provider::run`]), and catches signals from here on.
    ///
    /// # Errors
    ///
    /// See [`BuildError`]: each names the thing and what to do. A registry that is down is none.
    pub fn build(mut self) -> Result<Provider, BuildError> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(BuildError::NoRuntime);
        }
        let services = self.services.iter().map(|name| name.parse());
        let services = services.collect::<Result<Vec<ServiceName>, _>>()?;
        let registries = self.connect(&services)?;
        let plan = self.plan(&registries)?;
        let listener = self.bind()?;
        let life = Life::first(boot_id()?);
        let events = Events::new(std::mem::take(&mut self.observers));
        announce_times(&events, life, &self, &plan, &registries);
        let planned = self.registrations(&services, &registries, &listener, life)?;
        let health = Health::new();
        services
            .iter()
            .for_each(|name| health.set(name.as_str(), ServingStatus::Serving));
        self.assemble(Parts {
            services,
            plan,
            listener,
            life,
            events,
            planned,
            health,
        })
    }

    fn assemble(self, parts: Parts) -> Result<Provider, BuildError> {
        let (gate, health, life) = (Gate::new(), parts.health, parts.life);
        let shown = (!self.without_health).then_some(&health);
        let server = Server::builder()
            .gate(gate.clone())
            .life(life)
            .services(self.services.clone())
            .listener(parts.listener)
            .events(parts.events.clone())
            .router(routes::join(self.router, self.grpc, shown))
            .build()
            .map_err(|source| BuildError::Bind {
                address: "the given listener".to_owned(),
                source,
            })?;
        let (sender, inputs) = mpsc::unbounded_channel();
        let status = Status {
            phase: Phase::Starting,
            life,
            stopping: false,
        };
        let shared = Arc::new(Shared {
            commands: Commands::new(sender),
            status: watch::Sender::new(status),
            gate,
            health,
            control: server.control(),
            local_addr: server.local_addr(),
            registrations: parts
                .planned
                .iter()
                .map(|planned| planned.status.subscribe())
                .collect(),
        });
        let progress = Progress::default();
        if !self.without_signals {
            let names = self.services.join(",");
            signals::install(
                Arc::clone(&shared),
                names,
                progress.clone(),
                parts.plan.budget,
            )
            .map_err(BuildError::Signals)?;
        }
        Ok(Provider {
            services: parts.services,
            plan: parts.plan,
            server,
            shared,
            inputs,
            planned: parts.planned,
            hooks: self.hooks,
            events: parts.events,
            progress,
        })
    }

    fn connect(&mut self, services: &[ServiceName]) -> Result<Vec<Connected>, BuildError> {
        let schemes = self
            .schemes
            .take()
            .unwrap_or_else(lameduck_registry::builtin);
        let mut connected = Vec::new();
        for text in &self.targets {
            let target: Target = text.parse().map_err(|error| BuildError::Registry {
                target: text.clone(),
                why: format!("{error}"),
            })?;
            let registry = schemes
                .connect(&target)
                .map_err(|error| BuildError::registry(text, &error))?;
            own_service(&target, services).map_err(|why| BuildError::Registry {
                target: text.clone(),
                why,
            })?;
            let whereabouts = match target.scheme() {
                "memory" => Whereabouts::Here,
                _ => Whereabouts::At(target.hosts().to_vec()),
            };
            connected.push(Connected {
                registry,
                name: text.clone(),
                whereabouts,
            });
        }
        let given = self.registries.drain(..).map(|(registry, name)| Connected {
            registry,
            name,
            whereabouts: Whereabouts::Here,
        });
        connected.extend(given);
        match connected
            .iter()
            .find(|one| !one.registry.takes_registrations())
        {
            Some(fixed) => Err(BuildError::FixedList(fixed.name.clone())),
            None => Ok(connected),
        }
    }

    fn plan(&mut self, registries: &[Connected]) -> Result<Plan, BuildError> {
        let environment = self.environment.get_or_insert_with(Environment::read);
        let budget = self.times.budget.unwrap_or(limits::STOP_BUDGET);
        let cap = budget * limits::CLOSING_CAP_PERCENT / 100;
        let fits = |what, is: Option<Duration>| match is {
            Some(is) if is > cap => Err(BuildError::Times {
                what,
                is,
                at_most: cap,
            }),
            _ => Ok(is),
        };
        let floor = fits("floor", self.times.floor)?;
        let quiet = fits("quiet window", self.times.quiet)?;
        Ok(Plan {
            budget,
            margin: limits::STOP_MARGIN,
            floor: floor.unwrap_or_else(|| declared_floor(registries, environment).min(cap)),
            quiet: quiet.unwrap_or(limits::QUIET_WINDOW.min(cap)),
            cap,
            hooks: self.hooks.iter().map(|hook| hook.name.clone()).collect(),
        })
    }

    fn bind(&mut self) -> Result<TcpListener, BuildError> {
        if let Some(listener) = self.listener.take() {
            return Ok(listener);
        }
        let text = self.listen.as_deref();
        let text = text.ok_or_else(|| BuildError::Listen("nowhere to listen".to_owned()))?;
        let address: Address = text
            .parse()
            .map_err(|error: NameError| BuildError::Listen(error.to_string()))?;
        let address = resolve(&address).map_err(|error| {
            BuildError::Listen(format!("address {text:?} cannot be looked up: {error}"))
        })?;
        crate::serve::bind(address).map_err(|source| BuildError::Bind {
            address: text.to_owned(),
            source,
        })
    }

    fn registrations(
        &self,
        services: &[ServiceName],
        registries: &[Connected],
        listener: &TcpListener,
        life: Life,
    ) -> Result<Vec<Planned>, BuildError> {
        let advertise = self
            .advertise
            .as_deref()
            .map(str::parse::<Address>)
            .transpose();
        let bound = listener.local_addr();
        let facts = Facts {
            advertise: advertise.map_err(|error| BuildError::Advertise {
                registry: "any registry".to_owned(),
                why: error.to_string(),
            })?,
            pod_ip: self
                .environment
                .as_ref()
                .map(|environment| environment.pod_ip.clone())
                .unwrap_or_default(),
            bound: bound.map_err(|source| BuildError::Bind {
                address: "the given listener".to_owned(),
                source,
            })?,
        };
        registries
            .iter()
            .map(|registry| self.registration(services, registry, &facts, life))
            .collect()
    }

    fn registration(
        &self,
        services: &[ServiceName],
        connected: &Connected,
        facts: &Facts,
        life: Life,
    ) -> Result<Planned, BuildError> {
        let address =
            facts
                .address(&connected.whereabouts)
                .map_err(|why| BuildError::Advertise {
                    registry: connected.name.clone(),
                    why,
                })?;
        let status = RegistrationStatus::new(connected.name.clone(), address.clone());
        let mut instance = Instance::new(address, Incarnation::Life(life));
        let spoken = [
            ("grpc", self.grpc.is_some()),
            ("http", self.router.is_some()),
        ];
        instance.protocols = spoken
            .iter()
            .filter(|(_, spoken)| *spoken)
            .map(|(name, _)| (*name).to_owned())
            .collect();
        let registration = Registration {
            services: services.to_vec(),
            instance,
        };
        Ok(Planned {
            publication: connected.registry.publish(registration),
            status: watch::Sender::new(status),
        })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Builder({})", self.services.join(","))
    }
}

/// What building has made so far.
struct Parts {
    services: Vec<ServiceName>,
    plan: Plan,
    listener: TcpListener,
    life: Life,
    events: Events,
    planned: Vec<Planned>,
    health: Health,
}

struct Connected {
    registry: Arc<dyn Registry>,
    name: String,
    whereabouts: Whereabouts,
}

/// A target's own service is that of the process, or somebody has mixed them up.
fn own_service(target: &Target, services: &[ServiceName]) -> Result<(), String> {
    let Some(key) = target.service() else {
        return Ok(());
    };
    if services.iter().all(|service| service == key) {
        return Ok(());
    }
    Err(format!(
        "it names service {:?}, but this process serves {}; write {}://{} and name services by \
         Provider::builder",
        key.as_str(),
        names(services),
        target.scheme(),
        target.hosts().join(",")
    ))
}

/// The slowest registry decides; without any, whether a cluster's proxies have to learn of it.
fn declared_floor(registries: &[Connected], environment: &Environment) -> Duration {
    let slowest = registries
        .iter()
        .map(|connected| connected.registry.propagation())
        .max();
    slowest.unwrap_or(if environment.in_cluster {
        limits::FLOOR_CLUSTER
    } else {
        limits::FLOOR_NONE
    })
}

fn announce_times(
    events: &Events,
    life: Life,
    builder: &Builder,
    plan: &Plan,
    registries: &[Connected],
) {
    let environment = builder.environment.as_ref();
    let wanted = environment.map(|environment| declared_floor(registries, environment));
    if let Some(wanted) =
        wanted.filter(|wanted| builder.times.floor.is_none() && *wanted > plan.floor)
    {
        events.emit(&Event::FloorClamped {
            wanted,
            floor: plan.floor,
        });
    }
    if plan.floor.is_zero() && plan.quiet.is_zero() {
        events.emit(&Event::NoClosing { life });
    }
}

/// The services, as a report names them.
pub(super) fn names(services: &[ServiceName]) -> String {
    let names: Vec<&str> = services.iter().map(ServiceName::as_str).collect();
    names.join(",")
}

fn boot_id() -> Result<BootId, BuildError> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(BuildError::Random)?;
    Ok(BootId::from_bits(u128::from_ne_bytes(bits)))
}

fn resolve(address: &Address) -> io::Result<SocketAddr> {
    if let Some(socket) = address.socket() {
        return Ok(socket);
    }
    let found = address.to_string().to_socket_addrs()?.next();
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}
