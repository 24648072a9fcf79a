//! The hostile IOMMU, as code under test uses it: the counterpart of [`hw`](super::hw) for devices.
//!
//! A world places page tables with [`tables`], and names their root with [`attach`]; from then on, every store to them is
//! followed by walks. [`submit`] and [`completed`] are what a driver of a queue comes down to. The rest is the oracle's.

use std::ptr::NonNull;

use shootdown_dma::invalidate::{Command, Ticket};
use shootdown_dma::table::memory::Table;
use shootdown_dma::{DomainId, IovaRange, PhysAddr};

pub use crate::io::walk::{Decoded, Walker};
pub use crate::oracle::devices::Cached;

use super::hw::{check, choose, place};
use super::machine::{Hunt, step, with};
use crate::oracle::{Invariant, devices};

/// Where the I/O page tables are.
#[derive(Clone, Copy)]
pub(super) struct TablePages {
    host: usize,
    bytes: usize,
}

/// Bytes of a table.
const PAGE: usize = 4096;
/// The physical address of the first.
const FIRST: u64 = 0x10_0000;

/// I/O page-table pages of the world, empty. Once, in `boot`.
///
/// # Panics
/// When the shared memory is full.
#[must_use]
pub fn tables<const N: usize>() -> [PhysAddr; N] {
    let at: NonNull<[Table; N]> = place(std::array::from_fn(|_| std::array::from_fn(|_| zero())));
    with(|h| {
        h.io_tables = Some(TablePages { host: at.as_ptr() as usize, bytes: N * PAGE });
    });
    std::array::from_fn(|n| PhysAddr(FIRST + (n * PAGE) as u64))
}

fn zero() -> shootdown_dma::sync::AtomicU64 {
    shootdown_dma::sync::AtomicU64::new(0)
}

/// The table at this address.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn table(page: PhysAddr) -> &'static Table {
    let pages = with(|h| h.io_tables).expect("the world has I/O page tables");
    let offset = usize::try_from(page.0 - FIRST).expect("below the tables");
    assert!(offset < pages.bytes, "{page:?} is no I/O page table");
    // SAFETY: `tables` placed them there; the region outlives the world, which is all that uses it.
    unsafe { &*((pages.host + offset) as *const Table) }
}

impl TablePages {
    /// Is the word at this address of the host in a table?
    pub const fn has(&self, addr: usize) -> bool {
        addr.wrapping_sub(self.host) < self.bytes
    }
}

impl Hunt {
    /// The word of a table at this address of the host.
    pub(super) fn io_word(&self, addr: usize) -> Option<(u64, u16)> {
        let pages = self.io_tables.filter(|pages| pages.has(addr))?;
        let offset = addr.wrapping_sub(pages.host);
        #[allow(clippy::cast_possible_truncation)] // 512 words
        let index = (offset % PAGE / 8) as u16;
        Some((FIRST + (offset - offset % PAGE) as u64, index))
    }

    /// A store has become visible: the walker sees it, if it is one to a table.
    pub(super) fn io_written(&mut self, addr: usize, value: u64) {
        if let Some((table, index)) = self.io_word(addr) {
            self.iommu.written(table, index, value);
        }
    }
}

/// The IOMMU serves a domain by the tables under `root`. `caches`: its devices have caches of their own.
pub fn attach(walker: Walker, domain: DomainId, root: PhysAddr, caches: bool) {
    step(0, false, true);
    with(|h| {
        h.note(|| format!("the IOMMU uses the tables under {root:?}"));
        h.iommu.attach(walker, domain, root, caches);
    });
}

/// Commands for the IOMMU. They take effect now, or when [`completed`] tells of them; the adversary decides.
#[must_use]
pub fn submit(commands: &[Command]) -> Ticket {
    step(0, false, true);
    // The doorbell is a store to a device, which waits for all stores before it.
    with(|h| h.drain(h.current));
    let executed = choose(2) == 0;
    with(|h| {
        let ticket = h.iommu.submit(commands, executed);
        h.saw(0x5b17 ^ ticket.0 << 16);
        let when = if executed { "" } else { ", which it takes late" };
        h.note(|| format!("tells the IOMMU {commands:?}{when}"));
        ticket
    })
}

/// The last submission that is complete; the adversary may deny for some time that any more is.
#[must_use]
pub fn completed() -> Ticket {
    step(0, false, true);
    while with(|h| h.iommu.open() != 0) {
        if with(|h| h.iommu.may_deny()) && choose(2) == 1 {
            with(|h| h.iommu.deny());
            break;
        }
        with(|h| {
            h.iommu.complete_one();
            let completed = h.iommu.completed();
            h.note(|| format!("hears that {completed:?} is complete"));
        });
    }
    with(|h| {
        let completed = h.iommu.completed();
        h.saw(0xc0b1 ^ completed.0 << 16);
        completed
    })
}

/// A turn of a loop that waits for the IOMMU, which is no CPU: others go on, and this CPU may too.
pub fn relax() {
    step(0, false, true);
}

/// A table page is taken, and cleared. It was given back under the allocator's lock, and the lock was taken since: this CPU knows
/// what those knew who gave pages back.
pub fn table_is_taken(page: PhysAddr) {
    step(0, false, true);
    let words = with(|h| {
        h.memory.acquire_page(h.current);
        h.iommu.words_of(page)
    });
    for index in words {
        table(page)[usize::from(index)].store(0, shootdown_dma::sync::Ordering::Relaxed);
    }
}

/// A table page is given back: no walk may come to it.
pub fn table_is_free(table: PhysAddr) {
    step(0, false, true);
    check(|h| {
        h.drain(h.current);
        h.memory.release_page(h.current);
        h.note(|| format!("frees the I/O page table {table:?}"));
        devices::unlinked(h.iommu.walks_to(table), table)
    });
}

/// No device may reach this page of memory any more: `promise`.
pub fn is_out_of_reach(page: PhysAddr, promise: Invariant) {
    step(0, false, true);
    check(|h| devices::out_of_reach(h.iommu.usable(), page, promise));
}

/// No device may reach this page of memory, nor those behind it, by these addresses any more.
pub fn is_revoked(range: IovaRange, first: PhysAddr) {
    step(0, false, true);
    check(|h| devices::revoked(h.iommu.usable(), range, first));
}

/// A device may use these addresses: they lead to `first` and what follows it, and nowhere else.
pub fn leads_to(range: IovaRange, first: PhysAddr) {
    step(0, false, true);
    check(|h| devices::leads_to(h.iommu.usable(), range, first));
}
