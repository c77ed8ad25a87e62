//! The processes of a run: which there are, how they are started, and how they end.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use lameduck_core::name::{Target, redacted};
use lameduck_core::rng::Rng;
use lameduck_core::time::Timestamp;
use lameduck_registry::etcd;
use lameduck_registry::etcd::ports;
use rustix::process::Signal;

use super::books::Books;
use super::clock;
use super::control::Word;
use super::error::{LabError, doing};
use super::flavour::Flavour;
use super::home::Home;
use super::ledger::Source;
use super::limits::{REACH_MAX, TICK};
use super::options::{Options, Registry};
use super::plan::Plan;
use super::process::Process;
use super::proxy::ProxySpec;
use super::spec::{CallerSpec, ChildSpec, LinkSpec, Role, SERVICE, ServerSpec};

/// How often a child is asked whether it listens: for ten seconds.
const LISTEN_TRIES: usize = 500;
/// For a proxy to end its workers.
const PROXY_STOP_MAX: Duration = Duration::from_secs(3);

/// One server's place: processes come and go, the address stays.
#[derive(Debug)]
pub struct Place {
    /// Where callers reach it.
    pub address: SocketAddr,
    /// Where its processes listen: the same, but for a slow link between.
    listen: SocketAddr,
    lives: u32,
    ledger: PathBuf,
    process: Option<Process>,
}

/// All processes. Dropping it kills them; [`Fleet::end`] also waits for it.
#[derive(Debug)]
pub struct Fleet {
    /// One for each server.
    pub places: Vec<Place>,
    callers: Vec<Process>,
    registry: Option<Process>,
    links: Option<Process>,
    proxy: Option<Process>,
    proxy_address: SocketAddr,
    etcd: Option<etcd::process::Process>,
    options: Options,
    registry_address: SocketAddr,
    /// Where servers are published, once the registry is there.
    published: Option<String>,
    service: String,
    home: Home,
}

impl Fleet {
    /// A fleet without processes: addresses, names, and a directory.
    ///
    /// # Errors
    ///
    /// Where there are no ports, or no directory.
    pub fn new(options: &Options, rng: &mut Rng) -> Result<Self, LabError> {
        let home = Home::make(options.keep.as_deref(), bytes_of(options));
        let home = match (home, &options.keep) {
            (Err(error), Some(_)) => return Err(LabError::Usage(format!("--keep {error}"))),
            (home, _) => doing(home, "making the directory of this run")?,
        };
        let servers = usize::from(options.servers);
        let wanted = servers * if options.slow_link { 2 } else { 1 } + 2;
        let mut addresses = doing(ports::free(wanted, rng), "looking for ports")?;
        let registry_address = addresses.pop().expect("two more were asked for");
        let proxy_address = addresses.pop().expect("two more were asked for");
        let behind = addresses.split_off(servers);
        let mut places: Vec<Place> = addresses.into_iter().map(Place::new).collect();
        for (place, listen) in places.iter_mut().zip(behind) {
            place.listen = listen;
        }
        Ok(Self {
            places,
            callers: Vec::new(),
            registry: None,
            links: None,
            proxy: None,
            proxy_address,
            etcd: None,
            options: options.clone(),
            registry_address,
            published: None,
            service: format!("{SERVICE}.{}", clock::now().as_nanos()),
            home,
        })
    }

    /// Starts the registry, where the run has one of its own, and waits until it serves.
    ///
    /// # Errors
    ///
    /// Where it does not come up.
    pub async fn start_registry(&mut self) -> Result<(), LabError> {
        self.published = match &self.options.registry {
            Registry::Development => Some(self.start_development().await?),
            Registry::Etcd => Some(self.start_etcd().await?),
            Registry::At(target) => {
                reach(target).await?;
                Some(target.clone())
            }
            Registry::None => None,
        };
        Ok(())
    }

