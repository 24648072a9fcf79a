//! Size classes: powers of two, from a page to 4 MiB.

use super::super::{AllocError, FreeError, Want};
use super::round::ROUNDS;
use crate::addr::IovaRange;

/// Size classes: 2^0 to 2^10 pages.
pub(super) const CLASSES: usize = 11;

/// Pages in one magazine, of the classes whose 127 blocks would be more: 16 MiB, what 127 blocks of
/// 128 KiB are.
pub const MOST_PAGES: usize = 4096;

/// A size class: the binary logarithm of its blocks' pages.
#[derive(Clone, Copy)]
pub(super) struct Class(pub(super) usize);

impl Class {
    #[inline]
    pub(super) fn of(pages: u64) -> Option<Self> {
        let class = (u64::BITS - pages.wrapping_sub(1).leading_zeros()) as usize;
        (class < CLASSES).then_some(Self(class))
    }

    pub(super) const fn pages(self) -> u64 {
        1 << self.0
    }

    /// Blocks that are taken from the inner allocator in advance: an eighth of a magazine.
    pub(super) const fn ahead(self) -> usize {
        self.most() / 8
    }

    /// Blocks in a magazine.
    pub(super) const fn most(self) -> usize {
        let most = MOST_PAGES >> self.0;
        if most < ROUNDS { most } else { ROUNDS }
    }
}

impl Class {
    /// The range for a request, from a cached block that is not above the highest that the limit
    /// allows; or the request to the inner allocator. That is a block of the class's size in any
    /// case, since it will be freed into its magazines.
    #[inline]
    pub(super) fn request(
        self,
        want: &Want,
        cached: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<IovaRange, Want> {
        if want.align <= self.pages() {
            let block = want.limit.checked_sub(want.pages - 1).and_then(cached);
            if let Some(range) = block.and_then(|block| IovaRange::new(block, want.pages)) {
                return Ok(range);
            }
        }
        Err(Want { pages: self.pages(), align: want.align.max(self.pages()), ..*want })
    }

    /// The block that begins with a range.
    #[inline]
    pub(super) fn block(self, range: IovaRange) -> Result<IovaRange, FreeError> {
        if range.first() & (self.pages() - 1) != 0 {
            return Err(FreeError::NotAllocated);
        }
        IovaRange::new(range.first(), self.pages()).ok_or(FreeError::NotAllocated)
    }
}

/// The pages of a request, from the beginning of its block.
pub(super) fn first_of(block: IovaRange, pages: u64) -> Result<IovaRange, AllocError> {
    IovaRange::new(block.first(), pages).ok_or(AllocError::Invalid)
}
