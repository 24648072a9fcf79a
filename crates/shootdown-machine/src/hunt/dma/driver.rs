//! Operations, as a driver does them, and what it relies on.

use shootdown_dma::domain::Reservation;
use shootdown_dma::iova::AllocError;
use shootdown_dma::{DmaAddr, IovaRange, MapError, PhysAddr, Policy, Rights, UnmapError};

use super::frames::{BIG, BIG_PAGES};
use super::host::Kernel;
use super::op::{Buffer, Op};
use crate::hunt::{hw, io};
use crate::oracle::Invariant;

/// What is in a buffer's place.
#[derive(Debug, Default)]
pub(super) enum Content {
    /// Nothing.
    #[default]
    Nothing,
    /// Memory, mapped.
    Mapped(Mapping),
    /// Addresses, with some frames behind them.
    Reserved(Reservation, Vec<PhysAddr>),
}

/// Memory that is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mapping {
    at: DmaAddr,
    first: PhysAddr,
    pages: u64,
}

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Pages that are reserved.
const RESERVED: u64 = 2;
/// Nanoseconds after which something is owed for too long.
const LATE: u64 = 10_000_000;

fn range(at: DmaAddr, pages: u64) -> IovaRange {
    IovaRange::new(at.0 / PAGE, pages).expect("mapped pages are a range")
}

impl Kernel {
    /// One operation.
    pub fn run(&self, op: Op) {
        hw::note(|| format!("-- {op}"));
        let slot = |Buffer(b): Buffer| &self.slots[usize::from(b)];
        match op {
            Op::Map(b) => slot(b).enter(|content| self.map(content, 1)),
            Op::Map2(b) => slot(b).enter(|content| self.map(content, 2)),
            Op::Use(b) => slot(b).enter(|content| {
                if let Content::Mapped(Mapping { at, first, pages }) = content {
                    io::leads_to(range(at, pages), first);
                }
                content
            }),
            Op::Unmap(b) => slot(b).enter(|content| self.unmap(content, self.config.policy)),
            Op::UnmapStrict(b) => slot(b).enter(|content| self.unmap(content, Policy::Strict)),
            Op::Reserve(b) => slot(b).enter(|content| self.reserve(content)),
            Op::Link(b) => slot(b).enter(|content| self.link(content)),
            Op::Unlink(b) => slot(b).enter(|content| self.unlink(content)),
            Op::Release(b) => slot(b).enter(|content| self.release(content)),
            Op::Big => self.big(),
            Op::Poll => self.poll(0),
            Op::Timer => self.poll(LATE),
            Op::Flush => self.flush(),
        }
    }

    /// Mapping may fail for want of addresses or tables, and when others are at all cells.
    fn excuse(error: MapError) {
        match error {
            MapError::Addresses(AllocError::Exhausted) => hw::witness("no-address-left"),
            MapError::Table(_) | MapError::Busy => {}
            other => hw::breach(Invariant::ErrorsTotal, format!("mapping fails: {other}")),
        }
    }

    fn map(&self, content: Content, pages: u64) -> Content {
        let Content::Nothing = content else { return content };
        let Some(first) = self.frames.take(pages as usize) else { return Content::Nothing };
        match self.domain().map(first, pages * PAGE, Rights::ReadWrite) {
            Ok(at) => {
                io::leads_to(range(at, pages), first);
                Content::Mapped(Mapping { at, first, pages })
            }
            Err(error) => {
                Self::excuse(error);
                self.frames.give(first, pages);
                Content::Nothing
            }
        }
    }

    /// Does what unmaps something until others are not in its way.
    fn insist<T>(mut f: impl FnMut() -> Result<T, UnmapError>) -> T {
        loop {
            match f() {
                Ok(done) => return done,
                Err(UnmapError::Busy) => io::relax(),
                Err(error) => {
                    let details = format!("what is mapped can't be unmapped: {error}");
                    hw::breach(Invariant::ErrorsTotal, details)
                }
            }
        }
    }