    async fn start_development(&mut self) -> Result<String, LabError> {
        let address = self.registry_address;
        let process = self.start("registry", Role::Registry(address))?;
        let process = self.registry.insert(process);
        listens(process, address).await?;
        Ok(format!("etcd://{address}"))
    }

    async fn start_etcd(&mut self) -> Result<String, LabError> {
        if !etcd::process::is_installed("etcd") {
            let what = "--registry etcd: etcd is not installed (Debian: etcd-server)";
            return Err(LabError::Missing(what.to_owned()));
        }
        let home = self.home.path().to_owned();
        let start = move || etcd::process::Process::start_in(&home, &[]);
        let started = tokio::task::spawn_blocking(start).await;
        let started = started.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        let etcd = self.etcd.insert(doing(started, "starting etcd")?);
        Ok(etcd.target())
    }

    /// Starts the slow links to all servers, where the run has some. They stay whatever servers do.
    ///
    /// # Errors
    ///
    /// Where they cannot be started.
    pub fn start_links(&mut self) -> Result<(), LabError> {
        if self.options.slow_link {
            let link = |place: &Place| LinkSpec {
                listen: place.address,
                to: place.listen,
            };
            let links = self.places.iter().map(link).collect();
            self.links = Some(self.start("links", Role::Links(links))?);
        }
        Ok(())
    }

    /// Starts the proxy before all servers, where the run has one, and waits until it listens.
    ///
    /// # Errors
    ///
    /// Where it is not installed, or does not listen.
    pub async fn start_proxy(&mut self) -> Result<(), LabError> {
        let Some(proxy) = self.options.proxy else {
            return Ok(());
        };
        if !etcd::process::is_installed(proxy.as_str()) {
            let what = format!("--proxy {proxy}: {proxy} is not installed");
            return Err(LabError::Missing(what));
        }
        let spec = ProxySpec {
            proxy,
            listen: self.proxy_address,
            servers: self.places.iter().map(|place| place.listen).collect(),
            keepalive_requests: self.options.requests_of_a_connection(),
        };
        let directory = self.home.path().to_owned();
        let process = self.start(proxy.as_str(), Role::Proxy { spec, directory })?;
        let process = self.proxy.insert(process);
        listens(process, self.proxy_address).await
    }

    /// Has the proxy start anew, and tells the time right before.
    ///
    /// # Errors
    ///
    /// Where it is gone.
    pub fn reload_proxy(&self) -> Result<(), LabError> {
        if let Some(proxy) = &self.proxy {
            proxy.signal(Signal::HUP)?;
        }
        Ok(())
    }

    /// Starts the next life of `server`.
    ///
    /// # Errors
    ///
    /// Where it cannot be started.
    pub fn start_server(&mut self, server: u16, books: &mut Books) -> Result<(), LabError> {
        let lives = self.place(server).lives;
        let name = format!("server-{server}-{lives}");
        let ledger = self.path(&name);
        books.follow(Source::Server(server), &ledger)?;
        let spec = ServerSpec {
            address: self.place(server).address,
            listen: self.place(server).listen,
            registry: self.published.clone(),
            service: self.service.clone(),
            ledger: ledger.clone(),
            flavour: self.options.flavour,
            sabotage: self.options.sabotage,
        };
        let process = self.start(&name, Role::Server(spec))?;
        let place = self.place_mut(server);
        (place.lives, place.ledger, place.process) = (lives + 1, ledger, Some(process));
        Ok(())
    }

    /// Starts all callers, which then wait for their start.
    ///
    /// # Errors
    ///
    /// Where one cannot be started.
    pub fn start_callers(&mut self, plan: &Plan, books: &mut Books) -> Result<(), LabError> {
        let target = self.target()?;
        for caller in 0..self.options.callers {
            let name = format!("caller-{caller}");
            let ledger = self.path(&name);
            books.follow(Source::Caller(caller), &ledger)?;
            let spec = CallerSpec {
                caller,
                target: target.clone(),
                plan: plan.clone(),
                ledger,
                failover: self.options.failover,
                flavour: self.options.flavour,
                sabotage: self.options.sabotage,
            };
            let process = self.start(&name, Role::Caller(spec))?;
            self.callers.push(process);
        }
        Ok(())
    }

