//! # The domain: a device's view of memory, made of allocator, page table and invalidation.
//!
//! # The problem
//! A driver maps a buffer, passes its address to the device, and unmaps the buffer when the device
//! is done; it does so millions of times a second and on every CPU. The steps in between are always
//! the same, and every order of them but one leaves a hole in the protection:
//!
//! ```text
//! map:    hold the pages --> take addresses --> put entries --> (invalidate units that cache absent entries)
//! unmap:  clear entries --> take a token --> invalidate the units --> complete --> addresses, pages, tables are free
//! ```
//!
//! # The protocol
//! A [`Domain`] has a cell for each CPU. The cell holds the CPU's epoch slot at the page table and
//! the queue of what the CPU has deferred. A call that maps or unmaps enters a cell
//! ([`local`](crate::local)), changes entries, and puts what may not be reused yet into the queue.
//! To enter costs one compare-and-swap, and any free cell will do; a host that is
//! [pinned](Config::pinned) enters without one. When enough is queued, the CPU notes all of its new
//! entries with the engine under one token, and takes out of the queue what is complete. A timer or
//! a flush that finds new entries in several cells invalidates the whole domain once instead. No
//! step allocates, and no call waits while it is in a cell. Where the queue is full, the unmapping
//! is done as under [`Policy::Strict`]. (If the hardware does not complete an invalidation, what
//! depends on it goes into a list that has room for as much as one CPU may defer; the list grows
//! beyond that.)
//!
//! # Invariants
//! - **I1** Addresses go back to the allocator, references to pages back to the kernel, and pages
//!   of tables back to where they came from only after a token is complete that was taken when
//!   their entries had been cleared. (`flush_queue.rs`)
//! - **I2** A reference to a page is held from before it is mapped until I1, if the domain
//!   [holds](Config::holds) pages.
//! - **I3** No call waits with a cell entered. (`unmap.rs`)
//! - **I4** A call that fails has changed nothing, or its error says what it has changed
//!   ([`UnmapError::NotComplete`]).
//! - **I5** What can't be given back, because the hardware does not complete the invalidation,
//!   stays with the domain.
//!
//! # Which calls wait
//! No call waits in a cell or with a lock held, but some calls wait for the hardware:
//!
//! | call | waits |
//! |---|---|
//! | `map`, `map_sg`, `reserve`, `link` | if no addresses are left but some are deferred; and as the next row |
//! | `sync`, `map_at`, `open_window` | where a unit caches absent entries; if they fail after a device may have used a new entry (no memory for a table, a count that is full): always, but `map` at an address of the allocator only if that can't be deferred |
//! | `unmap`, `release` | if the policy is strict, or there is no room in the queue ([`Limits`]) |
//! | `lazy_unmap` | if there is no room in the queue and `relax` allows it |
//! | `announce`, `unlink`, `unmap_at`, `detach`, `evict`, `flush`, `finish`, `end` | always |
//! | `attach` | for devices with a cache |
//! | `poll`, and calls that only read | never |
//!
//! Where a caller must not wait (its interrupts are off) [`Host::relax`] returns false. The call
//! then returns an error that says what is still deferred. A driver that needs strict unmapping
//! there calls [`lazy_unmap`](Domain::lazy_unmap), and asks later whether it is complete. A call
//! that finds every cell taken waits until one is free, which takes some tens of accesses. That
//! wait ends: there is a cell for each context that a CPU may have at once ([`Config::contexts`]),
//! provided that no context is preempted in one ([`Config::pinned`]). Interrupt handlers may map
//! and unmap only if every caller calls with interrupts off: cells tolerate an interrupt handler on
//! the same CPU, the allocators' locks do not. [`poll`](Domain::poll) looks after all CPUs. Where
//! the host is [pinned](Config::pinned) it interrupts each of the others once, and needs interrupts
//! on for that; otherwise call it on each CPU.
//!
//! A **page** is one of the table's [granule](Format::GRANULE): 4 KiB, or 16 or 64 KiB with Arm's
//! larger granules. All counts of pages count these; [`Domain::new`] refuses a unit that [counts in
//! others](crate::invalidate::Unit::granule). Buffers are bytes, and lie anywhere.
//!
//! # The smallest complete host
//! A kernel whose tables come from the heap, and whose IOMMU completes commands at once. The
//! example runs. A real host replaces the bodies and keeps the shape: its tables are pages with
//! physical addresses, its unit is a queue of [`invalidate`](crate::invalidate), and it counts
//! references to pages.
//!
//! ```
//! use std::alloc::{Layout, alloc_zeroed, dealloc};
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use shootdown_dma::domain::{Config, Domain, Host};
//! use shootdown_dma::invalidate::{Command, QueueError, Ticket, Unit};
//! use shootdown_dma::iova::magazine::{self, Magazines};
//! use shootdown_dma::iova::space::{INTERRUPTS, Space};
//! use shootdown_dma::iova::tree::Tree;
//! use shootdown_dma::table::memory::Table;
//! use shootdown_dma::table::{TableMemory, VtdSecondLevel};
//! use shootdown_dma::{DeviceId, DomainId, PhysAddr, Policy, Rights};
//!
//! struct Kernel;
//! struct Pages;
//! #[derive(Default)]
//! struct Iommu(AtomicU64);
//!
//! // SAFETY: nothing is recycled here. A real one counts: a page that is held is not given to anyone else.
//! unsafe impl Host for Kernel {
//!     type Addresses = Magazines<Tree>;
//!     type Format = VtdSecondLevel;
//!     type Tables = Pages;
//!     type Unit = Iommu;
//!     type Pin = usize;                                     // a hint; or a guard, see `pinned`
//!     fn pin(&self) -> usize { 0 }
//!     fn hold(&self, _: PhysAddr, _: u64) -> bool { true }  // get_page
//!     fn release(&self, _: PhysAddr, _: u64) {}             // put_page
//! }
//!
//! fn page() -> Layout { Layout::from_size_align(4096, 4096).expect("a page") }
//! // SAFETY: pages of the heap, each its own physical address.
//! unsafe impl TableMemory for Pages {
//!     fn allocate(&self) -> Option<PhysAddr> {
//!         Some(PhysAddr(unsafe { alloc_zeroed(page()) } as u64)).filter(|at| at.0 != 0)
//!     }
//!     unsafe fn free(&self, at: PhysAddr) { unsafe { dealloc(at.0 as *mut u8, page()) } }
//!     unsafe fn table(&self, at: PhysAddr) -> &Table { unsafe { &*(at.0 as *const Table) } }
//! }
//! // SAFETY: it has no cache.
//! unsafe impl Unit for Iommu {
//!     fn submit(&self, _: &[Command]) -> Result<Ticket, QueueError> {
//!         Ok(Ticket(self.0.fetch_add(1, Ordering::AcqRel) + 1))
//!     }
//!     fn completed(&self) -> Result<Ticket, QueueError> { Ok(Ticket(self.0.load(Ordering::Acquire))) }
//! }
//!
//! let tree = Tree::new(&Space::below(1 << 27).without(&[INTERRUPTS]))?;
//! let addresses = Magazines::new(tree, &magazine::Config::for_cpus(4))?;
//! let format = VtdSecondLevel::new(3, true, true).expect("39 bits");
//! let config = Config::new(4).policy(Policy::Deferred); // strict-ish
//! let units = [(Iommu::default(), DomainId(1))];
//! let domain = Domain::new(Kernel, config, addresses, format, Pages, units)?;
//!
//! // `domain.root()` goes into the device's context entry, after:
//! let attachment = domain.attach(0, DeviceId(0x0300), false)?;
//! domain.announce(&attachment)?; // its entry is valid
//! let packet = domain.map(PhysAddr(0x8000_0040), 1500, Rights::Write)?;
//! // The device writes to `packet.addr()`; then
//! domain.unmap(packet).map_err(|(error, _packet)| error)?; // returns at once; the page is held until the IOMMU has forgotten it
//! domain.poll(12_000_000)?;      // from a timer, every few milliseconds
//!
//! domain.detach(attachment).map_err(|(error, _seat)| error)?;
//! // SAFETY: no device's entry leads to it any more.
//! unsafe { domain.end() }.map_err(|failed| failed.error)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | does |
//! |---|---|
//! | `host.rs` | the kernel's half: CPUs, waiting, references to pages |
//! | `config.rs` | what a domain is made for |
//! | `policy.rs` | strict, strict-ish, lazy, bypass, and their bounds |
//! | `flush_queue.rs` | the queue of what may not be reused yet |
//! | `map.rs`, `unmap.rs` | mapping and unmapping at addresses of the allocator |
//! | `mapping.rs` | the proof of a mapping, which is unmapped once |
//! | `pending.rs` | unmapping where the caller must not wait |
//! | `identity.rs` | addresses that follow from the memory's |
//! | `map_at.rs` | addresses that the caller brings |
//! | `two_step.rs` | addresses first, then memory piece by piece, and one invalidation |
//! | `window.rs` | all of memory, one to one |
//! | `settle.rs` | giving back, timers, the end of a domain |
//! | `rounds.rs` | how the timer avoids interrupting busy CPUs |

