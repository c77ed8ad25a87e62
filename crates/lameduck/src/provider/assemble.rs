//! What [`Builder::build`] makes of what a program said: registries, times, the port, the registrations.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use lameduck_core::drain::Plan;
use lameduck_core::event::Event;
use lameduck_core::instance::{Incarnation, Instance, Life};
use lameduck_core::limits;
use lameduck_core::name::{Address, NameError, ServiceName, Target, redacted};
use lameduck_core::registry::{Registration, Registry};
use tokio::sync::watch;

use super::address::{Facts, Whereabouts};
use super::builder::{Builder, Provider};
use super::error::BuildError;
use super::handle::{Bound, Handle, Shared};
use super::hooks::Hook;
use super::listener;
use super::probes;
use super::registration::{Planned, RegistrationStatus};
use super::routes;
use super::run::Living;
use super::signals;
use crate::env::Environment;
use crate::foreign::quietly;
use crate::observe::Events;
use crate::serve::{Extend, Server};

impl Builder {
    pub(super) fn assemble(mut self, parts: Parts) -> Result<Provider, BuildError> {
        let shared = Arc::clone(self.early.shared());
        let shown = (!self.without_health).then_some(&shared.health);
        if self.has_probes {
            self.unobserved.extend(probes::PATHS.map(str::to_owned));
            self.routers.push(probes::routes());
        }
        let server = Server::builder()
            .gate(shared.gate.clone())
            .life(parts.life)
            .extend(carry(&shared))
            .unobserved(self.unobserved)
            .services(self.services.clone())
            .listener(parts.listener)
            .events(parts.events.clone())
            .limits(self.limits)
            .show_life(self.shows)
            .router(routes::join(self.routers, self.grpc, shown).map_err(BuildError::Routes)?)
            .build()
            .map_err(|source| BuildError::Bind {
                address: "the given listener".to_owned(),
                source,
            })?;
        let planned = parts.planned.iter();
        let bound = Bound {
            control: server.control(),
            local_addr: server.local_addr(),
            registrations: planned.map(|planned| planned.status.subscribe()).collect(),
        };
        shared.bound.get_or_init(|| bound);
        let (names, catches) = (self.services.join(","), !self.without_signals);
        let membership = signals::enter(Arc::clone(&shared), names, parts.plan.budget, catches)
            .map_err(BuildError::Signals)?;
        let living = Living {
            shared: Arc::clone(&shared),
            events: parts.events.clone(),
            membership: Some(membership),
        };
        Ok(Provider {
            services: parts.services,
            plan: parts.plan,
            server,
            shared,
            inputs: self.early.take(),
            planned: parts.planned,
            hooks: self.hooks,
            events: parts.events,
            living,
        })
    }

