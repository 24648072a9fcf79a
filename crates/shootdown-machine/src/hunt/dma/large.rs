//! Memory of large pages, as drivers map it: at once, or address by address; and a page of it.

use shootdown_dma::{PhysAddr, Rights};

use super::config::{END, Source};
use super::driver::{Content, Driver, excuse};
use super::frames::{LARGE, large_page};
use crate::hunt::hw;
use crate::oracle::Invariant;

impl Driver {
    /// So many large pages.
    pub(super) fn large(self, content: Content, count: usize) -> Content {
        let Content::Nothing = content else { return content };
        if !self.kernel.config.maps_large() || !self.kernel.frames.take_large(count) {
            return Content::Nothing;
        }
        let pages = count as u64 * self.large_page();
        let content = self.map_frames(LARGE, pages, Rights::ReadWrite);
        if let (Content::Mapped(mapping), Source::Identity) = (&content, self.kernel.config.from) {
            // The allocator has all below this, and the zones what is above.
            let is_identity = mapping.at.0 >= END * self.page();
            hw::witness(if is_identity { "large-identity" } else { "large-elsewhere" });
        }
        content
    }

    /// The last page of the first large one.
    pub(super) fn piece(self, content: Content) -> Content {
        let Content::Nothing = content else { return content };
        if !self.kernel.frames.take_large(1) {
            return Content::Nothing;
        }
        let last = PhysAddr(LARGE.0 + (self.large_page() - 1) * self.page());
        self.map_frames(last, 1, Rights::ReadWrite)
    }

    /// Pages of a large page.
    const fn large_page(self) -> u64 {
        large_page(self.kernel.config.format.granule())
    }

    /// Memory of a large page and one page more, by addresses that are reserved first.
    pub(super) fn big(self) {
        if !self.kernel.frames.take_big() {
            return;
        }
        let pages = self.large_page() + 1;
        match self.domain().reserve(pages.next_power_of_two()) {
            Ok(mut reservation) => {
                let rights = Rights::ReadWrite;
                let linked = self.domain().link(&mut reservation, LARGE, pages, rights);
                match linked {
                    Ok(at) => {
                        if let Err(error) = self.domain().sync(&mut reservation) {
                            let details = format!("syncing fails: {error}");
                            hw::violation(Invariant::ErrorsTotal, details);
                        }
                        self.leads(at, pages, LARGE, rights);
                        hw::witness("large-page");
                    }
                    Err(error) => {
                        excuse(error);
                        hw::witness("mapping-undone");
                    }
                }
                self.release(Content::Reserved(reservation, Vec::new()));
            }
            Err(error) => excuse(error),
        }
        self.kernel.frames.give(LARGE, pages);
    }
}
