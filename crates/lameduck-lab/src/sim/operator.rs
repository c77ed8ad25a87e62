//! What the operator, and bad luck, do to a world.

use std::time::Duration;

use lameduck_core::instance::State;
use lameduck_core::time::Timestamp;

use super::caller::address;
use super::process::Process;
use super::scenario::{Act, Back};
use super::wire::{Due, Node, Record};
use super::world::World;

/// The operator acts on a slot only while another one has served for this long.
const STEADY: Duration = Duration::from_secs(2);
/// How long the operator waits otherwise.
const OPERATOR_WAITS: Duration = Duration::from_millis(500);
/// A broken connection is noticed on both sides by then.
const NOTICED: Duration = Duration::from_millis(100);

impl World {
    pub(super) fn start(&mut self, slot: usize) {
        let id = self.processes.len();
        let process = Process::start(id, slot, &self.scenario, &mut self.net);
        self.lives[slot].push(process.life());
        self.processes.push(process);
        self.slots[slot] = id;
        self.after(Node::Process(id));
    }

    pub(super) fn act(&mut self, index: usize) {
        let (_, act) = self.scenario.acts[index];
        let slot = match act {
            Act::Roll { slot }
            | Act::Kill { slot, .. }
            | Act::Pause { slot, .. }
            | Act::Hold { slot, .. }
            | Act::Break { slot }
            | Act::Flap { slot, .. }
            | Act::Age { slot } => Some(slot),
            _ => None,
        };
        if slot.is_some_and(|slot| !self.is_safe(slot)) {
            self.net.after(OPERATOR_WAITS, Due::Act { index });
            return;
        }
        self.net.note(format_args!("operator: {act:?}"));
        match act {
            Act::RegistryAway { length, back } => {
                self.registry.away = true;
                let until = self.net.now + length;
                self.registry.away_until = self.registry.away_until.max(until);
                self.registry.keeps = back == Back::LeasesKept;
                self.break_watches(None);
                self.net.after(length, Due::RegistryBack { back });
            }
            Act::RegistrySlow { length } => self.registry.slow_until = self.net.now + length,
            Act::LeasesEnd => {
                let all: Vec<_> = self.registry.store.leases().collect();
                for lease in all {
                    let _existed = self.registry.store.revoke(lease);
                }
                self.after_registry();
            }
            Act::Compact => {
                self.registry.compact();
                self.break_watches(None);
            }
            Act::WatchBreaks { caller } => self.break_watches(Some(caller)),
            Act::Replay { slot } => self.replay(slot),
            on_slot => self.act_on_slot(on_slot),
        }
    }

    fn act_on_slot(&mut self, act: Act) {
        let (net, oracle) = (&mut self.net, &mut self.oracle);
        let id = match act {
            Act::Roll { slot } => {
                let id = self.slots[slot];
                oracle.drains += 1;
                self.begins(id, true);
                self.processes[id].stop(&mut self.net);
                id
            }
            Act::Hold { slot, length } => {
                let id = self.slots[slot];
                self.begins(id, false);
                self.processes[id].hold(&mut self.net);
                self.net.after(length, Due::Resume { process: id });
                id
            }
            Act::Kill {
                slot,
                restart_after,
            } => {
                let id = self.slots[slot];
                oracle.harm(id, net.now, Timestamp::MAX);
                self.processes[id].kill(net);
                net.after(restart_after, Due::Start { slot });
                id
            }
            Act::Pause { slot, length } => {
                let id = self.slots[slot];
                oracle.harm(id, net.now, net.now + length);
                self.processes[id].paused_until = net.now + length;
                id
            }
            Act::Break { slot } => {
                let id = self.slots[slot];
                // Until the callers have noticed, they place calls on what is broken.
                oracle.harm(id, net.now, net.now + NOTICED);
                self.processes[id].break_connections(net);
                id
            }
            Act::Flap { slot, length } => {
                let id = self.slots[slot];
                oracle.harm(id, net.now, net.now + length + NOTICED);
                self.processes[id].flaps_until = net.now + length;
                self.processes[id].break_connections(net);
                id
            }
            Act::Age { slot } => {
                let id = self.slots[slot];
                self.processes[id].age(net);
                id
            }
            Act::Freeze { slot, length } => self.freeze(slot, length),
            Act::Again { slot } => {
                let id = self.slots[slot];
                if self.processes[id].alive && !self.processes[id].is_serving() {
                    self.begins(id, true);
                    self.processes[id].stop(&mut self.net);
                }
                id
            }
            _ => return,
        };
        if !matches!(act, Act::Roll { .. } | Act::Hold { .. } | Act::Again { .. }) {
            self.disturbed.insert(id, self.net.now);
        }
        self.after(Node::Process(id));
    }

    /// A process that is leaving stops running for a while.
    fn freeze(&mut self, slot: usize, length: Duration) -> usize {
        let (id, until) = (self.slots[slot], self.net.now + length);
        let process = &mut self.processes[id];
        if process.alive && !process.is_serving() {
            self.oracle.harm(id, self.net.now, until);
            // Frozen already, it goes on when the longer freeze is over.
            process.paused_until = process.paused_until.max(until);
        }
        id
    }

    /// As any rolling update does: only one at a time is disturbed, and only while others are well.
    fn is_safe(&self, slot: usize) -> bool {
        let registered = self.registry.registered();
        (0..self.scenario.servers)
            .filter(|other| *other != slot)
            .all(|other| {
                let process = &self.processes[self.slots[other]];
                let steady = process
                    .serving_since
                    .is_some_and(|since| since + STEADY <= self.net.now);
                let life = process.life();
                let listed = registered.iter().any(|(_, one)| one.life == life);
                process.is_serving()
                    && listed
                    && steady
                    && process.paused_until + STEADY <= self.net.now
            })
            && self.processes[self.slots[slot]].is_serving()
    }

    fn replay(&mut self, slot: usize) {
        let earlier = self.lives[slot]
            .len()
            .checked_sub(2)
            .map(|index| self.lives[slot][index]);
        if let Some(life) = earlier {
            let record = Record {
                slot,
                life,
                state: State::Serving,
                ready: true,
            };
            self.net.note(format_args!(
                "late data: {} is registered as {life}",
                address(slot)
            ));
            self.registry.replay(self.net.now, record);
            self.after_registry();
        }
    }
}
