//! What can go wrong.

use super::shape::{MAX_INDEX_BITS, MAX_LEVELS};

/// Why the hostile hardware cannot go on. Nothing is ever dropped silently: a set that is full
/// stops the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostileError {
    /// A tree that this module cannot hold.
    #[error(
        "{levels} levels of {index_bits} index bits: give 1 to {MAX_LEVELS} levels and 1 to {MAX_INDEX_BITS} bits"
    )]
    Shape {
        /// Levels asked for.
        levels: u8,
        /// Index bits asked for.
        index_bits: u8,
    },
    /// No CPU, or too many of them.
    #[error("{0} CPUs: give 1 to {max}", max = super::MAX_CPUS)]
    Cpus(usize),
    /// A CPU's set of cached entries is full: use a smaller configuration or a shorter schedule.
    #[error("cpu{cpu} holds {limit} {what} and meets one more: use a smaller configuration")]
    Full {
        /// Whose set.
        cpu: usize,
        /// Of what.
        what: &'static str,
        /// How many it can hold.
        limit: usize,
    },
    /// Too many removals that wait for a sync.
    #[error(
        "{limit} invalidations wait for a sync and one more was issued: sync earlier, or use ranges"
    )]
    Outstanding {
        /// How many may wait.
        limit: usize,
    },
}
