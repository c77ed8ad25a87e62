//! The processes of a run: which there are, how they are started, and how they end.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use lameduck_core::name::Target;
use lameduck_core::rng::Rng;
use lameduck_core::time::Timestamp;
use rustix::process::Signal;

use super::books::Books;
use super::clock;
use super::control::Word;
use super::error::{LabError, doing};
use super::home::Home;
use super::ledger::Source;
use super::options::{Options, Registry};
use super::plan::Plan;
use super::ports;
use super::process::Process;
use super::spec::{CallerSpec, ChildSpec, Role, SERVICE, ServerSpec};

/// One server's place: processes come and go, the address stays.
#[derive(Debug)]
pub struct Place {
    /// Where it listens.
    pub address: SocketAddr,
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
    options: Options,
    /// Where servers are published, and where callers look.
    published: Option<String>,
    target: String,
    service: String,
    home: Home,
}

impl Fleet {
    /// A fleet without processes: addresses, names, and a directory.
    ///
    /// # Errors
    ///
    /// Where there are no ports, no directory, or the registry's target cannot be read.
    pub fn new(options: &Options, rng: &mut Rng) -> Result<Self, LabError> {
        let home = Home::make(options.keep.as_deref());
        let home = doing(home, "making the directory of this run")?;
        let wanted = usize::from(options.servers) + 1;
        let mut addresses = doing(ports::free(wanted, rng), "looking for ports")?;
        let registry = addresses.pop().expect("one more was asked for");
        let service = format!("{SERVICE}.{}", clock::now().as_nanos());
        let published = match &options.registry {
            Registry::Development => Some(format!("etcd://{registry}")),
            Registry::At(target) => Some(target.clone()),
            Registry::None => None,
        };
        let target = target(published.as_deref(), &service, &addresses)?;
        let places = addresses.into_iter().map(Place::new).collect();
        Ok(Self {
            places,
            callers: Vec::new(),
            registry: None,
            options: options.clone(),
            published,
            target,
            service,
            home,
        })
    }

    /// Starts the registry, where the run has one of its own, and waits until it listens.
    ///
    /// # Errors
    ///
    /// Where it does not come up.
    pub async fn start_registry(&mut self) -> Result<(), LabError> {
        let (Registry::Development, Some(published)) = (&self.options.registry, &self.published)
        else {
            return Ok(());
        };
        let address = published.trim_start_matches("etcd://");
        let address: SocketAddr = address.parse().expect("it was made of an address");
        let process = self.start("registry", Role::Registry(address))?;
        let process = self.registry.insert(process);
        for _ in 0..500 {
            if tokio::net::TcpStream::connect(address).await.is_ok() {
                return Ok(());
            }
            if process.wait(Duration::from_millis(20)).await?.is_some() {
                break;
            }
        }
        Err(process.error("does not listen"))
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
            registry: self.published.clone(),
            service: self.service.clone(),
            ledger: ledger.clone(),
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
        for caller in 0..self.options.callers {
            let name = format!("caller-{caller}");
            let ledger = self.path(&name);
            books.follow(Source::Caller(caller), &ledger)?;
            let spec = CallerSpec {
                caller,
                target: self.target.clone(),
                plan: plan.clone(),
                ledger,
                failover: self.options.failover,
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
        let all = staying.chain(&mut self.callers).chain(&mut self.registry);
        for process in all {
            if let Some(status) = process.ended()? {
                return Err(process.error(&format!("ended by itself ({status})")));
            }
        }
        Ok(())
    }

    /// Tells all callers to stop, and waits until they have.
    ///
    /// # Errors
    ///
    /// Names a caller that did not stop in time, or not well.
    pub async fn stop_callers(&mut self, most: Duration) -> Result<(), LabError> {
        for caller in &mut self.callers {
            caller.say(Word::Stop).await;
        }
        for mut caller in std::mem::take(&mut self.callers) {
            match caller.wait(most).await? {
                Some(status) if status.success() => {}
                Some(status) => return Err(caller.error(&format!("stopped badly ({status})"))),
                None => return Err(caller.error("does not stop")),
            }
        }
        Ok(())
    }

    /// Ends every process that is left, and waits until it is gone.
    pub async fn end(&mut self) {
        let servers = self
            .places
            .iter_mut()
            .filter_map(|place| place.process.take());
        let rest = self.callers.drain(..).chain(self.registry.take());
        for process in servers.chain(rest) {
            process.kill().await;
        }
    }

    fn start(&self, name: &str, role: Role) -> Result<Process, LabError> {
        let home = self.home.to_remove();
        Process::start(name, &ChildSpec { role, home }, self.home.path())
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
            lives: 0,
            ledger: PathBuf::new(),
            process: None,
        }
    }
}

/// What callers are told to call.
fn target(
    published: Option<&str>,
    service: &str,
    addresses: &[SocketAddr],
) -> Result<String, LabError> {
    let Some(published) = published else {
        let all: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        return Ok(format!("direct:///{}", all.join(",")));
    };
    let usage =
        |error: &dyn std::fmt::Display| LabError::Usage(format!("--registry {published}: {error}"));
    let target: Target = published.parse().map_err(|error| usage(&error))?;
    let service = service.parse().map_err(|error| usage(&error))?;
    Ok(target.with_service(service).to_string())
}
