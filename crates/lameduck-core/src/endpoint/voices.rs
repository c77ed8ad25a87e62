//! What the peers of one endpoint's connections have said, each on its own connection.
//!
//! Behind one address may stand several servers: a virtual IP, a Service, a host name, a proxy. What one
//! of them says holds for the connection it said it on, and ends with it. The endpoint is what its
//! connections say together: it serves where any of them does.

use alloc::collections::BTreeMap;

use crate::instance::Life;
use crate::machine::Ticket;
use crate::mutant;

/// What one peer has said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Voice {
    /// Whether it serves; `None` until it has said so.
    serving: Option<bool>,
    /// Which life it is, and whether it serves the service that is wanted.
    named: Option<(Life, bool)>,
    /// Whether its life is closing.
    closing: bool,
}

impl Voice {
    fn is_good(self) -> bool {
        let right = self.named.is_none_or(|(_, right)| right);
        self.serving != Some(false) && !self.closing && right
    }

    /// What makes one life a better name for the endpoint than another.
    fn rank(self) -> (bool, bool, bool) {
        let right = self.named.is_some_and(|(_, right)| right);
        (right, !self.closing, self.serving != Some(false))
    }
}

/// The voices of an endpoint's connections that may take calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Voices {
    all: BTreeMap<Ticket, Voice>,
    /// What the directory knows of it.
    serving: Option<bool>,
    named: Option<(Life, bool)>,
}

impl Voices {
    /// A connection that may be heard from here on.
    pub(super) fn join(&mut self, ticket: Ticket) {
        self.all.insert(ticket, Voice::default());
    }

    /// A connection takes no calls any more: what it said ends with it.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        if !mutant!("endpoint/a-voice-ends-with-its-connection") {
            self.all.remove(&ticket);
        }
    }

    pub(super) fn serving(&mut self, ticket: Ticket, serving: bool) {
        if let Some(voice) = self.all.get_mut(&ticket) {
            voice.serving = Some(serving);
        }
    }

    /// The directory has been told the same already.
    pub(super) fn named(&mut self, ticket: Ticket, life: Life, right: bool) {
        if let Some(voice) = self.all.get_mut(&ticket) {
            voice.named = Some((life, right));
            voice.closing = false;
        }
        self.named = Some((life, right));
    }

    pub(super) fn closing(&mut self, ticket: Ticket) {
        if let Some(voice) = self.all.get_mut(&ticket) {
            voice.closing = true;
        }
    }

    #[cfg(test)]
    pub(super) fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.all.keys().copied()
    }

    /// Whether this peer has said nothing against being called.
    pub(super) fn is_good(&self, ticket: Ticket) -> bool {
        self.all.get(&ticket).is_none_or(|voice| voice.is_good())
    }

    /// Whether they serve, all together; what was known last where none has said anything.
    pub(super) fn together(&self) -> Option<bool> {
        let mut said = self.all.values().filter_map(|voice| voice.serving);
        if mutant!("endpoint/any-voice-serves") {
            return said.next_back().or(self.serving);
        }
        said.reduce(|any, one| any || one).or(self.serving)
    }

    /// What has changed of it since the last look.
    pub(super) fn serving_changed(&mut self) -> Option<bool> {
        let now = self.together();
        let before = core::mem::replace(&mut self.serving, now);
        now.filter(|_| before != now)
    }

    /// The life that the endpoint is from here on, where that is another than the directory knows.
    pub(super) fn name_changed(&mut self) -> Option<(Life, bool)> {
        let rank = |named: (Life, bool)| {
            let same = self.all.values().filter(|one| one.named == Some(named));
            same.map(|voice| voice.rank()).max()
        };
        let named = self.all.values().filter_map(|one| one.named);
        let best = named.max_by_key(|named| rank(*named))?;
        let known = self.named.and_then(rank);
        let better = known < rank(best) && !mutant!("endpoint/is-the-best-of-its-lives");
        if !better || self.named == Some(best) {
            return None;
        }
        self.named = Some(best);
        Some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::BootId;

    const FIRST: Ticket = Ticket::START.next();
    const SECOND: Ticket = FIRST.next();

    fn life(boot: u128) -> Life {
        Life::first(BootId::from_bits(boot))
    }

    /// Two servers behind one address, both serving, the second one heard last.
    fn two() -> Voices {
        let mut voices = Voices::default();
        for (ticket, boot) in [(FIRST, 1), (SECOND, 2)] {
            voices.join(ticket);
            voices.serving(ticket, true);
            voices.named(ticket, life(boot), true);
        }
        assert_eq!(voices.serving_changed(), Some(true));
        assert_eq!(voices.name_changed(), None);
        voices
    }

    #[test]
    fn r1_an_endpoint_serves_where_any_of_its_connections_does() {
        let mut voices = two();
        voices.serving(SECOND, false);
        assert_eq!(voices.serving_changed(), None);
        assert!(voices.is_good(FIRST) && !voices.is_good(SECOND));
        voices.serving(FIRST, false);
        assert_eq!(voices.serving_changed(), Some(false));
        voices.leave(SECOND);
        assert_eq!(voices.serving_changed(), None);
        // Nothing is known until the next one says something.
        voices.leave(FIRST);
        voices.join(SECOND);
        assert_eq!(voices.together(), Some(false));
        voices.serving(SECOND, true);
        assert_eq!(voices.serving_changed(), Some(true));
    }

    #[test]
    fn r1_what_was_said_ends_with_its_connection() {
        let mut voices = two();
        voices.serving(SECOND, false);
        voices.leave(FIRST);
        assert_eq!(voices.serving_changed(), Some(false));
        assert_eq!(voices.name_changed(), None, "it is the second one");
        let mut voices = two();
        voices.leave(SECOND);
        assert_eq!(voices.name_changed(), Some((life(1), true)));
    }

    #[test]
    fn r1_the_endpoint_is_a_life_that_is_not_closing() {
        let mut voices = two();
        voices.closing(SECOND);
        assert_eq!(voices.name_changed(), Some((life(1), true)));
        voices.closing(FIRST);
        assert_eq!(voices.name_changed(), None);
        // A Resume.
        voices.named(SECOND, life(2).resumed(), true);
        assert!(voices.is_good(SECOND));
        assert_eq!(voices.name_changed(), None);
    }

    #[test]
    fn r1_a_stranger_behind_the_address_is_passed_over() {
        let mut voices = two();
        voices.named(SECOND, life(3), false);
        assert!(!voices.is_good(SECOND));
        assert_eq!(voices.name_changed(), Some((life(1), true)));
    }
}
