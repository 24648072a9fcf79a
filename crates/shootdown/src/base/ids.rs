//! Identifiers: CPUs, spaces, generations, tags, addresses.
//!
//! Each is a newtype so that a CPU number can't be passed where a tag is meant. None has a sentinel
//! value: "not found" is always an `Option`.

use core::fmt;
use core::num::NonZeroU64;

/// A CPU, numbered from 0 without gaps as the kernel numbers them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CpuId(pub u32);

impl CpuId {
    /// The number as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpu{}", self.0)
    }
}

/// The id of an address space, which is never reused.
///
/// It has 62 bits (two more are used where a CPU publishes what it has loaded), so a machine that
/// creates a space every nanosecond runs out of ids after 146 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SpaceId(NonZeroU64);

impl SpaceId {
    /// The largest id.
    pub const MAX: u64 = (1 << 62) - 1;

    /// The id with this number; `None` for 0 and for numbers above [`SpaceId::MAX`].
    #[must_use]
    pub const fn new(raw: u64) -> Option<Self> {
        if raw > Self::MAX {
            return None;
        }
        match NonZeroU64::new(raw) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for SpaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "space{}", self.0)
    }
}

/// A space's count of revoking changes. It starts at 0 and only grows; 64 bits never wrap in
/// practice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gen{}", self.0)
    }
}

/// A hardware tag: PCID on x86, ASID on Arm and RISC-V.
///
/// Tag 0 is the tag that hardware uses when tags are off or the software does not know of them. It
/// is a real value here too: CPUs that run without tags use it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Tag(pub u16);

impl Tag {
    /// The tag under which the kernel's own tables are loaded
    /// ([`Regime::load_kernel`](crate::Regime::load_kernel)).
    pub const KERNEL: Self = Self(0);
}

/// The size of the translations that an operation steps over. It is never larger than the smallest
/// leaf that was mapped in the range, as one step invalidates one translation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Stride {
    /// 4 KiB pages.
    #[default]
    Page4K = 0,
    /// 2 MiB pages.
    Page2M = 1,
    /// 1 GiB pages.
    Page1G = 2,
}

impl Stride {
    /// log2 of the size in bytes.
    #[must_use]
    pub const fn shift(self) -> u32 {
        match self {
            Self::Page4K => 12,
            Self::Page2M => 21,
            Self::Page1G => 30,
        }
    }

    /// Size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }
}

/// A range of virtual addresses in whole strides.
///
/// # Invariants
/// I1: `start` is a multiple of the stride. I2: `count` is at least 1. I3: the range ends at or
/// below 2^64 (the last byte is addressable).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VaRange {
    start: u64,
    count: u64,
    stride: Stride,
}

/// Why a range was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RangeError {
    /// The range holds no page.
    Empty,
    /// The range ends above the highest address.
    Overflow,
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the range is empty; a flush needs at least one page",
            Self::Overflow => "the range ends above the highest address; check start and length",
        })
    }
}

impl core::error::Error for RangeError {}

impl VaRange {
    /// `count` strides from the one that contains `start`.
    ///
    /// # Errors
    /// [`RangeError::Empty`] when `count` is 0, [`RangeError::Overflow`] when the end does not fit.
    pub const fn new(start: u64, count: u64, stride: Stride) -> Result<Self, RangeError> {
        if count == 0 {
            return Err(RangeError::Empty);
        }
        let start = start & !(stride.bytes() - 1);
        let Some(bytes) = (count - 1).checked_mul(stride.bytes()) else {
            return Err(RangeError::Overflow);
        };
        if start.checked_add(bytes).is_none() {
            return Err(RangeError::Overflow);
        }
        Ok(Self { start, count, stride })
    }

    /// Every stride touched by the bytes `[start, end)`.
    ///
    /// # Errors
    /// [`RangeError::Empty`] when `end <= start`.
    pub const fn covering(start: u64, end: u64, stride: Stride) -> Result<Self, RangeError> {
        if end <= start {
            return Err(RangeError::Empty);
        }
        let mask = !(stride.bytes() - 1);
        let first = start & mask;
        let last = (end - 1) & mask;
        Self::new(first, ((last - first) >> stride.shift()) + 1, stride)
    }

    /// The first address.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// The address of the last byte.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.start + (self.count - 1) * self.stride.bytes() + (self.stride.bytes() - 1)
    }

    /// The number of strides.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The stride.
    #[must_use]
    pub const fn stride(&self) -> Stride {
        self.stride
    }

    /// The smallest range, with the finer of both strides, that contains both.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Self {
        let stride = self.stride.min(other.stride);
        let start = self.start.min(other.start);
        let last = self.last().max(other.last());
        let first = start & !(stride.bytes() - 1);
        Self { start: first, count: ((last - first) >> stride.shift()) + 1, stride }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_refused_or_exact() {
        assert_eq!(VaRange::new(0, 0, Stride::Page4K), Err(RangeError::Empty));
        assert_eq!(VaRange::new(u64::MAX, 2, Stride::Page4K), Err(RangeError::Overflow));
        assert_eq!(VaRange::new(0x1000, 1 << 60, Stride::Page2M), Err(RangeError::Overflow));
        let top = VaRange::new(u64::MAX, 1, Stride::Page4K).unwrap();
        assert_eq!((top.start(), top.last()), (u64::MAX - 0xfff, u64::MAX));
        let r = VaRange::covering(0x1fff, 0x3001, Stride::Page4K).unwrap();
        assert_eq!((r.start(), r.count(), r.last()), (0x1000, 3, 0x3fff));
        assert_eq!(VaRange::covering(5, 5, Stride::Page4K), Err(RangeError::Empty));
    }

    #[test]
    fn merge_takes_the_finer_stride_and_covers_both() {
        let a = VaRange::new(0x20_0000, 1, Stride::Page2M).unwrap();
        let b = VaRange::new(0x1000, 1, Stride::Page4K).unwrap();
        let m = a.merge(&b);
        assert_eq!((m.start(), m.last(), m.stride()), (0x1000, 0x3f_ffff, Stride::Page4K));
    }

    #[test]
    fn space_ids_are_never_zero_nor_too_wide() {
        assert!(SpaceId::new(0).is_none());
        assert!(SpaceId::new(SpaceId::MAX).is_some());
        assert!(SpaceId::new(SpaceId::MAX + 1).is_none());
    }
}
