//! The library's seams: registers and ring of the queue, pages of tables, references to pages.

use std::marker::PhantomData;

use shootdown_dma::domain::Host;
use shootdown_dma::fixed::Fixed;
use shootdown_dma::invalidate::queue::{Port, Queue, Vtd};
use shootdown_dma::invalidate::vtd::Facts;
use shootdown_dma::iova::Allocate;
use shootdown_dma::sync::{AtomicU64, Ordering};
use shootdown_dma::table::memory::Table;
use shootdown_dma::table::{TableMemory, VtdSecondLevel};
use shootdown_dma::{DeviceId, PhysAddr};

use super::agent::Event;
use super::iommu::Words;
use super::{checked, frames, with};
use crate::engine;
use crate::oracle::devices;

/// Levels of the page tables: 48 bits of address.
pub(super) const LEVELS: u8 = 4;

/// Slots of the ring, as Linux has them since it uses the queue.
const SLOTS: usize = 256;

/// Where the status word is, for the unit.
const STATUS: u64 = 1 << 41;
/// Where page tables are.
const TABLES: u64 = 1 << 40;

const FSTS: usize = 0x34;
const IQH: usize = 0x80;
const IQT: usize = 0x88;
const IQE: u32 = 1 << 4;

/// The registers of the unit, its ring and its status word.
#[derive(Debug)]
pub struct Registers {
    ring: Fixed<AtomicU64>,
    status: Fixed<AtomicU64>,
}

/// The library's queue of the unit.
///
/// # Panics
/// When the host has no memory, or there is a queue already.
#[must_use]
pub fn new_queue() -> Queue<Registers, Vtd> {
    let words = |n| Fixed::new(n, |_| AtomicU64::new(0)).expect("the host has memory");
    let registers = Registers { ring: words(2 * SLOTS), status: words(1) };
    with(|s| {
        assert_eq!(s.commands.ring, 0, "the unit has one queue");
        s.commands.ring = registers.ring.as_ptr() as usize;
        s.commands.status = registers.status.as_ptr() as usize;
        s.commands.slots = SLOTS as u64;
    });
    let facts = Facts {
        page_selective: true,
        max_order: 18,
        drains_reads: true,
        drains_writes: true,
        throttles_devices: false,
    };
    Queue::new(registers, Vtd { facts, slots: SLOTS as u64 }).expect("256 slots are enough")
}

// SAFETY: the registers are as VT-d has them, as far as the queue uses them; the agent reads the
// ring, and stores the status when all before it is complete. All is one thread, in the order of
// virtual time.
unsafe impl Port for Registers {
    fn read32(&self, offset: usize) -> u32 {
        read_register();
        with(|s| if offset == FSTS && s.commands.stopped { IQE } else { 0 })
    }

    fn write32(&self, offset: usize, _: u32) {
        write_register();
        if offset == FSTS {
            with(|s| s.commands.stopped = false);
        }
    }

    fn read64(&self, offset: usize) -> u64 {
        read_register();
        with(|s| if offset == IQH { s.commands.head << 4 } else { 0 })
    }

    fn write64(&self, offset: usize, value: u64) {
        write_register();
        if offset != IQT {
            return;
        }
        let wakes = with(|s| {
            s.commands.tail = value >> 4 & (s.commands.slots - 1);
            let idle = !s.commands.busy && !s.commands.stopped;
            idle.then(|| {
                s.commands.busy = true;
                let at = engine::now().ps() + s.setup.costs.iommu.travel.ps();
                s.events.push(at, Event::Fetch);
                (s.setup.cpus, at)
            })
        });
        if let Some((agent, at)) = wakes {
            engine::agent::rouse(agent, crate::Time::from_ps(at));
        }
    }

    fn ring(&self) -> &[AtomicU64] {
        &self.ring
    }

    fn status(&self) -> &AtomicU64 {
        &self.status[0]
    }

    fn status_address(&self) -> PhysAddr {
        PhysAddr(STATUS)
    }

    fn publish(&self) {
        // A store to a register waits for all stores before it; what that takes is in its price.
    }

    fn drain_events(&self, _: &mut dyn FnMut(DeviceId)) {
        // VT-d tells of a device by its registers.
    }
}

fn read_register() {
    engine::charge(with(|s| s.setup.costs.iommu.register));
    engine::step();
}

