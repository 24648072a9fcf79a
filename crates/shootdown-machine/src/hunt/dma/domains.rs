//! Domains of any format, behind one face; and those whose devices see bytes.

use std::mem;
use std::ops::Range;
use std::ptr::{self, NonNull};

use shootdown_dma::bounce::{self, Access, Guarded, Mapped, OutOfRange};
use shootdown_dma::domain::{Domain, Failed, Host, Mapping, Reservation, Segment};
use shootdown_dma::invalidate::{AttachError, Attachment, QueueError};
use shootdown_dma::{DeviceId, DmaAddr, IovaRange, MapError, PhysAddr, Policy, Rights, UnmapError};

/// What the drivers of the model kernel do with a domain; each method is the domain's own.
pub(super) trait AnyDomain {
    fn root(&self) -> PhysAddr;
    fn map(&self, policy: Policy, at: PhysAddr, bytes: u64, r: Rights)
    -> Result<DmaAddr, MapError>;
    fn map_sg(&self, segments: &[Segment], rights: Rights) -> Result<DmaAddr, MapError>;
    fn unmap(&self, policy: Policy, at: DmaAddr, bytes: u64) -> Result<(), UnmapError>;
    fn reserve(&self, pages: u64) -> Result<Reservation, MapError>;
    fn link(
        &self,
        r: &mut Reservation,
        at: PhysAddr,
        pages: u64,
        rights: Rights,
    ) -> Result<DmaAddr, MapError>;
    fn sync(&self, reservation: &mut Reservation) -> Result<(), MapError>;
    fn unlink(&self, reservation: &mut Reservation) -> Result<(), UnmapError>;
    fn release(&self, r: Reservation) -> Result<(), (UnmapError, Option<Reservation>)>;
    fn poll(&self, now: u64) -> Result<(), QueueError>;
    fn flush(&self) -> Result<(), QueueError>;
    fn attach(
        &self,
        unit: usize,
        device: DeviceId,
        caches: bool,
    ) -> Result<Attachment, AttachError>;
    fn announce(&self, attachment: &Attachment) -> Result<(), QueueError>;
    fn detach(&self, attachment: Attachment) -> Result<(), (QueueError, Attachment)>;
    fn evict(&self, attachment: Attachment) -> Result<(), (QueueError, Attachment)>;
    /// Opens the window; where it begins.
    fn open_window(&self, pages: u64) -> Option<DmaAddr>;
    fn map_at(&self, range: IovaRange, at: PhysAddr, rights: Rights) -> Result<(), MapError>;
    fn unmap_at(&self, range: IovaRange) -> Result<(), UnmapError>;
    fn lookup(&self, at: DmaAddr) -> Option<(PhysAddr, u64, Rights)>;
    /// How many unmappings have waited because a bound was reached.
    fn forced_waits(&self) -> u64;
    /// How many things are owed, and pages held back.
    fn deferred(&self) -> (usize, u64);
    /// Ends it.
    ///
    /// # Safety
    /// No device's entry leads to it. Nobody uses it any more, unless it could not be ended.
    unsafe fn end(&self) -> Result<(), QueueError>;
}

/// The same of a domain with a pool.
pub(super) trait AnyGuarded {
    fn domain(&self) -> &dyn AnyDomain;
    fn map(&self, at: PhysAddr, bytes: u64, r: Rights) -> Result<Mapped, bounce::MapError>;
    fn unmap(&self, policy: Policy, m: Mapped) -> Result<(), (UnmapError, Option<Mapped>)>;
    /// For the device, then back for the CPU.
    fn sync(&self, m: &Mapped, part: Range<u64>) -> Result<(), OutOfRange>;
}

/// A domain in the run's memory.
#[derive(Clone, Copy)]
pub(super) enum Placed {
    Plain(NonNull<dyn AnyDomain>),
    Guarded(NonNull<dyn AnyGuarded>),
}

impl Placed {
    /// # Safety
    /// It was not dropped, and will not be while what is returned is used.
    pub unsafe fn domain(&self) -> &'static dyn AnyDomain {
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Self::Plain(domain) => domain.as_ref(),
                Self::Guarded(guarded) => guarded.as_ref().domain(),
            }
        }
    }

    /// # Safety
    /// As [`domain`](Self::domain).
    pub unsafe fn guarded(&self) -> Option<&'static dyn AnyGuarded> {
        match self {
            Self::Plain(_) => None,
            // SAFETY: as the caller promises.
            Self::Guarded(guarded) => Some(unsafe { guarded.as_ref() }),
        }
    }

    /// # Safety
    /// Once, when nobody uses it any more.
    pub unsafe fn end(self) {
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Self::Plain(domain) => domain.drop_in_place(),
                Self::Guarded(guarded) => guarded.drop_in_place(),
            }
        }
    }
}

