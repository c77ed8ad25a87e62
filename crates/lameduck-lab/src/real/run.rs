//! One run: start, roll every server under load, kill one, stop, judge.

mod ordeals;

use std::time::Duration;

use lameduck_core::instance::Life;
use lameduck_core::rng::Rng;
use lameduck_core::time::Timestamp;
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use super::books::Books;
use super::chart::{Chart, chart};
use super::clock;
use super::disk::Disk;
use super::error::{LabError, doing};
use super::fleet::Fleet;
use super::limits::{
    CALLER_STOP_MAX, DEADLINE, EXIT_MAX, INCOMPLETE, READY_MAX, SABOTAGE_COST, SETTLE, START_AHEAD,
    STORIES_MAX, TICK, USED_MAX, WARM_UP,
};
use super::meter::Meter;
use super::options::{Options, Registry};
use super::oracle::{Drain, History, Kill};
use super::plan::Plan;
use super::progress::{Onlooker, Progress, Row};
use super::report::Report;
use super::sentinel::Sentinel;
use super::stages::Stage;
use super::story::stories;

/// What a run leaves.
#[derive(Debug)]
pub struct Outcome {
    /// What it has shown.
    pub report: Report,
    /// The first lost calls, each with all that was written about it.
    pub stories: Vec<String>,
    /// How it went over time, where that was asked for.
    pub chart: Option<Chart>,
}

/// Makes one run. Ends every process that it started, however it ends itself.
///
/// # Errors
///
/// Where there is no outcome: see [`LabError`].
pub async fn run(options: Options, onlooker: &mut dyn Onlooker) -> Result<Outcome, LabError> {
    let options = options.checked()?;
    let mut rng = Rng::from_seed(options.seed ^ clock::now().as_nanos());
    let fleet = Fleet::new(&options, &mut rng)?;
    let mut lab = Lab::new(options, fleet, onlooker);
    let outcome = tokio::select! {
        outcome = lab.script() => outcome,
        error = interrupted() => Err(error),
    };
    lab.fleet.end().await;
    outcome
}

