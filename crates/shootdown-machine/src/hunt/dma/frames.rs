//! Memory that drivers own and the domain holds.
//!
//! Which frame is whose is the oracle's knowledge: it is in no atomic, and takes part in no step. A frame is recycled when
//! its owner has freed it and nobody holds it; where the policy promises that no device reaches it then, that is looked at.

use std::cell::Cell;

use shootdown_dma::PhysAddr;

use crate::hunt::{hw, io};
use crate::oracle::Invariant;

/// Frames of one page, one behind the other.
pub(super) const FRAMES: usize = 4;
const FIRST: u64 = 0x4000_0000;
/// Behind them a large page and one page more, as if it were one frame: [`Op::Big`](super::Op::Big).
pub(super) const BIG: PhysAddr = PhysAddr(0x8000_0000);
/// Below them a page that several drivers may own: [`Op::Share`](super::Op::Share).
pub(super) const COMMON: PhysAddr = PhysAddr(0x7fff_0000);
/// A page in the window: [`Op::Bypass`](super::Op::Bypass). It is the kernel's for good.
pub(super) const BYPASSED: PhysAddr = PhysAddr(0x3_0000);
/// Their places behind the frames.
const BIG_AT: usize = FRAMES;
const COMMON_AT: usize = FRAMES + 1;

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
    frames: [Frame; FRAMES + 2],
    /// Nobody reaches what is recycled.
    promised: bool,
    /// The logarithm of the bytes of a page.
    granule: u32,
}

/// Pages of a large page, and one more.
pub(super) const fn big_pages(granule: u32) -> u64 {
    (1 << (granule - 3)) + 1
}

impl Frames {
    pub fn new(promised: bool, granule: u32) -> Self {
        Self { frames: std::array::from_fn(|_| Frame::default()), promised, granule }
    }

    /// The first page of a frame.
    const fn page(&self, frame: usize) -> PhysAddr {
        match frame {
            BIG_AT => BIG,
            COMMON_AT => COMMON,
            _ => PhysAddr(FIRST + ((frame as u64) << self.granule)),
        }
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
        Some(self.page(first))
    }

    /// The large page and one more.
    pub fn take_big(&self) -> bool {
        hw::thing(FRAME_LIST);
        let free = self.is_free(BIG_AT);
        hw::saw(u64::from(free));
        if free {
            self.frames[BIG_AT].owners.set(1);
        }
        free
    }

    /// The page that several may own.
    pub fn take_common(&self) -> bool {
        hw::thing(FRAME_LIST);
        let Frame { owners, examined, .. } = &self.frames[COMMON_AT];
        hw::saw(u64::from(examined.get()));
        if !examined.get() {
            owners.set(owners.get() + 1);
            if owners.get() > 1 {
                hw::witness("page-shared");
            }
        }
        !examined.get()
    }

    /// Which frames these pages are.
    fn frames(&self, first: PhysAddr, pages: u64) -> std::ops::Range<usize> {
        if first.0 >= BIG.0 {
            return BIG_AT..BIG_AT + 1;
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
                let details = format!("{:?} is released and was not held", self.page(frame));
                hw::breach(Invariant::FrameReuse, details)
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
            io::is_out_of_reach(self.page(frame), Invariant::FrameReuse);
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
                let details = format!("{:?} is still held when nothing is owed", self.page(frame));
                hw::breach(Invariant::LazyBound, details);
            }
            io::is_out_of_reach(self.page(frame), Invariant::LazyBound);
        }
    }
}
