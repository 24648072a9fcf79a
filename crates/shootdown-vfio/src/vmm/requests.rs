//! A guest's requests to its IOMMU: MAP and UNMAP, as virtio-iommu defines them.
//!
//! A guest is not trusted. This file checks what a hypervisor had to fix later (cloud-hypervisor,
//! pull request 8105): ranges that are not checked, an UNMAP that cuts a mapping in two, a MAP that
//! fails half way and leaves the first half, an unbounded number of mappings.
//!
//! | the guest requests | result (virtio 1.2, 5.13.6) |
//! |---|---|
//! | a range that is empty or backward; flags that are not known | [`Invalid`](RequestError::Invalid) |
//! | addresses or memory that are not whole pages of what was offered (`page_size_mask`: the domain's granule) | [`Unaligned`](RequestError::Unaligned) |
//! | addresses outside of what it was offered, or reserved | [`Range`](RequestError::Range) |
//! | a MAP over a mapping | [`Overlap`](RequestError::Overlap) |
//! | a MAP of memory that is not the guest's (the [host](shootdown_dma::Host::hold) refuses it) | [`Fault`](RequestError::Fault) |
//! | one mapping more than it may have | [`NoMemory`](RequestError::NoMemory) |
//! | an UNMAP of a part of a mapping | [`Partial`](RequestError::Partial) |
//! | an UNMAP of several mappings, also with gaps, or of nothing | success: none of it is mapped any more |

use core::fmt;
use core::hint::spin_loop;
use std::collections::BTreeMap;
use std::sync::Arc;

use shootdown_dma::addr::{IovaRange, PhysAddr, Rights};
use shootdown_dma::domain::{Domain, Host, MapError, UnmapError};
use shootdown_dma::table::{Format, MapErrorKind};

/// Why a request was refused. Nothing has changed, unless an error says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RequestError {
    /// The request is malformed.
    Invalid,
    /// The range does not consist of whole pages.
    Unaligned,
    /// Addresses that the guest was not offered.
    Range,
    /// Something is mapped there.
    Overlap,
    /// It would cut a mapping in two.
    Partial,
    /// The guest has no such memory.
    Fault,
    /// The guest has as many mappings as it may, or there is no memory for one more.
    NoMemory,
    /// The domain refused it. After [`MapError::NotComplete`] the addresses stay out of use until
    /// every cache has invalidated what a device may have used: the next MAP or UNMAP there waits
    /// for that.
    Map(MapError),
    /// It is unmapped, but not invalidated in every cache. The addresses stay out of use until the
    /// same UNMAP has succeeded, or a MAP there.
    NotComplete(UnmapError),
}

