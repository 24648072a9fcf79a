//! Hostile IOMMUs, as code under test uses them: the counterpart of [`hw`](super::hw) for devices.
//!
//! A world says what they are like with [`set_up`], places page tables with [`tables`], plugs
//! devices in, and names the root of their tables in their entries; from then on, every store to
//! the tables is followed by walks. [`submit`] and [`completed`] are what a driver of a queue comes
//! down to. The rest is the oracle's.

use std::ptr::NonNull;

use shootdown_dma::table::memory::Table;
use shootdown_dma::{DeviceId, DomainId, IovaRange, PhysAddr, Rights};

mod told;

pub use self::told::{answers, carried_out, completed, submit, submitted};
pub use super::iommu::{Cached, Decoded, Half, Model, VALID, Walker};

use super::hw::{check, place};
use super::machine::{self, Hunt, step, with};
use super::memory::IOMMUS;
use crate::oracle::Invariant;

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

/// The number of a page of tables, in the order of their addresses.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn table_number(page: PhysAddr) -> usize {
    usize::try_from(page.0 - FIRST).expect("below the tables") / PAGE
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
            let outlived = self.iommu.outlived_by((table, index), value);
            self.iommu.written(table, index, value);
            outlived.into_iter().for_each(|name| self.witness(name));
        }
    }
}

/// IOMMUs of this model. Once, in `boot`.
pub fn set_up(model: Model) {
    with(|h| {
        h.iommu.set_up(model);
        h.memory.swaps_wait = true;
    });
}

/// Walkers see what was stored to tables so far. At the end of `boot`, during which stores are
/// nobody's steps.
pub fn tables_are_ready() {
    let pages = with(|h| h.io_tables).expect("the world has I/O page tables");
    for page in 0..pages.bytes / PAGE {
        let at = PhysAddr(FIRST + (page * PAGE) as u64);
        for (index, word) in (0..).zip(table(at)) {
            let value = word.load(shootdown_dma::sync::Ordering::Relaxed);
            if value != 0 {
                with(|h| {
                    h.iommu.written(at.0, index, value);
                    h.iommu.written_back(at.0, index);
                });
            }
        }
    }
    with(|h| h.iommu.know_all());
}

/// There is a device behind a unit, with a cache of its own or not. Nothing is mapped for it before
/// its entry says so.
pub fn plug(device: DeviceId, unit: usize, caches: bool) {
    step(0, false, true);
    with(|h| {
        h.note(|| format!("{device:?} is plugged in behind unit {unit}"));
        h.iommu.plug(device, unit, caches);
    });
}

/// The device is taken out, with all that it had cached.
pub fn unplug(device: DeviceId) {
    step(0, false, true);
    with(|h| {
        h.note(|| format!("{device:?} is gone"));
        h.iommu.unplug(device);
    });
}

/// Writes a word of the entry by which units find the tables of a device, and makes it visible to
/// them.
pub fn write_entry(device: DeviceId, half: Half, value: u64) {
    step(0, false, true);
    with(|h| {
        h.drain(h.current);
        h.saw(0xe47e ^ value.rotate_left(20) ^ u64::from(device.0) << 8 ^ half as u64);
        h.note(|| format!("writes the {half:?} word of {device:?}'s entry = {value:#x}"));
        h.iommu.write_entry(device, half, value);
        told::witness_all(h);
    });
}

/// A device is used from now on: its unit knows of its tables.
pub fn is_served(device: DeviceId) {
    step(0, false, true);
    check(|h| {
        if h.iommu.serve(device) {
            return Ok(());
        }
        let details = format!("{device:?} faults: its unit remembers that it had no tables");
        Err((Invariant::UpgradeSoundness, details))
    });
}

/// Entries of tables are in memory, where a walker finds them that does not look into CPUs' caches.
pub fn write_back(entries: &[shootdown_dma::sync::AtomicU64]) {
    step(0, false, true);
    with(|h| {
        h.drain(h.current);
        h.note(|| format!("writes back {} entries", entries.len()));
        for entry in entries {
            if let Some((table, index)) = h.io_word(std::ptr::from_ref(entry) as usize)
                && h.iommu.written_back(table, index)
            {
                h.witness("line-was-stale");
            }
        }
    });
}

/// A step that concerns IOMMUs only, and waits for this CPU's stores. (Stores to tables depend on
/// everything.)
pub(super) fn io_step(changes: bool) {
    step(IOMMUS, changes, with(|h| h.memory.buffered(h.current) != 0));
}

/// A turn of a loop that waits for an IOMMU, which is no CPU, or for another CPU: others go on. As
/// long as an IOMMU has something to do this CPU may go on too; else it does when something that it
/// has read has changed.
pub fn relax() {
    if with(|h| h.iommu.was_full() || !h.running || h.iommu.is_busy()) {
        step(0, false, false);
    } else {
        machine::relax();
    }
}

