//! Mapping for devices on this host, at full speed: what the library itself costs, hardware apart.
//!
//! The library is compiled as a kernel would compile it, over page tables of the real format (VT-d,
//! second level) in memory that nobody walks, and an IOMMU that completes everything at once
//! (`host.rs`). So the figures hold the allocation of addresses, the entries, references to pages,
//! and the invalidation engine down to the commands; they do not hold what the hardware takes for a
//! command, nor a store to one of its registers.

pub mod host;
pub mod sources;

use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use shootdown_dma::domain::{Config, DmaAddr, Domain};
use shootdown_dma::iova::space::{INTERRUPTS, Space};
use shootdown_dma::table::VtdSecondLevel;
use shootdown_dma::{DeviceId, DomainId, PhysAddr, Policy, Rights};

use crate::hot::Timing;
use crate::pinned::pinned;
use host::{Addresses, Heap, Kernel, Memory, become_cpu};

/// Pages of memory that buffers lie in.
pub const PAGES: usize = 1 << 16;

/// Pages of the space that addresses come from: 39 bits of address.
pub const SPACE: Space<'static> = Space::below(1 << 27).without(&[INTERRUPTS]);

/// A domain with one device.
pub struct Bench {
    domain: Domain<Kernel>,
    iommu: Arc<host::Instant>,
    memory: Arc<Memory>,
}

/// A way to use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A page mapped and unmapped at once, as for a packet that is sent; the next of 8192 each
    /// time, so that none comes back before others have had their turn.
    Page,
    /// The same, but one page again and again: a buffer that is used again at once.
    Again,
    /// The same, but a page by chance of all that there are, so that tables and counters are in no
    /// near cache.
    Chance,
    /// Nothing is mapped: what measuring a page costs.
    Nothing,
    /// So many pages outstanding, the oldest unmapped when the next is mapped: a ring of receive
    /// buffers.
    Ring(usize),
    /// So many pages in a row, mapped and unmapped as one range; time is for each page.
    Range(u64),
    /// So many pages in a row through one reservation, linked one by one and unlinked at once; time
    /// is for each page.
    Linked(u64),
}

impl Shape {
    /// Its name.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Page => "one page".to_owned(),
            Self::Again => "the same page again".to_owned(),
            Self::Chance => format!("a page by chance of {PAGES}"),
            Self::Nothing => "nothing (what measuring costs)".to_owned(),
            Self::Ring(pages) => format!("ring of {pages} pages"),
            Self::Range(pages) => format!("range of {pages} pages, each page"),
            Self::Linked(pages) => format!("{pages} pages linked, each page"),
        }
    }

    const fn pages(self) -> u64 {
        match self {
            Self::Page | Self::Again | Self::Chance | Self::Nothing | Self::Ring(_) => 1,
            Self::Range(pages) | Self::Linked(pages) => pages,
        }
    }
}

/// Where the n-th buffer of a CPU lies: no two abut, and they use the memory in turn.
fn buffer(cpu: usize, n: usize) -> PhysAddr {
    let pages = PAGES / 4;
    PhysAddr((((cpu % 2) * 2 * pages + (2 * n) % pages) as u64) << 12)
}

impl Bench {
    /// A domain for so many CPUs, over memory with a count for each piece of 2^`order` pages.
    ///
    /// # Panics
    /// When the host has no memory for it.
    #[must_use]
    pub fn new(config: Config, addresses: Addresses, order: u32) -> Self {
        let memory = Arc::new(Memory::new(PAGES, order));
        let iommu = Arc::new(host::Instant::default());
        let format = VtdSecondLevel::new(3, true, true).expect("three levels");
        let kernel = Kernel { memory: Arc::clone(&memory) };
        let units = [(Arc::clone(&iommu), DomainId(1))];
        let domain = Domain::new(kernel, config, addresses, format, Heap::default(), units);
        let domain = domain.expect("the host has memory for a domain");
        let _ = domain.attach(0, DeviceId(8), false).expect("the unit is there");
        if config.policy == Policy::Bypass {
            domain
                .open_window(PAGES as u64)
                .expect("there are addresses for it, and it is trusted");
        }
        Self { domain, iommu, memory }
    }

    /// The domain.
    #[must_use]
    pub const fn domain(&self) -> &Domain<Kernel> {
        &self.domain
    }