    /// Tells all callers when the plan begins.
    pub async fn go(&mut self, start: Timestamp) {
        for caller in &mut self.callers {
            caller.say(Word::Start(start)).await;
        }
    }

    /// Signals `server`, and tells the time right before.
    ///
    /// # Errors
    ///
    /// Where it is gone.
    pub fn signal(&self, server: u16, signal: Signal) -> Result<Timestamp, LabError> {
        match &self.place(server).process {
            Some(process) => process.signal(signal),
            None => Err(LabError::Ledger(format!("server {server} is not running"))),
        }
    }

    /// Stops the run's own registry as a whole.
    ///
    /// # Errors
    ///
    /// Where it is gone.
    pub fn hold_registry_back(&self) -> Result<(), LabError> {
        if let Some(process) = &self.registry {
            process.signal(Signal::STOP)?;
        }
        let etcd = self.etcd.as_ref().map_or(Ok(()), |etcd| etcd.freeze());
        doing(etcd, "stopping etcd for a while")
    }

    /// Lets the run's own registry go on.
    ///
    /// # Errors
    ///
    /// Where it is gone.
    pub fn let_registry_go(&self) -> Result<(), LabError> {
        if let Some(process) = &self.registry {
            process.signal(Signal::CONT)?;
        }
        let etcd = self.etcd.as_ref().map_or(Ok(()), |etcd| etcd.thaw());
        doing(etcd, "letting etcd go on")
    }

