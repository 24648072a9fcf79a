//! Memory that drivers own and the domain holds.
//!
//! Which page is whose is the oracle's knowledge; references are words in the machine's memory, one
//! line for each page, as kernels have them. A page is recycled when its owner has given it and
//! nobody holds it.
//!
//! Pages are handed out as kernels do it: from a list of the CPU, what was freed last first; lists
//! that are empty are filled from what all share, some pages in a row. So what is in use lies
//! together, and how many large pages or tables it is spread over is as it would be.

use shootdown_dma::PhysAddr;
use shootdown_dma::fixed::Fixed;
use shootdown_dma::sync::{AtomicU32, Ordering};

use super::{Setup, State, checked, with};
use crate::engine;
use crate::oracle::Invariant;
use crate::oracle::devices::{self, Finding};

/// What a kernel knows of a page of memory, or of pages that are taken together (a folio): a line.
#[repr(align(64))]
struct Page(AtomicU32);

/// All pages, by CPU.
pub(super) struct Frames {
    /// Made by the first CPU that needs it, so that it lies in the machine's memory.
    pages: Option<Fixed<Page>>,
    owned: Vec<bool>,
    /// References, as the oracle counts them.
    held: Vec<u32>,
    /// How often each was.
    recycled: Vec<u32>,
    /// Pieces that a CPU has and does not use: the first page of each.
    free: Vec<Vec<u32>>,
    /// The first page that no CPU has had, and where they end.
    fresh: u32,
    end: u32,
    /// Which CPU's each piece is.
    home: Vec<u32>,
    /// Pages of each piece that were recycled since it was taken.
    back: Vec<u32>,
    piece: u32,
}

/// Pages that a CPU takes from those that all share (as Linux does: 63).
const BATCH: u32 = 64;

/// Pages of the memory that rings lie in: 2 MiB.
const RINGS: u32 = 512;

/// The same, of whole pieces.
const fn batch(piece: u32) -> u32 {
    if piece > BATCH { piece } else { BATCH - BATCH % piece }
}

impl Frames {
    pub fn new(setup: &Setup) -> Self {
        let (cpus, piece) = (setup.cpus, setup.piece);
        assert_eq!(setup.pages % piece, 0, "pieces divide the memory of a CPU");
        let end = cpus * setup.pages.next_multiple_of(batch(piece));
        let all = (end.next_multiple_of(RINGS) + RINGS) as usize;
        Self {
            pages: None,
            owned: vec![false; all],
            held: vec![0; all],
            recycled: vec![0; all],
            free: vec![Vec::new(); cpus as usize],
            fresh: 0,
            end,
            home: vec![0; (end / piece) as usize],
            back: vec![0; (end / piece) as usize],
            piece,
        }
    }

    /// Gives a CPU some that nobody has had.
    fn fill(&mut self, cpu: u32) {
        let pages = batch(self.piece).min(self.end - self.fresh);
        let (first, pieces) = (self.fresh, pages / self.piece);
        self.fresh += pages;
        for piece in (0..pieces).rev().map(|n| first + n * self.piece) {
            self.home[(piece / self.piece) as usize] = cpu;
            self.free[cpu as usize].push(piece);
        }
    }

    pub fn rings(&mut self) -> PhysAddr {
        let first = self.owned.len() - RINGS as usize;
        self.owned[first..].fill(true);
        PhysAddr((first as u64) << 12)
    }

    pub fn take(&mut self, cpu: u32) -> Option<PhysAddr> {
        if self.free[cpu as usize].is_empty() {
            self.fill(cpu);
        }
        let first = self.free[cpu as usize].pop()?;
        self.owned[first as usize..][..self.piece as usize].fill(true);
        Some(PhysAddr(u64::from(first) << 12))
    }

    /// The number of the page at this address, if it is one of these.
    pub fn number(&self, at: PhysAddr) -> Option<usize> {
        usize::try_from(at.0 >> 12).ok().filter(|page| *page < self.owned.len())
    }

    /// Does anybody hold it?
    pub fn is_held(&self, page: usize) -> bool {
        self.held[page] != 0
    }

    /// How often was it recycled?
    pub fn times_recycled(&self, page: usize) -> u32 {
        self.recycled[page]
    }

    #[allow(clippy::cast_possible_truncation)] // pages are counted in 32 bits
    fn recycle(&mut self, page: usize) {
        self.recycled[page] += 1;
        let piece = page / self.piece as usize;
        self.back[piece] += 1;
        if self.back[piece] == self.piece {
            self.back[piece] = 0;
            self.free[self.home[piece] as usize].push(piece as u32 * self.piece);
        }
    }
}

impl State {
    fn is_out_of_reach(&self, page: usize) -> Result<(), Finding> {
        if self.setup.promise.is_late() || !self.setup.translated {
            return Ok(());
        }
        let at = PhysAddr((page as u64) << 12);
        devices::out_of_reach(self.iommu.usable(), at, Invariant::FrameReuse)
    }

    pub(super) fn give(&mut self, at: PhysAddr) -> Result<(), Finding> {
        let Some(first) = self.frames.number(at) else { return Ok(()) };
        (first..first + self.frames.piece as usize).try_for_each(|page| {
            self.frames.owned[page] = false;
            if self.frames.is_held(page) {
                return Ok(());
            }
            self.frames.recycle(page);
            self.is_out_of_reach(page)
        })
    }

    fn release(&mut self, page: usize) -> Result<(), Finding> {
        let held = &mut self.frames.held[page];
        *held = held.checked_sub(1).ok_or_else(|| {
            (Invariant::FrameReuse, format!("page {page:#x} is released and was not held"))
        })?;
        if *held != 0 || self.frames.owned[page] {
            return Ok(());
        }
        self.frames.recycle(page);
        self.is_out_of_reach(page)
    }
}

/// Does something for each page, with the counter of its piece where that begins, and where the
/// pages do; `None`: there is no such page.
fn each(first: PhysAddr, pages: u64, f: impl Fn(Option<&AtomicU32>, usize)) -> Option<()> {
    let missing = with(|s| s.frames.pages.is_none().then_some(s.frames.owned.len()));
    if let Some(count) = missing {
        let made = Fixed::new(count, |_| Page(AtomicU32::new(0)));
        with(|s| s.frames.pages = made.ok());
    }
    for n in 0..pages {
        let (counter, page) = with(|s| {
            let page = s.frames.number(PhysAddr(first.0 + (n << 12)))?;
            let begins = n == 0 || page % s.frames.piece as usize == 0;
            Some((begins.then_some(&raw const s.frames.pages.as_ref()?[page].0), page))
        })?;
        // SAFETY: pages are never moved nor freed as long as the hardware is there.
        f(counter.map(|counter| unsafe { &*counter }), page);
    }
    Some(())
}

/// One reference more to each page, by one of their piece. False: there is no such page.
pub(super) fn hold(first: PhysAddr, pages: u64) -> bool {
    each(first, pages, |counter, page| {
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        with(|s| s.frames.held[page] += 1);
    })
    .is_some()
}

/// One reference less to each.
pub(super) fn release(first: PhysAddr, pages: u64) {
    each(first, pages, |counter, page| {
        if let Some(counter) = counter {
            counter.fetch_sub(1, Ordering::Release);
            engine::step();
        }
        checked(with(|s| s.release(page)));
    });
}
