//! What a change of a page-table entry demands on x86-64.
//!
//! | bits | leaf | table | source (SDM 3A) |
//! |---|---|---|---|
//! | P | absent entries are never cached | same | 4.10.2.3 |
//! | R/W | adding is an upgrade, unless the page was a shadow stack | adding is an upgrade | 4.10.4.3, 4.6.1 |
//! | U/S | a flush: with SMEP or SMAP each value forbids something | same | 4.6.1 |
//! | PWT, PCD, PAT, G | a flush | PWT, PCD: a flush | 4.9.2, 4.10.2.4 |
//! | A | clearing is for the policy; in a large leaf, or with anything else, a flush | clearing is a flush | 4.8, 4.10.4.3 |
//! | D | clearing is a flush: a cached entry stores without setting it again | ignored | 4.8 |
//! | PS | break: both sizes must not be cached together | | 4.10.2.3 |
//! | address | a flush, its reserved bits included | same | table 4-20 |
//! | 62:59 | a flush with protection keys, ignored without | ignored | 4.6.2 |
//! | XD | removing is an upgrade | same | 4.10.4.3 |
//! | 58:52, 11:9 | ignored | ignored, 8 and 6 too | table 4-20 |
//!
//! HLAT paging, which reads bit 11, is not covered. A leaf whose G changes must be invalidated as a
//! kernel's: tags do not name global entries.

use shootdown::Change;
use shootdown::elide::Cached;

use crate::entry::{Row, TableLevel, judge};

const P: u64 = 1;
const RW: u64 = 1 << 1;
const US: u64 = 1 << 2;
const PWT: u64 = 1 << 3;
const PCD: u64 = 1 << 4;
const A: u64 = 1 << 5;
const D: u64 = 1 << 6;
/// PS above the last level, PAT on it.
const PS: u64 = 1 << 7;
const G: u64 = 1 << 8;
const ADDRESS: u64 = (1 << 52) - (1 << 12);
const SOFTWARE: u64 = 7 << 9 | 0x7f << 52;
const KEY: u64 = 0xf << 59;
const XD: u64 = 1 << 63;

/// What entries mean beyond their format; the same on every CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryRules {
    /// CR4.PKE or CR4.PKS: bits 62:59 of a leaf are a protection key.
    pub protection_keys: bool,
    /// CR4.CET: a dirty leaf without R/W is a shadow stack.
    pub shadow_stacks: bool,
}

impl EntryRules {
    /// Right whatever is in use: everything that could have a meaning has it.
    pub const STRICT: Self = Self { protection_keys: true, shadow_stacks: true };
}

/// What changing an entry from `old` to `new` demands.
///
/// ```
/// use shootdown::{Change, elide::Cached};
/// use shootdown_arch::x86_64::{EntryRules, TableLevel, change};
/// let (read_only, writable) = (0x8000_0000_1234_5065, 0x8000_0000_1234_5067);
/// let demand = |old, new| change(old, new, TableLevel::Last, EntryRules { shadow_stacks: false, ..EntryRules::STRICT });
/// assert_eq!(demand(read_only, writable), Change::Upgrade);
/// assert_eq!(demand(writable, read_only), Change::Flush(Cached::Leaf));
/// ```
#[must_use]
pub fn change(old: u64, new: u64, level: TableLevel, rules: EntryRules) -> Change {
    let is_leaf = |entry: u64| level == TableLevel::Last || entry & PS != 0;
    match (old & P != 0, new & P != 0) {
        (false, false) => return Change::Nothing,
        (false, true) => return Change::New,
        (true, false) if is_leaf(old) => return Change::Flush(Cached::Leaf),
        (true, false) => return Change::Flush(Cached::Table),
        (true, true) if is_leaf(old) != is_leaf(new) => return Change::Break(Cached::Table),
        (true, true) if is_leaf(old) => {}
        (true, true) => return table(old, new),
    }
    let flush = Change::Flush(Cached::Leaf);
    let unaccessed = if level == TableLevel::Last { Change::Accessed } else { flush };
    let was_shadow = rules.shadow_stacks && old & (RW | D) == D;
    let writable = if was_shadow { flush } else { Change::Upgrade };
    // Where nothing but a shadow stack could tell, setting D changes nothing: hardware looks before
    // it sets it.
    let dirty =
        if rules.shadow_stacks && new & RW == 0 { Change::Upgrade } else { Change::Nothing };
    let rows = [
        Row { bits: RW, set: writable, cleared: flush },
        Row { bits: A, set: Change::Nothing, cleared: unaccessed },
        Row { bits: D, set: dirty, cleared: flush },
        Row::takes(XD, flush),
        Row::any(US | PWT | PCD | PS | G | ADDRESS, flush),
        Row::ignored(SOFTWARE | if rules.protection_keys { 0 } else { KEY }),
    ];
    // What is left is the key.
    judge(old, new, &rows, flush)
}

fn table(old: u64, new: u64) -> Change {
    let flush = Change::Flush(Cached::Table);
    let rows = [
        Row::gives(RW, flush),
        Row { bits: A, set: Change::Nothing, cleared: flush },
        Row::takes(XD, flush),
        Row::any(US | PWT | PCD | PS | ADDRESS, flush),
        Row::ignored(D | G | SOFTWARE | KEY),
    ];
    judge(old, new, &rows, flush)
}
