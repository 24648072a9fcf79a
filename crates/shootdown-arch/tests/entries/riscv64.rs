//! What RISC-V does with an entry (Privileged 12.3, without Svadu: A and D fault when they are
//! clear).

use shootdown::Change;
use shootdown::elide::Cached;
use shootdown_arch::riscv64::{TableLevel, change};

use crate::reference::{Does, Model, View};

#[derive(Debug)]
pub struct RiscV(TableLevel);

pub fn all() -> Vec<RiscV> {
    vec![RiscV(TableLevel::Last), RiscV(TableLevel::Above)]
}

fn bit(entry: u64, at: u32) -> bool {
    entry >> at & 1 != 0
}

impl Model for RiscV {
    fn change(&self, old: u64, new: u64) -> Change {
        change(old, new, self.0)
    }

    fn view(&self, entry: u64) -> View {
        if !bit(entry, 0) {
            return View::Absent;
        }
        let rights = entry >> 1 & 7;
        let used = 0b11 << 6;
        let rsw = 0b11 << 8;
        if self.0 == TableLevel::Above && rights == 0 {
            return View::Table(Does {
                name: 0,
                attributes: entry & !rsw,
                allows: 0,
                stores_silently: false,
                dirty: true,
                accessed: false,
                small: false,
            });
        }
        let (read, write, execute) = (rights & 1 != 0, rights & 2 != 0, rights & 4 != 0);
        let shadow = rights == 2;
        let dirty = bit(entry, 7);
        let all = [read, write && !shadow && dirty, execute, shadow && dirty, shadow];
        // With U, the user's; without, the supervisor's, who may look at the other's with SUM.
        let allows = (0..).zip(all).map(|(i, allowed)| u64::from(allowed) << i).sum();
        View::Leaf(Does {
            name: 0,
            attributes: entry & !(rsw | used | 7 << 1),
            allows,
            stores_silently: write && dirty,
            dirty,
            accessed: bit(entry, 6),
            small: self.0 == TableLevel::Last && !bit(entry, 63),
        })
    }

    fn resized(&self, _: u64, _: u64) -> Change {
        Change::Flush(Cached::Table)
    }

    fn used(&self) -> Change {
        Change::Upgrade
    }

    fn is_careful(&self, old: u64, new: u64) -> bool {
        // D where nothing may be written.
        bit(old ^ new, 7)
            // What becomes a shadow stack, or was one and gets no right that a plain page lacks.
            || (old >> 1 & 7 == 2) != (new >> 1 & 7 == 2)
            // W that a clear D makes useless.
            || bit(old ^ new, 2)
    }

    fn base(&self) -> u64 {
        0x0000_0012_3456_0000
    }

    fn matter(&self) -> u64 {
        1 << 63 | 0xff
    }
}
