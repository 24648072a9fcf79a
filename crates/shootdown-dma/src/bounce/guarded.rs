//! A domain whose devices see the bytes of buffers, and nothing beside them.

use core::fmt;
use core::ops::Range;

use super::host::{Access, Bouncing};
use super::pool::Pool;
use crate::addr::{DomainId, PhysAddr, Rights};
use crate::domain::{
    self, Config, DmaAddr, Domain, DomainError, Failed, Host, Mapping, Policy, Reach, Segment,
    UnmapError,
};
use crate::table::Format;

/// Why a buffer was not mapped. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MapError {
    /// The pool has no page for its edges, even after waiting for deferred ones.
    Exhausted,
    /// There is no such memory that could be copied, or it belongs to the pool.
    NoSuchMemory,
    /// The error of the domain.
    Domain(domain::MapError),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted => f.write_str(
                "no page is left for the edges of buffers; unmap some, align them, or enlarge the pool",
            ),
            Self::NoSuchMemory => f.write_str("there is no such memory that could be copied"),
            Self::Domain(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for MapError {}

impl From<domain::MapError> for MapError {
    fn from(error: domain::MapError) -> Self {
        Self::Domain(error)
    }
}

/// The bytes are not all in the buffer. Nothing was copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfRange;

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes are not all in the buffer")
    }
}

impl core::error::Error for OutOfRange {}

/// A buffer that is mapped. [`Guarded::unmap`] consumes it; forgetting it leaves it mapped, with
/// its pages of the pool.
#[must_use = "what is not unmapped stays within the device's reach"]
#[derive(PartialEq, Eq, Debug)]
pub struct Mapped {
    mapping: Mapping,
    pub(super) buffer: Buffer,
}

/// The arguments of the mapping, and the pages that were taken for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Buffer {
    phys: PhysAddr,
    bytes: u64,
    rights: Rights,
    /// Pages of the pool for the first piece (or all of it, if it lies in one page) and for the
    /// last.
    pub(super) edges: [Option<usize>; 2],
    pool: u64,
}

impl Mapped {
    /// The address at which the device finds its first byte.
    #[must_use]
    pub const fn addr(&self) -> DmaAddr {
        self.mapping.addr()
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// How many of its pages belong to the pool.
    #[must_use]
    pub fn bounced(&self) -> usize {
        self.buffer.edges.iter().flatten().count()
    }
}

/// The pieces of a buffer that don't fill their page of `page` bytes: the length of the first and
/// of the last.
fn edges(page: u64, phys: u64, bytes: u64) -> [Option<u64>; 2] {
    let (head, tail) = (phys & (page - 1), (phys + bytes) & (page - 1));
    if head + bytes <= page {
        return [(bytes != page).then_some(bytes), None];
    }
    [(head != 0).then_some(page - head), (tail != 0).then_some(tail)]
}

/// A domain for devices that are not trusted: they see the bytes of buffers, and nothing beside
/// them. See the [module](super).
pub struct Guarded<H: Access> {
    domain: Domain<Bouncing<H>>,
}

impl<H: Access> Guarded<H> {
    const SHIFT: u32 = <H::Format as Format>::GRANULE;
    const PAGE: u64 = 1 << Self::SHIFT;

    /// As [`Domain::new`], with a pool for the edges of buffers.
    ///
    /// # Errors
    /// See [`DomainError`]; [`DomainError::PoolGranule`] if the pool's pages are not as large as
    /// the table's.
    pub fn new(
        host: H,
        config: Config,
        addresses: H::Addresses,
        format: H::Format,
        tables: H::Tables,
        units: impl IntoIterator<Item = (H::Unit, DomainId)>,
        pool: Pool,
    ) -> Result<Self, DomainError> {
        if pool.granule() != Self::SHIFT {
            return Err(DomainError::PoolGranule);
        }
        let host = Bouncing { host, pool, holds: config.holds };
        // [B3] Under every policy.
        let config = Config { holds: true, ..config };
        let domain = Domain::new(host, config, addresses, format, tables, units)?;
        Ok(Self { domain })
    }

    /// The domain: to attach devices, to poll, to flush. Mappings by its own methods are not
    /// guarded: devices reach all of their pages.
    pub const fn domain(&self) -> &Domain<Bouncing<H>> {
        &self.domain
    }

    fn host(&self) -> &H {
        &self.domain.host().host
    }

    /// The pool.
    pub const fn pool(&self) -> &Pool {
        &self.domain.host().pool
    }

