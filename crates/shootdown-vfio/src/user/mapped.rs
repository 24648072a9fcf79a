//! The mappings of a space, one by one.

use core::fmt;

use shootdown_dma::addr::Rights;
use shootdown_dma::domain::DmaAddr;

use super::backend::Backend;
use super::kernel::Kernel;

/// One mapping, in whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MappedRange {
    /// The address of its first byte, for devices.
    pub at: DmaAddr,
    /// Its bytes.
    pub bytes: u64,
    /// The address of its first byte in this process.
    pub memory: u64,
    /// What devices may do.
    pub rights: Rights,
}

/// The mappings of a space, by their addresses ([`Space::mapped`](super::Space::mapped)).
pub struct Mapped<'a, B> {
    kernel: &'a Kernel<B>,
    granule: u32,
    /// The page where the next one may begin; `None`: it was the last.
    next: Option<u64>,
}

impl<'a, B: Backend> Mapped<'a, B> {
    pub(super) const fn new(kernel: &'a Kernel<B>, granule: u32) -> Self {
        Self { kernel, granule, next: Some(0) }
    }
}

impl<B: Backend> Iterator for Mapped<'_, B> {
    type Item = MappedRange;

    fn next(&mut self) -> Option<MappedRange> {
        let found = self.kernel.live_from(self.next?);
        self.next = found.and_then(|(first, live)| first.checked_add(live.pages));
        let (first, live) = found?;
        Some(MappedRange {
            at: DmaAddr(first << self.granule),
            bytes: live.pages << self.granule,
            memory: live.memory,
            rights: live.rights,
        })
    }
}

impl<B> fmt::Debug for Mapped<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped").field("next", &self.next).finish_non_exhaustive()
    }
}