/// A table page is taken, and cleared. It was given back under the allocator's lock, and the lock
/// was taken since: this CPU knows what those knew who gave pages back. A walker that does not look
/// into CPUs' caches reads what it had `before`, until its lines are written back.
pub fn table_is_taken(page: PhysAddr, before: u64) {
    step(0, false, true);
    let words = with(|h| {
        h.memory.acquire_page(h.current);
        if h.running {
            h.iommu.had(page, before);
        }
        // Before the CPUs run nobody walks, and nobody knows which words were stored.
        if h.running { h.iommu.words_of(page) } else { (0..512).collect() }
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
        match h.iommu.walks_to(table) {
            Some(first) => Err((
                Invariant::TableReuse,
                format!(
                    "the IOMMU can still walk {table:?}, which was freed, from page {first:#x}"
                ),
            )),
            None => Ok(()),
        }
    });
}

/// No device may reach these bytes of memory any more: `promise`.
pub fn is_out_of_reach(first: PhysAddr, bytes: u64, promise: Invariant) {
    io_step(false);
    let reaches = |cached: &Cached| first.0 < cached.end() && cached.to < first.0 + bytes;
    check(|h| match h.iommu.usable().find(reaches) {
        Some(cached) => Err((
            promise,
            format!("a device can still reach {first:?}, by page {:#x}", cached.first),
        )),
        None => Ok(()),
    });
}

/// Addresses of a domain: which they are, and the tag that it has at each unit.
#[derive(Clone, Copy, Debug)]
pub struct Addresses<'a> {
    /// Which pages.
    pub range: IovaRange,
    /// The domain's tags, by the unit's number.
    pub tags: &'a [DomainId],
}

impl Addresses<'_> {
    fn has(&self, cached: &Cached) -> bool {
        cached.overlaps(self.range) && self.tags.contains(&DomainId(cached.domain))
    }
}

/// No device may reach this page of memory, nor those behind it, by these addresses any more; as
/// long as nobody has mapped it there again, which only the caller knows.
pub fn is_revoked(addresses: Addresses<'_>, first: PhysAddr, is_again: impl FnOnce() -> bool) {
    io_step(false);
    if is_again() {
        return;
    }
    let pages = addresses.range.pages();
    check(|h| {
        let old = |cached: &Cached| {
            let memory = first.0..first.0 + (pages << 12);
            addresses.has(cached) && memory.start < cached.end() && cached.to < memory.end
        };
        match h.iommu.usable().find(old) {
            Some(cached) => Err((
                Invariant::Revocation,
                format!("page {:#x} still leads to {:#x}", cached.first, cached.to),
            )),
            None => Ok(()),
        }
    });
}

/// A device is told to use these addresses: they lead to `first` and what follows it, with these
/// rights and sizes of one kind, and nowhere else; and they do lead there. `reads_too`: what may be
/// written may be read, as tables can't say otherwise.
pub fn leads_to(addresses: Addresses<'_>, first: PhysAddr, rights: Rights, reads_too: bool) {
    io_step(false);
    let Addresses { range, tags } = addresses;
    check(|h| {
        // To tell a device is a store to it, which waits for all stores before it.
        h.drain(h.current);
        h.iommu.touch(range);
        let right = |cached: &Cached| {
            let offset = (cached.first.wrapping_sub(range.first())) << 12;
            cached.to == first.0.wrapping_add(offset)
        };
        let used = || h.iommu.usable().filter(|cached| addresses.has(cached));
        if let Some(cached) = used().find(|cached| !right(cached)) {
            let details = format!("page {:#x} still leads to {:#x}", cached.first, cached.to);
            return Err((Invariant::RangeReuse, details));
        }
        if let Some(cached) = used().find(|cached| cached.exceeds(rights, reads_too)) {
            let details =
                format!("page {:#x} is mapped as {rights:?}, and allows more", cached.first);
            return Err((Invariant::Revocation, details));
        }
        let sizes = |a: &Cached, b: &Cached| {
            let meet = a.first < b.first + b.pages && b.first < a.first + a.pages;
            meet && a.pages != b.pages && a.domain == b.domain
        };
        let all: Vec<Cached> = used().collect();
        if let Some(a) = all.iter().find(|a| all.iter().any(|b| sizes(a, b))) {
            return Err((
                Invariant::OneSize,
                format!("page {:#x} is cached in two sizes", a.first),
            ));
        }
        match h.iommu.faults(range, |unit| tags[unit]) {
            Some((page, why)) => Err((
                Invariant::UpgradeSoundness,
                format!("a device that uses page {page:#x} faults: the unit {why}"),
            )),
            None => Ok(()),
        }
    });
}
