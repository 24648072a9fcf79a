//! The kernel's half of a domain: pages and their references, pages for tables, and a queue that
//! can be muffled.
//!
//! A frame that is mapped by a domain that holds its pages has references. Whoever owns it may let
//! go of it at any time ([`let_go`]); it goes back to the allocator with its last reference.

use alloc::collections::BTreeMap;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use shootdown_dma::domain::Host;
use shootdown_dma::invalidate::{Command, QueueError, Ticket, Unit};
use shootdown_dma::iova::magazine::Magazines;
use shootdown_dma::iova::tree::Tree;
use shootdown_dma::table::TableMemory;
use shootdown_dma::table::memory::Table;
use shootdown_dma::{DeviceId, PhysAddr};
use spin::Mutex;

use super::iommu::Iommu;
use crate::memory::{self, FRAME};
use crate::port::is_late;
use crate::{arch, memory::at};

/// Who uses a frame.
#[derive(Clone, Copy, Default)]
struct Use {
    /// References of domains.
    held: u32,
    /// Its owner has let go of it.
    orphan: bool,
}

/// Frames that domains hold.
static USES: Mutex<BTreeMap<u64, Use>> = Mutex::new(BTreeMap::new());

/// The owner of a frame has no use for it any more. It goes back to the allocator now, or with its
/// last reference.
pub fn let_go(frame: u64) {
    if let Some(entry) = USES.lock().get_mut(&frame) {
        entry.orphan = true;
        return;
    }
    memory::free(frame);
}

/// Is a frame held by a domain?
pub fn is_held(frame: u64) -> bool {
    USES.lock().contains_key(&frame)
}

/// The kernel, as a domain behind an IOMMU of this kind sees it.
pub struct Kernel<I>(PhantomData<fn() -> I>);

impl<I> Kernel<I> {
    /// It has no state of its own.
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

// SAFETY: a frame with references does not go back to the allocator (`let_go`, `release`).
unsafe impl<I: Iommu> Host for Kernel<I> {
    type Addresses = Magazines<Tree>;
    type Format = I::Tables;
    type Tables = Tables;
    type Unit = Muffled<I>;
    type Pin = usize;

    fn pin(&self) -> usize {
        arch::cpu().index()
    }

    fn relax(&self) -> bool {
        arch::relax();
        !is_late()
    }

    fn hold(&self, first: PhysAddr, pages: u64) -> bool {
        let mut uses = USES.lock();
        (0..pages).for_each(|page| uses.entry(first.0 + page * FRAME).or_default().held += 1);
        true
    }

    fn release(&self, first: PhysAddr, pages: u64) {
        for frame in (0..pages).map(|page| first.0 + page * FRAME) {
            let mut uses = USES.lock();
            let entry = uses.get_mut(&frame).expect("what is released was held");
            entry.held -= 1;
            if entry.held == 0 {
                let orphan = entry.orphan;
                uses.remove(&frame);
                if orphan {
                    memory::free(frame);
                }
            }
        }
    }
}

/// Pages for tables: frames, poisoned when they are freed.
pub struct Tables {
    /// The walker reads the CPUs' caches.
    pub coherent: bool,
}

// SAFETY: frames are zeroed here, are nobody else's until they are freed, stay mapped for ever, and
// are at their physical addresses for the IOMMU; the word beside a frame is its owner's, and 0 from
// the beginning; `write_back` cleans the lines that hold the entries.
unsafe impl TableMemory for Tables {
    fn allocate(&self) -> Option<PhysAddr> {
        let frame = memory::allocate()?;
        memory::fill(frame, 0);
        memory::record(frame).store(0, Ordering::Relaxed);
        Some(PhysAddr(frame))
    }

    unsafe fn free(&self, page: PhysAddr) {
        memory::free(page.0);
    }

    unsafe fn table(&self, page: PhysAddr) -> &Table {
        // SAFETY: a frame that was allocated above, aligned to its size; words of it are accessed
        // atomically.
        unsafe { &*at(page.0).cast() }
    }

    unsafe fn side(&self, page: PhysAddr) -> Option<&AtomicU64> {
        Some(memory::record(page.0))
    }

    fn is_coherent(&self) -> bool {
        self.coherent
    }

    fn write_back(&self, entries: &[AtomicU64]) {
        arch::write_back(entries.as_ptr().cast(), size_of_val(entries));
    }
}

/// What a muffled queue does not tell the unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Muffle {
    /// It tells everything.
    Nothing,
    /// Translations are not told.
    Translations,
    /// Entries of devices are not told.
    Configurations,
    /// Nothing is told.
    Everything,
}

/// An IOMMU's queue that can be muffled: commands are taken, and the unit never hears of them. That
/// is the negative control of every case: the library's own steps with nothing behind them.
pub struct Muffled<I: 'static> {
    iommu: &'static I,
    muffle: &'static AtomicU8,
}

/// Commands that went to the unit.
static TOLD: AtomicU64 = AtomicU64::new(0);

/// How many commands went to the unit so far.
pub fn told() -> u64 {
    TOLD.load(Ordering::Relaxed)
}

impl<I: Iommu> Muffled<I> {
    /// The queue of this unit; `muffle` is a [`Muffle`].
    pub const fn new(iommu: &'static I, muffle: &'static AtomicU8) -> Self {
        Self { iommu, muffle }
    }
}

// SAFETY: those of the queue behind it, while it is not muffled. Muffled it breaks the first
// promise, and is meant to: the frames that a device then reaches by mistake are the case's own, or
// free.
unsafe impl<I: Iommu> Unit for Muffled<I> {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        let muffle = self.muffle.load(Ordering::Relaxed);
        let translations = |command: &Command| !matches!(command, Command::Config { .. });
        let lost = match muffle {
            m if m == Muffle::Translations as u8 => commands.iter().all(translations),
            m if m == Muffle::Configurations as u8 => !commands.iter().any(translations),
            m => m == Muffle::Everything as u8,
        };
        if lost {
            return Ok(Ticket(0)); // long complete
        }
        TOLD.fetch_add(commands.len() as u64, Ordering::Relaxed);
        self.iommu.queue().submit(commands)
    }

    fn completed(&self) -> Result<Ticket, QueueError> {
        self.iommu.queue().completed()
    }

    fn completed_by_turn(&self, turns: u32) -> Result<Ticket, QueueError> {
        self.iommu.queue().completed_by_turn(turns)
    }

    fn answers(&self, device: DeviceId) -> bool {
        self.iommu.queue().answers(device)
    }

    fn granule(&self) -> u32 {
        self.iommu.queue().granule()
    }

    fn forgets_all(&self) -> bool {
        self.iommu.queue().forgets_all()
    }

    fn is_crowded(&self) -> bool {
        self.iommu.queue().is_crowded()
    }
}
