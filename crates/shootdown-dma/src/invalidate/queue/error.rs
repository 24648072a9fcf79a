//! Why a queue was not made, and why a device stays silent.

use core::fmt;

/// Why [`Queue::new`](super::Queue::new) made none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingError {
    /// The ring is too small, or its slots are no power of two.
    Slots {
        /// The number of slots that it has.
        slots: usize,
        /// The least number of slots that it needs.
        least: usize,
    },
    /// There is no memory for the data about its slots that CPUs share.
    NoMemory,
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slots { slots, least } => {
                write!(f, "the ring has {slots} slots; give it {least} or more, a power of two")
            }
            Self::NoMemory => {
                f.write_str("there is no memory for a word for each slot of the ring")
            }
        }
    }
}

impl core::error::Error for RingError {}

/// Why [`Queue::revive`](super::Queue::revive) has changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReviveError {
    /// Another CPU has the queue's lock.
    Busy,
    /// So many devices did not acknowledge that no device is relied on any more; a single one can't
    /// be revived.
    AllSilent,
}

impl fmt::Display for ReviveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "somebody is at the queue; try again",
            Self::AllSilent => {
                "no device behind the IOMMU is relied on; reset all of them, and revive all"
            }
        })
    }
}

impl core::error::Error for ReviveError {}