    /// Commands that the IOMMU has had.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.iommu.commands()
    }

    fn map(&self, phys: PhysAddr, pages: u64) -> DmaAddr {
        let mapped = self.domain.map(black_box(phys), pages << 12, Rights::Write);
        // An address alone: what the bench keeps between mapping and unmapping costs what a
        // driver's ring does.
        mapped.expect("there are addresses for it").into_raw()
    }

    fn unmap(&self, at: DmaAddr, pages: u64) {
        // SAFETY: each pair maps and unmaps its own, once.
        let unmapped = unsafe { self.domain.unmap_raw(black_box(at), pages << 12) };
        unmapped.expect("it is mapped");
    }

    /// Maps and unmaps so many times.
    ///
    /// # Panics
    /// When the domain refuses, which would be a bug.
    pub fn pairs(&self, shape: Shape, cpu: usize, pairs: u32) {
        let pairs = pairs as usize;
        match shape {
            Shape::Page => {
                for n in 0..pairs {
                    let at = self.map(buffer(cpu, n), 1);
                    self.unmap(at, 1);
                }
            }
            Shape::Again => {
                for _ in 0..pairs {
                    let at = self.map(buffer(cpu, 0), 1);
                    self.unmap(at, 1);
                }
            }
            Shape::Chance => {
                let mut chance = cpu as u64 + 1;
                for _ in 0..pairs {
                    // Knuth's multiplier for 64 bits: the upper bits are well mixed.
                    chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let page = chance >> (u64::BITS - PAGES.ilog2());
                    let at = self.map(PhysAddr(page << 12), 1);
                    self.unmap(at, 1);
                }
            }
            Shape::Nothing => {
                for n in 0..pairs {
                    black_box(black_box(buffer(cpu, n)));
                }
            }
            Shape::Ring(length) => {
                let mut ring: Vec<DmaAddr> =
                    (0..length).map(|n| self.map(buffer(cpu, n), 1)).collect();
                for n in length..length + pairs {
                    let slot = &mut ring[n % length];
                    self.unmap(*slot, 1);
                    *slot = self.map(buffer(cpu, n), 1);
                }
                ring.into_iter().for_each(|at| self.unmap(at, 1));
            }
            Shape::Range(pages) => {
                for n in 0..pairs {
                    // Off by a page, so that no superpage fits; and within one of 2 MiB, as what is
                    // allocated together is.
                    let first = buffer(cpu, 256 * n).0 % (1 << 26);
                    let at = self.map(PhysAddr(first + 4096), pages);
                    self.unmap(at, pages);
                }
            }
            Shape::Linked(pages) => {
                for n in 0..pairs {
                    let mut reservation = self.domain.reserve(pages).expect("there are addresses");
                    for page in 0..pages {
                        let phys = buffer(cpu, n + usize::try_from(page).unwrap_or(0));
                        let linked = self.domain.link(&mut reservation, phys, 1, Rights::Write);
                        linked.expect("there is room");
                    }
                    self.domain.sync(&mut reservation).expect("nothing to tell");
                    let released = self.domain.release(reservation);
                    released.map_err(|(error, _)| error).expect("it is linked");
                }
            }
        }
    }

    /// Nanoseconds of a pair (of a page of it), of `threads` threads at once.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // batches are far shorter than 2^52 ns
    pub fn measure(&self, shape: Shape, threads: usize, batches: usize, pairs: u32) -> Timing {
        let each = f64::from(pairs) * shape.pages() as f64;
        let barrier = Barrier::new(threads);
        let mut means: Vec<f64> = std::thread::scope(|scope| {
            let run = |cpu: usize| {
                let barrier = &barrier;
                move || {
                    become_cpu(cpu);
                    self.pairs(shape, cpu, pairs);
                    let batch = |_| {
                        barrier.wait();
                        let start = Instant::now();
                        self.pairs(shape, cpu, pairs);
                        start.elapsed().as_nanos() as f64 / each
                    };
                    (0..batches.max(1)).map(batch).collect::<Vec<f64>>()
                }
            };
            let all: Vec<_> = (0..threads).map(|cpu| scope.spawn(run(cpu))).collect();
            all.into_iter().flat_map(|t| t.join().expect("no thread panics")).collect()
        });
        means.sort_by(f64::total_cmp);
        Timing { min: means[0], median: means[means.len() / 2] }
    }

    /// Maps and unmaps buffers of many sizes page by page, in an order of chance, with `live` pages
    /// mapped at a time; then unmaps all but every 64th page. Says how many pages of tables
    /// there are, and how many the mappings that are left need.
    #[must_use]
    pub fn churn(&self, seed: u64, live: usize, operations: usize) -> (usize, usize) {
        become_cpu(0);
        let mut mapped: Vec<DmaAddr> = (0..live).map(|n| self.map(buffer(0, n), 1)).collect();
        for n in 0..operations {
            let at = usize::try_from(crate::experiments::chance(seed, n as u64) >> 33).unwrap_or(0);
            let slot = &mut mapped[at % live];
            self.unmap(*slot, 1);
            *slot = self.map(buffer(0, n), 1);
            if n % 1024 == 0 {
                self.poll(n as u64);
            }
        }
        let mut left = Vec::new();
        for (n, at) in mapped.into_iter().enumerate() {
            if n < live / 64 { left.push(at) } else { self.unmap(at, 1) }
        }
        // A timer for some seconds.
        for tick in 0..2048 {
            self.poll((operations as u64 + tick) * 10_000_000);
        }
        let mut needed: Vec<(u32, u64)> = vec![(2, 0)];
        for at in &left {
            let page = at.0 >> 12;
            needed.extend([(0, page >> 9), (1, page >> 18)]);
        }
        needed.sort_unstable();
        needed.dedup();
        left.into_iter().for_each(|at| self.unmap(at, 1));
        (self.domain.table_pages(), needed.len())
    }

    fn poll(&self, now_ns: u64) {
        self.domain.poll(now_ns).expect("the IOMMU does not complain");
    }

    /// Ends it; everything has come back.
    ///
    /// # Panics
    /// When something has not.
    pub fn end(self) {
        let Self { domain, memory, .. } = self;
        domain.flush().expect("the IOMMU answers");
        // SAFETY: there is no device.
        let ended = unsafe { domain.end() };
        assert!(ended.is_ok(), "the IOMMU answers");
        assert_eq!(memory.held(), 0, "every reference has come back");
    }
}

