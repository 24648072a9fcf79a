//! The errors of a request. Unless an error says otherwise, nothing has changed.

use core::fmt;

use crate::fixed::NoMemory;
use crate::invalidate::QueueError;
use crate::iova::AllocError;
use crate::table::{self, MapErrorKind};

/// Why there is no domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DomainError {
    /// There is no memory for it.
    NoMemory,
    /// A unit counts in pages of another size than the table has.
    Granule {
        /// The number of the unit.
        unit: usize,
    },
    /// The table does not reach as far as the [zones](crate::iova::identity::Layout) of identity
    /// addresses do.
    IdentityTooWide,
    /// The pages of a guarded domain's pool have another size than the table's.
    PoolGranule,
}

impl fmt::Display for DomainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMemory => NoMemory.fmt(f),
            Self::Granule { unit } => write!(
                f,
                "unit {unit} counts in pages of another size than the table has; \
                 set it up for the table's granule, or make the table of the unit's"
            ),
            Self::IdentityTooWide => f.write_str(
                "identity zones end beyond what the table resolves; use more levels, or narrower zones",
            ),
            Self::PoolGranule => f.write_str(
                "the bounce pool's pages are of another size than the table's; \
                 make the pool with the table's granule (`Pool::with_granule`)",
            ),
        }
    }
}

impl core::error::Error for DomainError {}

impl From<NoMemory> for DomainError {
    fn from(_: NoMemory) -> Self {
        Self::NoMemory
    }
}

/// Why memory was not mapped. No device reaches it, and no reference to it is held. (If it was
/// mapped for a moment, the reference is dropped when the invalidation of that is complete.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MapError {
    /// No bytes.
    Empty,
    /// Address and length go past the end of what can be addressed.
    Overflow,
    /// A segment other than the first begins within a page, or one other than the last ends within
    /// one: the device would see a gap. Or memory that is linked, or mapped at an address of the
    /// caller's, begins within a page. Pages are those of the table's
    /// [granule](crate::table::Format::GRANULE).
    Unaligned,
    /// The addresses are [reserved](super::Reservation) in another domain.
    NotReserved,
    /// There is no address for it.
    Addresses(AllocError),
    /// The page table can't hold it.
    Table(MapErrorKind),
    /// The kernel does not let this memory be held.
    NotHeld,
    /// A policy that the domain is not made for: see [`Config`](super::Config).
    Refused,
    /// The memory lies outside of the window that is mapped one to one.
    OutsideWindow,
    /// More callers use the domain at once than it has room for, and this one must not wait
    /// ([`Host::relax`](super::Host::relax) says so). It is never returned where the host is
    /// [pinned](super::Config::pinned).
    Busy,
    /// The IOMMU caches absent entries, and their invalidation is not complete.
    NotTold(QueueError),
    /// Nothing is mapped, but a device may have used some of it, and the invalidation of that is
    /// not complete: the device may still reach the memory. As after [`UnmapError::NotComplete`],
    /// neither the memory nor addresses of the caller's own may be used for anything else before
    /// [`flush`](super::Domain::flush) has succeeded.
    NotComplete(QueueError),
}

/// The text of `Busy`.
const BUSY: &str = "more callers at once than the domain has room for, and this one must not wait; \
                    try again";

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("there is nothing to map; ask for at least one byte"),
            Self::Overflow => f.write_str("address and length go past the end of memory"),
            Self::Unaligned => f.write_str(
                "whole pages are asked for; align the memory to the granule, or map segments one by one",
            ),
            Self::NotReserved => f.write_str("the addresses are another domain's; ask that one"),
            Self::Addresses(error) => error.fmt(f),
            Self::Table(error) => write!(f, "the page table can't hold it: {error:?}"),
            Self::NotHeld => f.write_str("the kernel does not let this memory be held"),
            Self::Refused => f.write_str("the domain was not made for this policy"),
            Self::OutsideWindow => f.write_str("the memory lies outside of the window"),
            Self::Busy => f.write_str(BUSY),
            Self::NotTold(error) => write!(f, "the IOMMU was not told: {error}"),
            Self::NotComplete(error) => {
                write!(f, "not mapped, but perhaps still in reach of devices: {error}")
            }
        }
    }
}

impl core::error::Error for MapError {}

impl From<AllocError> for MapError {
    fn from(error: AllocError) -> Self {
        Self::Addresses(error)
    }
}

/// Why memory was not unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UnmapError {
    /// No bytes.
    Empty,
    /// Address and length go past the end of what can be addressed.
    Overflow,
    /// Not all of it is mapped here: it was unmapped before, it belongs to another device's domain,
    /// the length is wrong, or it was never mapped.
    NotMapped,
    /// It begins or ends within one mapping, is linked to a [`Reservation`](super::Reservation), or
    /// has pages that several users share.
    Partial,
    /// It is longer than the mapping there, and covers the beginning of another one.
    Several,
    /// The [policy](super::Policy) guarantees less than the domain's does.
    Refused,
    /// More callers use the domain at once than it has room for, and this one must not wait
    /// ([`Host::relax`](super::Host::relax) says so). It is never returned where the host is
    /// [pinned](super::Config::pinned).
    Busy,
    /// It *is* unmapped, but the invalidation is not complete: a device may still reach the memory.
    /// The domain keeps its addresses and references until it is complete
    /// ([`poll`](super::Domain::poll)); the caller must not use its own for anything else before.
    NotComplete(QueueError),
}

impl fmt::Display for UnmapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("there is nothing to unmap; say how many bytes"),
            Self::Overflow => f.write_str("address and length go past the end of the space"),
            Self::NotMapped => {
                f.write_str("not all of it is mapped here; check address and length")
            }
            Self::Partial => f.write_str("it is part of something larger; unmap all of that"),
            Self::Several => {
                f.write_str("it is longer than what was mapped there; unmap frees one by one")
            }
            Self::Refused => f.write_str(
                "the policy is weaker than the domain's; unmap under that, or a stronger one",
            ),
            Self::Busy => f.write_str(BUSY),
            Self::NotComplete(error) => {
                write!(f, "unmapped, but still in reach of devices: {error}")
            }
        }
    }
}

impl core::error::Error for UnmapError {}

impl From<table::UnmapError> for UnmapError {
    fn from(error: table::UnmapError) -> Self {
        match error {
            table::UnmapError::OutOfRange | table::UnmapError::NotMapped { .. } => Self::NotMapped,
            table::UnmapError::Several { .. } => Self::Several,
            _ => Self::Partial,
        }
    }
}