    /// Maps a buffer, and nothing beside it. If the pool has no page for an edge, it flushes what
    /// is deferred, and tries once more.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn map(&self, phys: PhysAddr, bytes: u64, rights: Rights) -> Result<Mapped, MapError> {
        if bytes == 0 {
            return Err(domain::MapError::Empty.into());
        }
        let end = phys.0.checked_add(bytes).ok_or(domain::MapError::Overflow)?;
        let (first, last) = (phys.0 >> Self::SHIFT, (end - 1) >> Self::SHIFT);
        if !self.pool().among(first, last - first + 1).is_empty() {
            return Err(MapError::NoSuchMemory);
        }
        let pieces = edges(Self::PAGE, phys.0, bytes);
        let edges = self.take(pieces)?;
        let mapped = self.fill(phys, bytes, pieces, edges).and_then(|()| {
            let mapping = self.map_pieces(phys, bytes, pieces, edges, rights)?;
            let buffer = Buffer { phys, bytes, rights, edges, pool: self.pool().id() };
            Ok(Mapped { mapping, buffer })
        });
        if mapped.is_err() {
            self.let_go(edges);
        }
        mapped
    }

    /// Takes pages of the pool, one for each piece.
    fn take(&self, pieces: [Option<u64>; 2]) -> Result<[Option<usize>; 2], MapError> {
        for attempt in 0..2 {
            let taken = pieces.map(|piece| piece.map(|_| self.pool().take()));
            if !taken.contains(&Some(None)) {
                return Ok(taken.map(Option::flatten));
            }
            self.let_go(taken.map(Option::flatten));
            if attempt == 0 && self.domain.flush().is_err() {
                break;
            }
        }
        Err(MapError::Exhausted)
    }

    fn let_go(&self, edges: [Option<usize>; 2]) {
        edges.iter().flatten().for_each(|index| self.pool().let_go(*index));
    }

    /// Fills pages of the pool with what the device may see of them (B1).
    fn fill(
        &self,
        phys: PhysAddr,
        bytes: u64,
        pieces: [Option<u64>; 2],
        edges: [Option<usize>; 2],
    ) -> Result<(), MapError> {
        for index in edges.iter().flatten() {
            self.host().clear(self.pool().at(*index), Self::PAGE);
        }
        let [head, tail] = self.places(phys, bytes, pieces, edges);
        for (buffer, page, bytes) in [head, tail].into_iter().flatten() {
            if !self.host().copy(buffer, page, bytes) {
                return Err(MapError::NoSuchMemory);
            }
        }
        Ok(())
    }

    /// For each piece: its place in the buffer, its place in the pool, and its length.
    fn places(
        &self,
        phys: PhysAddr,
        bytes: u64,
        pieces: [Option<u64>; 2],
        edges: [Option<usize>; 2],
    ) -> [Option<(PhysAddr, PhysAddr, u64)>; 2] {
        let [head, tail] = pieces;
        let [first, last] = edges.map(|index| index.map(|index| self.pool().at(index).0));
        let head = head.zip(first).map(|(piece, page)| {
            let page = PhysAddr(page + (phys.0 & (Self::PAGE - 1)));
            (phys, page, piece)
        });
        let tail = tail
            .zip(last)
            .map(|(piece, page)| (PhysAddr(phys.0 + bytes - piece), PhysAddr(page), piece));
        [head, tail]
    }

    /// Maps the first piece, whole pages and the last piece at contiguous addresses.
    fn map_pieces(
        &self,
        phys: PhysAddr,
        bytes: u64,
        pieces: [Option<u64>; 2],
        edges: [Option<usize>; 2],
        rights: Rights,
    ) -> Result<Mapping, domain::MapError> {
        let [head, tail] = self.places(phys, bytes, pieces, edges);
        let before = head.map_or(0, |(_, _, bytes)| bytes);
        let behind = tail.map_or(0, |(_, _, bytes)| bytes);
        let middle = bytes - before - behind;
        let middle =
            (middle != 0).then_some(Segment { phys: PhysAddr(phys.0 + before), bytes: middle });
        let edge = |(_, page, bytes)| Segment { phys: page, bytes };
        let mut segments = [Segment { phys, bytes }; 3];
        let mut len = 0;
        for segment in [head.map(edge), middle, tail.map(edge)].into_iter().flatten() {
            segments[len] = segment;
            len += 1;
        }
        match &segments[..len] {
            [one] => self.domain.map(one.phys, one.bytes, rights),
            several => self.domain.map_sg(several, rights),
        }
    }