/// A domain's configuration for so many threads, each a CPU; with the [promise](crate::pinned) or
/// without.
#[must_use]
pub fn config(policy: Policy, threads: usize, promise: bool) -> Config {
    let config = Config::new(threads).policy(policy);
    match pinned().filter(|_| promise) {
        Some(pinned) => config.pinned(pinned),
        None => config,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use shootdown_dma::iova::magazine::{self, Magazines};
    use shootdown_dma::iova::tree::Tree;

    use super::*;

    /// Two CPUs map and unmap; somebody who is neither enters their cells, and empties their
    /// magazines, by the barrier of this system. Every reference and every address comes back.
    #[test]
    fn cells_are_claimed_from_their_owners() {
        let config = config(Policy::Deferred, 2, true);
        let mut magazines = magazine::Config::for_cpus(2);
        magazines.pinned = config.pinned;
        let magazines = Magazines::new(Tree::new(&SPACE).unwrap(), &magazines).unwrap();
        let bench = Bench::new(config, Addresses::Magazines(magazines), 0);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (bench, done) = (&bench, &done);
            let workers = [0, 1].map(|cpu| {
                scope.spawn(move || {
                    become_cpu(cpu);
                    for _ in 0..20 {
                        bench.pairs(Shape::Ring(64), cpu, 2_000);
                        bench.pairs(Shape::Range(3), cpu, 500);
                    }
                })
            });
            scope.spawn(move || {
                for tick in 0.. {
                    bench.poll(tick * 10_000_000);
                    assert!(bench.domain().deferred().1 <= 2 * (16 << 10));
                    bench.domain().flush().expect("the IOMMU answers");
                    let Addresses::Magazines(magazines) = bench.domain().addresses() else {
                        return;
                    };
                    magazines.flush();
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            workers.into_iter().for_each(|worker| worker.join().expect("no worker panics"));
            done.store(true, Ordering::Relaxed);
        });
        let counts = bench.domain().counts();
        assert_eq!((counts.maps, counts.mapped_pages), (counts.unmaps, counts.unmapped_pages));
        assert_eq!(counts.maps, 2 * 20 * (64 + 2_000 + 500));
        bench.end();
    }
}
