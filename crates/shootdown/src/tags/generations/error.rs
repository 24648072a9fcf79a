//! What can be wrong with tags.

use core::fmt;

/// Versioned tags can't work like this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TagsError {
    /// Not more tags than CPUs.
    TooFew {
        /// Tags to give out (pairs, with split tables; number 0 is not given out).
        tags: u32,
        /// CPUs that may run under one each.
        cpus: u32,
    },
    /// The width is not 2 to 16 bits, or the map has no room for it.
    Width(u8),
    /// The reserved table has no room for so many CPUs.
    TooManyCpus(u32),
    /// No more tags may be pinned: the rest is needed for CPUs.
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
