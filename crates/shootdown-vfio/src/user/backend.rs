//! What a kernel must offer for a [`Space`](super::Space).

use core::fmt;

use shootdown_dma::addr::{IovaRange, Rights};
use shootdown_dma::iova::space::Space;

use super::shadow::BITS;

/// A range of addresses that devices may use, in bytes, inclusive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Window {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
}

/// Why the kernel has refused a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BackendError {
    /// As many mappings as it allows (VFIO: `dma_entry_limit`, 65 535 unless it is set otherwise).
    /// `ENOSPC`.
    Entries,
    /// The process may not pin so much memory (`RLIMIT_MEMLOCK`), or the kernel has none. `ENOMEM`.
    Memory,
    /// Something is mapped there that this space has not mapped. `EEXIST`.
    Exists,
    /// Nothing is mapped there, or a part of something. `ENOENT`.
    NotMapped,
    /// The memory does not exist, or the device may not have these rights to it. `EFAULT`.
    Fault,
    /// Addresses that it does not offer, or an unmapping that would cut a mapping in two. `EINVAL`.
    Invalid,
    /// Less was unmapped than had been mapped.
    Short {
        /// Bytes that it has unmapped.
        unmapped: u64,
    },
    /// Anything else: the number of the error.
    Other(i32),
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entries => f.write_str(
                "as many mappings as the kernel allows; raise vfio_iommu_type1.dma_entry_limit",
            ),
            Self::Memory => f.write_str("no more memory may be pinned; raise RLIMIT_MEMLOCK"),
            Self::Exists => f.write_str("something that is not ours is mapped there"),
            Self::NotMapped => f.write_str("the kernel has nothing there that it could unmap"),
            Self::Fault => f.write_str("the memory is not mapped in this process, or not writable"),
            Self::Invalid => f.write_str("the kernel does not take these addresses"),
            Self::Short { unmapped } => write!(f, "the kernel has unmapped {unmapped} bytes only"),
            Self::Other(number) => write!(f, "the kernel has refused it (error {number})"),
        }
    }
}

impl core::error::Error for BackendError {}

/// A kernel that maps this process's memory for devices.
///
/// # Safety
/// 1. When [`unmap`](Self::unmap) has returned, no device reaches memory by what it reports as
///    unmapped, and accesses that had begun have ended. If it returns [`Ok`] with 0, nothing is
///    mapped in the range.
/// 2. [`map`](Self::map) maps at the address that it gets, and nothing else; if it fails nothing is
///    mapped.
pub unsafe trait Backend: Send + Sync {
    /// The addresses that devices may use. They may become fewer when a device is added, so ask for
    /// them after that.
    ///
    /// # Errors
    /// See [`BackendError`].
    fn windows(&self) -> Result<Vec<Window>, BackendError>;

    /// Sizes of pages that it maps, a bit for each.
    fn page_sizes(&self) -> u64;

    /// Maps `bytes` bytes of this process's memory from `memory` on for devices, at `iova`. All
    /// three are multiples of a space's page, which is 4 KiB or
    /// [larger](super::Space::with_granule).
    ///
    /// # Errors
    /// See [`BackendError`].
    fn map(&self, iova: u64, memory: u64, bytes: u64, rights: Rights) -> Result<(), BackendError>;

    /// Unmaps all mappings within a range, none of which reaches beyond it. Returns how many bytes
    /// that were.
    ///
    /// # Errors
    /// See [`BackendError`]: some of it may be mapped.
    fn unmap(&self, iova: u64, bytes: u64) -> Result<u64, BackendError>;
}

// SAFETY: the same backend.
unsafe impl<B: Backend + ?Sized> Backend for std::sync::Arc<B> {
    fn windows(&self) -> Result<Vec<Window>, BackendError> {
        (**self).windows()
    }
    fn page_sizes(&self) -> u64 {
        (**self).page_sizes()
    }
    fn map(&self, iova: u64, memory: u64, bytes: u64, rights: Rights) -> Result<(), BackendError> {
        (**self).map(iova, memory, bytes, rights)
    }
    fn unmap(&self, iova: u64, bytes: u64) -> Result<u64, BackendError> {
        (**self).unmap(iova, bytes)
    }
}

