//! What the hub tells of itself, as lines of the caller's ledger.

use std::net::SocketAddr;

use lameduck_core::event::{ClosingSource, Event};
use lameduck_core::instance::Incarnation;
use lameduck_core::name::Address;

use super::super::record::{CallId, Place, Record};

tokio::task_local! {
    /// The call whose future is being polled: what is chosen meanwhile is chosen for it.
    pub(super) static CALL: CallId;
}

/// The record that an event makes; none for events that no judge reads.
pub(super) fn record(event: &Event) -> Option<Record> {
    let id = CALL.try_with(|id| *id).ok();
    Some(match event {
        Event::Picked {
            address,
            incarnation,
            tier,
        } => {
            let (place, tier) = (place(address, *incarnation)?, *tier);
            Record::Picked { id, place, tier }
        }
        Event::Replaced { address, proven } => {
            let (address, proven) = (socket(address)?, *proven);
            Record::Replaced {
                id,
                address,
                proven,
            }
        }
        Event::TierChanged {
            address,
            incarnation,
            tier,
        } => {
            let (place, tier) = (place(address, *incarnation)?, *tier);
            Record::Moved { place, tier }
        }
        Event::Closing {
            address,
            incarnation,
            source,
        } => {
            let (place, source) = (place(address, *incarnation)?, source_word(*source));
            Record::Closing { place, source }
        }
        Event::ClosingLifted {
            address,
            incarnation,
        } => {
            let place = place(address, *incarnation)?;
            Record::Lifted { place }
        }
        other => Record::Note(format!("{other:?}")),
    })
}

fn place(address: &Address, incarnation: Incarnation) -> Option<Place> {
    let address = socket(address)?;
    let life = match incarnation {
        Incarnation::Life(life) => Some(life),
        _ => None,
    };
    Some(Place { address, life })
}

/// The lab's servers have IP addresses, so that nothing is lost here.
fn socket(address: &Address) -> Option<SocketAddr> {
    address.to_string().parse().ok()
}

fn source_word(source: ClosingSource) -> String {
    format!("{source:?}").to_lowercase()
}
