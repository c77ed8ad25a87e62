//! What a run does to its servers and its registry beside rolls and the kill, where it is asked to.

use lameduck_core::rng::Rng;
use lameduck_core::time::Timestamp;
use rustix::process::Signal;

use super::super::clock;
use super::super::error::LabError;
use super::super::limits::{FROZEN, HELD_BACK, SETTLE};
use super::super::options::Registry;
use super::super::oracle::Freeze;
use super::super::stages::Stage;
use super::Lab;

impl Lab<'_> {
    /// All of them, each at a server that the generator names.
    pub(super) async fn ordeals(&mut self, rng: &mut Rng) -> Result<(), LabError> {
        let mut victim = || rng.below(usize::from(self.options.servers)) as u16;
        let (frozen, rolled) = (victim(), victim());
        self.begin(Stage::Freeze);
        self.freeze(frozen).await?;
        // The last frozen calls are lost only at their deadline.
        self.pause(self.plan.deadline() + SETTLE, "settling")
            .await?;
        if self.has_own_registry() {
            self.begin(Stage::LateRegistry);
            self.roll_unseen(rolled).await?;
            self.pause(2 * SETTLE, "settling").await?;
        }
        Ok(())
    }

    /// How many steps they are.
    pub(super) fn ordeals_planned(&self) -> u64 {
        match (self.options.ordeals, self.has_own_registry()) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 2,
        }
    }

    /// Whether the registry may be stopped: nobody else uses it.
    const fn has_own_registry(&self) -> bool {
        matches!(
            self.options.registry,
            Registry::Development | Registry::Etcd
        )
    }

    /// Stops a server as a whole, and lets it go on after a while, as a paused virtual machine would.
    async fn freeze(&mut self, server: u16) -> Result<(), LabError> {
        let life = self.life_of(server)?;
        let at = self.fleet.signal(server, Signal::STOP)?;
        self.frozen = Some(server);
        let what = format!("server {server} is frozen");
        let paused = self.pause(FROZEN, &what).await;
        let thawed = self.fleet.signal(server, Signal::CONT)?;
        self.frozen = None;
        self.history.freezes.push(Freeze {
            server,
            life,
            at,
            thawed,
        });
        paused
    }

    /// Rolls a server while the registry is stopped as a whole, so that callers hear from it too late.
    async fn roll_unseen(&mut self, server: u16) -> Result<(), LabError> {
        let begun = clock::now();
        self.fleet.hold_registry_back()?;
        self.is_held_back = true;
        let rolled = self.roll_while_held_back(server, begun).await;
        self.is_held_back = false;
        self.fleet.let_registry_go()?;
        self.until_used(server, rolled?).await
    }

    async fn roll_while_held_back(
        &mut self,
        server: u16,
        begun: Timestamp,
    ) -> Result<Timestamp, LabError> {
        self.leave(server).await?;
        let started = self.start_anew(server)?;
        let rest = (begun + HELD_BACK).saturating_since(clock::now());
        self.pause(rest, "the registry is held back").await?;
        Ok(started)
    }
}