fn write_register() {
    engine::charge(with(|s| s.setup.costs.iommu.doorbell));
    engine::step();
}

/// Pages of page tables in the machine's memory.
#[derive(Default)]
pub(super) struct TablePages {
    pages: Vec<Fixed<Table>>,
    free: Vec<usize>,
}

impl TablePages {
    fn at(&self, page: PhysAddr) -> &Table {
        let index = usize::try_from((page.0 - TABLES) >> 12).expect("an address of a table");
        &self.pages[index][0]
    }
}

impl Words for TablePages {
    fn word(&self, table: PhysAddr, index: usize) -> u64 {
        engine::silently(|| self.at(table)[index].load(Ordering::Relaxed))
    }
}

/// Where the tables of a domain come from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tables;

// SAFETY: pages of the machine, cleared when they are taken again; whoever is given one has it
// until it is freed.
unsafe impl TableMemory for Tables {
    fn allocate(&self) -> Option<PhysAddr> {
        let index = match with(|s| s.tables.free.pop()) {
            Some(index) => {
                let at = PhysAddr(TABLES + ((index as u64) << 12));
                // SAFETY: free until now.
                unsafe { self.table(at) }.iter().for_each(|word| word.store(0, Ordering::Relaxed));
                index
            }
            None => {
                let zero = |_| std::array::from_fn(|_| AtomicU64::new(0));
                let page = Fixed::new(1, zero).ok()?;
                with(|s| {
                    s.tables.pages.push(page);
                    s.tables.pages.len() - 1
                })
            }
        };
        Some(PhysAddr(TABLES + ((index as u64) << 12)))
    }

    unsafe fn free(&self, page: PhysAddr) {
        engine::step();
        checked(with(|s| {
            s.tables.free.push(usize::try_from((page.0 - TABLES) >> 12).expect("a table"));
            devices::unlinked(s.iommu.walks_to(page), page)
        }));
    }

    unsafe fn table(&self, page: PhysAddr) -> &Table {
        let at = with(|s| std::ptr::from_ref(s.tables.at(page)));
        // SAFETY: in the machine's memory, and never moved nor freed as long as the hardware is
        // there.
        unsafe { &*at }
    }
}

/// The kernel's half of a domain, whose addresses come from an `A`.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<A>(PhantomData<fn() -> A>);

impl<A> Kernel<A> {
    /// That of this thread's run.
    #[must_use]
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<A> Default for Kernel<A> {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: a page is recycled when its owner has given it and it is not held (`frames.rs`).
unsafe impl<A: Allocate> Host for Kernel<A> {
    type Addresses = A;
    type Format = VtdSecondLevel;
    type Tables = Tables;
    type Unit = Queue<Registers, Vtd>;
    type Pin = usize;

    fn pin(&self) -> usize {
        engine::cpu() as usize
    }

    fn relax(&self) -> bool {
        engine::relax();
        true
    }

    fn hold(&self, first: PhysAddr, pages: u64) -> bool {
        frames::hold(first, pages)
    }

    fn release(&self, first: PhysAddr, pages: u64) {
        frames::release(first, pages);
    }
}

/// Stores a status: 32 bits, where the wait command says.
pub(super) fn store_status(word: usize, address: PhysAddr, status: u32) {
    let word = std::ptr::with_exposed_provenance::<AtomicU64>(word);
    // SAFETY: the status word of the queue, in the machine's memory as long as the run lasts.
    let word = unsafe { &*word };
    let shift = 8 * (address.0 - STATUS);
    engine::silently(|| {
        let others = word.load(Ordering::Relaxed) & !(0xffff_ffff << shift);
        word.store(others | u64::from(status) << shift, Ordering::Relaxed);
    });
    engine::agent::device_stored(std::ptr::from_ref(word) as usize);
}

/// A descriptor of the ring.
pub(super) fn read_slot(ring: usize, index: u64) -> [u64; 2] {
    let ring = std::ptr::with_exposed_provenance::<AtomicU64>(ring);
    let word = |n: u64| {
        // SAFETY: the index is below the slots of the ring, which are in the machine's memory as
        // long as the run lasts.
        let word = unsafe { &*ring.add(usize::try_from(2 * index + n).unwrap_or(0)) };
        engine::silently(|| word.load(Ordering::Relaxed))
    };
    [word(0), word(1)]
}
