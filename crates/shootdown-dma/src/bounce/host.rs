//! The kernel's half of a guarded domain, and how pages of the pool are held (B3).
//!
//! A domain holds the pages that it maps, and releases them when their invalidation is complete.
//! Pages of the pool need that too, under every policy. So a guarded domain always holds its pages,
//! and its host sorts them: it counts pages of the pool in the pool, and passes others to the
//! kernel if the kernel wants them held.

use super::Pool;
use crate::addr::PhysAddr;
use crate::domain::Host;
use crate::table::Format;

/// A kernel that copies memory.
pub trait Access: Host {
    /// Copies bytes to memory that does not overlap them; false if there is no such memory: then
    /// nothing is copied.
    ///
    /// The bytes lie in buffers that a driver maps, or in the pool. If a driver maps memory that it
    /// does not have, only this function can refuse it.
    fn copy(&self, from: PhysAddr, to: PhysAddr, bytes: u64) -> bool;

    /// Zeroes bytes of the pool: one page of it.
    fn clear(&self, first: PhysAddr, bytes: u64);
}

/// The host of a guarded domain: the kernel together with the pool.
#[derive(Debug)]
pub struct Bouncing<H> {
    pub(super) host: H,
    pub(super) pool: Pool,
    /// Whether the kernel's own pages are held as well.
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

    /// Splits pages into those of the pool, and runs of others that are contiguous. `others` ends
    /// it by returning false; returns the page that it reached.
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

// SAFETY: pages of the pool are not taken again until they are released as often as they were held
// (`Pool`); the kernel guarantees the same for others.
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
