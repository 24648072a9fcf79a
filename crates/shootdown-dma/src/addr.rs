//! Names for things: addresses that devices emit, ranges of them, rights, domains, devices.
//!
//! Addresses are counted in pages here: a page number is an address shifted by the granule of the domain (12 bits for
//! 4 KiB). What is a byte address says so.

use core::fmt;
use core::num::NonZeroU64;

/// A range of pages of I/O virtual address space: never empty, never page 0, never past the end of `u64`.
///
/// Page 0 is handed to no device: drivers take address 0 for "not mapped".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IovaRange {
    first: NonZeroU64,
    pages: NonZeroU64,
}

impl IovaRange {
    /// The pages from `first` on; `None` if there are none, if `first` is 0, or if the range wraps.
    #[must_use]
    pub const fn new(first: u64, pages: u64) -> Option<Self> {
        let (Some(first), Some(pages)) = (NonZeroU64::new(first), NonZeroU64::new(pages)) else {
            return None;
        };
        match first.get().checked_add(pages.get() - 1) {
            Some(_) => Some(Self { first, pages }),
            None => None,
        }
    }

    /// The number of the first page.
    #[must_use]
    pub const fn first(self) -> u64 {
        self.first.get()
    }

    /// The number of the last page, which belongs to the range.
    #[must_use]
    pub const fn last(self) -> u64 {
        self.first.get() + (self.pages.get() - 1)
    }

    /// How many pages.
    #[must_use]
    pub const fn pages(self) -> u64 {
        self.pages.get()
    }

    /// Do they have a page in common?
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.first() <= other.last() && other.first() <= self.last()
    }

    /// Is all of `other` within?
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.first() <= other.first() && other.last() <= self.last()
    }
}

impl fmt::Debug for IovaRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{}", self.first(), self.pages())
    }
}

/// A physical address, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysAddr(pub u64);

impl fmt::Debug for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// What a device may do with a page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rights {
    /// Read only: data on its way to the device.
    Read,
    /// Write only: data from the device. Arm's first stage has no such right; there it is read and write.
    Write,
    /// Read and write.
    ReadWrite,
}

impl Rights {
    /// May the device read?
    #[must_use]
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    /// May the device write?
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite)
    }
}

/// A tag of the IOMMU's caches: domain id on VT-d and AMD-Vi, ASID or VMID on SMMUv3.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DomainId(pub u16);

/// A requester as the IOMMU sees it: source id (bus, device, function) on VT-d and AMD-Vi, stream id on SMMUv3.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceId(pub u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_zero_and_wrapping_ranges_are_refused() {
        assert_eq!(IovaRange::new(0, 1), None);
        assert_eq!(IovaRange::new(1, 0), None);
        assert_eq!(IovaRange::new(u64::MAX, 2), None);
        let last = IovaRange::new(u64::MAX, 1).expect("one page, the last");
        assert_eq!((last.last(), last.pages()), (u64::MAX, 1));
    }

    #[test]
    fn overlap_and_containment_agree_with_sets() {
        let all = || (1..8u64).flat_map(|f| (1..5).map(move |n| (f, n)));
        for ((af, an), (bf, bn)) in all().flat_map(|a| all().map(move |b| (a, b))) {
            let (a, b) = (IovaRange::new(af, an).unwrap(), IovaRange::new(bf, bn).unwrap());
            let mut shared = (af..af + an).filter(|p| (bf..bf + bn).contains(p));
            assert_eq!(a.overlaps(b), shared.next().is_some(), "{a:?} {b:?}");
            assert_eq!(
                a.contains(b),
                (bf..bf + bn).all(|p| (af..af + an).contains(&p)),
                "{a:?} {b:?}"
            );
        }
    }
}
