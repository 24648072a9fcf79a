//! What x86-64 does with an entry (SDM 3A 4.6).

use shootdown::Change;
use shootdown::elide::Cached;
use shootdown_arch::x86_64::{EntryRules, TableLevel, change};

use crate::reference::{Does, Model, View};

#[derive(Debug)]
pub struct X86(TableLevel, EntryRules);

pub fn all() -> Vec<X86> {
    let mut all = Vec::new();
    for level in [TableLevel::Last, TableLevel::Above] {
        for (protection_keys, shadow_stacks) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            all.push(X86(level, EntryRules { protection_keys, shadow_stacks }));
        }
    }
    all
}

fn bit(entry: u64, at: u32) -> bool {
    entry >> at & 1 != 0
}

fn bits(entry: u64, high: u32, low: u32) -> u64 {
    entry << (63 - high) >> (63 - high) >> low << low
}

impl X86 {
    /// User and supervisor: read, write, fetch, shadow-stack store; with SMEP and SMAP and without.
    fn allows(&self, entry: u64, table: bool) -> u64 {
        let (write, user_page, dirty) = (bit(entry, 1), bit(entry, 2), bit(entry, 6));
        let fetch = !bit(entry, 63);
        let shadow = if table { write } else { self.1.shadow_stacks && !write && dirty };
        let mut allows = 0;
        let mut next = 1;
        for guarded in [false, true] {
            for user in [false, true] {
                let reaches = if user { user_page } else { !user_page || !guarded };
                for what in [true, write, fetch] {
                    allows |= if reaches && what { next } else { 0 };
                    next <<= 1;
                }
                // A shadow stack is either the user's or the supervisor's.
                allows |= if shadow && (table && reaches || user == user_page) { next } else { 0 };
                next <<= 1;
            }
        }
        allows
    }
}

impl Model for X86 {
    fn change(&self, old: u64, new: u64) -> Change {
        change(old, new, self.0, self.1)
    }

    fn view(&self, entry: u64) -> View {
        if !bit(entry, 0) {
            return View::Absent;
        }
        let last = self.0 == TableLevel::Last;
        let memory_type = bits(entry, 4, 3);
        if !last && !bit(entry, 7) {
            return View::Table(Does {
                name: 0,
                attributes: bits(entry, 51, 12) | memory_type,
                allows: self.allows(entry, true),
                stores_silently: false,
                dirty: true,
                accessed: bit(entry, 5),
                small: false,
            });
        }
        let key = if self.1.protection_keys { bits(entry, 62, 59) } else { 0 };
        View::Leaf(Does {
            name: 0,
            attributes: bits(entry, 51, 12) | memory_type | bits(entry, 8, 7) | key,
            allows: self.allows(entry, false),
            stores_silently: bit(entry, 1) && bit(entry, 6),
            dirty: bit(entry, 6),
            accessed: bit(entry, 5),
            small: last,
        })
    }

    fn resized(&self, _: u64, _: u64) -> Change {
        Change::Break(Cached::Table)
    }

    fn used(&self) -> Change {
        Change::Nothing
    }

    fn is_careful(&self, old: u64, new: u64) -> bool {
        // Clearing D where nothing can be written, as a later upgrade would find it.
        bit(old, 6) && !bit(new, 6)
    }

    fn base(&self) -> u64 {
        0x0000_0012_3456_7000
    }

    fn matter(&self) -> u64 {
        1 << 63 | 0xe7
    }
}
