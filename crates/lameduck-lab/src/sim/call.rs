//! One call of a simulated caller: picked, placed, perhaps placed again.

use std::time::Duration;

use lameduck_core::balance::p2c;
use lameduck_core::directory::{EndpointId, Member};
use lameduck_core::endpoint;
use lameduck_core::event::Tier;
use lameduck_core::failover::Proof;
use lameduck_core::failover::attempt::{Attempts, Decision, Failure, Policy};
use lameduck_core::machine::Ticket;

use super::caller::{Caller, Inner, Place};
use super::net::Net;
use super::oracle::{Fate, Oracle};
use super::wire::{CallId, ConnId, Due, Frame};

/// A call must be answered within this time.
const DEADLINE: Duration = Duration::from_secs(2);
/// Where nothing is usable, it is looked again after this.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The call.
pub(super) struct Call {
    idempotent: bool,
    work: Duration,
    attempts: Attempts,
    refused_by: Vec<EndpointId>,
    tried: Vec<EndpointId>,
    at: Option<EndpointId>,
}

impl Caller {
    pub(super) fn make(&mut self, net: &mut Net, oracle: &mut Oracle, id: CallId) {
        let idempotent = self.rng.below(2) == 1;
        let work = self
            .rng
            .between(Duration::from_millis(2), Duration::from_millis(300));
        let deadline = net.now + DEADLINE;
        let call = Call {
            idempotent,
            work,
            attempts: Attempts::new(),
            refused_by: Vec::new(),
            tried: Vec::new(),
            at: None,
        };
        self.calls.insert(id, call);
        self.budget.deposit(net.now);
        oracle.made(net.now, id, idempotent);
        net.at(
            deadline,
            Due::Deadline {
                caller: self.index,
                call: id,
            },
        );
        self.place_call(net, oracle, id);
    }

    /// Places a call that is nowhere. `None` where nothing is usable now.
    pub(super) fn place_call(
        &mut self,
        net: &mut Net,
        oracle: &mut Oracle,
        id: CallId,
    ) -> Option<ConnId> {
        let bits = self.rng.next_u64();
        let call = self.calls.get(&id)?;
        if call.at.is_some() {
            return None;
        }
        let Some((endpoint, ticket)) = self.pick(oracle, id, &call.tried, bits) else {
            self.want_instance();
            self.run(net, oracle);
            net.after(
                LOOK_AGAIN,
                Due::Place {
                    caller: self.index,
                    call: id,
                },
            );
            return None;
        };
        let call = self.calls.get_mut(&id)?;
        call.at = Some(endpoint);
        call.tried.push(endpoint);
        let work = call.work;
        let connection = self.connection(Place { endpoint, ticket })?;
        let stream = connection.next_stream;
        connection.next_stream += 2;
        connection.open.insert(id, stream);
        let conn = connection.id;
        net.frame(
            conn,
            true,
            Frame::Request {
                call: id,
                stream,
                work,
            },
        );
        Some(conn)
    }

    /// A call that finds nothing is a reason to dial.
    fn want_instance(&mut self) {
        let ids = self.peers.keys().copied();
        let wanted = ids.map(|id| Inner::Endpoint(id, endpoint::Input::Wanted));
        self.inbox.extend(wanted);
    }

    /// Tier by tier; one that was tried before only where there is nobody else.
    fn pick(
        &self,
        oracle: &mut Oracle,
        call: CallId,
        tried: &[EndpointId],
        bits: u64,
    ) -> Option<(EndpointId, Ticket)> {
        let members = &self.snapshot.members;
        let ready: Vec<&Member> = members
            .iter()
            .filter(|m| self.is_choice(m, Tier::Ready))
            .collect();
        let last: Vec<&Member> = members
            .iter()
            .filter(|m| {
                self.is_choice(m, Tier::LastResort)
                    || (m.tier == Tier::Ready
                        && self.is_flagged(m.endpoint)
                        && self.usable(m.endpoint).is_some())
            })
            .collect();
        let fresh = |tier: &[&Member]| tier.iter().any(|m| !tried.contains(&m.endpoint));
        let tiers: [(&[&Member], bool); 3] = [(&ready, true), (&last, true), (&ready, false)];
        let chosen = tiers
            .iter()
            .find(|(tier, only_fresh)| !tier.is_empty() && (!only_fresh || fresh(tier)));
        let (tier, only_fresh) = chosen
            .copied()
            .or((!last.is_empty()).then_some((&last[..], false)))?;
        let load = |position: usize| {
            let member = tier[position];
            let skip = only_fresh && tried.contains(&member.endpoint);
            let open = self
                .peers
                .get(&member.endpoint)?
                .connections
                .values()
                .map(|c| c.open.len() as u64);
            (!skip).then(|| open.sum())
        };
        let member = tier[p2c(bits, tier.len(), load)?];
        let life = member.incarnation;
        let stones = self.directory.machine().tombstones();
        let closed = stones.hides(life) || self.naive.is_closed(life);
        oracle.picked(call, member.incarnation, closed, member.tier, fresh(&ready));
        Some((member.endpoint, self.usable(member.endpoint)?))
    }

