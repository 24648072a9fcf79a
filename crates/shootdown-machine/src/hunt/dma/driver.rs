//! Operations, as a driver does them, and what it relies on.

use shootdown_dma::bounce::Mapped;
use shootdown_dma::domain::{Reservation, Segment};
use shootdown_dma::iova::AllocError;
use shootdown_dma::{DmaAddr, IovaRange, MapError, PhysAddr, Policy, Rights, UnmapError};

use super::domains::AnyDomain;
use super::frames::{BYPASSED, COMMON, is_common};
use super::mistake::Mistake;
use super::op::{Buffer, Op};
use super::world::Kernel;
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
    /// Bytes of a frame: how they are mapped, the page of the pool that the device sees, and the
    /// frame.
    Bounced(Mapped, PhysAddr, PhysAddr),
    /// Addresses, with some frames behind them.
    Reserved(Reservation, Vec<PhysAddr>),
    /// A frame at an address of the driver's own.
    Unmanaged(IovaRange, PhysAddr),
}

/// Memory that is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mapping {
    pub at: DmaAddr,
    first: PhysAddr,
    /// The last page, where it is scattered.
    second: Option<PhysAddr>,
    pages: u64,
    rights: Rights,
}

/// Bytes of the pages that the machine counts in.
const SMALL: u64 = 4096;
/// Pages that are reserved.
const RESERVED: u64 = 2;
/// Turns of a timer: one tells the units, one gives back, and each may be in the way of a table
/// that is taken out then.
const TIMERS: usize = 12;
/// Nanoseconds after which something is owed for too long.
const LATE: u64 = 10_000_000;

/// As a [thing](hw::thing).
const CLOCK: u32 = 2;

/// The domain of a buffer, as drivers use it.
#[derive(Clone, Copy)]
pub(super) struct Driver {
    pub kernel: &'static Kernel,
    pub number: usize,
}

impl Kernel {
    /// One operation.
    pub fn run(&'static self, op: Op) {
        hw::note(|| format!("-- {op}"));
        let slot = |Buffer(b): Buffer| &self.slots[usize::from(b)];
        let driver = |Buffer(b): Buffer| Driver {
            kernel: self,
            number: usize::from(b) % self.config.domains,
        };
        let policy = self.config.policy;
        match op {
            Op::Map(b) => slot(b).enter(|c| driver(b).map(c, 1, Rights::ReadWrite)),
            Op::MapRead(b) => slot(b).enter(|c| driver(b).map(c, 1, Rights::Read)),
            Op::MapWrite(b) => slot(b).enter(|c| driver(b).map(c, 1, Rights::Write)),
            Op::Map2(b) => slot(b).enter(|c| driver(b).map(c, 2, Rights::ReadWrite)),
            Op::Scatter(b) => slot(b).enter(|c| driver(b).scatter(c)),
            Op::Share(b) => slot(b).enter(|c| driver(b).share(c)),
            Op::Large(b) => slot(b).enter(|c| driver(b).large(c, 1)),
            Op::Large2(b) => slot(b).enter(|c| driver(b).large(c, 2)),
            Op::Piece(b) => slot(b).enter(|c| driver(b).piece(c)),
            Op::Bounce(b) => slot(b).enter(|c| driver(b).bounce(c)),
            Op::Use(b) => slot(b).enter(|content| {
                match &content {
                    Content::Mapped(mapping) => driver(b).used(mapping),
                    Content::Bounced(mapped, page, _) => {
                        driver(b).used_bounced(mapped, *page);
                        driver(b).sync_bounced(mapped);
                    }
                    Content::Unmanaged(range, first) => driver(b).used_at(*range, *first),
                    Content::Nothing | Content::Reserved(..) => {}
                }
                content
            }),
            Op::Unmap(b) => slot(b).enter(|c| driver(b).unmap(c, policy)),
            Op::UnmapStrict(b) => slot(b).enter(|c| driver(b).unmap(c, Policy::Strict)),
            Op::Reserve(b) => slot(b).enter(|c| driver(b).reserve(c)),
            Op::Link(b) => slot(b).enter(|c| driver(b).link(c)),
            Op::Unlink(b) => slot(b).enter(|c| driver(b).unlink(c)),
            Op::Release(b) => slot(b).enter(|c| driver(b).release(c)),
            Op::At(b) => slot(b).enter(|c| driver(b).map_at(c, b)),
            Op::Unat(b) => slot(b).enter(|c| driver(b).unmap_at(c, b)),
            Op::End => self.end_second(),
            Op::Big => Driver { kernel: self, number: 0 }.big(),
            Op::Bypass => Driver { kernel: self, number: 0 }.bypass(),
            Op::Attach => self.traveller.enter(|at| self.come(at, 0)),
            Op::Detach => self.traveller.enter(|at| self.leave(at)),
            Op::Move => self.traveller.enter(|at| self.move_on(at)),
            Op::Pull => self.traveller.enter(|at| self.pull(at)),
            Op::Poll => self.poll(0),
            Op::Timer => self.poll(LATE),
            Op::Settle => self.settle(),
            Op::Flush => self.flush(),
        }
    }