/// Resolves when somebody wants the run to end.
async fn interrupted() -> LabError {
    let listen = |kind| doing(signal(kind), "listening for signals");
    let signals = (
        listen(SignalKind::interrupt()),
        listen(SignalKind::terminate()),
        listen(SignalKind::hangup()),
    );
    let (mut interrupt, mut terminate, mut hangup) = match signals {
        (Ok(interrupt), Ok(terminate), Ok(hangup)) => (interrupt, terminate, hangup),
        (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => return error,
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    LabError::Interrupted
}

/// The run while it runs.
struct Lab<'a> {
    options: Options,
    fleet: Fleet,
    books: Books,
    plan: Plan,
    history: History,
    problems: Vec<String>,
    /// Calls that had not ended well when a server was killed.
    lost_before_kill: Option<u64>,
    /// The server that may end now.
    leaving: Option<u16>,
    /// The server that is stopped as a whole.
    frozen: Option<u16>,
    /// Whether the registry is stopped: then a server rightly says that its registration may be left.
    is_held_back: bool,
    meter: Meter,
    shown: Timestamp,
    onlooker: &'a mut dyn Onlooker,
}

impl<'a> Lab<'a> {
    fn new(options: Options, fleet: Fleet, onlooker: &'a mut dyn Onlooker) -> Self {
        let plan = Plan {
            seed: options.seed,
            rate: options.rate,
            callers: options.callers,
            start_ns: 0,
            slow_link: options.slow_link,
        };
        let history = History {
            failover: options.failover,
            proxied: options.proxy.is_some(),
            ..History::default()
        };
        Self {
            options,
            fleet,
            books: Books::default(),
            plan,
            history,
            problems: Vec::new(),
            lost_before_kill: None,
            leaving: None,
            frozen: None,
            is_held_back: false,
            meter: Meter::default(),
            shown: Timestamp::ZERO,
            onlooker,
        }
    }

    async fn script(&mut self) -> Result<Outcome, LabError> {
        self.start().await?;
        let sentinel = doing(Sentinel::start(), "starting the sentinel")?;
        let disk = match self.options.registry {
            Registry::Etcd => Some(doing(
                Disk::start(self.fleet.directory()),
                "asking the disk",
            )?),
            _ => None,
        };
        match self.rolls().await {
            // Calls went on: what became of them is worth judging.
            Err(LabError::Stuck(what)) => self.problems.push(what),
            other => other?,
        }
        self.stop().await?;
        let stalls = disk.map(Disk::finish).unwrap_or_default();
        self.books.ledger.stalls.extend(stalls);
        self.judge(sentinel)
    }

    async fn rolls(&mut self) -> Result<(), LabError> {
        self.pause(START_AHEAD + WARM_UP, "warming up").await?;
        let mut rng = Rng::from_seed(self.options.seed);
        self.begin(Stage::Rolls);
        for _ in 0..self.options.rolls {
            for server in shuffled(self.options.servers, &mut rng) {
                self.roll(server).await?;
                self.pause(rng.between(SETTLE, 2 * SETTLE), "settling")
                    .await?;
            }
        }
        if self.options.proxy.is_some() {
            self.reload().await?;
        } else {
            let victim = rng.below(usize::from(self.options.servers)) as u16;
            self.begin(Stage::Kill);
            self.kill(victim).await?;
        }
        self.pause(2 * SETTLE, "settling").await?;
        if self.options.ordeals {
            self.ordeals(&mut rng).await?;
        }
        Ok(())
    }

    /// Has the proxy start anew, as after a change of its configuration. What a proxy makes of a killed
    /// server is its own, so none is killed behind one.
    async fn reload(&mut self) -> Result<(), LabError> {
        self.begin(Stage::Reload);
        for _ in 0..RELOADS {
            self.fleet.reload_proxy()?;
            self.pause(2 * SETTLE, "reloading the proxy").await?;
        }
        Ok(())
    }

    /// Brings everything up, and has the callers begin a moment from now.
    async fn start(&mut self) -> Result<(), LabError> {
        self.fleet.start_registry().await?;
        self.fleet.start_links()?;
        let servers = self.options.servers;
        for server in 0..servers {
            self.fleet.start_server(server, &mut self.books)?;
        }
        let born =
            |lab: &Self| (0..servers).all(|server| lab.books.ledger.newest(server).is_some());
        self.until(born, READY_MAX, "waiting for the servers")
            .await?;
        self.fleet.start_proxy().await?;
        self.fleet.start_callers(&self.plan, &mut self.books)?;
        let callers = self.options.callers;
        let places = match self.options.proxy {
            Some(_) => 1,
            None => usize::from(servers),
        };
        let found = |lab: &Self| {
            let ready = |caller| lab.books.ledger.ready_in(caller);
            (0..callers).all(|caller| ready(caller) >= places)
        };
        self.until(found, READY_MAX, "waiting for callers to find the servers")
            .await?;
        let start = clock::now() + START_AHEAD;
        self.plan.start_ns = start.as_nanos();
        self.history.stages.push((Stage::Quiet, start));
        self.fleet.go(start).await;
        Ok(())
    }

    fn begin(&mut self, stage: Stage) {
        self.history.stages.push((stage, clock::now()));
    }

    /// Tells a server to leave, waits until it has, and starts its successor in its place.
    async fn roll(&mut self, server: u16) -> Result<(), LabError> {
        self.leave(server).await?;
        self.succeed(server).await
    }

    /// Tells a server to leave, and waits until it has.
    async fn leave(&mut self, server: u16) -> Result<(), LabError> {
        let life = self.life_of(server)?;
        self.leaving = Some(server);
        let signalled = self.fleet.signal(server, Signal::TERM)?;
        let (exited, code) = self.await_exit(server, life).await?;
        let drain = Drain {
            server,
            life,
            signalled,
            exited,
        };
        if code == Some(INCOMPLETE) && !self.is_held_back {
            self.history.incomplete.push(drain.clone());
        }
        self.history.drains.push(drain);
        Ok(())
    }

    /// Kills a server without a word, and starts its successor in its place.
    async fn kill(&mut self, server: u16) -> Result<(), LabError> {
        let life = self.life_of(server)?;
        self.leaving = Some(server);
        self.lost_before_kill = Some(self.books.ledger.ended.1);
        let at = self.fleet.signal(server, Signal::KILL)?;
        self.history.kills.push(Kill { server, life, at });
        while self.fleet.wait(server, TICK).await?.is_none() {
            self.look(&format!("killing server {server}"))?;
        }
        self.succeed(server).await
    }

    /// When the process was gone, and with which code; one that does not go is killed, and that is a
    /// problem. Another one is a code that is neither 0 nor that of a registration that may be left.
    async fn await_exit(
        &mut self,
        server: u16,
        life: Life,
    ) -> Result<(Timestamp, Option<i32>), LabError> {
        let mut most = clock::now() + EXIT_MAX;
        let doing = format!("rolling server {server}");
        loop {
            if let Some(status) = self.fleet.wait(server, TICK).await? {
                let exited = clock::now();
                let code = status.code();
                if !status.success() && code != Some(INCOMPLETE) {
                    let problem = format!("server {server} (life {life}) ended with {status}");
                    self.problems.push(problem);
                }
                return Ok((exited, code));
            }
            self.look(&doing)?;
            if clock::now() > most {
                self.fleet.signal(server, Signal::KILL)?;
                let seconds = EXIT_MAX.as_secs();
                let problem =
                    format!("server {server} (life {life}) was not gone after {seconds} s");
                self.problems.push(problem);
                most = Timestamp::MAX;
            }
        }
    }

    /// Starts the next life of `server`, and waits until every caller uses it, or the proxy does.
    async fn succeed(&mut self, server: u16) -> Result<(), LabError> {
        let started = self.start_anew(server)?;
        self.until_used(server, started).await
    }

    /// Starts the next life of `server`; tells when.
    fn start_anew(&mut self, server: u16) -> Result<Timestamp, LabError> {
        self.fleet.bury(server, &mut self.books)?;
        let started = clock::now();
        self.fleet.start_server(server, &mut self.books)?;
        self.leaving = None;
        Ok(started)
    }

    async fn until_used(&mut self, server: u16, started: Timestamp) -> Result<(), LabError> {
        // Which caller's calls a proxy passes on to one server is the proxy's affair.
        let users = match self.options.proxy {
            Some(_) => 1,
            None => usize::from(self.options.callers),
        };
        let used = |lab: &Self| {
            let newest = lab.books.ledger.newest(server);
            newest.is_some_and(|(_, account)| {
                account.born >= started && account.first_used.len() >= users
            })
        };
        let doing = format!("waiting until server {server} is used");
        self.until(used, USED_MAX, &doing).await
    }

    async fn stop(&mut self) -> Result<(), LabError> {
        self.history.stopped = clock::now();
        // The last calls may take their whole deadline, whichever it is.
        let most = CALLER_STOP_MAX + self.plan.deadline().saturating_sub(DEADLINE);
        let hung = self.fleet.stop_callers(most).await?;
        self.problems.extend(hung);
        self.books.refresh()
    }

    fn judge(&mut self, sentinel: Sentinel) -> Result<Outcome, LabError> {
        let problems = std::mem::take(&mut self.problems);
        let (jitter, stalls) = sentinel.finish();
        self.books.ledger.stalls.extend(stalls);
        let ledger = &self.books.ledger;
        let mut report = Report::new(
            &self.options,
            ledger,
            &self.plan,
            &self.history,
            problems,
            jitter,
        );
        if self.options.proxy.is_some() {
            report.forget_choices();
        }
        if let Some(rule) = self.options.sabotage {
            report.expect_cost(rule, SABOTAGE_COST);
        }
        let mut lost: Vec<_> = report.faults.iter().map(|(id, _)| *id).collect();
        lost.dedup();
        lost.truncate(STORIES_MAX);
        let stories = if lost.is_empty() {
            Vec::new()
        } else {
            doing(
                stories(&lost, &self.books.paths),
                "reading the ledgers again",
            )?
        };
        let chart = if self.options.chart {
            let drawn = chart(&self.books, &self.plan, &self.history, &report);
            Some(doing(drawn, "reading the ledgers again")?)
        } else {
            None
        };
        Ok(Outcome {
            report,
            stories,
            chart,
        })
    }

    fn life_of(&self, server: u16) -> Result<Life, LabError> {
        let newest = self.books.ledger.newest(server).map(|(life, _)| life);
        newest.ok_or_else(|| LabError::Ledger(format!("server {server} never said its life")))
    }

    async fn pause(&mut self, time: Duration, doing: &str) -> Result<(), LabError> {
        let end = clock::now() + time;
        while clock::now() < end {
            tokio::time::sleep(TICK).await;
            self.look(doing)?;
        }
        Ok(())
    }

    /// Waits until `is_so`, at most `most`.
    async fn until(
        &mut self,
        is_so: impl Fn(&Self) -> bool,
        most: Duration,
        doing: &str,
    ) -> Result<(), LabError> {
        let end = clock::now() + most;
        while !is_so(self) {
            if clock::now() > end {
                let what = format!("{doing}: not within {} s", most.as_secs());
                return Err(LabError::Stuck(what));
            }
            tokio::time::sleep(TICK).await;
            self.look(doing)?;
        }
        Ok(())
    }

    /// Reads the ledgers, looks after the processes, and lets the onlooker see.
    fn look(&mut self, doing: &str) -> Result<(), LabError> {
        self.books.refresh()?;
        self.fleet.look_after(self.leaving)?;
        let now = clock::now();
        if now.saturating_since(self.shown) < SHOW_EVERY {
            return Ok(());
        }
        self.shown = now;
        self.meter.take(&self.books.ledger, now);
        let progress = self.progress(now, doing);
        self.onlooker.see(&progress);
        Ok(())
    }

    fn progress(&self, now: Timestamp, doing: &str) -> Progress {
        let rolls = u64::from(self.options.rolls) * u64::from(self.options.servers);
        let row = |(server, place): (u16, &super::fleet::Place)| Row {
            server,
            address: place.address,
            phase: self.phase(server),
            calls_per_second: self.meter.started(server),
            failed: self
                .books
                .ledger
                .failed_at
                .get(&server)
                .copied()
                .unwrap_or(0),
        };
        let failed = self.lost_before_kill.unwrap_or(self.books.ledger.ended.1);
        let start = self.plan.start();
        let is_started = start > Timestamp::ZERO;
        Progress {
            elapsed: if is_started {
                now.saturating_since(start)
            } else {
                Duration::ZERO
            },
            steps_done: (self.history.drains.len()
                + self.history.kills.len()
                + self.history.freezes.len()) as u64,
            steps: rolls + 1 + self.ordeals_planned(),
            calls_per_second: self.meter.ended(),
            failed,
            failed_since_kill: self.books.ledger.ended.1 - failed,
            rows: (0..).zip(&self.fleet.places).map(row).collect(),
            doing: doing.to_owned(),
        }
    }

    fn phase(&self, server: u16) -> String {
        if self.frozen == Some(server) {
            return "frozen".to_owned();
        }
        let newest = self.books.ledger.newest(server);
        match newest.map(|(_, account)| account.phase.as_str()) {
            None => "starting".to_owned(),
            Some("") => "serving".to_owned(),
            Some(phase) => phase.to_owned(),
        }
    }
}

/// How often a proxy starts anew: the second time upon connections that the first one has made.
const RELOADS: usize = 2;
const SHOW_EVERY: Duration = Duration::from_millis(100);

/// All servers, in an order that the generator gives.
fn shuffled(servers: u16, rng: &mut Rng) -> Vec<u16> {
    let mut order: Vec<u16> = (0..servers).collect();
    for position in (1..order.len()).rev() {
        order.swap(position, rng.below(position + 1));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_server_has_its_turn() {
        let mut rng = Rng::from_seed(3);
        let orders: BTreeSet<Vec<u16>> = (0..50).map(|_| shuffled(4, &mut rng)).collect();
        assert!(orders.len() > 10);
        for mut order in orders {
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3]);
        }
    }
}
