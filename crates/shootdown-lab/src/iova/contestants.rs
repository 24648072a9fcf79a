//! Who is measured: this project's allocators, crates that do the same, and what people write by
//! hand.
//!
//! All get the same requests: so many pages, aligned to the next power of two of their number, as
//! IOMMUs like them. What locks nothing itself stands behind a mutex of the standard library.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use shootdown_dma::IovaRange;
use shootdown_dma::iova::arena::{Arena, Flush, Layout as Pools};
use shootdown_dma::iova::magazine::{Config, Magazines};
use shootdown_dma::iova::space::INTERRUPTS;
use shootdown_dma::iova::{Allocate, Space, Tree, Want};

use crate::pinned::pinned;

/// Pages of the space: 48 bits of address.
pub const PAGES: u64 = 1 << 36;

/// Pages of a space for bitmaps: 32 GiB.
const BITMAP_PAGES: u64 = 1 << 23;

/// Hands out ranges of pages to several threads.
pub trait Contestant: Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// The first page of a range; `None` when there is none.
    fn take(&self, cpu: usize, pages: u64) -> Option<u64>;

    /// Takes it back.
    fn give(&self, cpu: usize, first: u64, pages: u64);

    /// Is it this project's?
    fn is_ours(&self) -> bool {
        false
    }

    /// Is it a crate that others have published?
    fn is_peer(&self) -> bool {
        false
    }
}

/// One of this project's.
pub struct Ours<A>(pub &'static str, pub A);

impl<A: Allocate> Contestant for Ours<A> {
    fn name(&self) -> &'static str {
        self.0
    }

    #[inline]
    fn take(&self, cpu: usize, pages: u64) -> Option<u64> {
        Some(self.1.alloc(cpu, &Want::pages(pages)?).ok()?.first())
    }

    #[inline]
    fn give(&self, cpu: usize, first: u64, pages: u64) {
        let range = IovaRange::new(first, pages).expect("it was handed out");
        self.1.free(cpu, range).expect("it was handed out");
    }

    fn is_ours(&self) -> bool {
        true
    }
}

/// The tree of live runs, 48 bits wide, without the window of interrupts.
///
/// # Panics
/// Without memory.
#[must_use]
pub fn tree() -> Tree {
    Tree::new(&Space::below(PAGES).without(&[INTERRUPTS])).expect("memory")
}

/// Magazines before the tree, as the library sets them up, without the checks of debug builds.
///
/// # Panics
/// Without memory.
#[must_use]
pub fn magazines(cpus: usize) -> Magazines<Tree> {
    Magazines::new(tree(), &config(cpus)).expect("memory")
}

/// The same for a host that [promises](crate::pinned) that threads are alone with the numbers they
/// pass, as they are here: a number is a worker's, and a worker one thread's at a time.
///
/// # Panics
/// Without memory.
#[must_use]
pub fn pinned_magazines(cpus: usize) -> Magazines<Tree> {
    let config = config(cpus);
    let config = pinned().map_or(config, |pinned| config.pinned(pinned));
    Magazines::new(tree(), &config).expect("memory")
}

const fn config(cpus: usize) -> Config {
    Config::for_cpus(cpus).checked(false)
}

/// Hardware that has nothing cached.
pub struct NoHardware;

// SAFETY: there is nothing to forget.
unsafe impl Flush for NoHardware {
    fn flush(&self) {}
}

fn arena(cpus: usize) -> Arena<NoHardware> {
    // Pools are for ranges that may be as long as 1024 pages: one for each CPU, and the large one.
    Arena::new(&Space::below(BITMAP_PAGES), &Pools::pools(cpus), NoHardware).expect("memory")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nobody: hands out one and the same range. What it seems to take is what measuring costs.
pub struct Nobody;

impl Contestant for Nobody {
    fn name(&self) -> &'static str {
        "nobody"
    }

    fn take(&self, _: usize, pages: u64) -> Option<u64> {
        Some(pages)
    }

    fn give(&self, _: usize, first: u64, pages: u64) {
        std::hint::black_box((first, pages));
    }
}

