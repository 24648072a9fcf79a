//! What a change of a page-table entry demands on RISC-V (Sv39 to Sv57).
//!
//! | bits | leaf | table | source (Privileged) |
//! |---|---|---|---|
//! | V | absent entries may be cached until a fence, or the fault with Svvptc | same | 12.2.1 |
//! | R, W, X | adding is an upgrade, unless old or new is a shadow stack (W alone) | a leaf becomes one: a flush | 12.3.1, Zicfiss |
//! | U | a flush: each value forbids something (SUM) | reserved: a flush | 12.3.1 |
//! | G | a flush | a flush | 12.3.1 |
//! | A | setting is an upgrade (Svade); clearing is for the policy, with N or in a larger leaf a flush | reserved | 12.3.1 |
//! | D | setting is an upgrade (Svade); clearing is a flush | reserved | 12.3.1 |
//! | RSW | ignored | ignored | 12.3.1 |
//! | PPN, PBMT, N, 60:54 | a flush | a flush | 12.4, 12.5 |
//!
//! No change asks for a break: hardware may use either of two entries, of any size, until the
//! fence.

use shootdown::Change;
use shootdown::elide::Cached;

use crate::entry::{Row, TableLevel, judge};

const V: u64 = 1;
const R: u64 = 1 << 1;
const W: u64 = 1 << 2;
const X: u64 = 1 << 3;
const A: u64 = 1 << 6;
const D: u64 = 1 << 7;
const RSW: u64 = 3 << 8;
const N: u64 = 1 << 63;

/// What changing an entry from `old` to `new` demands.
///
/// ```
/// use shootdown::{Change, elide::Cached};
/// use shootdown_arch::riscv64::{TableLevel, change};
/// let (read_only, writable) = (0xd3, 0xd7);
/// assert_eq!(change(read_only, writable, TableLevel::Last), Change::Upgrade);
/// assert_eq!(change(writable, read_only, TableLevel::Last), Change::Flush(Cached::Leaf));
/// ```
#[must_use]
pub fn change(old: u64, new: u64, level: TableLevel) -> Change {
    let is_leaf = |entry: u64| level == TableLevel::Last || entry & (R | W | X) != 0;
    let is_shadow = |entry: u64| entry & (R | W | X) == W;
    match (old & V != 0, new & V != 0) {
        (false, false) => return Change::Nothing,
        (false, true) => return Change::New,
        (true, false) if is_leaf(old) => return Change::Flush(Cached::Leaf),
        (true, false) => return Change::Flush(Cached::Table),
        (true, true) if !is_leaf(old) || !is_leaf(new) => {
            let rows = [Row::ignored(RSW)];
            return judge(old, new, &rows, Change::Flush(Cached::Table));
        }
        (true, true) => {}
    }
    let flush = Change::Flush(Cached::Leaf);
    let small = level == TableLevel::Last && old & N == 0;
    let rights = if is_shadow(old) != is_shadow(new) { flush } else { Change::Upgrade };
    let rows = [
        Row { bits: R | W | X, set: rights, cleared: flush },
        Row {
            bits: A,
            set: Change::Upgrade,
            cleared: if small { Change::Accessed } else { flush },
        },
        Row::gives(D, flush),
        Row::ignored(RSW),
    ];
    // U, G, PPN, PBMT, N and what is reserved.
    judge(old, new, &rows, flush)
}
