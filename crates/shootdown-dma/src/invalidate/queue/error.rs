//! Why there is no queue.

use core::fmt;

/// Why [`Queue::new`](super::Queue::new) made none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingError {
    /// The ring is too small, or its slots are no power of two.
    Slots {
        /// It has so many.
        slots: usize,
        /// It needs at least so many.
        least: usize,
    },
    /// There is no memory for what the CPUs share about its slots.
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
