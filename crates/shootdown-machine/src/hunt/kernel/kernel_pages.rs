//! The kernel's own pages: another frame in a page's place, another table in a table's.

use shootdown::{flush_everything, flush_kernel};

use super::cpu::Cpu;
use super::tables::range;
use super::{KernelMutant, Port};
use crate::hunt::hw;

impl<P: Port> Cpu<P> {
    pub fn kernel_page(&self, page: u8) {
        if page >= self.k.config.kernel_pages {
            return;
        }
        let page = self.tables.kernel_page(page);
        self.k.kernel_lock.lock(self.k, &self.pin);
        if let Some(word) = self.tables.walk(self.k.kernel_root, page, 0) {
            let old = hw::read_entry(word);
            let new = hw::new_frame();
            if self.breaks(KernelMutant::KernelPageWithoutFlush) {
                let (_, change) = hw::swap_entry(word, old.to_frame(new));
                hw::revoked(&[change]);
                hw::free_frame(old.frame());
            } else {
                let (_, change) = hw::swap_entry(word, crate::hostile::Descriptor::ABSENT);
                if flush_kernel::<P>(&self.pin, range(page, 1)).is_ok() {
                    hw::revoked(&[change]);
                    hw::free_frame(old.frame());
                    hw::witness("kernel-page-flushed");
                }
                self.tables.make(word, old.to_frame(new));
            }
        }
        self.k.kernel_lock.unlock();
    }

    pub fn kernel_table(&self) {
        if self.k.config.levels < 3 {
            return;
        }
        let page = self.tables.kernel_page(0);
        self.k.kernel_lock.lock(self.k, &self.pin);
        if let Some(word) = self.tables.walk(self.k.kernel_root, page, 1) {
            let old = hw::read_entry(word).next();
            let new = self.tables.new_table();
            for index in 0..self.tables.entries() {
                let entry = hw::read_entry(crate::hostile::Word::new(old, index));
                self.tables.make(crate::hostile::Word::new(new, index), entry);
            }
            let (_, change) = hw::swap_entry(word, crate::hostile::Descriptor::table(new));
            let entries = u32::from(self.tables.entries());
            let flushed = if self.breaks(KernelMutant::KernelTableByRange) {
                flush_kernel::<P>(&self.pin, range(page, entries))
            } else {
                flush_everything::<P>(&self.pin)
            };
            if flushed.is_ok() {
                hw::revoked(&[change]);
                hw::witness("kernel-table-freed");
                hw::free_table(old);
            }
        }
        self.k.kernel_lock.unlock();
    }
}
