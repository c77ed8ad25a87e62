//! Who answers on a connection, as far as it has said: the sender of in-band marks.

use core::cmp::Ordering;

use crate::instance::{Incarnation, Life};

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

    /// What a mark of `life` that it is closing is worth, on a connection that was dialled as
    /// `dialled` and whose endpoint calls may be `withheld` from already.
    #[must_use]
    pub fn says_closing(self, life: Life, dialled: Incarnation, withheld: bool) -> Worth {
        let known = matches!(self, Self::Named { closing: true, .. });
        match self.is_believed(life, dialled) {
            false => Worth::Nothing,
            // Where calls are let in again nevertheless, it is said again.
            true if known && withheld => Worth::Known,
            true => Worth::News(Self::Named {
                life,
                closing: true,
            }),
        }
    }
}

/// What a statement is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worth {
    /// It is not about who was dialled.
    Nothing,
    /// It was said before, and holds.
    Known,
    /// It is to be told; this is who answers from here on.
    News(Speaker),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::BootId;

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

    #[test]
    fn what_a_closing_mark_is_worth() {
        let life = Life::first(BootId::from_bits(1));
        let other = Life::first(BootId::from_bits(2));
        let (said, silent) = (Incarnation::Life(life), Incarnation::Unknown);
        let named = |closing| Speaker::Named { life, closing };
        let news = Worth::News(named(true));
        let cases = [
            (Speaker::Unnamed, life, said, false, news),
            (Speaker::Unnamed, life, silent, false, Worth::Nothing),
            (named(false), life, silent, false, news),
            (named(false), other, silent, false, Worth::Nothing),
            (named(true), life, said, true, Worth::Known),
            (named(true), life, said, false, news),
            // Withheld for another reason: its health, or another connection's mark.
            (named(false), life, said, true, news),
            (Speaker::Several, life, said, false, Worth::Nothing),
        ];
        for (speaker, of, dialled, withheld, worth) in cases {
            let found = speaker.says_closing(of, dialled, withheld);
            assert_eq!(found, worth, "{speaker:?} {of} {dialled:?} {withheld}");
        }
    }
}