impl RequestError {
    /// The status in virtio-iommu's reply: `VIRTIO_IOMMU_S_DEVERR` 3, `INVAL` 4, `RANGE` 5, `FAULT`
    /// 7, `NOMEM` 8; `OK` is 0. (virtio 1.2, 5.13.6; the numbers are those of Linux'
    /// `virtio_iommu.h`. A range that is not aligned, and an UNMAP that would cut a mapping, are
    /// `RANGE`; an overlap and unknown flags are `INVAL`.)
    #[must_use]
    pub const fn status(self) -> u8 {
        match self {
            Self::Invalid | Self::Overlap => 4,
            Self::Unaligned | Self::Range | Self::Partial => 5,
            Self::Fault => 7,
            Self::NoMemory => 8,
            Self::Map(_) | Self::NotComplete(_) => 3,
        }
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid => f.write_str("not a range, or unknown flags"),
            Self::Unaligned => f.write_str("not whole pages; align addresses, length and memory"),
            Self::Range => f.write_str("addresses that the guest was not offered"),
            Self::Overlap => f.write_str("something is mapped there; unmap it first"),
            Self::Partial => f.write_str("a part of a mapping; unmap all of it"),
            Self::Fault => f.write_str("the guest has no such memory"),
            Self::NoMemory => f.write_str("as many mappings as there may be; unmap some"),
            Self::Map(error) => error.fmt(f),
            Self::NotComplete(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for RequestError {}

/// What a guest is offered.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The first page of its I/O addresses, in pages of the domain's granule; at least 1 (page 0 is
    /// never mapped).
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// Pages in between that it may not map: windows for interrupts, and what the probe request
    /// reports as reserved.
    pub reserved: Vec<IovaRange>,
    /// The most mappings that it may have at a time (V3 of [`super`]). The domain bounds the page
    /// tables that they may take ([`Config::tables`](shootdown_dma::domain::Config::tables)):
    /// mappings that are far apart take a table each.
    pub mappings: usize,
}

impl Bounds {
    /// Addresses of `bits` bits, without the window for interrupts of PCs, and 65 535 mappings, as
    /// Linux allows to user space (`dma_entry_limit`). Pages have 4 KiB.
    #[must_use]
    pub fn bits(bits: u32) -> Self {
        Self::with_granule(12, bits)
    }

    /// The same in pages of 2^`granule` bytes, of a domain whose tables have such pages. The window
    /// for interrupts is rounded to them.
    #[must_use]
    pub fn with_granule(granule: u32, bits: u32) -> Self {
        let granule = granule.min(62);
        let last = (1u64 << (bits.clamp(granule + 1, 63) - granule)) - 1;
        let interrupts = IovaRange::of_bytes(0xfee0_0000, 0xfeef_ffff, granule);
        Self { first: 1, last, reserved: interrupts.into_iter().collect(), mappings: 65_535 }
    }
}

/// A mapping that the guest has requested, by its first page.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    pages: u64,
    phys: u64,
    flags: u32,
    /// It is unmapped, or was not mapped after all, but its invalidation is not complete.
    stale: bool,
}

/// The arguments of a MAP: those of [`Mappings::map`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // see there
pub struct MapRequest {
    pub start: u64,
    pub end: u64,
    pub phys: u64,
    pub flags: u32,
}

/// The mappings of a guest's domain.
///
/// Requests come one after the other (`&mut`), so no lock is held while one waits for devices,
/// which translate meanwhile.
#[derive(Debug)]
pub struct Mappings<H: Host> {
    domain: Arc<Domain<H>>,
    bounds: Bounds,
    live: BTreeMap<u64, Mapping>,
}

/// virtio-iommu's flags: read, write.
const READ: u32 = 1;
const WRITE: u32 = 2;

impl<H: Host> Mappings<H> {
    const SHIFT: u32 = <H::Format as Format>::GRANULE;
    /// Bytes of a page, less one.
    const MASK: u64 = (1 << Self::SHIFT) - 1;

    /// Makes an empty set of mappings. No other code maps or unmaps in the domain, which should
    /// [hold](shootdown_dma::domain::Config::holds) its pages: then the host checks whether they
    /// are the guest's.
    #[must_use]
    pub const fn new(domain: Arc<Domain<H>>, bounds: Bounds) -> Self {
        Self { domain, bounds, live: BTreeMap::new() }
    }

    /// The domain.
    pub const fn domain(&self) -> &Arc<Domain<H>> {
        &self.domain
    }

    /// The number of mappings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// The mappings, by their addresses, as the guest has requested them: each is the MAP that
    /// makes it again (migration).
    pub fn iter(&self) -> impl Iterator<Item = MapRequest> + '_ {
        let mapped = self.live.iter().filter(|(_, mapping)| !mapping.stale);
        mapped.map(|(first, mapping)| MapRequest {
            start: first << Self::SHIFT,
            end: ((first + (mapping.pages - 1)) << Self::SHIFT) | Self::MASK,
            phys: mapping.phys,
            flags: mapping.flags,
        })
    }

