//! Addresses that drivers bring: each buffer has one that no allocator hands out.

use std::cell::Cell;

use shootdown_dma::{DmaAddr, IovaRange, PhysAddr, Rights};

use super::config::END;
use super::driver::{Content, Driver, excuse, insist};
use super::op::{BUFFERS, Buffer};
use crate::hunt::hw;
use crate::oracle::Invariant;

/// Pages that belong to each buffer, behind all that is handed out.
const PAGES: u64 = 64;

/// Which of its pages each buffer maps at: those before may be in reach, as their unmapping was not
/// complete.
#[derive(Debug, Default)]
pub(super) struct Unmanaged([Cell<u64>; BUFFERS as usize]);

impl Unmanaged {
    fn range(&self, Buffer(b): Buffer) -> IovaRange {
        let page = self.0[usize::from(b)].get();
        IovaRange::new(END + u64::from(b) * PAGES + page, 1).expect("a page")
    }

    /// The buffer's page is not to be used before a flush.
    fn leave(&self, Buffer(b): Buffer) {
        let page = &self.0[usize::from(b)];
        page.set((page.get() + 1) % PAGES);
    }

    /// What is kept, as numbers.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().map(Cell::get)
    }
}

impl Driver {
    /// The address of a range.
    const fn addr(self, range: IovaRange) -> DmaAddr {
        DmaAddr(range.first() * self.page())
    }

    pub(super) fn used_at(self, range: IovaRange, first: PhysAddr) {
        self.leads(self.addr(range), 1, first, Rights::ReadWrite);
    }

    /// Maps a frame at the buffer's own address.
    pub(super) fn map_at(self, content: Content, buffer: Buffer) -> Content {
        let Content::Nothing = content else { return content };
        let Some(first) = self.kernel.frames.take(1) else { return Content::Nothing };
        let range = self.kernel.given.range(buffer);
        if let Err(error) = self.domain().map_at(range, first, Rights::ReadWrite) {
            excuse(error);
            self.kernel.frames.give(first, 1);
            return Content::Nothing;
        }
        self.used_at(range, first);
        let found = self.domain().lookup(self.addr(range));
        if found != Some((first, self.page(), Rights::ReadWrite)) {
            let details = format!("{first:?} is at {range:?}, where {found:?} is found");
            hw::violation(Invariant::ErrorsTotal, details);
        }
        hw::witness("mapped-at");
        Content::Unmanaged(range, first)
    }

    /// Takes it away: under any policy nothing is in reach when that has returned.
    pub(super) fn unmap_at(self, content: Content, buffer: Buffer) -> Content {
        let Content::Unmanaged(range, first) = content else { return content };
        self.used_at(range, first);
        let mut incomplete = false;
        insist(match self.domain().unmap_at(range) {
            Err(error) if self.kernel.is_incomplete(error) => {
                incomplete = true;
                Ok(())
            }
            outcome => outcome,
        });
        if incomplete {
            self.kernel.given.leave(buffer);
            self.kernel.keep(first, 1);
        } else {
            self.is_revoked(self.addr(range), 1, first);
            self.kernel.frames.give(first, 1);
        }
        Content::Nothing
    }
}
