//! Every observable fact, as data. Logs, metrics and the lab's ledger derive from these.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::drain::Report;
use crate::instance::{Incarnation, Life};
use crate::name::{Address, ServiceName};
use crate::registry::Want;

/// The phases of a serving process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Not serving yet.
    #[default]
    Starting,
    /// Serving, published.
    Serving,
    /// Announced as leaving; still serves everything that arrives.
    Closing,
    /// Refuses what is new; finishes what is in flight.
    Draining,
    /// All done; the process may exit.
    Stopped,
}

impl Phase {
    /// Its name in lower case, as the status page shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Closing => "closing",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
        }
    }
}

/// Where in the order of choice an endpoint stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Connected, serving, wanted.
    Ready,
    /// Closing or unlisted, but it still serves: used where nothing is ready.
    LastResort,
    /// Never chosen: no connection, refusing, or not ready.
    Out,
}

/// What a closing statement came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClosingSource {
    /// An in-band mark on an answer of that life.
    Mark,
    /// The registry says `closing`.
    Registry,
    /// NOT_SERVING, followed by the peer's own end of the Watch or the connection.
    Health,
}

/// One fact. Grows; match with a wildcard.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A serving process entered a phase.
    PhaseEntered {
        /// Its life.
        life: Life,
        /// The phase.
        phase: Phase,
    },
    /// A serving process accepts connections.
    Listening {
        /// Its services.
        services: Vec<ServiceName>,
        /// Where.
        address: Address,
    },
    /// A serving process takes no further connections for now: those that come wait in the kernel's
    /// queue. Said once, however often it is tried meanwhile.
    AcceptPaused {
        /// Where.
        address: Address,
        /// Why: what the system says, or which bound is reached.
        why: String,
    },
    /// It takes connections again, and has for [`limits::ACCEPT_SETTLED`](crate::limits::ACCEPT_SETTLED).
    AcceptResumed {
        /// Where.
        address: Address,
        /// Since the pause was said.
        after: Duration,
    },
    /// Requests of a client are refused (their streams are reset), since their `:authority` is none, and
    /// none that means the same to HTTP can be put in its place. Said once a host.
    AuthorityRefused {
        /// The client.
        remote: Address,
        /// What it sent.
        authority: String,
    },
    /// A server ended a client's HTTP/2 connection: it gave up too many calls before their answers began
    /// ([`limits::RAPID_RESETS_MAX`](crate::limits::RAPID_RESETS_MAX)). Said once of each host.
    TooManyResets {
        /// The client.
        remote: Address,
    },
    /// A program advertises a loopback address in a registry that is elsewhere: only callers on this
    /// machine reach it. Said once.
    AdvertisedLoopback {
        /// The registry, or the first of them, as its target says.
        registry: String,
        /// What is published.
        address: Address,
    },
    /// A registry confirmed a wanted state, or failed to.
    Registration {
        /// Which registry, as its target says.
        registry: String,
        /// The address that is published there.
        address: Address,
        /// What was wanted.
        want: Want,
        /// What is in the way; `None` where it is reached.
        error: Option<String>,
    },
    /// A process leaves a registry that never confirmed it: nothing of it has to be taken back there, and
    /// nobody found it by that registry, as far as is known. Said once, in place of a confirmation.
    NeverRegistered {
        /// Which registry, as its target says.
        registry: String,
        /// What was in the way last, where that is known.
        error: Option<String>,
    },
    /// A registry takes the address alone: callers there learn of a stop, but not of lives.
    MetadataDenied {
        /// Which registry, as its target says.
        registry: String,
    },
    /// A directory's registry cannot be read; what is known is kept.
    DirectoryStale {
        /// Which directory.
        service: Option<ServiceName>,
        /// What the registry said.
        error: String,
    },
    /// It can be read again, or for the first time since that was said.
    DirectoryLive {
        /// Which directory.
        service: Option<ServiceName>,
        /// Since it was said to be stale.
        after: Duration,
    },
    /// A value in a directory's registry is no instance, and is left out; nothing else changes.
    RecordSkipped {
        /// Which directory.
        service: Option<ServiceName>,
        /// The key, what it holds, and what is wrong with that.
        what: String,
    },
    /// A closing statement was taken: this life is not chosen from here on while others are ready.
    Closing {
        /// Its address.
        address: Address,
        /// Which life.
        incarnation: Incarnation,
        /// What said so.
        source: ClosingSource,
    },
    /// A closing statement was taken back by the life itself, or proved wrong.
    ClosingLifted {
        /// Its address.
        address: Address,
        /// Which life.
        incarnation: Incarnation,
    },
    /// An endpoint moved in the order of choice.
    TierChanged {
        /// Its address.
        address: Address,
        /// Which life.
        incarnation: Incarnation,
        /// Where it stands now.
        tier: Tier,
    },
    /// An endpoint was chosen for a call. Only made where an observer asks for it.
    Picked {
        /// Its address.
        address: Address,
        /// Which life.
        incarnation: Incarnation,
        /// From which tier.
        tier: Tier,
    },
    /// A call was placed once more.
    Replaced {
        /// Where it had been placed before.
        address: Address,
        /// Whether it provably had not been processed there.
        proven: bool,
    },
    /// A connection to an endpoint ended.
    Disconnected {
        /// Its address.
        address: Address,
        /// Why.
        reason: String,
    },
    /// An instance that is listed, and has not said that it leaves, cannot be reached: it died, hangs,
    /// or is cut off. Said once, however often it is dialled meanwhile.
    Unreachable {
        /// Whose directory misses it.
        service: Option<ServiceName>,
        /// Its address.
        address: Address,
        /// Which life.
        incarnation: Incarnation,
        /// What the dial met.
        error: String,
    },
    /// That is over.
    UnreachableEnded {
        /// Whose directory missed it.
        service: Option<ServiceName>,
        /// Its address.
        address: Address,
        /// Which life.
        incarnation: Incarnation,
        /// Since the first dial that failed.
        after: Duration,
        /// Whether it was reached. If not, it is not listed any more, or nobody asks for it.
        reached: bool,
    },
    /// At an address that is listed for a service answers an instance that says that it serves others, as
    /// where a registration is mistaken or two programs use one port. It gets no calls. Said once, until
    /// it says something else.
    WrongService {
        /// Whose directory lists it.
        service: Option<ServiceName>,
        /// Its address.
        address: Address,
        /// The services that it names, separated by commas.
        serves: String,
    },
    /// Two lives have been registered at one address for
    /// [`limits::CLAIM_TOLD_AFTER`](crate::limits::CLAIM_TOLD_AFTER): two programs advertise it, or
    /// something keeps a registration alive whose program has gone. Whoever answers there gets the calls.
    /// Said once, until other lives claim it.
    AddressClaimed {
        /// Whose directory lists both.
        service: Option<ServiceName>,
        /// The address.
        address: Address,
        /// The two that were registered first.
        lives: [Incarnation; 2],
    },
    /// An instance does not let its health be asked (any code but UNAVAILABLE, UNIMPLEMENTED and
    /// NOT_FOUND, before it gave a status): it is used as one without a health service. Said once of the
    /// instances of a directory.
    HealthRefused {
        /// Whose directory.
        service: Option<ServiceName>,
        /// Its address.
        address: Address,
        /// The code and the text of the refusal.
        error: String,
    },
    /// Calls wait, since the streams of all instances are in use. Said at most once in
    /// [`limits::STREAMS_TOLD_INTERVAL`](crate::limits::STREAMS_TOLD_INTERVAL).
    StreamsUsedUp {
        /// Whose directory.
        service: Option<ServiceName>,
        /// How many there are, and whose bound that is.
        why: String,
    },
    /// Dials fail for want of descriptors, or stop before the last of them are taken. Said once; no
    /// instance counts as unreachable for it.
    DescriptorsShort {
        /// What was met.
        error: String,
    },
    /// That is over.
    DescriptorsFree {
        /// Since it was said.
        after: Duration,
    },
    /// The floor of Closing that the registries ask for does not fit into the budget of a stop.
    FloorClamped {
        /// What was asked for.
        wanted: Duration,
        /// What fits.
        floor: Duration,
    },
    /// A stop will not wait for callers to learn of it: floor and quiet window are zero.
    NoClosing {
        /// Whose stop.
        life: Life,
    },
    /// A serving process has stopped.
    Stopped(Report),
}