mod config;
mod counts;
mod error;
mod flush_queue;
mod host;
mod identity;
mod map;
mod map_at;
mod mapping;
mod pending;
mod policy;
mod rounds;
mod settle;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;
mod two_step;
mod unmap;
mod window;

pub use config::Config;
pub use counts::Counts;
pub use error::{DomainError, MapError, UnmapError};
pub use host::{Host, Pin};
pub use map::Segment;
pub use mapping::{Mapping, Reach};
pub use pending::Pending;
pub use policy::{Limits, Policy};
pub use settle::Failed;
pub use two_step::Reservation;
pub use window::WindowError;

use alloc::vec::Vec;
use core::fmt;
use core::mem::ManuallyDrop;

use crate::addr::{DeviceId, DomainId, IovaRange, PhysAddr};
use crate::fixed::NoMemory;
use crate::invalidate::{AttachError, Attachment, Engine, QueueError, Token, Unit};
use crate::iova::{AllocError, Allocate, Want};
use crate::local::Local;
use crate::sync::{AtomicU64, AtomicUsize};
use crate::table::{Format, IoPageTable, Walker};
use flush_queue::{DeferredFree, Queue};
use rounds::Rounds;

/// An address as a device uses it, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DmaAddr(pub u64);

impl fmt::Debug for DmaAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// One CPU's part of a domain.
#[derive(Debug)]
struct Cell {
    queue: Queue,
    /// Addresses of single pages that were unmapped here and are complete, to be mapped again here.
    warm: Vec<u64>,
    /// Pages unmapped since the last look for empty tables.
    unswept: u64,
    counts: Counts,
    quick: Quick,
    /// The newest round of the timer that the owner has seen.
    heard: u64,
}

