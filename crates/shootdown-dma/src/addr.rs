//! Types for addresses that devices emit, ranges of them, rights, domains, devices.
//!
//! Addresses are counted in pages here: a page number is an address shifted by the granule of the
//! domain's tables (12 bits for 4 KiB, 14 for 16 KiB, 16 for 64 KiB). Byte addresses are named as
//! such.

use core::fmt;
use core::num::NonZeroU64;

/// A range of pages of I/O virtual address space: never empty, never page 0, never past the end of
/// `u64`.
///
/// No device gets page 0: drivers take address 0 for "not mapped".
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

    /// The pages of 2^`granule` bytes that the bytes from `first` to `last` (inclusive) lie in;
    /// `None` if page 0 is one of them, if they end before they begin, or if an address has no bits
    /// beyond the granule's.
    ///
    /// Firmware describes reserved memory in bytes, and it may end within a page:
    ///
    /// ```
    /// use shootdown_dma::IovaRange;
    /// let interrupts = IovaRange::of_bytes(0xfee0_0000, 0xfeef_ffff, 16).expect("a window");
    /// assert_eq!((interrupts.first(), interrupts.pages()), (0xfee0, 16)); // of 64 KiB
    /// ```
    #[must_use]
    pub const fn of_bytes(first: u64, last: u64, granule: u32) -> Option<Self> {
        if granule >= u64::BITS || last < first {
            return None;
        }
        let (first, last) = (first >> granule, last >> granule);
        // If a page is one byte, there may be one page more than fits.
        match (last - first).checked_add(1) {
            Some(pages) => Self::new(first, pages),
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

    /// Whether they have a page in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.first() <= other.last() && other.first() <= self.last()
    }

    /// Whether all of `other` lies within.
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
    /// Write only: data from the device. Arm's first stage has no such right; there it is read and
    /// write.
    Write,
    /// Read and write.
    ReadWrite,
}

impl Rights {
    /// Whether the device may read.
    #[must_use]
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    /// Whether the device may write.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite)
    }
}

/// A tag of the IOMMU's caches: domain id on VT-d and AMD-Vi, ASID or VMID on SMMUv3.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DomainId(pub u16);

/// A requester as the IOMMU sees it: source id (bus, device, function) on VT-d and AMD-Vi, stream
/// id on SMMUv3.
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

    /// All bytes of six bits, by pages of one to eight of them: exactly those pages that have one
    /// of the bytes.
    #[test]
    fn bytes_lie_in_the_pages_that_have_them() {
        for (granule, first, last) in
            (0..4).flat_map(|g| (0..64u64).flat_map(move |f| (0..64).map(move |l| (g, f, l))))
        {
            let pages = (first..=last).map(|byte| byte >> granule);
            let expected = pages.clone().min().zip(pages.max()).filter(|(first, _)| *first != 0);
            let found = IovaRange::of_bytes(first, last, granule);
            assert_eq!(found.map(|range| (range.first(), range.last())), expected);
        }
        assert_eq!(IovaRange::of_bytes(1, u64::MAX, 64), None);
        assert_eq!(IovaRange::of_bytes(0, u64::MAX, 0), None);
        assert!(IovaRange::of_bytes(1, u64::MAX, 0).is_some());
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
