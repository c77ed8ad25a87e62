//! From what a program says to a provider that is ready to run.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use lameduck_core::drain::{Input, Plan};
use lameduck_core::limits;
use lameduck_core::name::ServiceName;
use lameduck_core::registry::{Registry, Schemes};
use tokio::sync::mpsc;
use tonic::service::Routes;

use super::assemble::{Parts, announce_times, names, runtime_has_all};
use super::early::Early;
use super::error::BuildError;
use super::handle::{Handle, Shared};
use super::hooks::Hook;
use super::probes;
use super::registration::Planned;
use super::run::Living;
use crate::env::Environment;
use crate::health::ServingStatus;
use crate::mark::ShowLife;
use crate::observe::{Events, Observer};
use crate::serve::{Limits, Server};

/// Collects what a provider is to be. Every mistake is told by [`build`](Self::build).
#[derive(Default)]
#[must_use = "a builder does nothing before build()"]
pub struct Builder {
    pub(super) early: Early,
    pub(super) services: Vec<String>,
    pub(super) listen: Option<String>,
    pub(super) listener: Option<TcpListener>,
    pub(super) advertise: Option<String>,
    pub(super) targets: Vec<String>,
    pub(super) registries: Vec<(Arc<dyn Registry>, String)>,
    pub(super) schemes: Option<Schemes>,
    pub(super) routers: Vec<Router>,
    pub(super) grpc: Vec<Routes>,
    pub(super) without_health: bool,
    pub(super) unobserved: Vec<String>,
    pub(super) has_probes: bool,
    pub(super) without_signals: bool,
    pub(super) environment: Option<Environment>,
    pub(super) times: Times,
    pub(super) hooks: Vec<Hook>,
    pub(super) observers: Vec<Observer>,
    pub(super) limits: Limits,
    pub(super) shows: ShowLife,
    pub(super) inherits: bool,
    pub(super) shares_port: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) budget: Option<Duration>,
    pub(super) floor: Option<Duration>,
    pub(super) quiet: Option<Duration>,
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
    /// Dropped after the receiver of inputs, whose senders are told so.
    pub(super) living: Living,
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
    /// The handle of the provider to be: for what is made before it, such as the state of a router.
    ///
    /// The phase is Starting until [`Provider::run`], the life is the one that will serve, the gate admits
    /// and the health board is not ready. [`stop`](Handle::stop) and [`abort`](Handle::abort) before the
    /// run end it as it begins. Where nothing is built, or [`build`](Self::build) fails, the phase becomes
    /// Stopped and [`closing`](Handle::closing) resolves.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.early.handle()
    }

    /// Serves one more service on the same port.
    pub fn service(mut self, service: &str) -> Self {
        self.services.push(service.to_owned());
        self
    }

    /// Listens here: `host:port`; port 0 takes any free one. Of a name that has several addresses, the
    /// first IPv4 address of this machine is taken, failing that the first IPv6 one (`localhost` is
    /// 127.0.0.1).
    pub fn listen(mut self, address: &str) -> Self {
        self.listen = Some(address.to_owned());
        self
    }

    /// Listens on a socket that is bound and listening already (handed over, or made by a test).
    pub fn listener(mut self, listener: TcpListener) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Listens on the socket that the service manager hands over: systemd's socket activation, by
    /// `LISTEN_FDS` and `LISTEN_PID`, the first one. Where none is handed over, on
    /// [`listen`](Self::listen), if that is said too. A restart then closes no port: what connects
    /// meanwhile waits for the successor.
    pub fn listen_inherited(mut self, wanted: bool) -> Self {
        self.inherits = wanted;
        self
    }

    /// Whether other processes of this user may listen on the same address (SO_REUSEPORT; default: no).
    /// The kernel spreads new connections over them, so a successor may start before its predecessor
    /// leaves. All of them have to say it.
    pub fn share_port(mut self, shared: bool) -> Self {
        self.shares_port = shared;
        self
    }

    /// To whom answers say which life answers, in the header `lameduck-life` (default: to all). See
    /// [`ShowLife`].
    pub fn show_life(mut self, to: ShowLife) -> Self {
        self.shows = to;
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

    /// Serves these HTTP routes. May be said several times: they are merged, and two that are in each
    /// other's way are an error of [`build`](Self::build).
    pub fn router(mut self, router: Router) -> Self {
        self.routers.push(router);
        self
    }

    /// Serves these gRPC services, on the same port. May be said several times: they are merged, with
    /// the fallback of the first. Where there is a health service among them already, say
    /// [`health(false)`](Self::health): two cannot have one path, which is an error of
    /// [`build`](Self::build).
    pub fn grpc(mut self, routes: Routes) -> Self {
        self.grpc.push(routes);
        self
    }

    /// Changes the bounds of the port and of its connections: windows, heads, idle times, numbers.
    /// May be said several times; [`Limits`] has the defaults.
    pub fn server(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.limits);
        self
    }

    /// Whether `grpc.health.v1` is served on the port (default: yes).
    pub fn health(mut self, served: bool) -> Self {
        self.without_health = !served;
        self
    }

    /// Requests of this path are nobody's work, such as scrapes of metrics and health checks of balancers.
    /// They are not in flight, they do not keep Closing from being quiet, and a stop does not wait for them.
    /// They are served until the listener closes. The path is compared as a whole, of any method; query
    /// parameters do not matter. May be said several times.
    pub fn unobserved(mut self, path: &str) -> Self {
        self.unobserved.push(path.to_owned());
        self
    }

    /// Answers HTTP probes on the port: `/livez` with 200 until the process has stopped, `/readyz` with 200
    /// only while it is [ready](Handle::ready), `/startupz` with 200 once it has served; with 503 else.
    /// None of them counts, as if they were [`unobserved`](Self::unobserved). Routes of the program with such a path are an error
    /// of [`build`](Self::build). Default: none.
    pub fn probes(mut self) -> Self {
        self.has_probes = true;
        self
    }

    /// Sets a condition of readiness, as [`Handle::ready`] does: with `false`, the process begins not ready.
    pub fn ready(self, condition: &str, holds: bool) -> Self {
        self.handle().ready(condition, holds);
        self
    }

    /// The whole time that a stop may take. Default: [`limits::STOP_BUDGET`]. More than
    /// [`limits::STOP_BUDGET_MAX`] is as much as that.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.times.budget = Some(budget);
        self
    }

    /// How long Closing lasts at least: what news takes to reach every caller. Default: what the
    /// registries say; in a cluster 10 s where there is none, or where there are HTTP routes.
    pub fn floor(mut self, floor: Duration) -> Self {
        self.times.floor = Some(floor);
        self
    }

    /// Closing ends once no caller's request came for this long, except of hosts that were told to go and came
    /// back. Default: [`limits::QUIET_WINDOW`].
    pub fn quiet(mut self, quiet: Duration) -> Self {
        self.times.quiet = Some(quiet);
        self
    }

    /// Runs `work` once everything in flight is done. Hooks run one after another, in this order,
    /// for [`limits::HOOK_MAX`] each at most; [`hook_within`](Self::hook_within) sets another time.
    ///
    /// Each has a thread of its own, where it may block.
    pub fn hook<F, Fut>(self, name: &str, work: F) -> Self
    where
        F: FnOnce() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        self.hook_within(name, limits::HOOK_MAX, work)
    }

    /// The same, for `max` at most. What is left of the budget is shared by the hooks that have not run
    /// yet: a hook may get less than `max`, never more.
    pub fn hook_within<F, Fut>(mut self, name: &str, max: Duration, work: F) -> Self
    where
        F: FnOnce() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        self.hooks.push(Hook::new(name, max, work));
        self
    }

    /// Whether SIGTERM, SIGINT, SIGQUIT and SIGHUP are caught from `build` on (default: yes). A signal
    /// begins a stop in every provider of the process that catches them. Where none runs and none ever
    /// ran, it ends the process at once, with code 0: nothing is registered yet. Once the last one has
    /// ended, a signal ends the process as it ends any other.
    ///
    /// `false` says that the program catches signals itself: its providers stop by
    /// [`stop`](super::Handle::stop), and lameduck never ends the process beside it.
    pub fn signals(mut self, caught: bool) -> Self {
        self.without_signals = !caught;
        self
    }

    /// What to take for the environment. Default: [`Environment::read`].
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = Some(environment);
        self
    }

    /// Shows every [`Event`](lameduck_core::event::Event) to `observer`, in the order in which they
    /// happened, on a thread of their own: one that blocks delays nothing. [`Provider::run`] returns once the last was shown, or half
    /// a second later. One that panics sees nothing more.
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
        self.limits.check()?;
        probes::check(&self.unobserved)?;
        runtime_has_all()?;
        let services = self.services.iter().map(|name| name.parse());
        let services = services.collect::<Result<Vec<ServiceName>, _>>()?;
        let registries = self.connect(&services)?;
        let plan = self.plan(&registries)?;
        let listener = self.bind()?;
        if let Some(error) = self.early.random {
            return Err(BuildError::Random(error));
        }
        let life = self.early.handle().life();
        let events = Events::apart(std::mem::take(&mut self.observers));
        announce_times(&events, life, &self, &plan, &registries);
        let planned = self.registrations(&services, &registries, &listener, life, &events)?;
        let health = self.early.shared().health.clone();
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
        })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Builder({})", self.services.join(","))
    }
}
