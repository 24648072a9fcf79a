//! What AArch64 does with a stage 1 descriptor of the EL1&0 regime (Arm ARM D8.3 to D8.5).

use shootdown::Change;
use shootdown::elide::Cached;
use shootdown_arch::aarch64::{Bbm, EntryRules, TableLevel, change};

use crate::reference::{Does, Model, View};

#[derive(Debug)]
pub struct Arm(TableLevel, EntryRules);

pub fn all() -> Vec<Arm> {
    let plain = EntryRules {
        bbm: Bbm::Level0,
        hardware_dirty: false,
        tables_accessed: false,
        write_excludes_execute: false,
        indirect: false,
    };
    let rules = [
        plain,
        EntryRules { bbm: Bbm::Level1, hardware_dirty: true, ..plain },
        EntryRules { bbm: Bbm::Level2, tables_accessed: true, ..plain },
        EntryRules { write_excludes_execute: true, ..plain },
        EntryRules { write_excludes_execute: true, hardware_dirty: true, ..plain },
        EntryRules { indirect: true, ..plain },
        EntryRules::STRICT,
    ];
    let levels = [TableLevel::Last, TableLevel::Above];
    levels.into_iter().flat_map(|level| rules.map(|rules| Arm(level, rules))).collect()
}

fn bit(entry: u64, at: u32) -> bool {
    entry >> at & 1 != 0
}

fn bits(entry: u64, high: u32, low: u32) -> u64 {
    entry << (63 - high) >> (63 - high) >> low << low
}

impl Arm {
    /// EL0 and EL1: read, write, fetch; with PAN and without.
    fn allows(&self, entry: u64) -> u64 {
        let el0_page = bit(entry, 6);
        let modified = self.1.hardware_dirty && bit(entry, 51);
        let writable = !bit(entry, 7) || modified;
        let excludes = self.1.write_excludes_execute;
        let mut allows = 0;
        let mut next = 1;
        for pan in [false, true] {
            let el1_data = !el0_page || !pan;
            let el0_writes = el0_page && writable;
            for allowed in [
                el0_page,
                el0_writes,
                !(bit(entry, 54) || excludes && el0_writes),
                el1_data,
                el1_data && writable,
                !(bit(entry, 53) || el0_writes || excludes && writable),
            ] {
                allows |= if allowed { next } else { 0 };
                next <<= 1;
            }
        }
        allows
    }

    fn table(&self, entry: u64) -> Does {
        Does {
            name: bits(entry, 49, 12) | bits(entry, 9, 8) | bits(entry, 63, 63),
            attributes: bits(entry, 62, 61) | bits(entry, 50, 50),
            allows: bits(!entry, 60, 59) >> 59,
            stores_silently: false,
            dirty: true,
            accessed: self.1.tables_accessed && bit(entry, 10),
            small: false,
        }
    }

    fn leaf(&self, entry: u64, last: bool) -> Does {
        // AttrIndx and its fourth bit, NS, SH, nG, and the output address.
        let mut name = bits(entry, 5, 2)
            | bits(entry, 59, 59)
            | bits(entry, 9, 8)
            | bits(entry, 11, 11)
            | bits(entry, 49, 12);
        // GP and the bits that nobody here knows.
        let mut attributes = bits(entry, 50, 50) | bits(entry, 63, 60);
        if !last {
            name &= !(1 << 16);
            attributes |= bits(entry, 16, 16);
        }
        *(if self.1.bbm == Bbm::Level0 { &mut name } else { &mut attributes }) |=
            bits(entry, 52, 52);
        let mut allows = self.allows(entry);
        if self.1.indirect {
            attributes |= bits(entry, 7, 6) | bits(entry, 51, 51) | bits(entry, 54, 53);
            allows = 0;
        }
        Does {
            name,
            attributes,
            allows,
            stores_silently: !bit(entry, 7),
            dirty: !bit(entry, 7),
            accessed: bit(entry, 10),
            small: last && !bit(entry, 52),
        }
    }
}

impl Model for Arm {
    fn change(&self, old: u64, new: u64) -> Change {
        change(old, new, self.0, self.1)
    }

    fn view(&self, entry: u64) -> View {
        match (self.0, entry & 3) {
            (TableLevel::Last, 3) => View::Leaf(self.leaf(entry, true)),
            (TableLevel::Above, 1) => View::Leaf(self.leaf(entry, false)),
            (TableLevel::Above, 3) => View::Table(self.table(entry)),
            _ => View::Absent,
        }
    }

    fn resized(&self, old: u64, new: u64) -> Change {
        let block = if bit(old, 1) { new } else { old };
        match self.1.bbm {
            Bbm::Level2 => Change::Flush(Cached::Table),
            Bbm::Level1 if bit(block, 16) => Change::Flush(Cached::Table),
            _ => Change::Break(Cached::Table),
        }
    }

    fn used(&self) -> Change {
        Change::Upgrade
    }

    fn is_careful(&self, old: u64, new: u64) -> bool {
        let differ = old ^ new;
        // DBM, and AP[2] where DBM makes it useless.
        let modifier = self.1.hardware_dirty && (bit(old, 51) || bit(new, 51));
        // Rights to execute that write permission takes away anyhow; with WXN that of EL0 counts as
        // such.
        let excludes = self.1.write_excludes_execute;
        bit(differ, 51)
            || modifier && bit(differ, 7)
            || bit(differ, 53)
            || excludes && (bit(differ, 7) || bit(differ, 54))
    }

    fn base(&self) -> u64 {
        0x0000_0012_3456_0f00
    }

    fn matter(&self) -> u64 {
        0xf << 51 | 1 << 10 | 0xc3
    }
}
