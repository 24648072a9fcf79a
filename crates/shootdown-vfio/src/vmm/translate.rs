//! `vm_memory`'s trait for IOMMUs: lookups, and filling the cache.

use core::fmt;
use std::sync::Arc;

use shootdown_dma::addr::{PhysAddr, Rights};
use shootdown_dma::domain::{DmaAddr, Domain, Host};
use vm_memory::iommu::{Error, Iommu, Iotlb, IotlbIterator, IovaRange as Bytes};
use vm_memory::{GuestAddress, Permissions};

use super::cache::{Cache, Guard, Tlb};

/// The tables in which a device's accesses are looked up: a domain.
pub trait Walk: Send + Sync {
    /// The memory that this address leads to at the moment, how many bytes follow there, and the
    /// rights; `None`: a fault.
    fn walk(&self, at: DmaAddr) -> Option<(PhysAddr, u64, Rights)>;
}

impl<H: Host> Walk for Domain<H>
where
    Self: Send + Sync,
{
    fn walk(&self, at: DmaAddr) -> Option<(PhysAddr, u64, Rights)> {
        self.lookup(at)
    }
}

impl<W: Walk + ?Sized> Walk for Arc<W> {
    fn walk(&self, at: DmaAddr) -> Option<(PhysAddr, u64, Rights)> {
        (**self).walk(at)
    }
}

/// The translation of an emulated device: `vm_memory`'s [`Iommu`], for `vm_memory`'s `IommuMemory`.
///
/// A device that still uses a result (an iterator) when it asks again may wait for itself, if an
/// unmapping is under way at that moment: finish one access first. `IommuMemory`'s own methods do.
pub struct Translator<W> {
    tables: W,
    cache: Arc<Cache>,
}

impl<W: Walk> Translator<W> {
    /// Looks up in `tables`: a domain whose unit the cache is, and that the device is
    /// [attached](Domain::attach) to. Otherwise the cache gets no invalidations.
    #[must_use]
    pub const fn new(tables: W, cache: Arc<Cache>) -> Self {
        Self { tables, cache }
    }

    /// The tables that it looks up.
    pub const fn tables(&self) -> &W {
        &self.tables
    }

    /// Holds the cache: until this is dropped no unmapping completes. For code that keeps slices of
    /// memory for some time, such as a device that works on a chain of buffers.
    #[must_use = "it holds while it lives"]
    pub fn hold(&self) -> Guard<'_> {
        self.cache.read()
    }

    /// Puts into the cache what the tables hold of a range, in whole pages (V2).
    fn fill(&self, first: u64, end: u64, access: Permissions) -> Result<(), Error> {
        let mut tlb = self.cache.write();
        let found = self.collect(first, end, access)?;
        self.put(&mut tlb, &found)
    }

    fn put(&self, tlb: &mut Tlb, found: &[Piece]) -> Result<(), Error> {
        self.cache.make_room(tlb, found.len());
        for &Piece { at, phys, bytes, rights } in found {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            let (at, phys) = (GuestAddress(at), GuestAddress(phys.0));
            tlb.iotlb.set_mapping(at, phys, bytes, permissions(rights))?;
        }
        Ok(())
    }

    /// The memory that a range leads to, piece by piece.
    fn collect(&self, first: u64, end: u64, access: Permissions) -> Result<Vec<Piece>, Error> {
        let mut found: Vec<Piece> = Vec::new();
        let mut at = first & !PAGE_MASK;
        while at < end {
            let refused = |why: &str| Err(cannot(at.max(first), end - at.max(first), why));
            let Some((phys, left, rights)) = self.tables.walk(DmaAddr(at)) else {
                return refused("nothing is mapped there");
            };
            if !permissions(rights).allow(access) {
                return refused("what is mapped there does not allow this access");
            }
            // No more of a large leaf than the requested pages.
            let bytes = left.min(((end - 1) | PAGE_MASK) - at + 1);
            match found.last_mut() {
                // Pages that are contiguous on both sides are one mapping.
                Some(last) if last.phys.0 + last.bytes == phys.0 && last.rights == rights => {
                    last.bytes += bytes;
                }
                _ => found.push(Piece { at, phys, bytes, rights }),
            }
            at += bytes;
        }
        Ok(found)
    }
}

/// Addresses that lead to contiguous memory.
struct Piece {
    at: u64,
    phys: PhysAddr,
    bytes: u64,
    rights: Rights,
}

/// Bytes of the smallest granule, less one. Of a larger page the cache takes only the requested
/// pieces.
const PAGE_MASK: u64 = (1 << 12) - 1;

/// The rights, as `vm_memory` has them.
const fn permissions(rights: Rights) -> Permissions {
    match rights {
        Rights::Read => Permissions::Read,
        Rights::Write => Permissions::Write,
        Rights::ReadWrite => Permissions::ReadWrite,
    }
}

fn cannot(at: u64, bytes: u64, why: &str) -> Error {
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    let iova_range = Bytes { base: GuestAddress(at), length };
    Error::CannotResolve { iova_range, reason: why.to_string() }
}

impl<W: Walk> Iommu for Translator<W> {
    type IotlbGuard<'a>
        = Guard<'a>
    where
        Self: 'a;

    fn translate(
        &self,
        iova: GuestAddress,
        length: usize,
        access: Permissions,
    ) -> Result<IotlbIterator<Guard<'_>>, Error> {
        // The device chose both: check the sum.
        let end = u64::try_from(length).ok().and_then(|length| iova.0.checked_add(length));
        let Some(end) = end else {
            return Err(cannot(iova.0, u64::MAX - iova.0, "it goes past the end of the space"));
        };
        loop {
            if let Ok(found) = Iotlb::lookup(self.cache.read(), iova, length, access) {
                return Ok(found);
            }
            // A mapping that is put in can be unmapped before it is found: then the next turn finds
            // that nothing is mapped.
            self.fill(iova.0, end, access)?;
        }
    }
}

impl<W> fmt::Debug for Translator<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Translator").field("cache", &self.cache).finish_non_exhaustive()
    }
}