/// Counts of the single-page path, which [`tally`](Cell::tally) adds to the other counts later.
#[derive(Debug, Default)]
struct Quick {
    /// Single pages mapped, by addresses of the allocator and by identity addresses.
    mapped: u64,
    identities: u64,
    /// Single pages that may still be unmapped and queued before the cell checks anything else.
    left: usize,
    /// The value that `left` had at first.
    granted: usize,
}

impl Cell {
    /// Whether one page more may be queued without any other check. Counts it if so.
    #[inline]
    fn is_quick(&mut self) -> bool {
        // Not `left -= usize::from(left != 0)`: rustc 1.85 and 1.95 lose that store when they
        // optimize (where a branch on the same condition follows).
        match self.quick.left.checked_sub(1) {
            Some(left) => {
                self.quick.left = left;
                true
            }
            None => false,
        }
    }

    /// Ends the single-page path: adds its counts to the others, and allows no further page.
    fn stop(&mut self) {
        self.counts = self.tally();
        self.unswept += (self.quick.granted - self.quick.left) as u64;
        self.quick = Quick::default();
    }

    /// Starts the single-page path anew after the checks were made.
    fn go_on(&mut self, most: usize) {
        let quick = self.queue.quick(most);
        (self.quick.left, self.quick.granted) = (quick, quick);
    }

