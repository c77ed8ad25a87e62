//! Registries of lameduck: where instances are published and found.
#![deny(missing_docs)]

pub mod direct;
pub mod driver;
pub mod etcd;
pub mod layout;
pub mod memory;

use std::sync::Arc;

use lameduck_core::registry::{Connect, Schemes};

/// The schemes of all registries in this crate. Each table has its own `memory` registries.
///
/// # Panics
///
/// Never: no scheme is in the list twice.
#[must_use]
pub fn builtin() -> Schemes {
    let list: &[(&str, &'static str, Arc<Connect>)] = &[
        ("direct", "lameduck_registry::direct", direct::connector()),
        ("discov", "lameduck_registry::etcd", etcd::connector()),
        ("etcd", "lameduck_registry::etcd", etcd::connector()),
        ("memory", "lameduck_registry::memory", memory::connector()),
    ];
    let mut schemes = Schemes::new();
    for (scheme, holder, connect) in list {
        let added = schemes.register(scheme, holder, Arc::clone(connect));
        added.expect("no scheme is in the list twice");
    }
    schemes
}
