//! Uses beyond what an entry counts: a side table.
//!
//! # The problem
//! A leaf has few bits for software: VT-d's count uses to 510, AMD's to 14, Arm's to 2. A page that
//! more users share needs a counter elsewhere, and two words can't be changed at once. If entry and
//! counter disagree, the last use may pass unnoticed, and the page stays mapped for ever; or a use
//! is taken for the last while others remain.
//!
//! # The protocol
//! The entry's count is exact as long as it is small. All ones means *spilled*: then all uses are
//! counted in a **side word**, one for each entry of the table. The side table is a page of its
//! own. The first spill links it from a word that the host keeps with each page of tables
//! ([`TableMemory::side`]); it is freed with the table. From one use to none, and as long as uses
//! are few, an operation is one compare-and-swap on the entry and nothing else.
//!
//! Side words count **tokens**. A token is a use, or belongs to an operation that is under way,
//! which turns it into a use or removes it. So a side word may be too large for a moment, never too
//! small.
//!
//! | operation | does |
//! |---|---|
//! | *spill*: one more than the entry counts (*n*) | adds *n* + 1 tokens, then swaps the entry from *n* to *spilled*: the *n* users' uses are now tokens. If the entry has changed, the tokens are dropped again |
//! | *join*: one more, when spilled | adds a token, then reads the entry again: *spilled*, and the token is a use; *closing*, then the entry is made *spilled* first; anything else, and the token is dropped again |
//! | *drop* own tokens: one less | subtracts them, if there are others. If there are none, the page has no user: the entry is marked *closing* (count 0), the side word is read again, and if it has not changed at all meanwhile, the entry is emptied. Then the tokens are subtracted. If the entry is not spilled, the tokens stood for nothing |
//!
//! No operation waits for another: one that finds *closing* clears the mark and goes on, and the
//! one that set the mark begins again.
//!
//! # Invariants
//! - **P1** Spilled or closing: the side word is the number of uses and of tokens under way.
//!   Otherwise uses are in the entry, and the side word has only tokens under way.
//! - **P2** An operation marks or empties an entry only if all tokens are its own. There is one
//!   such operation at most, since its tokens stay until it is done: any other finds more than its
//!   own. So the mark that it finds when it empties the entry is its own, or one that has stood
//!   since it read the side word.
//! - **P3** The token of a join becomes a use only if the entry was spilled after the token was
//!   added. So an entry is emptied before, and the token is not a use; or the side word has changed
//!   when it is read again (S1, S2), or the mark is gone.
//! - **P4** A side word never has the same value twice: 40 bits of it count changes. A decision
//!   that was made on one value holds if the value is unchanged.
//! - **P5** Tokens exist only while their operation holds the table (`epoch_slot`), uses while the
//!   entry is present: a table that is freed has a side table of zeroes.
//!
//! A drop for an acquisition that failed may be the one that empties the entry, after the last user
//! was informed that others use the page. The failed acquisition then reports the page as *undone*,
//! or maps it once more.
//!
//! # Orderings
//! | # | access | ordering | partner | why |
//! |---|---|---|---|---|
//! | S1 | token added, fence, entry read | SeqCst fence | S2 | either the token's owner sees the entry's mark, or the CPU that marked it sees the token; without the fences both may miss the other, and the entry is emptied under a use |
//! | S2 | entry marked, fence, side word read | SeqCst fence | S1 | |
//! | S3 | side word changed | AcqRel | itself | what users did before they dropped comes before the entry is emptied |
//! | S4 | side table linked, found | AcqRel, Acquire | each other | its zeroes |
//! | S5 | entry swapped to *spilled*, found to be so | AcqRel, Acquire | each other | the side table is linked, and the tokens are there |

use super::format::{Format, word};
use super::memory::{INDEX_BITS, TableMemory};
use super::walk::Walker;
use super::{IoPageTable, MapErrorKind, chunk, index};
use crate::addr::PhysAddr;
use crate::sync::{AtomicU64, Ordering, fence};

