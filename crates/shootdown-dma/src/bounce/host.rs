//! The kernel's half of a guarded domain, and how pages of the pool are held (B3).
//!
//! A domain holds the pages that it maps, and releases them when their invalidation is complete.
//! That is what a page of the pool needs as well, under every policy. So a guarded domain always
//! holds, and its host sorts: pages of the pool are counted there, others are the kernel's if it
//! wants them held.

use super::Pool;
use crate::addr::PhysAddr;
use crate::domain::Host;
use crate::table::Format;

/// A kernel that copies memory.
pub trait Access: Host {
    /// Copies bytes, to memory that does not overlap them; false if there is no such memory: then
    /// nothing is copied.
    ///
    /// It is asked for bytes of buffers that a driver maps, and of the pool. A driver that maps
    /// what is not its own is stopped here, or not at all.
    fn copy(&self, from: PhysAddr, to: PhysAddr, bytes: u64) -> bool;

    /// Makes bytes of the pool zero: a page of it.
    fn clear(&self, first: PhysAddr, bytes: u64);
}

/// A kernel, as a guarded domain sees it: with the pool.
#[derive(Debug)]
pub struct Bouncing<H> {
    pub(super) host: H,
    pub(super) pool: Pool,
    /// The kernel's own pages are held as well.
    pub(super) holds: bool,
}

impl<H> Bouncing<H> {
    /// The kernel.
    pub const fn host(&self) -> &H {
        &self.host
    }

    /// The pool.
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }
}

impl<H: Host> Bouncing<H> {
    const SHIFT: u32 = <H::Format as Format>::GRANULE;

    /// Splits pages into those of the pool, and runs of others that follow each other. `others`
    /// ends it by returning false; up to which page it came.
    fn sort(
        &self,
        first: u64,
        pages: u64,
        mut ours: impl FnMut(usize),
        mut others: impl FnMut(PhysAddr, u64) -> bool,
    ) -> Result<(), u64> {
        let mut from = first;
        let mut run = |from: u64, to: u64| {
            let theirs = to > from && self.holds;
            !theirs || others(PhysAddr(from << Self::SHIFT), to - from)
        };
        for index in self.pool.among(first, pages) {
            let page = self.pool.at(index).0 >> Self::SHIFT;
            if !run(from, page) {
                return Err(from);
            }
            ours(index);
            from = page + 1;
        }
        if run(from, first + pages) { Ok(()) } else { Err(from) }
    }
}

// SAFETY: pages of the pool are nobody's until they are released as often as they were held
// (`Pool`); others are as the kernel promises.
unsafe impl<H: Access> Host for Bouncing<H> {
    type Addresses = H::Addresses;
    type Format = H::Format;
    type Tables = H::Tables;
    type Unit = H::Unit;
    type Pin = H::Pin;

    fn pin(&self) -> H::Pin {
        self.host.pin()
    }

    fn relax(&self) -> bool {
        self.host.relax()
    }

    fn hold(&self, first: PhysAddr, pages: u64) -> bool {
        let page = first.0 >> Self::SHIFT;
        let ours = |index| {
            self.pool.hold(index);
        };
        match self.sort(page, pages, ours, |at, pages| self.host.hold(at, pages)) {
            Ok(()) => true,
            Err(up_to) => {
                self.release(first, up_to - page);
                false
            }
        }
    }

    fn release(&self, first: PhysAddr, pages: u64) {
        let ours = |index| {
            self.pool.let_go(index);
        };
        let _ = self.sort(first.0 >> Self::SHIFT, pages, ours, |at, pages| {
            self.host.release(at, pages);
            true
        });
    }
}
