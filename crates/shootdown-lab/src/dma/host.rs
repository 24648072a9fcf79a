//! A kernel with nothing behind it: memory for tables from the heap, and an IOMMU that is done at
//! once.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use shootdown_dma::domain::Host;
use shootdown_dma::invalidate::{Command, QueueError, Ticket, Unit};
use shootdown_dma::iova::arena::{Arena, Flush};
use shootdown_dma::iova::magazine::Magazines;
use shootdown_dma::iova::ring::Ring;
use shootdown_dma::iova::tree::Tree;
use shootdown_dma::iova::{AllocError, Allocate, FreeError, Want};
use shootdown_dma::table::memory::Table;
use shootdown_dma::table::{TableMemory, VtdSecondLevel};
use shootdown_dma::{IovaRange, PhysAddr};

thread_local! {
    /// Nobody's number: whoever is no CPU enters what no CPU owns.
    static CPU: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// This thread is a CPU of this number from now on. No other thread that uses the same domain
/// meanwhile is.
pub fn become_cpu(cpu: usize) {
    CPU.set(cpu);
}

/// An IOMMU that completes whatever it is told as soon as it is told: what is measured is software.
#[derive(Debug, Default)]
pub struct Instant {
    last: AtomicU64,
    commands: AtomicU64,
}

impl Instant {
    /// Commands so far.
    pub fn commands(&self) -> u64 {
        self.commands.load(Ordering::Relaxed)
    }
}

// SAFETY: it caches nothing.
unsafe impl Unit for Instant {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        self.commands.fetch_add(commands.len() as u64, Ordering::Relaxed);
        Ok(Ticket(self.last.fetch_add(1, Ordering::AcqRel) + 1))
    }

    fn completed(&self) -> Result<Ticket, QueueError> {
        Ok(Ticket(self.last.load(Ordering::Acquire)))
    }
}

/// Pages of the heap, which are their own physical addresses.
#[derive(Debug, Default)]
pub struct Heap {
    pages: AtomicUsize,
}

const PAGE: Layout = match Layout::from_size_align(4096, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("a page has a layout"),
};

// SAFETY: fresh pages of the heap, at their own addresses; there is no walker.
unsafe impl TableMemory for Heap {
    fn allocate(&self) -> Option<PhysAddr> {
        // SAFETY: the layout is not empty.
        let page = unsafe { alloc_zeroed(PAGE) };
        self.pages.fetch_add(1, Ordering::Relaxed);
        (!page.is_null()).then(|| PhysAddr(page.expose_provenance() as u64))
    }

    unsafe fn free(&self, page: PhysAddr) {
        self.pages.fetch_sub(1, Ordering::Relaxed);
        let page = usize::try_from(page.0).unwrap_or(0);
        // SAFETY: from `allocate`, as promised.
        unsafe { dealloc(std::ptr::with_exposed_provenance_mut(page), PAGE) }
    }

    unsafe fn table(&self, page: PhysAddr) -> &Table {
        #[allow(clippy::cast_possible_truncation)] // an address of this host
        let page = std::ptr::with_exposed_provenance::<Table>(page.0 as usize);
        // SAFETY: from `allocate`, as promised.
        unsafe { &*page }
    }
}

/// References to pages of the model's memory, as kernels have them: a counter for each page, or for
/// each piece that was taken together.
#[derive(Debug)]
pub struct Memory {
    refs: Vec<AtomicU32>,
    /// Pages of a piece: 2^`order`.
    order: u32,
}

impl Memory {
    /// So many pages, in pieces of 2^`order`.
    pub fn new(pages: usize, order: u32) -> Self {
        Self { refs: (0..pages >> order).map(|_| AtomicU32::new(0)).collect(), order }
    }

    /// References that are held in all.
    pub fn held(&self) -> u64 {
        self.refs.iter().map(|refs| u64::from(refs.load(Ordering::Relaxed))).sum()
    }

    fn of(&self, first: PhysAddr, pages: u64) -> Option<&[AtomicU32]> {
        let last = (first.0 >> 12).checked_add(pages.checked_sub(1)?)?;
        let piece = |page: u64| usize::try_from(page >> self.order).ok();
        self.refs.get(piece(first.0 >> 12)?..=piece(last)?)
    }
}

/// The allocator of a domain.
pub enum Addresses {
    /// A tree of live runs under one lock.
    Tree(Tree),
    /// A cache for each CPU over the same.
    Magazines(Magazines<Tree>),
    /// A pool for each CPU.
    Arena(Arena<Nothing>),
    /// Addresses in order, round and round.
    Ring(Ring<Tree>),
}

/// Does `$call` with the allocator inside.
macro_rules! inside {
    ($addresses:expr, $inside:ident => $call:expr) => {
        match $addresses {
            Addresses::Tree($inside) => $call,
            Addresses::Magazines($inside) => $call,
            Addresses::Arena($inside) => $call,
            Addresses::Ring($inside) => $call,
        }
    };
}

/// Hardware that nothing is retired to: a domain invalidates before it gives addresses back.
pub struct Nothing;

// SAFETY: there is nothing to forget.
unsafe impl Flush for Nothing {
    fn flush(&self) {}
}

// SAFETY: the promises are those of the allocator inside.
unsafe impl Allocate for Addresses {
    #[inline]
    fn alloc(&self, cpu: usize, want: &Want) -> Result<IovaRange, AllocError> {
        inside!(self, inside => inside.alloc(cpu, want))
    }

    #[inline]
    fn free(&self, cpu: usize, range: IovaRange) -> Result<(), FreeError> {
        inside!(self, inside => inside.free(cpu, range))
    }

    #[inline]
    fn free_all(
        &self,
        cpu: usize,
        ranges: impl Iterator<Item = IovaRange>,
        refused: impl FnMut(IovaRange, FreeError),
    ) {
        inside!(self, inside => inside.free_all(cpu, ranges, refused));
    }

    #[inline]
    fn may_keep(&self) -> bool {
        inside!(self, inside => inside.may_keep())
    }
}

/// The kernel's half.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its memory.
    pub memory: Arc<Memory>,
}

// SAFETY: nothing is recycled.
unsafe impl Host for Kernel {
    type Addresses = Addresses;
    type Format = VtdSecondLevel;
    type Tables = Heap;
    type Unit = Arc<Instant>;
    type Pin = usize;

    #[inline]
    fn pin(&self) -> usize {
        CPU.get()
    }

    #[inline]
    fn hold(&self, first: PhysAddr, pages: u64) -> bool {
        let refs = self.memory.of(first, pages);
        refs.inspect(|refs| {
            refs.iter().for_each(|refs| _ = refs.fetch_add(1, Ordering::Relaxed));
        })
        .is_some()
    }

    #[inline]
    fn release(&self, first: PhysAddr, pages: u64) {
        if let Some(refs) = self.memory.of(first, pages) {
            // ORDERING: Release, as whoever takes a page from the last holder acquires what all
            // have done with it.
            refs.iter().for_each(|refs| _ = refs.fetch_sub(1, Ordering::Release));
        }
    }
}
