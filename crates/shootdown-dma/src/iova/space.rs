//! A space of addresses, and the holes in it.

use alloc::vec::Vec;
use core::fmt;

use crate::addr::IovaRange;

const fn hole(first: u64, last: u64) -> IovaRange {
    match IovaRange::new(first, last - first + 1) {
        Some(range) => range,
        None => panic!("not a range"),
    }
}

/// FEE0_0000 to FEEF_FFFF, in pages of 4 KiB: writes of a device to it are interrupts and are never
/// translated (VT-d's interrupt address range). In other pages: [`IovaRange::of_bytes`].
pub const INTERRUPTS: IovaRange = hole(0xfee00, 0xfeeff);

/// FD_0000_0000 to FF_FFFF_FFFF, in pages of 4 KiB: reserved for HyperTransport on AMD machines
/// (where Linux reserves it for every device behind AMD-Vi: `HT_RANGE_START` and `HT_RANGE_END` of
/// `drivers/iommu/amd/iommu.c`). The list of the machine's firmware takes precedence.
pub const HYPERTRANSPORT: IovaRange = hole(0xfd0_0000, 0xfff_ffff);

/// The addresses that a domain's devices can use, and the holes among them.
///
/// ```
/// use shootdown_dma::iova::space::{INTERRUPTS, Space};
/// let space = Space::below(1 << 36).guarded(1).without(&[INTERRUPTS]); // 48 bits of address, pages of 4 KiB
/// assert_eq!(space.last, (1 << 36) - 1);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Space<'a> {
    /// The first page; at least 1.
    pub first: u64,
    /// The last page.
    pub last: u64,
    /// The least number of pages that stay free between any two live ranges, so that a device that
    /// runs over the end of its buffer faults.
    pub guard: u64,
    /// Never handed out: what the hardware does not translate ([`INTERRUPTS`],
    /// [`HYPERTRANSPORT`]), and what the firmware has mapped one to one (RMRR, unity ranges).
    /// In any order; they may overlap and reach outside.
    pub reserved: &'a [IovaRange],
}

impl<'a> Space<'a> {
    /// Pages 1 up to the one before `end`, no guard pages, no holes.
    #[must_use]
    pub const fn below(end: u64) -> Self {
        Self { first: 1, last: end.saturating_sub(1), guard: 0, reserved: &[] }
    }

    /// The same, from page `first` on.
    #[must_use]
    pub const fn from(self, first: u64) -> Self {
        Self { first, ..self }
    }

    /// The same with `guard` free pages between live ranges.
    #[must_use]
    pub const fn guarded(self, guard: u64) -> Self {
        Self { guard, ..self }
    }

    /// The same with holes.
    #[must_use]
    pub const fn without(self, reserved: &'a [IovaRange]) -> Self {
        Self { reserved, ..self }
    }

    /// Checks that the space is valid.
    ///
    /// # Errors
    /// [`SpaceError::Empty`], [`SpaceError::TooLarge`].
    pub const fn check(&self) -> Result<(), SpaceError> {
        if self.first == 0 || self.first > self.last {
            Err(SpaceError::Empty)
        } else if self.last >= MOST || self.guard >= MOST {
            Err(SpaceError::TooLarge)
        } else {
            Ok(())
        }
    }

    /// Whether all of `range` is in it.
    #[must_use]
    pub const fn holds(&self, range: IovaRange) -> bool {
        self.first <= range.first() && range.last() <= self.last
    }

    /// Its holes: ascending, disjoint, not abutting, within the space.
    pub(super) fn holes(&self) -> Result<Vec<IovaRange>, SpaceError> {
        self.check()?;
        let mut holes: Vec<IovaRange> = Vec::new();
        holes.try_reserve_exact(self.reserved.len()).map_err(|_| SpaceError::NoMemory)?;
        holes.extend_from_slice(self.reserved);
        holes.sort_unstable();
        let mut kept = 0;
        for n in 0..holes.len() {
            let hole = holes[n];
            let (first, last) = (hole.first().max(self.first), hole.last().min(self.last));
            if first > last {
                continue;
            }
            let joined = kept > 0 && holes[kept - 1].last() + 1 >= first;
            let (at, first, last) = if joined {
                (kept - 1, holes[kept - 1].first(), last.max(holes[kept - 1].last()))
            } else {
                (kept, first, last)
            };
            if let Some(hole) = IovaRange::new(first, last - first + 1) {
                holes[at] = hole;
                kept = at + 1;
            }
        }
        holes.truncate(kept);
        Ok(holes)
    }
}

/// Whether the range touches one of these holes, which are ascending and disjoint.
pub(super) fn touches(holes: &[IovaRange], range: IovaRange) -> bool {
    let at = holes.partition_point(|hole| hole.last() < range.first());
    holes.get(at).is_some_and(|hole| hole.overlaps(range))
}

/// Pages have 62 bits at most, so that sums of an address, a length and a guard don't wrap. Real
/// addresses have 52.
const MOST: u64 = 1 << 62;

/// Why there is no allocator for a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SpaceError {
    /// It has no page, or has page 0.
    Empty,
    /// Its last page or its guard is beyond 2^62.
    TooLarge,
    /// There is no memory for the allocator's records.
    NoMemory,
}

impl fmt::Display for SpaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the space has no pages; begin it at page 1 or above, and end it later",
            Self::TooLarge => "the space, or its guard, is larger than 2^62 pages",
            Self::NoMemory => "no memory for the allocator's records",
        })
    }
}

impl core::error::Error for SpaceError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_sorted_clipped_and_joined() {
        let range = |first, last: u64| IovaRange::new(first, last - first + 1).unwrap();
        let reserved = [
            range(50, 60),
            range(1, 12),
            range(20, 22),
            range(23, 30),
            range(21, 21),
            range(98, 200),
            range(300, 300),
        ];
        let space = Space::below(100).from(10).without(&reserved);
        assert_eq!(
            space.holes().unwrap(),
            [range(10, 12), range(20, 30), range(50, 60), range(98, 99)]
        );
    }

    #[test]
    fn the_windows_are_where_the_manuals_put_them() {
        assert_eq!(
            (INTERRUPTS.first() << 12, ((INTERRUPTS.last() + 1) << 12) - 1),
            (0xfee0_0000, 0xfeef_ffff)
        );
        let ht = HYPERTRANSPORT;
        assert_eq!(
            (ht.first() << 12, ((ht.last() + 1) << 12) - 1),
            (0xfd_0000_0000, 0xff_ffff_ffff)
        );
    }

    #[test]
    fn spaces_that_are_none() {
        assert_eq!(Space::below(0).check(), Err(SpaceError::Empty));
        assert_eq!(Space::below(1).check(), Err(SpaceError::Empty));
        assert_eq!(Space::below(9).from(0).check(), Err(SpaceError::Empty));
        assert_eq!(Space::below(u64::MAX).check(), Err(SpaceError::TooLarge));
        assert_eq!(Space::below(9).guarded(u64::MAX).check(), Err(SpaceError::TooLarge));
        assert_eq!(Space::below(2).check(), Ok(()));
    }
}