    fn poll(&self, later: u64) {
        hw::thing(CLOCK);
        hw::saw(self.clock.get());
        self.clock.set(self.clock.get() + later);
        if later != 0 && self.config.page() > SMALL {
            hw::witness("timer-of-large-pages");
        }
        self.each_domain(|domain| self.hear("polling", domain.poll(self.clock.get())));
    }

    /// Timers tick until nothing is owed. Nobody else maps or unmaps.
    fn settle(&self) {
        for _ in 0..TIMERS {
            self.poll(LATE);
            if self.all_domains().all(|domain| domain.deferred() == (0, 0)) {
                return hw::witness("settled-by-timers");
            }
        }
        let details = format!("something is owed still after {TIMERS} timers");
        hw::violation(Invariant::LazyBound, details);
    }

    /// What the counters of the domains tell of.
    pub fn count(&self) {
        let forced = self.all_domains().any(|domain| domain.forced_waits() != 0);
        if forced {
            hw::witness("bound-reached");
        }
        // Each thing that is owed is a page that is held, or more.
        if forced
            && self.config.policy == Policy::Deferred
            && self.config.held < self.config.entries as u64
        {
            hw::witness("held-pages-bounded");
        }
    }

    /// Waits until nothing is owed.
    pub fn flush(&self) {
        self.each_domain(|domain| self.hear("flushing", domain.flush()));
    }
}

/// Mapping may fail for want of addresses or tables. (Who finds others in all cells waits.)
pub(super) fn excuse(error: MapError) {
    match error {
        MapError::Addresses(AllocError::Exhausted) => hw::witness("no-address-left"),
        MapError::Table(_) => {}
        other => hw::violation(Invariant::ErrorsTotal, format!("mapping fails: {other}")),
    }
}

/// What unmaps something does not fail.
pub(super) fn insist<T>(unmapped: Result<T, UnmapError>) -> T {
    unmapped.unwrap_or_else(|error| {
        let details = format!("what is mapped can't be unmapped: {error}");
        hw::violation(Invariant::ErrorsTotal, details)
    })
}