/// Half of the ranges that a driver brings are mapped and unmapped by the calls that bound the time
/// of one.
const fn by_pieces(range: IovaRange) -> bool {
    range.first() % 2 == 1
}

impl<H: Host> AnyDomain for Domain<H> {
    fn root(&self) -> PhysAddr {
        self.root()
    }

    fn map(
        &self,
        policy: Policy,
        at: PhysAddr,
        bytes: u64,
        r: Rights,
    ) -> Result<DmaAddr, MapError> {
        self.map_under(policy, at, bytes, r).map(Mapping::into_raw)
    }

    fn map_sg(&self, segments: &[Segment], rights: Rights) -> Result<DmaAddr, MapError> {
        self.map_sg(segments, rights).map(Mapping::into_raw)
    }

    fn unmap(&self, policy: Policy, at: DmaAddr, bytes: u64) -> Result<(), UnmapError> {
        // SAFETY: one driver at a time is in a buffer's slot, and a slot has its mapping once.
        unsafe { self.unmap_raw_under(policy, at, bytes) }.map(drop)
    }

    fn reserve(&self, pages: u64) -> Result<Reservation, MapError> {
        self.reserve(pages)
    }

    fn link(
        &self,
        r: &mut Reservation,
        at: PhysAddr,
        pages: u64,
        rights: Rights,
    ) -> Result<DmaAddr, MapError> {
        self.link(r, at, pages, rights)
    }

    fn sync(&self, reservation: &mut Reservation) -> Result<(), MapError> {
        self.sync(reservation)
    }

    fn unlink(&self, reservation: &mut Reservation) -> Result<(), UnmapError> {
        self.unlink(reservation)
    }

    fn release(&self, r: Reservation) -> Result<(), (UnmapError, Option<Reservation>)> {
        self.release(r)
    }

    fn poll(&self, now: u64) -> Result<(), QueueError> {
        self.poll(now)
    }

    fn flush(&self) -> Result<(), QueueError> {
        self.flush()
    }

    fn attach(
        &self,
        unit: usize,
        device: DeviceId,
        caches: bool,
    ) -> Result<Attachment, AttachError> {
        self.attach(unit, device, caches)
    }

    fn announce(&self, attachment: &Attachment) -> Result<(), QueueError> {
        self.announce(attachment)
    }

    fn detach(&self, attachment: Attachment) -> Result<(), (QueueError, Attachment)> {
        self.detach(attachment)
    }

    fn evict(&self, attachment: Attachment) -> Result<(), (QueueError, Attachment)> {
        self.evict(attachment)
    }

    fn open_window(&self, pages: u64) -> Option<DmaAddr> {
        self.open_window(pages).ok()
    }

    fn map_at(&self, range: IovaRange, at: PhysAddr, rights: Rights) -> Result<(), MapError> {
        if !by_pieces(range) {
            // SAFETY: as above; the allocator does not hand these pages out.
            return unsafe { self.map_at(range, at, rights) };
        }
        // SAFETY: the same.
        let pages = unsafe { self.map_at_piece(range, at, rights) }?;
        assert_eq!(pages, range.pages(), "a program's ranges are one piece");
        Ok(())
    }

    fn unmap_at(&self, range: IovaRange) -> Result<(), UnmapError> {
        if !by_pieces(range) {
            // SAFETY: as above.
            return unsafe { self.unmap_at(range) };
        }
        // SAFETY: the same.
        let pages = unsafe { self.unmap_at_piece(range) }?;
        assert_eq!(pages, range.pages(), "a program's ranges are one piece");
        Ok(())
    }

    fn lookup(&self, at: DmaAddr) -> Option<(PhysAddr, u64, Rights)> {
        self.lookup(at)
    }

    fn deferred(&self) -> (usize, u64) {
        self.deferred()
    }

    fn forced_waits(&self) -> u64 {
        self.counts().forced_waits
    }

    unsafe fn end(&self) -> Result<(), QueueError> {
        // SAFETY: nobody uses what is left here, or else it is left as it is: what comes back is
        // forgotten.
        let ended = unsafe { ptr::read(self).end() };
        match ended {
            Ok(_addresses) => Ok(()),
            Err(Failed { error, domain }) => {
                mem::forget(domain);
                Err(error)
            }
        }
    }
}

impl<H: Access> AnyGuarded for Guarded<H> {
    fn domain(&self) -> &dyn AnyDomain {
        self.domain()
    }

    fn map(&self, at: PhysAddr, bytes: u64, r: Rights) -> Result<Mapped, bounce::MapError> {
        self.map(at, bytes, r)
    }

    fn unmap(&self, policy: Policy, m: Mapped) -> Result<(), (UnmapError, Option<Mapped>)> {
        self.unmap_under(policy, m).map(drop)
    }

    fn sync(&self, m: &Mapped, part: Range<u64>) -> Result<(), OutOfRange> {
        self.sync_for_device(m, part.clone())?;
        self.sync_for_cpu(m, part)
    }
}