    /// Waits at most `most` for the end of `server`.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub async fn wait(
        &mut self,
        server: u16,
        most: Duration,
    ) -> Result<Option<ExitStatus>, LabError> {
        match &mut self.place_mut(server).process {
            Some(process) => process.wait(most).await,
            None => Ok(None),
        }
    }

    /// Forgets the process of `server`, which has ended; its ledger is read to the end.
    ///
    /// # Errors
    ///
    /// Where the ledger cannot be read.
    pub fn bury(&mut self, server: u16, books: &mut Books) -> Result<(), LabError> {
        let place = self.place_mut(server);
        place.process = None;
        books.close(&place.ledger)
    }

    /// An error where a process has ended that must not have; `leaving` may have.
    ///
    /// # Errors
    ///
    /// Names the process, with its last words.
    pub fn look_after(&mut self, leaving: Option<u16>) -> Result<(), LabError> {
        let servers = (0..).zip(&mut self.places);
        let staying = servers.filter(|(server, _)| Some(*server) != leaving);
        let staying = staying.filter_map(|(_, place)| place.process.as_mut());
        let all = staying.chain(&mut self.callers);
        let all = all.chain(&mut self.registry).chain(&mut self.links);
        let all = all.chain(&mut self.proxy);
        for process in all {
            if let Some(status) = process.ended()? {
                return Err(process.error(&format!("ended by itself ({status})")));
            }
        }
        Ok(())
    }

    /// Tells all callers to stop, and waits until they have. Names those that did not in time, and were
    /// killed: more was asked of them than they can do, or they hang; their ledgers tell.
    ///
    /// # Errors
    ///
    /// Names a caller that did not stop well.
    pub async fn stop_callers(&mut self, most: Duration) -> Result<Vec<String>, LabError> {
        let mut hung = Vec::new();
        for caller in &mut self.callers {
            caller.say(Word::Stop).await;
        }
        for mut caller in std::mem::take(&mut self.callers) {
            match caller.wait(most).await? {
                Some(status) if status.success() => {}
                Some(status) => return Err(caller.error(&format!("stopped badly ({status})"))),
                None => {
                    let (name, seconds) = (caller.name(), most.as_secs());
                    hung.push(format!(
                        "{name} had not stopped {seconds} s after its last call"
                    ));
                    caller.kill().await;
                }
            }
        }
        Ok(hung)
    }

    /// Ends every process that is left, and waits until it is gone.
    pub async fn end(&mut self) {
        let servers = self
            .places
            .iter_mut()
            .filter_map(|place| place.process.take());
        if let Some(mut proxy) = self.proxy.take() {
            // Its processes end in their order, and none is left.
            proxy.say(Word::Stop).await;
            let _ = proxy.wait(PROXY_STOP_MAX).await;
        }
        let rest = self.callers.drain(..).chain(self.links.take());
        let rest = rest.chain(self.registry.take());
        for process in servers.chain(rest) {
            process.kill().await;
        }
        self.etcd = None;
    }

    /// What callers are told to call.
    fn target(&self) -> Result<String, LabError> {
        if self.options.proxy.is_some() {
            return Ok(format!("direct:///{}", self.proxy_address));
        }
        let is_looked_up = |_: &&String| self.options.flavour != Flavour::Tonic;
        let Some(published) = self.published.as_ref().filter(is_looked_up) else {
            let all = self.places.iter().map(|place| place.address.to_string());
            return Ok(format!("direct:///{}", all.collect::<Vec<_>>().join(",")));
        };
        let usage = |error: &dyn std::fmt::Display| {
            LabError::Usage(format!("--registry {}: {error}", redacted(published)))
        };
        let target: Target = published.parse().map_err(|error| usage(&error))?;
        let service = self.service.parse().map_err(|error| usage(&error))?;
        Ok(target.with_service(service).revealed())
    }

    fn start(&self, name: &str, role: Role) -> Result<Process, LabError> {
        let home = self.home.to_remove();
        Process::start(name, &ChildSpec { role, home }, self.home.path())
    }

    /// Where the files of this run are, the data of its own etcd among them.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.home.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home
            .path()
            .join(Path::new(name).with_extension("ledger"))
    }

    fn place(&self, server: u16) -> &Place {
        &self.places[usize::from(server)]
    }

    fn place_mut(&mut self, server: u16) -> &mut Place {
        &mut self.places[usize::from(server)]
    }
}

impl Place {
    fn new(address: SocketAddr) -> Self {
        Self {
            address,
            listen: address,
            lives: 0,
            ledger: PathBuf::new(),
            process: None,
        }
    }
}

/// About how many bytes the ledgers of a run take: half a KiB a call, and three seconds a roll.
fn bytes_of(options: &Options) -> u64 {
    let seconds = 60 + 3 * u64::from(options.rolls) * u64::from(options.servers);
    seconds * u64::from(options.rate) * 512
}

/// Waits until the child listens.
async fn listens(process: &mut Process, address: SocketAddr) -> Result<(), LabError> {
    for _ in 0..LISTEN_TRIES {
        if tokio::net::TcpStream::connect(address).await.is_ok() {
            return Ok(());
        }
        if process.wait(TICK).await?.is_some() {
            break;
        }
    }
    Err(process.error("does not listen"))
}

/// An error where nobody listens at any address of the registry that `published` names.
async fn reach(published: &str) -> Result<(), LabError> {
    let usage = |error: &dyn std::fmt::Display| {
        LabError::Usage(format!("--registry {}: {error}", redacted(published)))
    };
    let target: Target = published.parse().map_err(|error| usage(&error))?;
    for address in target.addresses().map_err(|error| usage(&error))? {
        let connect = tokio::net::TcpStream::connect(address.to_string());
        if let Ok(Ok(_)) = tokio::time::timeout(REACH_MAX, connect).await {
            return Ok(());
        }
    }
    let what = format!(
        "--registry {}: nobody listens there; start it, or name another",
        redacted(published)
    );
    Err(LabError::Missing(what))
}
