//! Memory that drivers own and the domain holds.
//!
//! Which frame is whose is the oracle's knowledge: it is in no atomic, and takes part in no step. A
//! frame is recycled when its owner has freed it and nobody holds it; where the policy promises
//! that no device reaches it then, that is looked at.

use std::cell::Cell;
use std::ops::Range;

use shootdown_dma::PhysAddr;

use crate::hunt::{hw, io};
use crate::oracle::Invariant;

/// Frames of one page, one behind the other.
pub(super) const FRAMES: usize = 4;
const FIRST: u64 = 0x4000_0000;
/// Behind them two large pages. A driver may own them as they are ([`Op::Big`](super::Op::Big)), or
/// several one of them ([`Op::Large`](super::Op::Large)).
pub(super) const LARGE: PhysAddr = PhysAddr(0x8000_0000);
/// Below them a page that several drivers may own: [`Op::Share`](super::Op::Share).
pub(super) const COMMON: PhysAddr = PhysAddr(0x7fff_0000);
/// A page in the window: [`Op::Bypass`](super::Op::Bypass). It is the kernel's for good.
pub(super) const BYPASSED: PhysAddr = PhysAddr(0x3_0000);
/// Their places behind the frames.
const COMMON_AT: usize = FRAMES;
const LARGE_AT: usize = FRAMES + 1;
/// How many large pages there are.
const LARGE_PAGES: usize = 2;

/// As a [thing](hw::thing).
const FRAME_LIST: u32 = 0;

#[derive(Default)]
struct Frame {
    owners: Cell<u8>,
    refs: Cell<u8>,
    /// It is being looked at, and is nobody's yet.
    examined: Cell<bool>,
}

pub(super) struct Frames {
    frames: [Frame; LARGE_AT + LARGE_PAGES],
    /// Nobody reaches what is recycled.
    promised: bool,
    /// The logarithm of the bytes of a page.
    granule: u32,
}

/// Pages of a large page.
pub(super) const fn large_page(granule: u32) -> u64 {
    1 << (granule - 3)
}

/// May several drivers own what begins there?
pub(super) fn is_common(first: PhysAddr) -> bool {
    first == COMMON || first >= LARGE
}

impl Frames {
    pub fn new(promised: bool, granule: u32) -> Self {
        Self { frames: std::array::from_fn(|_| Frame::default()), promised, granule }
    }

    /// The logarithm of the bytes of a large page.
    const fn large(&self) -> u32 {
        2 * self.granule - 3
    }

    /// The address of a frame.
    const fn at(&self, frame: usize) -> PhysAddr {
        match frame {
            COMMON_AT => COMMON,
            LARGE_AT.. => PhysAddr(LARGE.0 + (((frame - LARGE_AT) as u64) << self.large())),
            _ => PhysAddr(FIRST + ((frame as u64) << self.granule)),
        }
    }

    /// Bytes of a frame.
    const fn bytes(&self, frame: usize) -> u64 {
        1 << if frame >= LARGE_AT { self.large() } else { self.granule }
    }

    fn is_free(&self, frame: usize) -> bool {
        let Frame { owners, refs, examined } = &self.frames[frame];
        owners.get() == 0 && refs.get() == 0 && !examined.get()
    }

