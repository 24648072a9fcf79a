//! What a change of a stage 1 descriptor demands on AArch64.
//!
//! | bits | leaf | table | source (Arm ARM) |
//! |---|---|---|---|
//! | valid | invalid ones are not cached, but an earlier walk may still fault | same | D8.14 |
//! | AttrIndx, SH, NS, nG | break | ignored, as far as they are no address | D8.16.1 |
//! | output or next address | break | break | D8.16.1 |
//! | AP\[1\] | a flush: with PAN, and as EL0's pages are not EL1's to execute, each value forbids something | | D8.4 |
//! | AP\[2\] | clearing (read-only to writable) is an upgrade, unless what is writable may not be executed | | D8.4.1 |
//! | AF | clearing is for the policy; in a block or contiguous, a flush | clearing is a flush with HAFT | D8.5.1 |
//! | GP | a flush: a BTI exception is not a translation fault | | D8.4.5 |
//! | DBM | with TCR.HD setting is an upgrade, clearing a flush; without, ignored | | D8.5.2 |
//! | contiguous | break; with FEAT_BBM level 1, a flush | | D8.16.2 |
//! | PXN, UXN | clearing is an upgrade | same for PXNTable, XNTable | D8.4 |
//! | 58:55 | ignored | ignored, as 54:51 | D8.3 |
//! | block or table | break, as far as FEAT_BBM does not allow it | | D8.16.2 |
//!
//! Where FEAT_BBM allows a change of size without a break, old and new must translate every address
//! alike.

use shootdown::Change;
use shootdown::elide::Cached;

use crate::entry::{Row, TableLevel, judge};

const VALID: u64 = 1;
/// A table, or on the last level a page.
const TABLE: u64 = 1 << 1;
const ATTR: u64 = 7 << 2 | 1 << 59;
const NS: u64 = 1 << 5;
const AP_EL0: u64 = 1 << 6;
const AP_READ_ONLY: u64 = 1 << 7;
const SH: u64 = 3 << 8;
const AF: u64 = 1 << 10;
const NG: u64 = 1 << 11;
const ADDRESS: u64 = (1 << 50) - (1 << 12);
/// In a block: may not be cached (FEAT_BBM).
const NT: u64 = 1 << 16;
const DBM: u64 = 1 << 51;
const CONTIGUOUS: u64 = 1 << 52;
const PXN: u64 = 1 << 53;
const UXN: u64 = 1 << 54;
const SOFTWARE: u64 = 0xf << 55;
const PXN_TABLE: u64 = 1 << 59;
const XN_TABLE: u64 = 1 << 60;
const NS_TABLE: u64 = 1 << 63;
/// In a table: bits 58:51, 11:10 and 7:2. Bits 9:8 are the address's with LPA2.
const TABLE_IGNORED: u64 = 0xff << 51 | 1 << 11 | 0x3f << 2;

/// Which changes need no break (ID_AA64MMFR2_EL1.BBM).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Bbm {
    /// None of size.
    Level0,
    /// Of the contiguous bit; of size, while nT is set in the block.
    Level1,
    /// Of the contiguous bit and of size, on CPUs that raise no conflict abort for it.
    Level2,
}

/// What descriptors mean beyond their format; the same on every CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::struct_excessive_bools)] // one per control bit
pub struct EntryRules {
    /// FEAT_BBM.
    pub bbm: Bbm,
    /// TCR.HD: a store may turn DBM into write permission.
    pub hardware_dirty: bool,
    /// FEAT_HAFT is on: tables have an accessed flag.
    pub tables_accessed: bool,
    /// SCTLR.WXN: what is writable may not be executed.
    pub write_excludes_execute: bool,
    /// FEAT_S1PIE is on: AP\[1\], DBM, PXN and UXN are an index, and every change of rights is a
    /// flush.
    pub indirect: bool,
}

impl EntryRules {
    /// Right whatever is in use: everything that could have a meaning has it.
    pub const STRICT: Self = Self {
        bbm: Bbm::Level0,
        hardware_dirty: true,
        tables_accessed: true,
        write_excludes_execute: true,
        indirect: true,
    };
}

