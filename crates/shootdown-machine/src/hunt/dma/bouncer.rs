//! Buffers of bytes, as a driver maps them: what the device sees is a page of the pool.

use shootdown_dma::bounce::{MapError, Mapped};
use shootdown_dma::{DmaAddr, PhysAddr, Policy, Rights};

use super::driver::{Content, Driver, excuse, insist};
use crate::hunt::{hw, io};
use crate::oracle::Invariant;

/// Where in its frame a buffer lies, and how long it is.
const OFFSET: u64 = 0x40;
const BYTES: u64 = 0x200;

impl Driver {
    pub(super) fn bounce(self, content: Content) -> Content {
        let (Content::Nothing, Some(guarded)) = (&content, self.kernel.guarded(self.number)) else {
            return content;
        };
        let Some(first) = self.kernel.frames.take(1) else { return Content::Nothing };
        match guarded.map(PhysAddr(first.0 + OFFSET), BYTES, Rights::ReadWrite) {
            Ok(mapped) => {
                let page = self.kernel.pools.last();
                self.used_bounced(&mapped, page);
                hw::witness("bounced");
                return Content::Bounced(mapped, page, first);
            }
            Err(MapError::Exhausted) => hw::witness("pool-exhausted"),
            Err(MapError::Domain(error)) => excuse(error),
            Err(other) => {
                hw::violation(Invariant::ErrorsTotal, format!("bouncing fails: {other}"));
            }
        }
        self.kernel.frames.give(first, 1);
        Content::Nothing
    }

    /// The address of its page.
    fn page_of(self, mapped: &Mapped) -> DmaAddr {
        let DmaAddr(at) = mapped.addr();
        DmaAddr(at & !(self.page() - 1))
    }

    pub(super) fn used_bounced(self, mapped: &Mapped, page: PhysAddr) {
        self.leads(self.page_of(mapped), 1, page, Rights::ReadWrite);
    }

    /// The driver has written to the buffer, and reads what the device has written.
    pub(super) fn sync_bounced(self, mapped: &Mapped) {
        let Some(guarded) = self.kernel.guarded(self.number) else { return };
        let (all, beyond) = (guarded.sync(mapped, 0..BYTES), guarded.sync(mapped, 0..BYTES + 1));
        if all.is_err() || beyond.is_ok() {
            let details = format!("syncing all of a buffer: {all:?}; more than that: {beyond:?}");
            hw::violation(Invariant::ErrorsTotal, details);
        }
    }

    pub(super) fn unbounce(
        self,
        mapped: Mapped,
        page: PhysAddr,
        first: PhysAddr,
        policy: Policy,
    ) -> Content {
        self.used_bounced(&mapped, page);
        let range = self.range(self.page_of(&mapped), 1);
        let pools = &self.kernel.pools;
        let times = pools.times_taken(page);
        if let Some(guarded) = self.kernel.guarded(self.number) {
            insist(guarded.unmap(policy, mapped).map_err(|(error, _)| error));
        }
        if policy == Policy::Strict {
            // Another CPU may have it by now, at the same address where that follows from the page.
            let addresses = self.kernel.addresses(self.number, range);
            io::is_revoked(addresses, page, || {
                let again = pools.times_taken(page) != times;
                if again {
                    hw::witness("bounce-page-taken-again");
                }
                again
            });
        }
        self.kernel.frames.give(first, 1);
        Content::Nothing
    }
}