    /// The counts of this cell, with those of the single-page path.
    fn tally(&self) -> Counts {
        let Quick { mapped, identities, left, granted } = self.quick;
        let (maps, unmaps) = (mapped + identities, (granted - left) as u64);
        let mut all = self.counts;
        (all.maps, all.mapped_pages) = (all.maps + maps, all.mapped_pages + maps);
        (all.unmaps, all.unmapped_pages) = (all.unmaps + unmaps, all.unmapped_pages + unmaps);
        all.identities += identities;
        all
    }
}

/// What devices see of memory, and the operations that change it.
pub struct Domain<H: Host> {
    host: H,
    config: Config,
    addresses: H::Addresses,
    table: IoPageTable<H::Format, H::Tables>,
    engine: Engine<H::Unit>,
    cells: Local<Cell>,
    /// What could neither be given back nor queued because the hardware did not complete the
    /// invalidation. Nearly always empty.
    quarantined: Local<Vec<(Token, DeferredFree)>>,
    /// How many things found no room there.
    lost: AtomicU64,
    /// When deferred unmappings were flushed last, by the clock of [`poll`](Domain::poll).
    flushed_at: AtomicU64,
    rounds: Rounds,
    /// The number of tables up to which `sweep` does not run.
    tables_enough: AtomicUsize,
    /// The window's first page and its length in pages; 0: there is none.
    window: AtomicU64,
    window_pages: AtomicU64,
}

/// Addresses that a CPU keeps for its own mappings: two batches of what it has deferred.
const WARM: usize = 256;

/// Cells beyond the number of CPUs: for interrupts that come while their CPU is in its own cell.
///
/// There are enough of them that a call that waits for a cell gets one. Let the topmost context of
/// each CPU wait. The contexts below it are in cells, at most `contexts - 1` on each CPU. The
/// number of cells is one more than all of these together, so one cell is free.
const fn spare(config: &Config) -> usize {
    config.cpus * config.contexts.saturating_sub(2) + 1
}

/// Turns that a flush waits for a CPU that is in its cell. A CPU spends tens of turns there, and
/// never waits inside.
const PATIENCE: usize = if cfg!(loom) { 1 } else { 1 << 10 };