/// The unit of the change count, which lies above the tokens of a side word.
const CHANGE: u64 = 1 << 24;

/// The most tokens: far from overflow, whatever operations are under way.
const MOST: u64 = 1 << 20;

const fn tokens(side: u64) -> u64 {
    side & (CHANGE - 1)
}

/// Where a counted leaf's uses are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counted {
    /// In the entry; the number of uses.
    Here(u64),
    /// In the side word; the entry is spilled.
    Spilled,
    /// In the side word; the entry is marked as about to be emptied.
    Closing,
}

/// Decodes a counted leaf.
#[inline]
pub(super) fn counted<F: Format>(entry: u64) -> Counted {
    match F::count(entry) {
        0 => Counted::Closing,
        n if n == F::max_count() => Counted::Spilled,
        n => Counted::Here(n),
    }
}

impl<F: Format, M: TableMemory> IoPageTable<F, M> {
    /// The side table of a chunk; with `make` it is put there if there is none.
    fn side_table(&self, table: PhysAddr, make: bool) -> Option<PhysAddr> {
        // SAFETY: the walker holds the table.
        let link = unsafe { self.memory.side(table) }?;
        // ORDERING [S4]: Acquire, with the Release below.
        let found = link.load(Ordering::Acquire);
        if found != 0 || !make {
            return Some(PhysAddr(found)).filter(|side| side.0 != 0);
        }
        // No hardware walker reads it: it needs no write-back.
        if !self.count_pages(1) {
            return None;
        }
        let Some(side) = self.memory.allocate() else {
            self.uncount_pages(1);
            return None;
        };
        match link.compare_exchange(0, side.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(side),
            Err(other) => {
                self.uncount_pages(1);
                // SAFETY: just allocated, and no other CPU has seen it.
                unsafe { self.memory.free(side) };
                Some(PhysAddr(other))
            }
        }
    }

    /// Frees a table of `count` chunks, with the side table of each.
    ///
    /// # Safety
    /// As [`TableMemory::free`]; no epoch slot holds the table (P5).
    pub(super) unsafe fn free_with_sides(&self, table: PhysAddr, count: usize) {
        for n in 0..count {
            // SAFETY: not freed yet.
            let link = unsafe { self.memory.side(chunk(table, n << INDEX_BITS)) };
            let Some(link) = link else { continue };
            let side = link.swap(0, Ordering::Acquire);
            if side != 0 {
                self.uncount_pages(1);
                // SAFETY: it was linked there alone, and every CPU that used it held the table.
                unsafe { self.memory.free(PhysAddr(side)) };
            }
        }
        // SAFETY: as promised.
        unsafe { self.memory.free_many(table, count) };
    }

    /// Whether the entry is spilled, or closing, and which.
    fn spilled(&self, entry: u64) -> Option<Counted> {
        let counts = self.format.is_present(entry) && F::is_counted(entry);
        let how = counted::<F>(entry);
        (counts && !matches!(how, Counted::Here(_))).then_some(how)
    }