    pub(super) fn connect(
        &mut self,
        services: &[ServiceName],
    ) -> Result<Vec<Connected>, BuildError> {
        let schemes = self
            .schemes
            .take()
            .unwrap_or_else(lameduck_registry::builtin);
        let mut connected = Vec::new();
        for text in &self.targets {
            let shown = redacted(text);
            let target: Target = text.parse().map_err(|error| BuildError::Registry {
                target: shown.clone(),
                why: format!("{error}"),
            })?;
            let registry = schemes
                .connect(&target)
                .map_err(|error| BuildError::registry(&shown, &error))?;
            own_service(&target, services).map_err(|why| BuildError::Registry {
                target: shown.clone(),
                why,
            })?;
            let whereabouts = match target.scheme() {
                "memory" => Whereabouts::Here,
                _ => Whereabouts::At(target.hosts().to_vec()),
            };
            connected.push(Connected {
                registry,
                name: shown,
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

    pub(super) fn plan(&mut self, registries: &[Connected]) -> Result<Plan, BuildError> {
        let environment = self.environment.take().unwrap_or_else(Environment::read);
        let declared = self.declared_floor(registries, &environment);
        self.environment = Some(environment);
        let budget = self.times.budget.unwrap_or(limits::STOP_BUDGET);
        let budget = budget.min(limits::STOP_BUDGET_MAX);
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
            floor: floor.unwrap_or(declared.min(cap)),
            quiet: quiet.unwrap_or(limits::QUIET_WINDOW.min(cap)),
            cap,
            hooks: self.hooks.iter().map(Hook::plan).collect(),
        })
    }

    pub(super) fn bind(&mut self) -> Result<TcpListener, BuildError> {
        let given = match self.listener.take() {
            None if self.inherits => listener::inherited()?,
            given => given,
        };
        if let Some(given) = given {
            listener::check(&given).map_err(BuildError::Listen)?;
            return Ok(given);
        }
        let text = self.listen.as_deref();
        let text = text.ok_or_else(|| BuildError::Listen("nowhere to listen".to_owned()))?;
        let address: Address = text
            .parse()
            .map_err(|error: NameError| BuildError::Listen(error.to_string()))?;
        let found = resolve(&address).map_err(|source| BuildError::Lookup {
            address: text.to_owned(),
            source,
        })?;
        let bind = if self.shares_port {
            crate::serve::bind_shared
        } else {
            crate::serve::bind
        };
        bind_first(&found, bind).map_err(|source| BuildError::Bind {
            address: text.to_owned(),
            source,
        })
    }

    pub(super) fn registrations(
        &self,
        services: &[ServiceName],
        registries: &[Connected],
        listener: &TcpListener,
        life: Life,
        events: &Events,
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
        let doubtful = registries
            .iter()
            .find(|registry| facts.is_doubtful(&registry.whereabouts));
        if let (Some(registry), Some(address)) = (doubtful, &facts.advertise) {
            events.emit(&Event::AdvertisedLoopback {
                registry: registry.name.clone(),
                address: address.clone(),
            });
        }
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
            ("grpc", !self.grpc.is_empty()),
            ("http", !self.routers.is_empty()),
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
/// What building has made so far.
pub(super) struct Parts {
    pub(super) services: Vec<ServiceName>,
    pub(super) plan: Plan,
    pub(super) listener: TcpListener,
    pub(super) life: Life,
    pub(super) events: Events,
    pub(super) planned: Vec<Planned>,
}

/// Lets every request carry the handle. The server itself holds none: it is a part of what a handle holds.
fn carry(shared: &Arc<Shared>) -> Extend {
    let shared = Arc::downgrade(shared);
    Arc::new(move |extensions| {
        if let Some(shared) = shared.upgrade() {
            extensions.insert(Handle { shared });
        }
    })
}

pub(super) struct Connected {
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

impl Builder {
    /// The slowest way of being found decides. In a cluster HTTP routes are found through a Service,
    /// whatever the registry, and so is everything where there is no registry: proxies have to learn of it.
    fn declared_floor(&self, registries: &[Connected], environment: &Environment) -> Duration {
        let slowest = registries
            .iter()
            .map(|connected| connected.registry.propagation())
            .max();
        let through_a_service = registries.is_empty() || !self.routers.is_empty();
        let declared = slowest.unwrap_or(limits::FLOOR_NONE);
        if environment.in_cluster && through_a_service {
            declared.max(limits::FLOOR_CLUSTER)
        } else {
            declared
        }
    }
}

pub(super) fn announce_times(
    events: &Events,
    life: Life,
    builder: &Builder,
    plan: &Plan,
    registries: &[Connected],
) {
    let environment = builder.environment.as_ref();
    let wanted = environment.map(|environment| builder.declared_floor(registries, environment));
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

/// Where the name leads, IPv4 first: most clients of a name try that first, or nothing else.
fn resolve(address: &Address) -> io::Result<Vec<SocketAddr>> {
    if let Some(socket) = address.socket() {
        return Ok(vec![socket]);
    }
    let mut found: Vec<_> = address.to_string().to_socket_addrs()?.collect();
    if found.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    found.sort_by_key(SocketAddr::is_ipv6);
    Ok(found)
}

/// Binds the first address that is one of this machine's. A port that somebody holds is no reason to
/// listen elsewhere.
fn bind_first(
    addresses: &[SocketAddr],
    bind: fn(SocketAddr) -> io::Result<TcpListener>,
) -> io::Result<TcpListener> {
    let mut last = io::ErrorKind::NotFound.into();
    for address in addresses {
        match bind(*address) {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => last = error,
            bound => return bound,
        }
    }
    Err(last)
}

/// Tries what a provider needs of the runtime. tokio says what lacks by a panic alone.
pub(super) fn runtime_has_all() -> Result<(), BuildError> {
    // Any other failure of a socket is no matter of the runtime.
    let io = quietly(|| drop(tokio::net::UnixStream::pair()));
    io.map_err(|_| BuildError::NoDriver("IO"))?;
    let time = quietly(|| drop(tokio::time::sleep(Duration::ZERO)));
    time.map_err(|_| BuildError::NoDriver("time"))
}

#[cfg(test)]
mod tests {
    use axum::Router;

    use super::*;
    use crate::env::PodIp;
    use crate::provider::Provider;

    /// The floor of a provider in a cluster or elsewhere, with a registry or without one.
    fn floor(in_cluster: bool, change: impl FnOnce(Builder) -> Builder) -> Duration {
        let environment = Environment {
            pod_ip: PodIp::Unset,
            in_cluster,
        };
        let builder = Provider::builder("orders").environment(environment);
        let mut builder = change(builder);
        let names = [builder.services[0].parse().expect("a name")];
        let registries = builder.connect(&names).expect("a registry");
        builder.plan(&registries).expect("times that fit").floor
    }

    #[test]
    fn http_routes_in_a_cluster_are_found_through_a_service_whatever_the_registry() {
        let listed = |builder: Builder| builder.registry("memory:///orders");
        let routes = |builder: Builder| builder.router(Router::new());
        assert_eq!(floor(false, routes), limits::FLOOR_NONE);
        assert_eq!(floor(true, routes), limits::FLOOR_CLUSTER);
        assert_eq!(floor(true, listed), limits::FLOOR_PUSH);
        let both = |builder| routes(listed(builder));
        assert_eq!(floor(false, both), limits::FLOOR_PUSH);
        assert_eq!(floor(true, both), limits::FLOOR_CLUSTER);
        // Unless it is said otherwise, or routes of our own are all there is.
        let said = Duration::from_secs(1);
        assert_eq!(floor(true, |one| both(one).floor(said)), said);
        let probed = |builder: Builder| listed(builder).probes();
        assert_eq!(floor(true, probed), limits::FLOOR_PUSH);
    }
}
