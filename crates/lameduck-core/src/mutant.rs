//! Rules that can be switched off, to show that the suite notices.
//!
//! Every rule that a machine keeps has a name here at the place where it is kept. In an ordinary
//! build [`mutant!`](crate::mutant!) is the constant `false` and costs nothing. In a build with
//! `--cfg lameduck_mutants`, which never leaves the workspace, the environment variable
//! `LAMEDUCK_MUTANT` names the one rule that is off in this process. `cargo xtask mutants` runs the
//! tests once for each name and fails where none of them notices.

#[cfg(lameduck_mutants)]
extern crate std;

/// Whether the rule `name` is switched off. Use the macro, which vanishes from ordinary builds.
#[cfg(lameduck_mutants)]
#[must_use]
pub fn is_enabled(name: &str) -> bool {
    static OFF: std::sync::OnceLock<Option<std::string::String>> = std::sync::OnceLock::new();
    let off = OFF.get_or_init(|| std::env::var("LAMEDUCK_MUTANT").ok());
    off.as_deref() == Some(name)
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