/// What changing a descriptor from `old` to `new` demands.
///
/// ```
/// use shootdown::{Change, elide::Cached};
/// use shootdown_arch::aarch64::{EntryRules, TableLevel, change};
/// let page = 0x0060_0000_1234_5fc3; // EL0, read-only, execute-never
/// let rules = EntryRules { indirect: false, ..EntryRules::STRICT };
/// let demand = |old, new| change(old, new, TableLevel::Last, rules);
/// assert_eq!(demand(page, page & !0x80), Change::Upgrade);
/// assert_eq!(demand(page & !0x80, page), Change::Flush(Cached::Leaf));
/// assert_eq!(demand(page, page + 0x1000), Change::Break(Cached::Leaf));
/// ```
#[must_use]
pub fn change(old: u64, new: u64, level: TableLevel, rules: EntryRules) -> Change {
    let last = level == TableLevel::Last;
    let is_valid = |entry: u64| entry & VALID != 0 && (!last || entry & TABLE != 0);
    let is_leaf = |entry: u64| last || entry & TABLE == 0;
    match (is_valid(old), is_valid(new)) {
        (false, false) => Change::Nothing,
        (false, true) => Change::New,
        (true, false) if is_leaf(old) => Change::Flush(Cached::Leaf),
        (true, false) => Change::Flush(Cached::Table),
        (true, true) => match (is_leaf(old), is_leaf(new)) {
            (true, true) => leaf(old, new, last, rules),
            (false, false) => table(old, new, rules),
            (true, false) => size(old, rules.bbm),
            (false, true) => size(new, rules.bbm),
        },
    }
}

/// A block becomes a table, or a table a block.
const fn size(block: u64, bbm: Bbm) -> Change {
    match bbm {
        Bbm::Level2 => Change::Flush(Cached::Table),
        Bbm::Level1 if block & NT != 0 => Change::Flush(Cached::Table),
        _ => Change::Break(Cached::Table),
    }
}

fn leaf(old: u64, new: u64, last: bool, rules: EntryRules) -> Change {
    let (flush, break_first) = (Change::Flush(Cached::Leaf), Change::Break(Cached::Leaf));
    let small = last && old & CONTIGUOUS == 0;
    // A right to execute that write permission takes away: EL1's on pages of EL0, and with WXN
    // everyone's.
    let excluded = old & (AP_EL0 | PXN) == AP_EL0
        || rules.write_excludes_execute && old & (PXN | UXN) != (PXN | UXN)
        || rules.indirect;
    let writable = if excluded { flush } else { Change::Upgrade };
    let contiguous = if rules.bbm == Bbm::Level0 { break_first } else { flush };
    let fetches = if rules.indirect { flush } else { Change::Upgrade };
    let address = if last { ADDRESS } else { ADDRESS & !NT };
    let dbm = match (rules.indirect, rules.hardware_dirty) {
        (true, _) => Row::any(DBM, flush),
        (false, true) => Row { bits: DBM, set: writable, cleared: flush },
        (false, false) => Row::ignored(DBM),
    };
    let rows = [
        Row::any(ATTR | NS | SH | NG | address, break_first),
        Row { bits: AP_READ_ONLY, set: flush, cleared: writable },
        Row {
            bits: AF,
            set: Change::Upgrade,
            cleared: if small { Change::Accessed } else { flush },
        },
        dbm,
        Row::any(CONTIGUOUS, contiguous),
        Row { bits: PXN | UXN, set: flush, cleared: fetches },
        Row::ignored(SOFTWARE),
    ];
    // AP[1], GP, nT of a block, and bits 63:60.
    judge(old, new, &rows, flush)
}

fn table(old: u64, new: u64, rules: EntryRules) -> Change {
    let (flush, break_first) = (Change::Flush(Cached::Table), Change::Break(Cached::Table));
    let unaccessed = if rules.tables_accessed { flush } else { Change::Nothing };
    let rows = [
        Row::any(ADDRESS | SH | NS_TABLE, break_first),
        Row::takes(PXN_TABLE | XN_TABLE, flush),
        Row { bits: AF, set: Change::Nothing, cleared: unaccessed },
        Row::ignored(TABLE_IGNORED),
    ];
    // APTable, and bit 50.
    judge(old, new, &rows, flush)
}