    fn is_choice(&self, member: &Member, tier: Tier) -> bool {
        let flagged = self.is_flagged(member.endpoint) && tier == Tier::Ready;
        member.tier == tier && !flagged && self.usable(member.endpoint).is_some()
    }

    fn is_flagged(&self, endpoint: EndpointId) -> bool {
        self.peers
            .get(&endpoint)
            .is_some_and(|peer| peer.withheld.is_some())
    }

    fn usable(&self, endpoint: EndpointId) -> Option<Ticket> {
        let connections = &self.peers.get(&endpoint)?.connections;
        connections
            .iter()
            .find(|(_, connection)| connection.usable)
            .map(|(ticket, _)| *ticket)
    }

    pub(super) fn answered(
        &mut self,
        net: &mut Net,
        oracle: &mut Oracle,
        conn: ConnId,
        frame: Frame,
    ) {
        let Some(place) = self.place(conn) else {
            return;
        };
        let (id, result) = match frame {
            Frame::Answer { call, marks } => {
                self.marks(net, place, marks);
                (call, None)
            }
            Frame::Refused { call, marks } => {
                let believed = self.marks(net, place, marks);
                let proof = if believed {
                    Proof::NotProcessed
                } else {
                    Proof::Unknown
                };
                (call, Some(proof))
            }
            Frame::Reset { call } => (call, Some(Proof::Unknown)),
            _ => return,
        };
        let known = self
            .connection(place)
            .is_some_and(|c| c.open.remove(&id).is_some());
        if result.is_none() {
            let served = endpoint::Input::Served(place.ticket);
            self.inbox
                .push_back(Inner::Endpoint(place.endpoint, served));
        }
        self.idle(net, place);
        self.run(net, oracle);
        if !known || !self.calls.contains_key(&id) {
            return;
        }
        match result {
            None => self.end(net, oracle, id, Fate::Answered),
            Some(proof) => self.fail(net, oracle, id, proof),
        }
    }

    /// The connection that a call is on.
    pub(super) fn connection_of(&self, id: CallId) -> Option<ConnId> {
        let peer = self.peers.get(&self.calls.get(&id)?.at?)?;
        peer.connections
            .values()
            .find(|one| one.open.contains_key(&id))
            .map(|one| one.id)
    }

    /// One attempt failed.
    pub(super) fn fail(&mut self, net: &mut Net, oracle: &mut Oracle, id: CallId, proof: Proof) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        let at = call.at.take();
        let before = at.is_some_and(|at| call.refused_by.contains(&at));
        if proof == Proof::NotProcessed {
            call.refused_by.extend(at);
        }
        let policy = Policy {
            idempotent: call.idempotent,
            failover: self.failover,
            ..Policy::default()
        };
        let failure = Failure {
            proof,
            own_fault: false,
            replayable: true,
            refused_here_before: before,
        };
        let budget = &mut self.budget;
        let decision = call
            .attempts
            .after_failure(&policy, failure, || budget.withdraw(net.now));
        net.note(format_args!(
            "caller {}: call {} failed ({proof:?}), {decision:?}",
            self.index, id.0
        ));
        match decision {
            Decision::Again { .. } => {
                let place = Due::Place {
                    caller: self.index,
                    call: id,
                };
                net.after(Duration::ZERO, place);
            }
            Decision::Fail(_) => self.end(net, oracle, id, Fate::Failed(proof)),
        }
    }

    pub(super) fn too_late(&mut self, net: &mut Net, oracle: &mut Oracle, id: CallId) {
        let Some(call) = self.calls.get(&id) else {
            return;
        };
        let fate = if call.at.is_some() {
            Fate::TooLate
        } else {
            Fate::NoEndpoint
        };
        if let Some(peer) = call.at.and_then(|at| self.peers.get_mut(&at)) {
            for connection in peer.connections.values_mut() {
                connection.open.remove(&id);
            }
        }
        self.end(net, oracle, id, fate);
    }

    fn end(&mut self, net: &mut Net, oracle: &mut Oracle, id: CallId, fate: Fate) {
        self.calls.remove(&id);
        if fate != Fate::Answered {
            net.note(format_args!(
                "caller {}: call {} ended: {fate:?}",
                self.index, id.0
            ));
        }
        oracle.ended(net.now, id, fate);
    }
}
