//! Errors of the allocator.

use core::fmt;

/// Why an allocator can't be made, or a tag can't be pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TagsError {
    /// There are not more tags than CPUs.
    TooFew {
        /// How many tags can be given out (pairs, with split tables; number 0 is not given out).
        tags: u32,
        /// How many CPUs may run under a tag each.
        cpus: u32,
    },
    /// The width is not 2 to 16 bits, or the map has no room for it.
    Width(u8),
    /// The reserved table has no room for this many CPUs.
    TooManyCpus(u32),
    /// No more tags may be pinned: the rest is needed for the CPUs.
    NoPinLeft,
}

impl fmt::Display for TagsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFew { tags, cpus } => write!(
                f,
                "{tags} tags are too few for {cpus} CPUs: run without tags, or with fewer CPUs"
            ),
            Self::Width(bits) => {
                write!(
                    f,
                    "a tag width of {bits} bits is not supported; give 2 to 16, and a map of that size"
                )
            }
            Self::TooManyCpus(cpus) => {
                write!(f, "there is no room for {cpus} CPUs; give the allocator a larger table")
            }
            Self::NoPinLeft => f.write_str("no tag can be pinned: the rest is needed for the CPUs"),
        }
    }
}

impl core::error::Error for TagsError {}
