//! What every layer uses: identifiers, ranges, sets of CPUs, and the atomics facade.

pub mod cpu_set;
pub mod ids;
pub mod sync;

/// Only types of this crate implement traits that require this one.
pub(crate) mod sealed {
    /// No other crate can implement it.
    pub trait Sealed {}
}
