//! What a case plays on: a fresh space, the CPUs that look, and the flush that may be left out.

use core::sync::atomic::{AtomicU32, Ordering};

use shootdown::cpu_set::{Bits, CpuSet};
use shootdown::gather::Array;
use shootdown::regime::{Reach, Regime};
use shootdown::{Gather, Platform, Request, Stride, VaRange};
use spin::Mutex;

use super::{Broken, Outcome, Place};
use crate::arch::{self, Rights};
use crate::memory;
use crate::paging::{Space, Tree, span};
use crate::port::{self, Deadline, Hardware, Kernel, quietly};
use crate::work;

/// Milliseconds within which every try must be over.
const LIMIT: u64 = 10_000;

/// Frames that one try may hold.
const FRAMES: usize = 96;

/// A page of a case, with what is in its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// Its address.
    pub at: u64,
    /// Its frame.
    pub frame: u64,
    /// What every word of the frame is.
    pub stamp: u64,
}

impl Page {
    /// As a range.
    pub fn range(self) -> VaRange {
        VaRange::new(self.at, 1, Stride::Page4K).expect("a page below the end of memory")
    }
}

/// One try of a case.
pub struct Stage {
    /// The space.
    pub space: Space,
    /// Is the flush made, or left out?
    pub flushes: bool,
    /// Which try it is.
    pub number: u32,
    watchers: CpuSet<1>,
    frames: Mutex<([u64; FRAMES], usize)>,
    stamps: AtomicU32,
    _deadline: Deadline,
}

impl Stage {
    /// A stage that nobody has entered: see [`begin`](Self::begin).
    pub fn new(place: Place, cpus: u32, number: u32, flushes: bool) -> Self {
        let mut watchers = CpuSet::EMPTY;
        match place {
            Place::Here => watchers.insert(arch::cpu()),
            Place::There => {
                watchers = work::first(cpus);
                watchers.remove(arch::cpu());
            }
        }
        Self {
            space: Space::new(),
            flushes,
            number,
            watchers,
            frames: Mutex::new(([0; FRAMES], 0)),
            stamps: AtomicU32::new(0),
            _deadline: Deadline::in_ms(LIMIT),
        }
    }

    /// The watchers and this CPU run in its space from now on. It must not be moved any more: CPUs
    /// know where it is.
    pub fn begin(&self) {
        work::on(&self.everyone(), &|| self.enter());
    }

    /// Ends it: everybody leaves the space, and all that the case still has is freed.
    pub fn strike(&self) {
        work::on(&self.everyone(), &|| port::leave());
        self.space.end(&Kernel::pin());
        let (frames, count) = *self.frames.lock();
        frames[..count].iter().copied().for_each(memory::free);
    }

    /// Those who look, and this CPU.
    fn everyone(&self) -> CpuSet<1> {
        let mut everyone = self.watchers;
        everyone.insert(arch::cpu());
        everyone
    }

    /// Those who look.
    #[cfg(target_arch = "aarch64")]
    pub const fn watchers(&self) -> &CpuSet<1> {
        &self.watchers
    }

    /// This CPU runs in the space from now on.
    pub fn enter(&self) {
        // SAFETY: interrupts are off, this CPU is online, and the space lives, in place, until
        // `strike`, by which all have left.
        quietly(|irqs| unsafe { shootdown::switch_to(irqs.pin(), &self.space.shot) });
    }

    /// Runs `work` on those who look.
    pub fn there(&self, work: impl Fn() + Sync) {
        work::on(&self.watchers, &work);
    }

    /// Runs `work` on those who look, one after the other; after how many of them `after` said yes.
    pub fn in_turn(&self, work: impl Fn() + Sync, mut after: impl FnMut() -> bool) -> u32 {
        let mut count = 0;
        for cpu in self.watchers.iter() {
            let mut alone = CpuSet::EMPTY;
            alone.insert(cpu);
            work::on(&alone, &work);
            count += u32::from(after());
        }
        count
    }

    /// How many of those who look say yes.
    pub fn watch(&self, look: impl Fn() -> bool + Sync) -> u32 {
        let count = AtomicU32::new(0);
        self.there(|| {
            count.fetch_add(u32::from(look()), Ordering::Relaxed);
        });
        count.load(Ordering::Relaxed)
    }