/// `range-alloc`: a vector of free ranges, best fit.
struct RangeAlloc(Mutex<range_alloc::RangeAllocator<u64>>);

impl Contestant for RangeAlloc {
    fn name(&self) -> &'static str {
        "range-alloc 0.1.5"
    }

    fn take(&self, _: usize, pages: u64) -> Option<u64> {
        let mut ranges = lock(&self.0);
        let range = if pages == 1 {
            ranges.allocate_range(1)
        } else {
            ranges.allocate_range_aligned(pages, pages.next_power_of_two())
        };
        Some(range.ok()?.start)
    }

    fn give(&self, _: usize, first: u64, pages: u64) {
        lock(&self.0).free_range(first..first + pages);
    }

    fn is_peer(&self) -> bool {
        true
    }
}

/// `vm-allocator` of rust-vmm: an interval tree. It gets bytes: free ranges of length 1 it does not
/// merge, and what begins at 1 it does not take back.
struct VmAllocator(Mutex<vm_allocator::AddressAllocator>);

impl Contestant for VmAllocator {
    fn name(&self) -> &'static str {
        "vm-allocator 0.1.4"
    }

    fn take(&self, _: usize, pages: u64) -> Option<u64> {
        let align = pages.next_power_of_two() << 12;
        let policy = vm_allocator::AllocPolicy::FirstMatch;
        Some(lock(&self.0).allocate(pages << 12, align, policy).ok()?.start() >> 12)
    }

    fn give(&self, _: usize, first: u64, pages: u64) {
        let range = vm_allocator::RangeInclusive::new(first << 12, ((first + pages) << 12) - 1);
        let range = range.expect("a range");
        lock(&self.0).free(&range).expect("it was handed out");
    }

    fn is_peer(&self) -> bool {
        true
    }
}

/// Memory for the boundary tags of `vmem`, from the global allocator.
struct Tags;

// SAFETY: a tag's memory is of its layout, and is freed as it was allocated.
unsafe impl vmem::alloc::Allocator for Tags {
    fn allocate(&self) -> Option<NonNull<vmem::Bt>> {
        // SAFETY: a tag has a size.
        NonNull::new(unsafe { alloc(Layout::new::<vmem::Bt>()) }.cast())
    }

    unsafe fn deallocate(&self, tag: NonNull<vmem::Bt>) {
        // SAFETY: it came from `allocate`.
        unsafe { dealloc(tag.as_ptr().cast(), Layout::new::<vmem::Bt>()) }
    }
}

/// `vmem`: boundary tags and free lists by size, instant fit, with its own use of a mutex. Its
/// constrained allocation looks into one free list only and gives up soon, so that it is asked
/// without alignment, which is easier.
struct Vmem(vmem::Arena<'static, 'static, Tags, Mutex<()>>);

impl Contestant for Vmem {
    fn name(&self) -> &'static str {
        "vmem 1.0.0, unaligned"
    }

    fn take(&self, _: usize, pages: u64) -> Option<u64> {
        let first = self.0.alloc(usize::try_from(pages).ok()?, vmem::AllocPolicy::InstantFit);
        first.ok().map(|first| first as u64)
    }

    fn give(&self, _: usize, first: u64, _: u64) {
        let first = usize::try_from(first).expect("it was handed out");
        self.0.free(first).expect("it was handed out");
    }

    fn is_peer(&self) -> bool {
        true
    }
}

/// What people write: free ranges in a `BTreeMap`, first fit, merged when freed.
struct FreeMap(Mutex<BTreeMap<u64, u64>>);