    /// The parts of these bytes that lie in pages of the pool: place in the buffer, place in the
    /// pool, length.
    fn bounced(
        &self,
        buffer: &Buffer,
        part: &Range<u64>,
    ) -> impl Iterator<Item = (PhysAddr, PhysAddr, u64)> + use<H> {
        let Buffer { phys, bytes, edges: pages, .. } = *buffer;
        let Range { start, end } = *part;
        let places = self.places(phys, bytes, edges(Self::PAGE, phys.0, bytes), pages);
        places.into_iter().flatten().filter_map(move |(buffer, page, bytes)| {
            let first = buffer.0 - phys.0;
            let (from, to) = (start.max(first), end.min(first + bytes));
            let skip = from.checked_sub(first)?;
            let bytes = to.checked_sub(from).filter(|bytes| *bytes != 0)?;
            Some((PhysAddr(buffer.0 + skip), PhysAddr(page.0 + skip), bytes))
        })
    }

    fn check(&self, buffer: &Buffer, part: &Range<u64>) -> Result<(), OutOfRange> {
        let within = part.start <= part.end && part.end <= buffer.bytes;
        if within && buffer.pool == self.pool().id() { Ok(()) } else { Err(OutOfRange) }
    }

    /// Makes what the CPU has written to `part` of the buffer visible to the device.
    ///
    /// # Errors
    /// [`OutOfRange`].
    pub fn sync_for_device(&self, mapped: &Mapped, part: Range<u64>) -> Result<(), OutOfRange> {
        self.check(&mapped.buffer, &part)?;
        for (buffer, page, bytes) in self.bounced(&mapped.buffer, &part) {
            self.host().copy(buffer, page, bytes);
        }
        Ok(())
    }

    /// Makes what the device has written to `part` of the buffer visible to the CPU. If the device
    /// may only read, it does nothing.
    ///
    /// # Errors
    /// [`OutOfRange`].
    pub fn sync_for_cpu(&self, mapped: &Mapped, part: Range<u64>) -> Result<(), OutOfRange> {
        self.check(&mapped.buffer, &part)?;
        self.copy_back(&mapped.buffer, &part);
        Ok(())
    }

    /// Copies what the device has written to pages of the pool to the buffer.
    fn copy_back(&self, buffer: &Buffer, part: &Range<u64>) {
        if buffer.rights.writes() {
            for (buffer, page, bytes) in self.bounced(buffer, part) {
                self.host().copy(page, buffer, bytes);
            }
        }
    }

    /// Unmaps a buffer, under the domain's policy; the CPU sees what the device has written.
    ///
    /// # Errors
    /// See [`UnmapError`], and the buffer if it is still mapped. After [`UnmapError::NotComplete`]
    /// it is not, and its pages stay out of use until no device reaches them.
    pub fn unmap(&self, mapped: Mapped) -> Result<Reach, (UnmapError, Option<Mapped>)> {
        self.unmap_under(self.domain.config().policy, mapped)
    }

    /// The same under another policy; see [`Domain::unmap_under`].
    ///
    /// # Errors
    /// As [`unmap`](Self::unmap).
    pub fn unmap_under(
        &self,
        policy: Policy,
        mapped: Mapped,
    ) -> Result<Reach, (UnmapError, Option<Mapped>)> {
        let Mapped { mapping, buffer } = mapped;
        if buffer.pool != self.pool().id() {
            return Err((UnmapError::NotMapped, Some(Mapped { mapping, buffer })));
        }
        // The domain holds pages in any case; the kernel decides whether its own pages are held
        // with them.
        let policy = match policy {
            Policy::Deferred if !self.domain.host().holds => Policy::Strict,
            policy => policy,
        };
        match self.domain.unmap_under(policy, mapping) {
            Err((error, Some(mapping))) => Err((error, Some(Mapped { mapping, buffer }))),
            outcome => {
                self.copy_back(&buffer, &(0..buffer.bytes));
                self.let_go(buffer.edges);
                outcome.map_err(|(error, _)| (error, None))
            }
        }
    }

    /// Ends the domain; see [`Domain::end`].
    ///
    /// # Safety
    /// As [`Domain::end`].
    ///
    /// # Errors
    /// [`Failed`], with the domain.
    #[allow(clippy::result_large_err)] // once in a domain's life, and it comes back whole
    pub unsafe fn end(self) -> Result<<Bouncing<H> as Host>::Addresses, Failed<Bouncing<H>>> {
        // SAFETY: as the caller promises.
        unsafe { self.domain.end() }
    }
}

impl<H: Access> fmt::Debug for Guarded<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").field("domain", &self.domain).field("pool", self.pool()).finish()
    }
}
