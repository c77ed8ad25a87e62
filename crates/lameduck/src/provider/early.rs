//! What a provider has before it is built: its handle, and the life that it will have.

use std::sync::{Arc, OnceLock};

use lameduck_core::drain::Input;
use lameduck_core::event::Phase;
use lameduck_core::instance::{BootId, Life};
use tokio::sync::{mpsc, watch};

use super::handle::{Commands, Handle, Shared, Status};
use super::readiness::Readiness;
use crate::cell::gate::Gate;
use crate::health::Health;

/// Made with the builder. Dropped before a provider has taken it, it ends what the handle shows.
pub(super) struct Early {
    shared: Arc<Shared>,
    inputs: Option<mpsc::UnboundedReceiver<Input>>,
    /// Why there is no random life.
    pub(super) random: Option<getrandom::Error>,
}

impl Default for Early {
    fn default() -> Self {
        let mut bits = [0; 16];
        let random = getrandom::fill(&mut bits).err();
        let (sender, inputs) = mpsc::unbounded_channel();
        let status = Status {
            phase: Phase::Starting,
            life: Life::first(BootId::from_bits(u128::from_ne_bytes(bits))),
            stopping: false,
        };
        Self {
            shared: Arc::new(Shared {
                commands: Commands::new(sender),
                status: watch::Sender::new(status),
                gate: Gate::new(),
                health: Health::new(),
                readiness: Readiness::default(),
                bound: OnceLock::new(),
            }),
            inputs: Some(inputs),
            random,
        }
    }
}

impl Early {
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn handle(&self) -> Handle {
        Handle {
            shared: Arc::clone(&self.shared),
        }
    }

    /// For the provider, which ends it from here on.
    pub(super) fn take(&mut self) -> mpsc::UnboundedReceiver<Input> {
        self.inputs.take().expect("a builder builds once")
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        if self.inputs.is_some() {
            self.shared.end();
        }
    }
}
