//! What a word of memory or a register holds: a number or a page-table word.

use std::fmt;

use crate::hostile::Descriptor;

/// A number, or a page-table word (marked by the top bit, so that the two never compare equal).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Value(u64);

const IS_DESCRIPTOR: u64 = 1 << 63;

impl Value {
    /// A number below 2^63.
    #[must_use]
    pub const fn number(n: u64) -> Self {
        Self(n & !IS_DESCRIPTOR)
    }

    /// A page-table word.
    #[must_use]
    pub const fn descriptor(descriptor: Descriptor) -> Self {
        Self(descriptor.bits() | IS_DESCRIPTOR)
    }

    /// The page-table word, if it is one.
    #[must_use]
    pub const fn as_descriptor(self) -> Option<Descriptor> {
        if self.0 & IS_DESCRIPTOR == 0 {
            None
        } else {
            Some(Descriptor::from_bits(self.0 & !IS_DESCRIPTOR))
        }
    }

    /// What a walker makes of it: a number in a table is no mapping.
    #[must_use]
    pub fn as_walked(self) -> Descriptor {
        self.as_descriptor().unwrap_or(Descriptor::ABSENT)
    }

    /// The bits, for arithmetic.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// From bits that arithmetic has made.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_descriptor() {
            Some(descriptor) => write!(f, "{descriptor:?}"),
            None => write!(f, "{}", self.0),
        }
    }
}
