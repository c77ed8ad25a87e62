//! Whose libraries a run's children stand on.

use serde::{Deserialize, Serialize};

/// What servers and callers are made of; the work, the schedule and the judge are the same for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Flavour {
    /// Lameduck on both sides.
    #[default]
    Lameduck,
    /// tonic's own server and balanced channel, as its documentation shows them: a fixed list of
    /// addresses, and a graceful shutdown on SIGTERM.
    Tonic,
    /// The same with what people add: the list follows the registry, a server leaves the registry
    /// and waits a second before it stops, and UNAVAILABLE is tried once more.
    TonicHardened,
}

impl Flavour {
    /// All, in the order of a comparison.
    pub const ALL: [Self; 3] = [Self::Lameduck, Self::Tonic, Self::TonicHardened];

    /// The name of its column.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lameduck => "lameduck",
            Self::Tonic => "tonic, as documented",
            Self::TonicHardened => "tonic, hardened",
        }
    }
}