/// The windows in the form for an allocator of addresses: one space with holes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Windows {
    first: u64,
    last: u64,
    holes: Vec<IovaRange>,
}

/// Why the windows give no space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WindowsError {
    /// None of them has a whole page.
    None,
    /// The kernel maps no pages of the space's size, but only larger ones: these (a bit for each
    /// size). A space [with such pages](super::Space::with_granule) can be built.
    PageSize(u64),
    /// The kernel does not report its windows.
    Backend(BackendError),
}

impl fmt::Display for WindowsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("the kernel offers no addresses; is a device attached?"),
            Self::PageSize(sizes) => {
                write!(f, "the kernel has larger pages only: sizes {sizes:#x}")
            }
            Self::Backend(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for WindowsError {}

impl Windows {
    /// The windows of a backend in pages of 4 KiB, below 2^48 and without page 0.
    ///
    /// # Errors
    /// See [`WindowsError`].
    pub fn of(backend: &impl Backend) -> Result<Self, WindowsError> {
        Self::of_granule(12, backend)
    }

    /// The same in pages of 2^`granule` bytes (below 48).
    ///
    /// # Errors
    /// See [`WindowsError`].
    pub fn of_granule(granule: u32, backend: &impl Backend) -> Result<Self, WindowsError> {
        let sizes = backend.page_sizes();
        let page = 1u64.checked_shl(granule).unwrap_or(0);
        if sizes & sizes.wrapping_neg() > page || sizes == 0 {
            return Err(WindowsError::PageSize(sizes));
        }
        Self::in_pages(granule, &backend.windows().map_err(WindowsError::Backend)?)
    }

    /// The windows from a list, in any order, in pages of 4 KiB; they may overlap.
    ///
    /// # Errors
    /// [`WindowsError::None`].
    pub fn new(windows: &[Window]) -> Result<Self, WindowsError> {
        Self::in_pages(12, windows)
    }

    fn in_pages(granule: u32, windows: &[Window]) -> Result<Self, WindowsError> {
        // The last page that the shadow table resolves.
        let most = 1u64.checked_shl(BITS.saturating_sub(granule)).unwrap_or(0).saturating_sub(1);
        let pages = |window: &Window| {
            let first = window.first.div_ceil(1u64.checked_shl(granule)?).max(1);
            // The last page that ends within it.
            let end = (u128::from(window.last) + 1) >> granule;
            let last = u64::try_from(end).ok()?.checked_sub(1)?.min(most);
            (first <= last).then_some((first, last))
        };
        let mut pages: Vec<(u64, u64)> = windows.iter().filter_map(pages).collect();
        pages.sort_unstable();
        let (first, mut last) = *pages.first().ok_or(WindowsError::None)?;
        let mut holes = Vec::new();
        for (next, end) in pages {
            if next > last + 1 {
                holes.extend(IovaRange::new(last + 1, next - last - 1));
            }
            last = last.max(end);
        }
        Ok(Self { first, last, holes })
    }

    /// The space for [`Tree::new`](shootdown_dma::iova::Tree::new) and others.
    #[must_use]
    pub fn space(&self) -> Space<'_> {
        Space::below(self.last + 1).from(self.first).without(&self.holes)
    }

    /// Whether all of these pages lie in one window.
    #[must_use]
    pub fn contain(&self, range: IovaRange) -> bool {
        let within = self.first <= range.first() && range.last() <= self.last;
        within && !self.holes.iter().any(|hole| hole.overlaps(range))
    }

    /// The first page.
    #[must_use]
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// Pages between the first and the last that are in no window.
    #[must_use]
    pub fn holes(&self) -> &[IovaRange] {
        &self.holes
    }

    /// The last page.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }
}
