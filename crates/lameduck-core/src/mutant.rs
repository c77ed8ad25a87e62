//! Rules that can be switched off, to show that the suite notices.
//!
//! Every rule that a machine keeps has a name here at the place where it is kept. In an ordinary
//! build [`mutant!`](crate::mutant!) is the constant `false` and costs nothing. In a build with
//! `--cfg lameduck_mutants` one rule at a time can be switched off at run time with `enable`.

#[cfg(lameduck_mutants)]
use core::sync::atomic::{AtomicUsize, Ordering};

// Fingerprint of the rule that is off; 0 where none is.
#[cfg(lameduck_mutants)]
static HASH: AtomicUsize = AtomicUsize::new(0);

/// Switches the rule `name` off in this process (and every other one on again).
///
/// The suite calls this once, before the first test, with the name that it was given.
#[cfg(lameduck_mutants)]
pub fn enable(name: &str) {
    HASH.store(fingerprint(name), Ordering::Relaxed);
}

/// Whether the rule `name` is switched off. Use the macro, which vanishes from ordinary builds.
#[cfg(lameduck_mutants)]
#[must_use]
pub fn is_enabled(name: &str) -> bool {
    HASH.load(Ordering::Relaxed) == fingerprint(name)
}

#[cfg(lameduck_mutants)]
fn fingerprint(name: &str) -> usize {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64 as usize, |hash, byte| {
            (hash ^ byte as usize).wrapping_mul(0x0000_0100_0000_01b3)
        })
}

/// True where the named rule is switched off: only ever in a build with `--cfg lameduck_mutants`.
///
/// ```
/// // Names are `machine/rule`.
/// assert!(!lameduck_core::mutant!("backoff/doubles"));
/// ```
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {{
        #[cfg(lameduck_mutants)]
        {
            $crate::mutant::is_enabled($name)
        }
        #[cfg(not(lameduck_mutants))]
        {
            false
        }
    }};
}
