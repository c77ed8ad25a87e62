//! Who answers on a connection, as far as it has said: the sender of in-band marks.

use std::cmp::Ordering;

use lameduck_core::instance::{Incarnation, Life};

/// Who answers on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speaker {
    /// Nothing was said: the registry's word counts.
    #[default]
    Unnamed,
    /// This life.
    Named {
        /// Which.
        life: Life,
        /// Whether it has said that it is closing.
        closing: bool,
    },
    /// More than one life: a proxy is between, whose marks are somebody else's.
    Several,
}

impl Speaker {
    /// Who it is once `life` has named itself; `None` where that is nothing new.
    #[must_use]
    pub fn named(self, life: Life) -> Option<Self> {
        let named = Self::Named {
            life,
            closing: false,
        };
        match self {
            Self::Unnamed => Some(named),
            Self::Several => None,
            Self::Named { life: known, .. } => match known.order(life) {
                // A Resume.
                Some(Ordering::Less) => Some(named),
                // The same, or an answer from before the Resume.
                Some(_) => None,
                None => Some(Self::Several),
            },
        }
    }

    /// Whether a mark that names `life` is a statement of who was dialled here.
    #[must_use]
    pub fn is_believed(self, life: Life, dialled: Incarnation) -> bool {
        match self {
            Self::Named { life: named, .. } => named == life,
            Self::Unnamed => dialled == Incarnation::Life(life),
            Self::Several => false,
        }
    }

    /// Who it is once `life`, which is believed, has said that it is closing.
    #[must_use]
    pub const fn closing(life: Life) -> Self {
        Self::Named {
            life,
            closing: true,
        }
    }

    /// Whether it has said that it is closing.
    #[must_use]
    pub const fn has_said_closing(self) -> bool {
        matches!(self, Self::Named { closing: true, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lameduck_core::instance::BootId;

    #[test]
    fn who_answers_on_a_connection() {
        let first = Life::first(BootId::from_bits(1));
        let other = Life::first(BootId::from_bits(2));
        let named = |life, closing| Speaker::Named { life, closing };
        let cases = [
            (Speaker::Unnamed, first, Some(named(first, false))),
            (named(first, true), first, None),
            (
                named(first, true),
                first.resumed(),
                Some(named(first.resumed(), false)),
            ),
            (named(first.resumed(), false), first, None),
            (named(first, false), other, Some(Speaker::Several)),
            (Speaker::Several, first, None),
        ];
        for (before, life, after) in cases {
            assert_eq!(before.named(life), after, "{before:?} {life}");
        }
    }
}