    fn unmap(&self, content: Content, policy: Policy) -> Content {
        let Content::Mapped(Mapping { at, first, pages }) = content else { return content };
        io::leads_to(range(at, pages), first);
        Self::insist(|| self.domain().unmap_under(policy, at, pages * PAGE));
        if policy == Policy::Strict {
            io::is_revoked(range(at, pages), first);
        }
        self.frames.give(first, pages);
        Content::Nothing
    }

    fn reserve(&self, content: Content) -> Content {
        let Content::Nothing = content else { return content };
        match self.domain().reserve(RESERVED) {
            Ok(reservation) => Content::Reserved(reservation, Vec::new()),
            Err(error) => {
                Self::excuse(error);
                Content::Nothing
            }
        }
    }

    fn link(&self, content: Content) -> Content {
        let Content::Reserved(mut reservation, mut frames) = content else { return content };
        if reservation.linked() == reservation.pages() {
            return Content::Reserved(reservation, frames);
        }
        let Some(first) = self.frames.take(1) else {
            return Content::Reserved(reservation, frames);
        };
        match self.domain().link(&mut reservation, first, 1, Rights::Write) {
            Ok(at) => {
                io::leads_to(range(at, 1), first);
                frames.push(first);
            }
            Err(error) => {
                Self::excuse(error);
                self.frames.give(first, 1);
            }
        }
        Content::Reserved(reservation, frames)
    }

    fn unlink(&self, content: Content) -> Content {
        let Content::Reserved(mut reservation, frames) = content else { return content };
        Self::insist(|| self.domain().unlink(&mut reservation));
        self.frames_are_gone(reservation.addr(), frames, Policy::Strict);
        Content::Reserved(reservation, Vec::new())
    }

    fn release(&self, content: Content) -> Content {
        let Content::Reserved(reservation, frames) = content else { return content };
        let at = reservation.addr();
        let mut kept = Some(reservation);
        Self::insist(|| match kept.take() {
            Some(reservation) => self.domain().release(reservation).map_err(|(error, back)| {
                kept = back;
                error
            }),
            None => Ok(()),
        });
        self.frames_are_gone(at, frames, self.config.policy);
        Content::Nothing
    }

    /// What was behind addresses from `at` on was unmapped, and is freed.
    fn frames_are_gone(&self, at: DmaAddr, frames: Vec<PhysAddr>, policy: Policy) {
        for (n, first) in (0..).zip(frames) {
            if policy == Policy::Strict {
                io::is_revoked(range(DmaAddr(at.0 + n * PAGE), 1), first);
            }
            self.frames.give(first, 1);
        }
    }

    fn big(&self) {
        if !self.frames.take_big() {
            return;
        }
        match self.domain().reserve(BIG_PAGES.next_power_of_two()) {
            Ok(mut reservation) => {
                let linked =
                    self.domain().link(&mut reservation, BIG, BIG_PAGES, Rights::ReadWrite);
                match linked {
                    Ok(at) => io::leads_to(range(at, BIG_PAGES), BIG),
                    Err(error) => {
                        Self::excuse(error);
                        hw::witness("mapping-undone");
                    }
                }
                let content = Content::Reserved(reservation, Vec::new());
                self.release(content);
            }
            Err(error) => Self::excuse(error),
        }
        self.frames.give(BIG, BIG_PAGES);
    }

    fn poll(&self, later: u64) {
        self.clock.set(self.clock.get() + later);
        if let Err(error) = self.domain().poll(self.clock.get()) {
            hw::breach(Invariant::ErrorsTotal, format!("polling fails: {error}"));
        }
    }

    /// Waits until nothing is owed.
    pub fn flush(&self) {
        if let Err(error) = self.domain().flush() {
            hw::breach(Invariant::ErrorsTotal, format!("flushing fails: {error}"));
        }
    }
}
