//! Words that every layer uses: names, ranges, sets of CPUs, and the atomics facade.

pub mod cpu_set;
pub mod ids;
pub mod sync;

/// Traits that nobody outside implements name this one.
pub(crate) mod sealed {
    /// Only this crate can say it of a type.
    pub trait Sealed {}
}