    /// Subtracts `mine` tokens. True: the last use went with them, and the entry is empty.
    fn drop_tokens(&self, slot: &AtomicU64, side: &AtomicU64, mine: u64) -> bool {
        let mut emptied = false;
        loop {
            // ORDERING [S3]: Acquire, with what other users did before they dropped their tokens.
            let seen = side.load(Ordering::Acquire);
            let others = tokens(seen) > mine;
            let entry = slot.load(Ordering::Acquire);
            if others || self.spilled(entry).is_none() {
                // ORDERING [S3].
                let less = seen.wrapping_add(CHANGE) - mine;
                let taken = side.compare_exchange(seen, less, Ordering::AcqRel, Ordering::Relaxed);
                if taken.is_ok() {
                    return emptied;
                }
                continue;
            }
            // [P2] Also if it is marked already: S2 needs a store of our own.
            let marked = entry & !F::COUNT;
            if slot.compare_exchange(entry, marked, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            fence(Ordering::SeqCst); // [S2]
            // [P3] [P4]
            if side.load(Ordering::Acquire) != seen {
                continue;
            }
            // ORDERING: AcqRel, as for every operation that empties entries.
            let away =
                slot.compare_exchange(marked, word::EMPTY, Ordering::AcqRel, Ordering::Relaxed);
            if away.is_ok() {
                self.show(core::slice::from_ref(slot));
                emptied = true;
            }
        }
    }
}

/// The result of adding a use to a spilled page, or to one that spills by it.
pub(super) enum Joined {
    /// The use was added.
    Shared,
    /// The entry has changed; read it again. True: this operation has emptied it.
    Again(bool),
}

impl<F: Format, M: TableMemory> Walker<'_, F, M> {
    /// The side word of a page whose entry is in the leaf table that is remembered.
    fn side_word(&self, page: u64, make: bool) -> Option<&AtomicU64> {
        let side = self.table.side_table(self.held(page), make)?;
        // SAFETY: it is freed with the table, which the epoch slot holds.
        Some(&unsafe { self.table.memory.table(side) }[index::<F>(page, 0)])
    }

    /// The number of uses of a counted page.
    pub(super) fn uses(&self, page: u64, entry: u64) -> u64 {
        match counted::<F>(entry) {
            Counted::Here(n) => n,
            _ => {
                let side = self.side_word(page, false).map(|side| side.load(Ordering::Relaxed));
                side.map_or(1, |side| tokens(side).max(1))
            }
        }
    }

    /// Adds a use to a page whose entry, in the leaf table that is remembered, has the largest
    /// count, or has spilled.
    #[cold]
    pub(super) fn join(
        &self,
        page: u64,
        slot: &AtomicU64,
        entry: u64,
    ) -> Result<Joined, MapErrorKind> {
        let side = self.side_word(page, true).ok_or(MapErrorKind::CountFull)?;
        if tokens(side.load(Ordering::Relaxed)) >= MOST {
            return Err(MapErrorKind::CountFull);
        }
        if let Counted::Here(n) = counted::<F>(entry) {
            let ours = n + 1;
            // ORDERING [S3].
            side.fetch_add(CHANGE + ours, Ordering::AcqRel);
            let spilled = entry | F::COUNT;
            // ORDERING [S5].
            let moved = slot.compare_exchange(entry, spilled, Ordering::AcqRel, Ordering::Relaxed);
            return Ok(match moved {
                Ok(_) => Joined::Shared,
                Err(_) => Joined::Again(self.table.drop_tokens(slot, side, ours)),
            });
        }
        // ORDERING [S3].
        side.fetch_add(CHANGE + 1, Ordering::AcqRel);
        fence(Ordering::SeqCst); // [S1]
        let mut now = slot.load(Ordering::Acquire);
        loop {
            let same = F::meaning(now) == F::meaning(entry);
            match self.table.spilled(now).filter(|_| same) {
                Some(Counted::Spilled) => return Ok(Joined::Shared),
                Some(_) => {
                    let open = now | F::COUNT;
                    match slot.compare_exchange(now, open, Ordering::AcqRel, Ordering::Acquire) {
                        Ok(_) => return Ok(Joined::Shared),
                        Err(other) => now = other,
                    }
                }
                None => return Ok(Joined::Again(self.table.drop_tokens(slot, side, 1))),
            }
        }
    }

    /// Removes a use from a page whose entry, in the leaf table that is remembered, has spilled.
    /// True: it was the last one.
    #[cold]
    pub(super) fn part(&self, page: u64, slot: &AtomicU64) -> bool {
        fence(Ordering::Acquire); // [S5] The entry was read Relaxed.
        match self.side_word(page, false) {
            Some(side) => self.table.drop_tokens(slot, side, 1),
            None => unreachable!("what is spilled has a side table"),
        }
    }
}