impl<H: Host> Domain<H> {
    /// Makes a domain in which nothing is mapped. `units` are the IOMMUs that its devices may be
    /// behind, each with the domain's id there. `tables` and `format` say how the units walk the
    /// page table; the format's [granule](Format::GRANULE) is the size of a page.
    ///
    /// # Errors
    /// See [`DomainError`]. All arguments are dropped then.
    pub fn new(
        host: H,
        config: Config,
        addresses: H::Addresses,
        format: H::Format,
        tables: H::Tables,
        units: impl IntoIterator<Item = (H::Unit, DomainId)>,
    ) -> Result<Self, DomainError> {
        // Devices that address no page above a limit don't reach zones above it.
        let identity = config.identity.map(|layout| layout.at_most(config.limit));
        let config = Config { identity, ..config };
        let own = config.cpus.max(1);
        let cpus = own + spare(&config);
        let cells = Local::try_new(cpus, |index| {
            // Where CPU numbers are hints, every cell is as good as any other.
            let for_interrupts = config.pinned.is_some() && index >= own;
            let limits = if for_interrupts { config.limits.spare() } else { config.limits };
            let queue = Queue::new(limits)?;
            let mut warm = Vec::new();
            warm.try_reserve_exact(WARM).map_err(|_| NoMemory)?;
            let (counts, quick) = (Counts::default(), Quick::default());
            Ok(Cell { queue, warm, unswept: 0, counts, quick, heard: 0 })
        })?;
        let cells = cells.pinned(config.pinned, own);
        let engine = Engine::new(cpus, units, config.promotion)?;
        // A unit that counts in other pages would invalidate another range than the one it is
        // given.
        let other = engine.units().position(|unit| unit.granule() != Self::SHIFT);
        if let Some(unit) = other {
            return Err(DomainError::Granule { unit });
        }
        let quarantined = Local::try_new(1, |_| {
            let mut list = Vec::new();
            list.try_reserve_exact(config.limits.entries).map_err(|_| NoMemory)?;
            Ok(list)
        })?;
        let rounds = Rounds::new(own)?;
        let table = IoPageTable::new(format, tables, cpus)?.at_most(config.tables);
        let wide = config.identity.is_some_and(|layout| layout.last_page() > table.last_page());
        if wide {
            // SAFETY: no device and no walker has seen it.
            unsafe { table.free() };
            return Err(DomainError::IdentityTooWide);
        }
        Ok(Self {
            table,
            engine,
            quarantined,
            lost: AtomicU64::new(0),
            host,
            config,
            addresses,
            cells,
            flushed_at: AtomicU64::new(0),
            rounds,
            tables_enough: AtomicUsize::new(0),
            window: AtomicU64::new(0),
            window_pages: AtomicU64::new(0),
        })
    }

    /// The root of the page table, for the devices' entries in the IOMMU.
    pub fn root(&self) -> PhysAddr {
        self.table.root()
    }

    /// How many pages the page table has.
    pub fn table_pages(&self) -> usize {
        self.table.pages()
    }

    /// The allocator, for reading its state.
    pub const fn addresses(&self) -> &H::Addresses {
        &self.addresses
    }

    /// The kernel's half.
    pub const fn host(&self) -> &H {
        &self.host
    }

    /// The configuration that the domain was made with.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Adds a device behind the unit of this number to the domain. Call it before the device's
    /// entry in the IOMMU becomes valid, and [`announce`](Self::announce) afterwards; see
    /// [`Engine::attach`]. For a device with a cache of its own it waits until the unit is ready
    /// for it ([`Engine::welcome`]).
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach(
        &self,
        unit: usize,
        device: DeviceId,
        caches: bool,
    ) -> Result<Attachment, AttachError> {
        let attachment = self.engine.attach(unit, device, caches)?;
        self.engine.welcome(&attachment, &mut || self.host.relax()).map_err(|error| {
            self.engine.unlist(&attachment);
            AttachError::NotClean(error)
        })?;
        Ok(attachment)
    }

    /// Invalidates what the unit and the device have cached for a device whose entry in the IOMMU
    /// was cleared, and waits; see [`Engine::detach`].
    ///
    /// # Errors
    /// See [`QueueError`], and the attachment.
    pub fn detach(&self, attachment: Attachment) -> Result<(), (QueueError, Attachment)> {
        self.engine.detach(attachment, &mut || self.host.relax())
    }

    /// Takes a device out of the domain that was reset or removed; see [`Engine::evict`].
    ///
    /// # Errors
    /// See [`QueueError`], and the attachment.
    pub fn evict(&self, attachment: Attachment) -> Result<(), (QueueError, Attachment)> {
        self.engine.evict(attachment, &mut || self.host.relax())
    }

    /// Reports that a device's entry in the IOMMU has become valid. Call it before the device is
    /// used: the unit may have cached that the entry was not valid, so this invalidates that and
    /// waits. See [`Engine::announce`].
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn announce(&self, attachment: &Attachment) -> Result<(), QueueError> {
        self.engine.announce(attachment, &mut || self.host.relax())
    }

