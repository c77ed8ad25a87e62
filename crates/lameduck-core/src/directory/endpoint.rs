//! One endpoint of a directory, and its place in the order of choice.

use alloc::collections::BTreeSet;

use crate::event::Tier;
use crate::instance::Incarnation;
use crate::mutant;
use crate::name::Address;
use crate::registry::EntryId;

/// One life at one address, as well as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) address: Address,
    pub(super) incarnation: Incarnation,
    /// The registrations that stand for it.
    pub(super) listings: BTreeSet<EntryId>,
    /// It has a usable connection.
    pub(super) up: bool,
    /// It had one at some time.
    pub(super) was_up: bool,
    /// What its health says; `None` until it has said anything.
    pub(super) serving: Option<bool>,
    /// Somebody who does not serve this service answers there.
    pub(super) wrong: bool,
    /// It is dialled again where its connection ends.
    pub(super) dialling: bool,
    pub(super) tier: Tier,
}

impl Endpoint {
    pub(super) const fn new(address: Address, incarnation: Incarnation) -> Self {
        Self {
            address,
            incarnation,
            listings: BTreeSet::new(),
            up: false,
            was_up: false,
            serving: None,
            wrong: false,
            dialling: true,
            tier: Tier::Out,
        }
    }

    /// Where it stands. Closing comes before not-ready: a closing instance says NOT_SERVING too,
    /// and still serves; what is merely not ready may not.
    pub(super) fn tier(&self, closing: bool, listed: bool, wants_calls: bool) -> Tier {
        if !self.up || self.wrong {
            return Tier::Out;
        }
        if closing && !mutant!("directory/closing-leaves-tier-1") {
            return Tier::LastResort;
        }
        if self.serving == Some(false) && !mutant!("directory/not-serving-is-out") {
            return Tier::Out;
        }
        match (listed, wants_calls) {
            (false, _) => Tier::LastResort,
            (true, false) => Tier::Out,
            (true, true) => Tier::Ready,
        }
    }
}