impl Contestant for FreeMap {
    fn name(&self) -> &'static str {
        "mutex, BTreeMap"
    }

    fn take(&self, _: usize, pages: u64) -> Option<u64> {
        let (mut free, align) = (lock(&self.0), pages.next_power_of_two());
        let (gap, end, first) = free.iter().find_map(|(gap, end)| {
            let first = gap.next_multiple_of(align);
            (first + pages <= *end).then_some((*gap, *end, first))
        })?;
        if gap == first {
            free.remove(&gap);
        } else {
            free.insert(gap, first);
        }
        if first + pages < end {
            free.insert(first + pages, end);
        }
        Some(first)
    }

    fn give(&self, _: usize, first: u64, pages: u64) {
        let mut free = lock(&self.0);
        let (mut begin, mut end) = (first, first + pages);
        let before = free.range(..first).next_back().map(|(gap, end)| (*gap, *end));
        if let Some((gap, _)) = before.filter(|(_, end)| *end == first) {
            begin = gap;
        }
        if let Some(gap_end) = free.remove(&end) {
            end = gap_end;
        }
        free.insert(begin, end);
    }
}

/// The paper's simplest: as many bytes from the memory allocator as there are pages, and their
/// address is the page number.
struct Malloc;

impl Malloc {
    fn layout(pages: u64) -> Layout {
        let bytes = usize::try_from(pages).expect("few pages");
        Layout::from_size_align(bytes, bytes.next_power_of_two()).expect("few pages")
    }
}

impl Contestant for Malloc {
    fn name(&self) -> &'static str {
        "malloc as IOVA"
    }

    fn take(&self, _: usize, pages: u64) -> Option<u64> {
        // SAFETY: a range has pages, so that the layout has a size.
        let memory = unsafe { alloc(Self::layout(pages)) };
        NonNull::new(memory).map(|m| m.addr().get() as u64)
    }

    fn give(&self, _: usize, first: u64, pages: u64) {
        let memory = std::ptr::with_exposed_provenance_mut::<u8>(
            usize::try_from(first).expect("an address"),
        );
        // SAFETY: it came from `take`, with this layout.
        unsafe { dealloc(memory, Self::layout(pages)) }
    }
}

/// All contestants, each fresh.
///
/// # Panics
/// Without memory.
#[must_use]
pub fn all(cpus: usize) -> Vec<Box<dyn Contestant>> {
    let vmem = vmem::Arena::create("iova", 1, None, Tags).expect("a quantum of 1");
    vmem.add_span(1, usize::try_from(PAGES - 1).expect("64 bits")).expect("memory");
    vec![
        Box::new(Ours("magazines", pinned_magazines(cpus))),
        Box::new(Ours("magazines (no promise)", magazines(cpus))),
        Box::new(Ours("tree", tree())),
        Box::new(Ours("arena", arena(cpus))),
        Box::new(RangeAlloc(Mutex::new(range_alloc::RangeAllocator::new(1..PAGES)))),
        Box::new(Vmem(vmem)),
        Box::new(VmAllocator(Mutex::new(
            vm_allocator::AddressAllocator::new(1 << 12, (PAGES - 1) << 12).expect("a space"),
        ))),
        Box::new(FreeMap(Mutex::new(BTreeMap::from([(1, PAGES)])))),
        Box::new(Malloc),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever is measured does the work: ranges are disjoint, aligned, and come back.
    #[test]
    fn contestants_allocate() {
        for contestant in all(2) {
            let mut live: Vec<(u64, u64)> = Vec::new();
            for n in 0..600u64 {
                let pages = [1, 1, 2, 3, 8, 16, 100, 1024][(n % 8) as usize];
                let first = contestant.take((n % 2) as usize, pages).expect("there is room");
                if !contestant.name().contains("unaligned") {
                    assert_eq!(first % pages.next_power_of_two(), 0, "{}", contestant.name());
                }
                assert!(
                    live.iter().all(|(f, n)| f + n <= first || first + pages <= *f),
                    "{}: {first} is live",
                    contestant.name()
                );
                live.push((first, pages));
                if n % 3 == 2 {
                    let (first, pages) = live.swap_remove(n as usize % live.len());
                    contestant.give((n % 2) as usize, first, pages);
                }
            }
            for (first, pages) in live {
                contestant.give(0, first, pages);
            }
        }
    }
}