    /// All of those who look must say yes.
    ///
    /// # Errors
    /// `what`, as a premise that does not hold.
    pub fn premise(
        &self,
        what: &'static str,
        look: impl Fn() -> bool + Sync,
    ) -> Result<(), Broken> {
        let all = self.watch(look) == self.watchers.len();
        if all { Ok(()) } else { Err(Broken::Premise(what)) }
    }

    /// Judges what those who look read: the old value is stale, and anything but the new one wrong.
    pub fn compare(&self, old: u64, new: u64, read: impl Fn() -> Option<u64> + Sync) -> Outcome {
        let (stale, wrong) = (AtomicU32::new(0), AtomicU32::new(0));
        self.there(|| {
            let value = read();
            stale.fetch_add(u32::from(value == Some(old)), Ordering::Relaxed);
            wrong.fetch_add(u32::from(value != Some(old) && value != Some(new)), Ordering::Relaxed);
        });
        if wrong.load(Ordering::Relaxed) > 0 {
            return Err(Broken::Wrong("neither the old page nor the new one was read"));
        }
        Ok(stale.load(Ordering::Relaxed))
    }

    /// The address of the case's page with this number (below 64).
    pub fn address(&self, number: u64) -> u64 {
        arch::paging::SPACE + (50 + u64::from(self.number) * 97 + number) * memory::FRAME
    }

    /// The address of a larger page, or of what one table translates.
    pub fn large_address(&self) -> u64 {
        arch::paging::SPACE + span(1)
    }

    /// The address of the case's page in the kernel's half.
    pub fn kernel_address(&self) -> u64 {
        arch::paging::KERNEL + (50 + u64::from(self.number) * 97) * memory::FRAME
    }

    /// A value that no other frame of this try has.
    pub fn stamp(&self) -> u64 {
        let count = self.stamps.fetch_add(1, Ordering::Relaxed);
        0x5a5a_0000_0000_0000 | u64::from(self.number) << 32 | u64::from(count + 1)
    }

    /// A frame of the case, filled with a stamp of its own.
    pub fn frame(&self) -> (u64, u64) {
        let (frame, stamp) = (memory::allocate().expect("there are frames"), self.stamp());
        memory::fill(frame, stamp);
        self.keep(frame);
        (frame, stamp)
    }

    /// This frame is the try's from now on: freed at its end, after all have left.
    pub fn keep(&self, frame: u64) {
        let mut held = self.frames.lock();
        let at = held.1;
        held.0[at] = frame;
        held.1 += 1;
    }

    /// Gives a frame back before the end, to be poisoned and used again.
    pub fn release(&self, frame: u64) {
        let mut held = self.frames.lock();
        let count = held.1;
        let at =
            held.0[..count].iter().position(|held| *held == frame).expect("a frame of this try");
        held.0[at] = held.0[count - 1];
        held.1 -= 1;
        memory::free(frame);
    }

    /// Maps a new page where none was.
    pub fn map(&self, number: u64, rights: Rights) -> Page {
        let (frame, stamp) = self.frame();
        let at = self.address(number);
        self.write(self.space.tree, at, 0, arch::paging::leaf(frame, 0, rights));
        Page { at, frame, stamp }
    }

    /// Writes an entry, and makes it seen by walkers. Returns the one before.
    pub fn write(&self, tree: Tree, at: u64, level: u32, entry: u64) -> u64 {
        let old = tree.set(at, level, entry);
        Hardware::publish();
        Hardware::sync(Reach::Local);
        old
    }

    /// Flushes a range of leaves, or leaves it out.
    ///
    /// # Errors
    /// Those of the library.
    pub fn flush(&self, range: VaRange) -> Result<(), Broken> {
        if self.flushes {
            self.space.shot.flush(&Kernel::pin(), Request::pages(range))?;
        }
        Ok(())
    }

    /// Unmaps pages and frees their frames, through a gather.
    ///
    /// # Errors
    /// Those of the library.
    pub fn unmap(&self, pages: &[Page]) -> Result<(), Broken> {
        let mut gather = Gather::<Kernel, Array<u64, 64>>::new(&self.space.shot);
        for page in pages {
            self.write(self.space.tree, page.at, 0, 0);
            if self.flushes {
                gather.unmapped(page.range(), page.frame).expect("room for 64");
            } else {
                self.release(page.frame);
            }
        }
        let frames = gather.finish(&Kernel::pin()).map_err(|(error, _still_pending)| error)?;
        frames.for_each(|frame| self.release(frame));
        Ok(())
    }
}