impl Driver {
    pub(super) fn domain(self) -> &'static dyn AnyDomain {
        self.kernel.domain(self.number)
    }

    fn errs(self, mistake: Mistake) -> bool {
        self.kernel.config.errs(mistake)
    }

    /// Bytes of a page.
    pub(super) const fn page(self) -> u64 {
        self.kernel.config.page()
    }

    /// The addresses of so many pages, as the machine counts.
    pub(super) fn range(self, at: DmaAddr, pages: u64) -> IovaRange {
        let pages = pages * (self.page() / SMALL);
        IovaRange::new(at.0 / SMALL, pages).expect("mapped pages are a range")
    }

    /// The device is told of these addresses.
    pub(super) fn leads(self, at: DmaAddr, pages: u64, first: PhysAddr, rights: Rights) {
        if self.kernel.booting.get() {
            return; // nobody walks yet
        }
        let addresses = self.kernel.addresses(self.number, self.range(at, pages));
        io::leads_to(addresses, first, rights, self.kernel.config.reads_too());
    }

    fn used(self, mapping: &Mapping) {
        let Mapping { at, first, second, pages, rights } = *mapping;
        match second {
            None => self.leads(at, pages, first, rights),
            Some(second) => {
                self.leads(at, 1, first, rights);
                self.leads(DmaAddr(at.0 + self.page()), 1, second, rights);
            }
        }
    }

    pub(super) fn is_revoked(self, at: DmaAddr, pages: u64, first: PhysAddr) {
        let addresses = self.kernel.addresses(self.number, self.range(at, pages));
        io::is_revoked(addresses, first, || false);
    }

    fn map(self, content: Content, pages: u64, rights: Rights) -> Content {
        let Content::Nothing = content else { return content };
        let Some(first) = self.kernel.frames.take(pages as usize) else { return Content::Nothing };
        self.map_frames(first, pages, rights)
    }

    pub(super) fn map_frames(self, first: PhysAddr, pages: u64, rights: Rights) -> Content {
        match self.domain().map(self.kernel.config.policy, first, pages * self.page(), rights) {
            Ok(at) => {
                let mapping = Mapping { at, first, second: None, pages, rights };
                self.used(&mapping);
                Content::Mapped(mapping)
            }
            Err(error) => {
                excuse(error);
                self.kernel.frames.give(first, pages);
                Content::Nothing
            }
        }
    }

    /// A page that any number of buffers may lead to.
    fn share(self, content: Content) -> Content {
        let Content::Nothing = content else { return content };
        if !self.kernel.frames.take_common() {
            return Content::Nothing;
        }
        self.map_frames(COMMON, 1, Rights::ReadWrite)
    }

    /// Two pages that do not follow each other.
    fn scatter(self, content: Content) -> Content {
        let Content::Nothing = content else { return content };
        let frames = &self.kernel.frames;
        let Some(first) = frames.take(1) else { return Content::Nothing };
        let Some(second) = frames.take(1) else {
            frames.give(first, 1);
            return Content::Nothing;
        };
        let segments = [second, first].map(|phys| Segment { phys, bytes: self.page() });
        match self.domain().map_sg(&segments, Rights::ReadWrite) {
            Ok(at) => {
                let rights = Rights::ReadWrite;
                let mapping = Mapping { at, first: second, second: Some(first), pages: 2, rights };
                self.used(&mapping);
                hw::witness("scattered");
                Content::Mapped(mapping)
            }
            Err(error) => {
                excuse(error);
                frames.give(first, 1);
                frames.give(second, 1);
                Content::Nothing
            }
        }
    }

    /// Memory in the window is mapped, and unmapped, and is in reach before and after. Without a
    /// window that is refused.
    fn bypass(self) {
        let mapped = self.domain().map(Policy::Bypass, BYPASSED, self.page(), Rights::ReadWrite);
        match mapped {
            Ok(at) if self.kernel.config.window => {
                let window = self.kernel.window.get();
                if at.0 != window.0 + BYPASSED.0 {
                    let details = format!("{BYPASSED:?} is at {at:?} in a window at {window:?}");
                    hw::violation(Invariant::ErrorsTotal, details);
                }
                self.leads(at, 1, BYPASSED, Rights::ReadWrite);
                insist(self.domain().unmap(Policy::Bypass, at, self.page()));
                self.leads(at, 1, BYPASSED, Rights::ReadWrite);
                hw::witness("bypassed");
            }
            Err(MapError::Refused) if !self.kernel.config.window => hw::witness("bypass-refused"),
            other => hw::violation(Invariant::ErrorsTotal, format!("bypassing gives {other:?}")),
        }
    }

    pub(super) fn unmap(self, content: Content, policy: Policy) -> Content {
        let mapping = match content {
            Content::Mapped(mapping) => mapping,
            Content::Bounced(mapped, page, first) => {
                return self.unbounce(mapped, page, first, policy);
            }
            content => return content,
        };
        let Mapping { at, first, second, pages, .. } = mapping;
        self.used(&mapping);
        let give = || match second {
            None => self.kernel.frames.give(first, pages),
            Some(second) => {
                self.kernel.frames.give(first, 1);
                self.kernel.frames.give(second, 1);
            }
        };
        if self.errs(Mistake::FreesFirst) {
            give();
        }
        let mut incomplete = false;
        insist(match self.domain().unmap(policy, at, pages * self.page()) {
            Err(error) if self.kernel.is_incomplete(error) => {
                incomplete = true;
                Ok(())
            }
            outcome => outcome,
        });
        if incomplete {
            self.kernel.keep(first, if second.is_none() { pages } else { 1 });
            second.into_iter().for_each(|second| self.kernel.keep(second, 1));
            return Content::Nothing;
        }
        let strict = policy == Policy::Strict || self.errs(Mistake::LazyTrusted);
        // What others have mapped too may be in reach by the same address.
        if strict && !is_common(first) {
            match second {
                None => self.is_revoked(at, pages, first),
                Some(second) => {
                    self.is_revoked(at, 1, first);
                    self.is_revoked(DmaAddr(at.0 + self.page()), 1, second);
                }
            }
        }
        if !self.errs(Mistake::FreesFirst) {
            give();
        }
        Content::Nothing
    }

    fn reserve(self, content: Content) -> Content {
        let Content::Nothing = content else { return content };
        match self.domain().reserve(RESERVED) {
            Ok(reservation) => Content::Reserved(reservation, Vec::new()),
            Err(error) => {
                excuse(error);
                Content::Nothing
            }
        }
    }

    fn link(self, content: Content) -> Content {
        let Content::Reserved(mut reservation, mut frames) = content else { return content };
        if reservation.linked() == reservation.pages() {
            return Content::Reserved(reservation, frames);
        }
        let Some(first) = self.kernel.frames.take(1) else {
            return Content::Reserved(reservation, frames);
        };
        match self.domain().link(&mut reservation, first, 1, Rights::Write) {
            Ok(at) => {
                if let Err(error) = self.domain().sync(&mut reservation) {
                    hw::violation(Invariant::ErrorsTotal, format!("syncing fails: {error}"));
                }
                self.leads(at, 1, first, Rights::Write);
                frames.push(first);
            }
            Err(error) => {
                excuse(error);
                self.kernel.frames.give(first, 1);
            }
        }
        Content::Reserved(reservation, frames)
    }

    fn unlink(self, content: Content) -> Content {
        let Content::Reserved(mut reservation, frames) = content else { return content };
        insist(self.domain().unlink(&mut reservation));
        self.frames_are_gone(reservation.addr(), frames, Policy::Strict);
        Content::Reserved(reservation, Vec::new())
    }

    pub(super) fn release(self, content: Content) -> Content {
        let Content::Reserved(reservation, frames) = content else { return content };
        let at = reservation.addr();
        insist(self.domain().release(reservation).map_err(|(error, _)| error));
        self.frames_are_gone(at, frames, self.kernel.config.policy);
        Content::Nothing
    }

    /// What was behind addresses from `at` on was unmapped, and is freed.
    fn frames_are_gone(self, at: DmaAddr, frames: Vec<PhysAddr>, policy: Policy) {
        for (n, first) in (0..).zip(frames) {
            if policy == Policy::Strict {
                self.is_revoked(DmaAddr(at.0 + n * self.page()), 1, first);
            }
            self.kernel.frames.give(first, 1);
        }
    }
}
