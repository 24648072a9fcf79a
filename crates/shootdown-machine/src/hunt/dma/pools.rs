//! Pages for the edges of buffers, of the domains that have some: `bounce=on`.
//!
//! A page that the library clears for a buffer is nobody's until then: no device may reach it,
//! under any policy.

use std::cell::Cell;

use shootdown_dma::PhysAddr;
use shootdown_dma::bounce::{Access, Pool};
use shootdown_dma::table::Format;

use super::config::TWO;
use super::host::Devices;
use super::world::Kernel;
use crate::hunt::{MAX_CPUS, hw, io};
use crate::oracle::Invariant;

/// Pages of a pool.
const PAGES: usize = 2;
const FIRST: u64 = 0x5000_0000;

/// Which page each CPU has cleared last, and how often each was.
pub(super) struct Pools {
    last: [Cell<u64>; MAX_CPUS],
    times: [Cell<u32>; TWO * PAGES],
    /// The logarithm of the bytes of a page.
    granule: u32,
}

/// The pool of a domain.
pub(super) fn of(domain: usize, granule: u32) -> Pool {
    let pages = domain * PAGES..(domain + 1) * PAGES;
    let at = |page| PhysAddr(FIRST + ((page as u64) << granule));
    Pool::with_granule(granule, pages.map(at)).expect("pages of their own")
}

impl Pools {
    pub fn new(granule: u32) -> Self {
        let last = std::array::from_fn(|_| Cell::default());
        Self { last, times: std::array::from_fn(|_| Cell::default()), granule }
    }

    /// The page that this CPU has been given last.
    pub fn last(&self) -> PhysAddr {
        PhysAddr(self.last[hw::this_cpu().index()].get())
    }

    fn times(&self, page: PhysAddr) -> &Cell<u32> {
        &self.times[((page.0 - FIRST) >> self.granule) as usize]
    }

    /// How often it was taken from the pool.
    pub fn times_taken(&self, page: PhysAddr) -> u32 {
        self.times(page).get()
    }

    /// What is kept, as numbers.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let times = self.times.iter().map(|times| u64::from(times.get()));
        self.last.iter().map(|page| page.get()).chain(times)
    }
}

impl<F: Format> Access for Devices<F> {
    /// What is in memory is not looked at.
    fn copy(&self, _: PhysAddr, _: PhysAddr, _: u64) -> bool {
        true
    }

    fn clear(&self, first: PhysAddr, _: u64) {
        io::is_out_of_reach(first, 1 << F::GRANULE, Invariant::FrameReuse);
        let pools = &Kernel::here().pools;
        pools.last[hw::this_cpu().index()].set(first.0);
        let times = pools.times(first);
        if times.replace(times.get() + 1) != 0 {
            hw::witness("bounce-page-reused");
        }
    }
}
