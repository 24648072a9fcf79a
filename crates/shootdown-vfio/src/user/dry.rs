//! A backend without hardware: it maps nothing, and refuses what kernels refuse.
//!
//! For tests of drivers, and to try them where there is no IOMMU. It models kernels as follows:
//! VFIO's type 1 (version 2) and iommufd both refuse to map over a mapping, and to unmap a part of
//! a mapping, and unmap all mappings of a range at once. They differ in the error for a part
//! (`EINVAL`, `ENOENT`), in the result for a range without mappings (0 bytes, `ENOENT`), and in a
//! limit of mappings, which only VFIO has. (Linux, `drivers/vfio/vfio_iommu_type1.c` and
//! `include/uapi/linux/iommufd.h`.)

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use shootdown_dma::addr::Rights;

use super::backend::{Backend, BackendError, Window};

/// The kernel interface that it behaves like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Manner {
    /// VFIO, type 1, version 2.
    #[default]
    Vfio,
    /// iommufd.
    Iommufd,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    memory: u64,
    bytes: u64,
    rights: Rights,
}

#[derive(Debug, Default)]
struct State {
    mappings: BTreeMap<u64, Mapping>,
    refusals: u64,
    short: u64,
}

/// A backend without hardware; see the [module](self).
#[derive(Debug)]
pub struct Dry {
    manner: Manner,
    windows: Vec<Window>,
    limit: usize,
    page_sizes: u64,
    state: Mutex<State>,
}

impl Default for Dry {
    /// As VFIO on a PC: 39 bits of address without the window for interrupts, 65 535 mappings.
    fn default() -> Self {
        let windows = vec![
            Window { first: 0, last: 0xfedf_ffff },
            Window { first: 0xfef0_0000, last: (1 << 39) - 1 },
        ];
        Self::new(Manner::Vfio, windows, 65_535)
    }
}

impl Dry {
    /// Makes one that behaves like `manner`, with these windows, and at most `limit` mappings
    /// (iommufd has no limit).
    #[must_use]
    pub fn new(manner: Manner, windows: Vec<Window>, limit: usize) -> Self {
        Self { manner, windows, limit, page_sizes: 0x4020_1000, state: Mutex::default() }
    }

    /// The same with pages of these sizes (a bit for each), instead of 4 KiB, 2 MiB and 1 GiB.
    #[must_use]
    pub fn with_page_sizes(self, page_sizes: u64) -> Self {
        Self { page_sizes, ..self }
    }

    /// Bits of an address within a page of the smallest size.
    const fn offset(&self) -> u64 {
        (self.page_sizes & self.page_sizes.wrapping_neg()).wrapping_sub(1)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory that a device reaches at this address, with its rights; `None`: it faults.
    pub fn reaches(&self, iova: u64) -> Option<(u64, Rights)> {
        let state = self.state();
        let (first, mapping) = state.mappings.range(..=iova).next_back()?;
        let offset = iova - first;
        (offset < mapping.bytes).then_some((mapping.memory + offset, mapping.rights))
    }

    /// Whether a device can reach this memory, by any address.
    pub fn is_reached(&self, memory: u64) -> bool {
        let state = self.state();
        state.mappings.values().any(|m| memory.wrapping_sub(m.memory) < m.bytes)
    }

    /// The number of mappings.
    pub fn len(&self) -> usize {
        self.state().mappings.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the next `count` unmappings fail.
    pub fn refuse_unmappings(&self, count: u64) {
        self.state().refusals = count;
    }

    /// Makes the next `count` unmappings of several mappings unmap only one.
    pub fn cut_unmappings_short(&self, count: u64) {
        self.state().short = count;
    }
}

/// Whether a mapping of `bytes` bytes at `first` has one of the bytes between `at` and `last`.
const fn touches(first: u64, bytes: u64, at: u64, last: u64) -> bool {
    first <= last && at <= first + (bytes - 1)
}

// SAFETY: there are no devices.
unsafe impl Backend for Dry {
    fn windows(&self) -> Result<Vec<Window>, BackendError> {
        Ok(self.windows.clone())
    }

    fn page_sizes(&self) -> u64 {
        self.page_sizes
    }

    fn map(&self, iova: u64, memory: u64, bytes: u64, rights: Rights) -> Result<(), BackendError> {
        let last = bytes.checked_sub(1).and_then(|more| iova.checked_add(more));
        let last = last.filter(|_| (iova | memory | bytes) & self.offset() == 0);
        let Some(last) = last else { return Err(BackendError::Invalid) };
        if !self.windows.iter().any(|w| w.first <= iova && last <= w.last) {
            return Err(BackendError::Invalid);
        }
        let mut state = self.state();
        let before = state.mappings.range(..=last).next_back();
        if before.is_some_and(|(first, m)| touches(*first, m.bytes, iova, last)) {
            return Err(BackendError::Exists);
        }
        if self.manner == Manner::Vfio && state.mappings.len() >= self.limit {
            return Err(BackendError::Entries);
        }
        state.mappings.insert(iova, Mapping { memory, bytes, rights });
        Ok(())
    }

    fn unmap(&self, iova: u64, bytes: u64) -> Result<u64, BackendError> {
        let last = bytes.checked_sub(1).and_then(|more| iova.checked_add(more));
        let Some(last) = last.filter(|_| (iova | bytes) & self.offset() == 0) else {
            return Err(BackendError::Invalid);
        };
        let mut state = self.state();
        if state.refusals != 0 {
            state.refusals -= 1;
            return Err(BackendError::Other(5));
        }
        let mut all: Vec<(u64, u64)> = state
            .mappings
            .range(..=last)
            .rev()
            .take_while(|(first, m)| touches(**first, m.bytes, iova, last))
            .map(|(first, m)| (*first, m.bytes))
            .collect();
        if all.iter().any(|(first, bytes)| *first < iova || first + (bytes - 1) > last) {
            return Err(match self.manner {
                Manner::Vfio => BackendError::Invalid,
                Manner::Iommufd => BackendError::NotMapped,
            });
        }
        if all.is_empty() && self.manner == Manner::Iommufd {
            return Err(BackendError::NotMapped);
        }
        if state.short != 0 && all.len() > 1 {
            state.short -= 1;
            all.truncate(1);
        }
        for (first, _) in &all {
            state.mappings.remove(first);
        }
        Ok(all.iter().map(|(_, bytes)| bytes).sum())
    }
}