    /// All of it, as numbers.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.frames.iter().map(|Frame { owners, refs, examined }| {
            u64::from(owners.get()) | u64::from(refs.get()) << 8 | u64::from(examined.get()) << 16
        })
    }

    /// Frames that follow each other, for a driver; `None`: there are none.
    pub fn take(&self, count: usize) -> Option<PhysAddr> {
        hw::thing(FRAME_LIST);
        let free = |first: &usize| (*first..*first + count).all(|frame| self.is_free(frame));
        let first = (0..=FRAMES - count).find(free);
        hw::saw(first.map_or(u64::MAX, |first| first as u64));
        let first = first?;
        (first..first + count).for_each(|frame| self.frames[frame].owners.set(1));
        Some(self.at(first))
    }

    /// All large pages.
    pub fn take_big(&self) -> bool {
        hw::thing(FRAME_LIST);
        let all = LARGE_AT..LARGE_AT + LARGE_PAGES;
        let free = all.clone().all(|frame| self.is_free(frame));
        hw::saw(u64::from(free));
        if free {
            all.for_each(|frame| self.frames[frame].owners.set(1));
        }
        free
    }

    /// The first `count` large pages, for one more driver.
    pub fn take_large(&self, count: usize) -> bool {
        self.take_one_more(LARGE_AT..LARGE_AT + count, "large-shared")
    }

    /// The page that several may own.
    pub fn take_common(&self) -> bool {
        self.take_one_more(COMMON_AT..COMMON_AT + 1, "page-shared")
    }

    /// Frames, for one more driver. `witness`: there was one already.
    fn take_one_more(&self, frames: Range<usize>, witness: &'static str) -> bool {
        hw::thing(FRAME_LIST);
        let frames = &self.frames[frames];
        let examined = frames.iter().any(|frame| frame.examined.get());
        hw::saw(u64::from(examined));
        if examined {
            return false;
        }
        for Frame { owners, .. } in frames {
            owners.set(owners.get() + 1);
            if owners.get() > 1 {
                hw::witness(witness);
            }
        }
        true
    }

    /// Which frames these pages are.
    fn frames(&self, first: PhysAddr, pages: u64) -> Range<usize> {
        if first >= LARGE {
            let (from, bytes) = (first.0 - LARGE.0, pages << self.granule);
            let large = |at: u64| LARGE_AT + (at >> self.large()) as usize;
            return large(from)..large(from + bytes - 1) + 1;
        }
        if first == COMMON {
            return COMMON_AT..COMMON_AT + 1;
        }
        let at = (first.0 - FIRST) as usize >> self.granule;
        at..at + pages as usize
    }

    /// Their owner frees them.
    pub fn give(&self, first: PhysAddr, pages: u64) {
        hw::thing(FRAME_LIST);
        for frame in self.frames(first, pages) {
            let owners = &self.frames[frame].owners;
            owners.set(owners.get() - 1);
            self.recycle(frame);
        }
    }

    pub fn hold(&self, first: PhysAddr, pages: u64) {
        hw::thing(FRAME_LIST);
        for frame in self.frames(first, pages) {
            let refs = &self.frames[frame].refs;
            refs.set(refs.get() + 1);
        }
    }

    pub fn release(&self, first: PhysAddr, pages: u64) {
        hw::thing(FRAME_LIST);
        for frame in self.frames(first, pages) {
            let refs = &self.frames[frame].refs;
            let Some(left) = refs.get().checked_sub(1) else {
                let details = format!("{:?} is released and was not held", self.at(frame));
                hw::violation(Invariant::FrameReuse, details)
            };
            refs.set(left);
            if left == 0 && self.frames[frame].owners.get() == 0 {
                hw::witness("held-frame-recycled");
            }
            self.recycle(frame);
        }
    }

    fn recycle(&self, frame: usize) {
        hw::saw(u64::from(self.is_free(frame)));
        if self.promised && self.is_free(frame) {
            let examined = &self.frames[frame].examined;
            examined.set(true);
            io::is_out_of_reach(self.at(frame), self.bytes(frame), Invariant::FrameReuse);
            examined.set(false);
        }
    }

    /// Nothing is owed any more: what nobody owns is not held, and out of reach.
    pub fn check_settled(&self) {
        for (frame, Frame { owners, refs, .. }) in self.frames.iter().enumerate() {
            if owners.get() != 0 {
                continue;
            }
            if refs.get() != 0 {
                let details = format!("{:?} is still held when nothing is owed", self.at(frame));
                hw::violation(Invariant::LazyBound, details);
            }
            io::is_out_of_reach(self.at(frame), self.bytes(frame), Invariant::LazyBound);
        }
    }
}
