//! What a case plays on: the device, domains for it, and the queue that may be muffled.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use shootdown_dma::domain::{Config, DmaAddr, Domain, Mapping, Policy};
use shootdown_dma::invalidate::{Attachment, Command, Unit};
use shootdown_dma::iova::magazine::{self, Magazines};
use shootdown_dma::iova::space::{HYPERTRANSPORT, INTERRUPTS, Space};
use shootdown_dma::iova::tree::Tree;
use shootdown_dma::{DeviceId, DomainId, IovaRange, MapError, PhysAddr, Rights, UnmapError};
use spin::Mutex;

use super::{Broken, Outcome, Place, Queue};
use crate::dma::edu::Edu;
use crate::dma::host::{self, Kernel, Muffle, Muffled, Tables};
use crate::dma::iommu::{Fault, FaultKind, Iommu};
use crate::memory::{self, FRAME};
use crate::port::Deadline;

/// Milliseconds within which every try must be over; each of the device's copies takes a hundred.
const LIMIT: u64 = 20_000;

/// Pages below this are the cases' own to give out; the domain's allocator has the rest, and hands
/// it out from above.
const GIVEN: u64 = 0x1000;

/// Where the device reads what it will write. The lowest eight bits of page numbers are different
/// everywhere: QEMU's VT-d compares no others when it invalidates pages.
const SOURCE: u64 = 0x210;
/// Where it writes what it has read, for cases that want to know.
const SINK: u64 = 0x220;

/// What a page holds before the device writes to it.
const BLANK: u64 = 0x0b1a_0b1a_0b1a_0b1a;

/// Where in its own page the device keeps what it writes, and where it puts what it reads.
const STAMP_AT: u64 = 0;
const READ_AT: u64 = 64;

/// A domain of the cases.
pub type Dom<I> = Domain<Kernel<I>>;

/// A page that a device may be given: its frame, and the address by which the device has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// The frame.
    pub frame: u64,
    /// For the device.
    pub at: DmaAddr,
}

/// One try of a case.
pub struct Stage<I: Iommu> {
    /// The unit.
    pub iommu: &'static I,
    /// The device behind it.
    pub edu: &'static Edu,
    /// Is the unit told?
    pub queue: Queue,
    /// CPUs that take work.
    pub cpus: u32,
    /// Which try it is.
    pub number: u32,
    /// What the device writes.
    pub stamp: u64,
    source: u64,
    sink: u64,
    frames: Mutex<Vec<u64>>,
    _deadline: Deadline,
}

/// Muffles the queue, whichever domain uses it.
static MUFFLE: AtomicU8 = AtomicU8::new(Muffle::Nothing as u8);

/// The last id that a domain had. They are used again only by the case that is about it.
static LAST_ID: AtomicU16 = AtomicU16::new(0);

/// Stamps that were handed out.
static STAMPS: AtomicU64 = AtomicU64::new(0);

fn read(physical: u64) -> u64 {
    // SAFETY: the first word of a frame that the case has, or that is free; a device may write it
    // at any time, so it is read as it is now.
    unsafe { memory::at(physical).cast::<u64>().read_volatile() }
}

impl<I: Iommu> Stage<I> {
    /// Sets it up: nothing is mapped, and the device is not admitted.
    pub fn set(place: &Place<I>, number: u32, queue: Queue) -> Self {
        let Place { iommu, edu, cpus } = *place;
        let stamp = 0x5a5a_0000_0000_0000 | (STAMPS.fetch_add(1, Ordering::Relaxed) + 1);
        let [source, sink] =
            core::array::from_fn(|_| memory::allocate().expect("there are frames"));
        memory::fill(source, stamp);
        let frames = Mutex::new(Vec::new());
        let _deadline = Deadline::in_ms(LIMIT);
        Self { iommu, edu, queue, cpus, number, stamp, source, sink, frames, _deadline }
    }