    /// MAP: the bytes `start` to `end` (inclusive) lead to the guest's memory from `phys` on. When
    /// it returns, devices may use it.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn map(&mut self, start: u64, end: u64, phys: u64, flags: u32) -> Result<(), RequestError> {
        let rights = match flags {
            READ => Rights::Read,
            WRITE => Rights::Write,
            3 => Rights::ReadWrite,
            _ => return Err(RequestError::Invalid),
        };
        let range = pages(start, end, Self::SHIFT)?;
        if phys & Self::MASK != 0 {
            return Err(RequestError::Unaligned);
        }
        if phys.checked_add(end - start).is_none() {
            return Err(RequestError::Invalid);
        }
        let hole = |hole: &IovaRange| hole.overlaps(range);
        let Bounds { first, last, .. } = self.bounds;
        if range.first() < first || range.last() > last || self.bounds.reserved.iter().any(hole) {
            return Err(RequestError::Range);
        }
        if self.overlapping(range).any(|(_, mapping)| mapping.stale) {
            self.forget_stale(range)?;
        }
        if self.overlapping(range).next().is_some() {
            return Err(RequestError::Overlap);
        }
        if self.live.len() >= self.bounds.mappings {
            return Err(RequestError::NoMemory);
        }
        // SAFETY: requests come one at a time, nothing is mapped there, and the allocator hands out
        // nothing.
        let mapped = unsafe { self.domain.map_at(range, PhysAddr(phys), rights) };
        // It is not mapped, but a device may have used it.
        let stale = matches!(mapped, Err(MapError::NotComplete(_)));
        if mapped.is_ok() || stale {
            self.live.insert(range.first(), Mapping { pages: range.pages(), phys, flags, stale });
        }
        mapped.map_err(|error| match error {
            MapError::NotHeld => RequestError::Fault,
            MapError::Table(MapErrorKind::BadAddress) => RequestError::Fault,
            MapError::Table(MapErrorKind::OutOfRange) => RequestError::Range,
            MapError::Table(MapErrorKind::NoMemory) => RequestError::NoMemory,
            error => RequestError::Map(error),
        })
    }

    /// Waits until all caches have invalidated what was mapped at these addresses and is not any
    /// more.
    fn forget_stale(&mut self, range: IovaRange) -> Result<(), RequestError> {
        let flushed = self.domain.flush();
        flushed.map_err(|error| RequestError::NotComplete(UnmapError::NotComplete(error)))?;
        let stale = self.overlapping(range).filter(|(_, mapping)| mapping.stale);
        let stale: Vec<u64> = stale.map(|(first, _)| first).collect();
        for first in stale {
            self.live.remove(&first);
        }
        Ok(())
    }

    /// UNMAP: nothing between `start` and `end` (inclusive) is mapped any more, and no device
    /// reaches what was, when it returns. Returns how many mappings these were.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn unmap(&mut self, start: u64, end: u64) -> Result<usize, RequestError> {
        let range = match (start, end) {
            // Page 0 is never mapped, but a guest may name all pages.
            (0, end) if end == Self::MASK => return Ok(0),
            (0, end) => pages(Self::MASK + 1, end, Self::SHIFT)?,
            (start, end) => pages(start, end, Self::SHIFT)?,
        };
        let whole = |(first, mapping): (u64, Mapping)| {
            IovaRange::new(first, mapping.pages).is_some_and(|all| range.contains(all))
        };
        if !self.overlapping(range).all(whole) {
            return Err(RequestError::Partial);
        }
        let mut count = 0;
        loop {
            // Mappings that abut are unmapped together: one invalidation.
            let mut run: Option<IovaRange> = None;
            let mut stale = false;
            for (first, mapping) in self.overlapping(range) {
                let joins = run.is_none_or(|run| run.last() + 1 == first && !mapping.stale);
                if !joins || stale {
                    break;
                }
                stale = mapping.stale;
                let before = run.map_or(0, IovaRange::pages);
                let from = run.map_or(first, IovaRange::first);
                run = IovaRange::new(from, before + mapping.pages);
            }
            let Some(run) = run else { return Ok(count) };
            let outcome = if stale {
                self.domain.flush().map_err(UnmapError::NotComplete)
            } else {
                // Other threads leave the domain's cells soon: try again.
                loop {
                    // SAFETY: requests come one at a time, and these are mapped.
                    match unsafe { self.domain.unmap_at(run) } {
                        Err(UnmapError::Busy) => spin_loop(),
                        outcome => break outcome,
                    }
                }
            };
            let mapped: Vec<u64> = self.overlapping(run).map(|(first, _)| first).collect();
            if let Err(error) = outcome {
                for first in mapped {
                    if let Some(mapping) = self.live.get_mut(&first) {
                        mapping.stale = matches!(error, UnmapError::NotComplete(_));
                    }
                }
                return Err(RequestError::NotComplete(error));
            }
            count += mapped.len();
            for first in mapped {
                self.live.remove(&first);
            }
        }
    }

    /// Unmaps everything: DETACH of the last device, or a reset.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn clear(&mut self) -> Result<usize, RequestError> {
        self.unmap(0, u64::MAX)
    }

    /// Mappings that have a page of the range, in order.
    fn overlapping(&self, range: IovaRange) -> impl Iterator<Item = (u64, Mapping)> + '_ {
        let before = self.live.range(..range.first()).next_back();
        let before = before.filter(move |(first, m)| **first + (m.pages - 1) >= range.first());
        let within = self.live.range(range.first()..=range.last());
        before.into_iter().chain(within).map(|(first, mapping)| (*first, *mapping))
    }
}

/// The whole pages of 2^`granule` bytes between these bytes (inclusive).
const fn pages(start: u64, end: u64, granule: u32) -> Result<IovaRange, RequestError> {
    let mask = (1 << granule) - 1;
    if end < start {
        return Err(RequestError::Invalid);
    }
    if start & mask != 0 || end & mask != mask {
        return Err(RequestError::Unaligned);
    }
    match IovaRange::new(start >> granule, ((end - start) >> granule) + 1) {
        Some(range) => Ok(range),
        None => Err(RequestError::Range),
    }
}
