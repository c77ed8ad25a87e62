//! The exact rule of choice: no caller picks a life after it took that life's closing statement,
//! while another is ready.
//!
//! A caller writes its statements, moves and picks in the order in which it made them, so the rule
//! needs no clock: only the order of lines in one file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use lameduck_core::event::Tier;
use lameduck_core::instance::Life;

use super::record::{Place, Record};

/// One caller's view, as its own lines tell it.
#[derive(Clone, Debug, Default)]
pub struct View {
    ready: BTreeMap<SocketAddr, Option<Life>>,
    closing: BTreeSet<Life>,
}

impl View {
    /// Takes the caller's next record. True where it breaks the rule.
    pub fn take(&mut self, record: &Record) -> bool {
        match record {
            Record::Moved { place, tier } => self.moved(*place, *tier),
            Record::Closing { place, .. } => self.closing.extend(place.life),
            Record::Lifted { place } => {
                self.closing.retain(|life| Some(*life) != place.life);
            }
            Record::Picked { place, .. } => return self.breaks(*place),
            _ => {}
        }
        false
    }

    /// How many endpoints stand in the first tier.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    fn moved(&mut self, place: Place, tier: Tier) {
        if tier == Tier::Ready {
            self.ready.insert(place.address, place.life);
        } else if self.ready.get(&place.address) == Some(&place.life) {
            self.ready.remove(&place.address);
        }
    }

    fn breaks(&self, place: Place) -> bool {
        let closing = |life: &Option<Life>| life.is_some_and(|life| self.closing.contains(&life));
        let another = || {
            let mut others = self.ready.iter();
            others.any(|(address, life)| *address != place.address && !closing(life))
        };
        closing(&place.life) && another()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lameduck_core::instance::BootId;

    fn place(port: u16, life: u128) -> Place {
        Place {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            life: Some(Life::first(BootId::from_bits(life))),
        }
    }

    fn ready(place: Place) -> Record {
        let tier = Tier::Ready;
        Record::Moved { place, tier }
    }

    fn out(place: Place) -> Record {
        let tier = Tier::Out;
        Record::Moved { place, tier }
    }

    fn closing(place: Place) -> Record {
        let source = "mark".to_owned();
        Record::Closing { place, source }
    }

    fn picked(place: Place) -> Record {
        Record::Picked {
            id: None,
            place,
            tier: Tier::Ready,
        }
    }

    fn check(records: &[Record], breaks: bool) {
        let mut view = View::default();
        let any = records.iter().filter(|record| view.take(record)).count();
        assert_eq!(any > 0, breaks, "{records:?}");
    }

    #[test]
    fn a_closing_life_is_not_picked_while_another_is_ready() {
        let (one, two, successor) = (place(1, 10), place(2, 20), place(1, 11));
        let both = [ready(one), ready(two)];
        let after = |more: &[Record]| [&both, more].concat();
        check(&after(&[picked(one)]), false);
        check(&after(&[picked(one), closing(one)]), false);
        check(&after(&[closing(one), picked(two)]), false);
        check(&after(&[closing(one), picked(one)]), true);
        check(&after(&[closing(one), out(two), picked(one)]), false);
        check(&after(&[closing(one), closing(two), picked(one)]), false);
        let lifted = Record::Lifted { place: one };
        check(&after(&[closing(one), lifted, picked(one)]), false);
        let renewed = [closing(one), out(one), ready(successor), picked(successor)];
        check(&after(&renewed), false);
        check(&after(&[closing(one), out(one), picked(one)]), true);
    }
}