    /// Enters the cell of any CPU. A CPU enters its own cell as the owner. For another CPU's cell
    /// it waits a bounded number of turns until that CPU has left it.
    #[inline]
    fn enter<R>(&self, cpu: usize, f: impl FnOnce(&mut Cell) -> R) -> Option<R> {
        let pin = self.host.pin();
        if cpu == pin.cpu() {
            return self.cells.enter_own(cpu, f);
        }
        // The claim of another CPU's cell works from any CPU, and may wait for its owner.
        drop(pin);
        self.cells.enter_within(cpu, PATIENCE, f)
    }

    /// Enters a cell of this CPU, or another one that is free, and stays on this CPU meanwhile.
    /// Where all are taken, it waits until one is free.
    ///
    /// # Errors
    /// `f`, not called: the caller must not wait, and without a pinned host nothing bounds the
    /// wait.
    #[inline]
    fn enter_here<R, F: FnOnce(usize, &mut Cell) -> R>(&self, mut f: F) -> Result<R, F> {
        loop {
            let entered = {
                let pin = self.host.pin();
                self.cells.enter_near(pin.cpu(), f)
            };
            match entered {
                Ok(done) => return Ok(done),
                Err(back) => f = back,
            }
            if !self.wait_for_a_cell() {
                return Err(f);
            }
        }
    }

    /// One turn of waiting for a cell; false to give up. A context leaves its cell after some tens
    /// of accesses, unless it is preempted there. A [pinned](Config::pinned) host guarantees that
    /// it is not, and then every caller may wait, interrupt handlers too ([`spare`]).
    #[cold]
    fn wait_for_a_cell(&self) -> bool {
        self.host.relax() || self.config.pinned.is_some()
    }

    /// Takes addresses from the allocator, on this CPU.
    #[inline]
    fn take_addresses(&self, want: &Want) -> Result<IovaRange, AllocError> {
        let pin = self.host.pin();
        self.addresses.alloc(pin.cpu(), want)
    }

    /// The current CPU's number, which may be out of date when the caller uses it.
    #[inline]
    fn near_cpu(&self) -> usize {
        self.host.pin().cpu()
    }

    /// Seals what a CPU has deferred: notes it with the engine under one token, which is to be
    /// submitted.
    #[inline]
    fn seal(&self, slot: usize, cell: &mut Cell) -> Option<Token> {
        cell.queue.seal(|covered| self.engine.note_all(slot, || covered.iter()))
    }

    /// A walker that starts where the epoch slot left off. The slot stays with the cell, so the
    /// walker is not dropped.
    #[inline]
    fn near(&self, slot: usize) -> Option<ManuallyDrop<Walker<'_, H::Format, H::Tables>>> {
        // SAFETY: a cell is one CPU's at a time, and only the holder of a cell uses the epoch slot
        // of its number.
        unsafe { self.table.walker_at(slot) }.map(ManuallyDrop::new)
    }

    /// Waits for a token, with no cell entered (I3).
    fn wait(&self, token: Token) -> Result<(), QueueError> {
        self.engine.wait(token, &mut || self.host.relax())
    }

    /// Bits of a byte address within a page.
    const SHIFT: u32 = <H::Format as Format>::GRANULE;
    /// Bytes of a page.
    const PAGE: u64 = 1 << Self::SHIFT;

    /// The range of pages that some bytes lie in.
    const fn pages_of(first: u64, bytes: u64) -> Option<(u64, u64)> {
        let Some(last) = first.checked_add(bytes.wrapping_sub(1)) else { return None };
        Some((first >> Self::SHIFT, (last >> Self::SHIFT) - (first >> Self::SHIFT) + 1))
    }
}

impl<H: Host> fmt::Debug for Domain<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain")
            .field("config", &self.config)
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}