    /// Ends it: all its frames are free.
    pub fn strike(self) {
        self.frames.lock().drain(..).for_each(host::let_go);
        memory::free(self.source);
        memory::free(self.sink);
        // What a device wrote to free memory is not the next case's.
        memory::poison_all();
    }

    /// The device, as the unit knows it.
    pub fn device(&self) -> DeviceId {
        self.iommu.knows_as(self.edu.function())
    }

    /// A frame of the case, blank.
    pub fn frame(&self) -> Result<u64, Broken> {
        let frame = memory::allocate().ok_or(Broken::Premise("memory has no frame left"))?;
        memory::fill(frame, BLANK);
        self.frames.lock().push(frame);
        Ok(frame)
    }

    /// The frame is given up: free at once, or when no domain holds it any more.
    pub fn give_up(&self, frame: u64) {
        self.frames.lock().retain(|mine| *mine != frame);
        host::let_go(frame);
    }

    /// From now on the unit does not hear this, if it is the control.
    pub fn change(&self, lost: Muffle) {
        if self.queue != Queue::Told {
            MUFFLE.store(lost as u8, Ordering::Relaxed);
        }
    }

    /// The unit hears everything again.
    pub fn listen(&self) {
        MUFFLE.store(Muffle::Nothing as u8, Ordering::Relaxed);
    }

    /// An id that no domain has had.
    pub fn new_id(&self) -> DomainId {
        // 16 bits are what VT-d and AMD-Vi have; a run makes some hundreds of domains.
        DomainId(LAST_ID.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The pages that the domains' own allocators hand out.
    pub fn space(&self) -> Space<'static> {
        // Half of what there is: a window of all memory goes above.
        Space::below(1 << (self.iommu.address_bits() - 12))
            .from(GIVEN)
            .without(&[INTERRUPTS, HYPERTRANSPORT])
    }

    /// A domain; nobody is in it.
    pub fn domain(
        &self,
        config: Config,
        space: &Space<'_>,
        id: DomainId,
    ) -> Result<Dom<I>, Broken> {
        let room = Broken::Premise("the heap has no room for a domain");
        let config = if self.iommu.remembers_absence() { config.caching_absence() } else { config };
        let tree = Tree::new(space).map_err(|_| room)?;
        let magazines = magazine::Config::for_cpus(config.cpus);
        let addresses = Magazines::new(tree, &magazines).map_err(|_| room)?;
        let tables = Tables { coherent: self.iommu.is_coherent() };
        let units = [(Muffled::new(self.iommu, &MUFFLE), id)];
        Domain::new(Kernel::new(), config, addresses, self.iommu.tables(), tables, units)
            .map_err(|_| room)
    }

    /// Runs a case with the device in a new domain, and takes everything down.
    pub fn with(&self, config: Config, case: impl FnOnce(&Behind<'_, I>) -> Outcome) -> Outcome {
        self.with_space(config, &self.space(), case)
    }

    /// The same with other addresses.
    pub fn with_space(
        &self,
        config: Config,
        space: &Space<'_>,
        case: impl FnOnce(&Behind<'_, I>) -> Outcome,
    ) -> Outcome {
        let id = self.new_id();
        let domain = self.domain(config, space, id)?;
        let attachment = self.join(&domain, id)?;
        let behind = Behind { stage: self, domain: &domain };
        let outcome = behind.load().and_then(|()| case(&behind));
        self.listen();
        self.leave(&domain, attachment)?;
        self.end(domain, id)?;
        outcome
    }

    /// Lets the device into a domain.
    pub fn join(&self, domain: &Dom<I>, id: DomainId) -> Result<Attachment, Broken> {
        self.join_with(domain, id, false)
    }

    /// The same; does it have a cache of its own?
    pub fn join_with(
        &self,
        domain: &Dom<I>,
        id: DomainId,
        caches: bool,
    ) -> Result<Attachment, Broken> {
        let attachment = domain.attach(0, self.device(), caches)?;
        self.iommu.let_in(self.device(), domain.root(), id);
        domain.announce(&attachment)?;
        Ok(attachment)
    }

    /// Takes it out again.
    pub fn leave(&self, domain: &Dom<I>, attachment: Attachment) -> Result<(), Broken> {
        self.iommu.expel(self.device());
        domain.detach(attachment).map_err(|(error, _attachment)| Broken::Queue(error))
    }

    /// Ends a domain that nobody is in. What the control has not told the unit is told now.
    pub fn end(&self, domain: Dom<I>, id: DomainId) -> Result<(), Broken> {
        self.listen();
        let muffled = Muffled::new(self.iommu, &MUFFLE);
        let config = Command::Config { device: self.device(), domain: id };
        let all = if muffled.forgets_all() { Command::All } else { Command::Domain(id) };
        let ticket = muffled.submit(&[config, all])?;
        while muffled.completed()? < ticket {
            crate::arch::relax();
        }
        // SAFETY: the device has left (the caller's part), and the unit has forgotten everything.
        let ended = unsafe { domain.end() };
        ended.map(drop).map_err(|failed| Broken::Queue(failed.error))
    }

    /// Forgets all faults.
    pub fn clear_faults(&self) {
        while self.iommu.fault().is_some() {}
    }

    /// Lets the device write its stamp: does it land in the frame?
    pub fn lands(&self, at: DmaAddr, frame: u64) -> bool {
        self.lands_in(at, &[frame]).is_some()
    }

    /// Lets the device write its stamp: in which of these frames does it land?
    pub fn lands_in(&self, at: DmaAddr, frames: &[u64]) -> Option<usize> {
        assert!(frames.iter().all(|f| read(*f) != self.stamp), "a frame has the stamp already");
        self.clear_faults();
        self.edu.write_to(at.0, STAMP_AT, 8);
        let place = frames.iter().position(|frame| read(*frame) == self.stamp)?;
        // SAFETY: the word that the device wrote; the copy is over.
        unsafe { memory::at(frames[place]).cast::<u64>().write_volatile(BLANK) };
        Some(place)
    }

    /// Is it the old frame, and not the new one, that the device reaches?
    pub fn compare(&self, at: DmaAddr, old: u64, new: u64) -> Outcome {
        match self.lands_in(at, &[old, new]) {
            Some(0) => Ok(1),
            Some(_) => Ok(0),
            None => Err(Broken::Wrong("neither the old page nor the new one is reached")),
        }
    }

    /// The same; and what does not land must have left a record, if the unit makes such.
    pub fn reaches(&self, at: DmaAddr, frame: u64) -> Result<bool, Broken> {
        let landed = self.lands(at, frame);
        if !landed && self.iommu.records_faults() {
            self.expect_fault(at, FaultKind::Translation { write: true })?;
        }
        Ok(landed)
    }

    /// The oldest fault is this.
    pub fn expect_fault(&self, at: DmaAddr, kind: FaultKind) -> Result<(), Broken> {
        let page = |address: u64| address & !(FRAME - 1);
        match self.iommu.fault() {
            None => Err(Broken::Wrong("a refused access left no record")),
            Some(Fault { device, address, kind: seen })
                if device == self.device()
                    && seen == kind
                    // An SMMU that finds no configuration does not look at the address either.
                    && (page(address) == page(at.0) || kind == FaultKind::Configuration) =>
            {
                Ok(())
            }
            Some(other) => {
                crate::say!("dma: expected {kind:?} at {at:?}, found {other:?}");
                Err(Broken::Wrong("the record of a refused access is another's"))
            }
        }
    }
}

/// A device in a domain.
pub struct Behind<'a, I: Iommu> {
    /// The stage.
    pub stage: &'a Stage<I>,
    /// The domain.
    pub domain: &'a Dom<I>,
}

impl<I: Iommu> Behind<'_, I> {
    /// The device fetches what it will write: the first proof that it reaches anything.
    pub fn load(&self) -> Result<(), Broken> {
        let Stage { source, sink, edu, .. } = *self.stage;
        self.give(SOURCE, source, Rights::Read)?;
        self.give(SINK, sink, Rights::Write)?;
        edu.read(SOURCE << 12, STAMP_AT, 8);
        Ok(())
    }

    /// Maps a frame at a page that the case chooses.
    pub fn give(&self, page: u64, frame: u64, rights: Rights) -> Result<Buffer, Broken> {
        self.map_at(Self::page(page), PhysAddr(frame), rights)?;
        Ok(Buffer { frame, at: DmaAddr(page << 12) })
    }

    /// A page, as a range.
    pub fn page(page: u64) -> IovaRange {
        IovaRange::new(page, 1).expect("a page that is not the first")
    }

    /// The page of this number that the case may choose: all of these have different lowest bits.
    pub fn given(&self, number: u64) -> u64 {
        0x330 + u64::from(self.stage.number) * 0x40 + number
    }

    /// A new frame, at an address of the domain's choice.
    pub fn map(&self) -> Result<Buffer, Broken> {
        let frame = self.stage.frame()?;
        let at = self.map_memory(PhysAddr(frame), FRAME)?;
        Ok(Buffer { frame, at })
    }

    /// Memory, at an address of the domain's choice.
    pub fn map_memory(&self, phys: PhysAddr, bytes: u64) -> Result<DmaAddr, MapError> {
        self.domain.map(phys, bytes, Rights::ReadWrite).map(Mapping::into_raw)
    }

    /// Unmaps it again, under the domain's policy.
    pub fn unmap(&self, at: DmaAddr, bytes: u64) -> Result<(), UnmapError> {
        self.unmap_under(self.domain.config().policy, at, bytes)
    }

    /// Unmaps it again, under another policy.
    pub fn unmap_under(&self, policy: Policy, at: DmaAddr, bytes: u64) -> Result<(), UnmapError> {
        // SAFETY: each buffer is one CPU's, which unmaps it once.
        unsafe { self.domain.unmap_raw_under(policy, at, bytes) }.map(drop)
    }

    /// Maps memory at addresses that the case chooses.
    pub fn map_at(&self, at: IovaRange, phys: PhysAddr, rights: Rights) -> Result<(), MapError> {
        // SAFETY: each of these pages is one CPU's, and the domain's space begins above them.
        unsafe { self.domain.map_at(at, phys, rights) }
    }

    /// Unmaps it again.
    pub fn unmap_at(&self, at: IovaRange) -> Result<(), UnmapError> {
        // SAFETY: as above.
        unsafe { self.domain.unmap_at(at) }
    }

    /// The device reaches it: it is warm from now on.
    pub fn warm(&self, buffer: Buffer) -> Result<(), Broken> {
        if self.stage.lands(buffer.at, buffer.frame) {
            Ok(())
        } else {
            Err(Broken::Premise("what is mapped is not reached"))
        }
    }

    /// Does the device reach it?
    pub fn reaches(&self, buffer: Buffer) -> Result<bool, Broken> {
        self.stage.reaches(buffer.at, buffer.frame)
    }

    /// What the device reads there; `None` if it gets nothing.
    pub fn fetch(&self, at: DmaAddr) -> Option<u64> {
        let Stage { edu, sink, .. } = *self.stage;
        // Into its own page first something else, as a refused read may leave that as it is, or
        // make zeros of it.
        edu.read(SOURCE << 12, READ_AT, 8);
        self.stage.clear_faults();
        edu.read(at.0, READ_AT, 8);
        edu.write_to(SINK << 12, READ_AT, 8);
        let value = read(sink);
        (value != 0 && value != self.stage.stamp).then_some(value)
    }
}
