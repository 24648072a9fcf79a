//! Pages that come back: kept by the CPU that maps and unmaps them, without a locked operation.
//!
//! # The problem
//! A counted page takes four locked operations from mapping to mapping: its entry is put and cleared by compare-and-swap, and the
//! page is held and released. Where unmapping is put off anyway, and the same CPU maps the same page again before it has been
//! paid for (a buffer that is used again at once), all of these undo each other.
//!
//! # The protocol
//! A page that this CPU has unmapped lately, and maps again now, is *kept*: in place of a count its entry has the number of the CPU,
//! and whether the page is mapped is said by a word of that CPU's seat, its *note*. The CPU changes it by plain stores:
//!
//! | note | the entry is kept by us | |
//! |---|---|---|
//! | nothing | no | |
//! | *seen* | no | we have unmapped the page lately: next time it is kept |
//! | *used* | yes | one use: mapped |
//! | *idle* | yes | unmapped, and not paid for: no use, but devices reach it |
//!
//! To unmap is *used* to *idle*, to map again *idle* to *used*. What is idle is owed as everything that is unmapped and waits: when its
//! time has come ([`Walker::settle_kept`]) its entry is cleared, and only then is it to be invalidated.
//!
//! **Others.** Who else wants to map a kept page gets an address elsewhere. Who else unmaps it reads the note of the CPU that keeps it.
//! *Used*: the one use is the caller's, who takes the entry away from the CPU. Anything else: it is not mapped, if the entry is
//! still kept, and unmapping is refused. No barrier is needed, since a use is somebody's: while it is the caller's, nobody makes
//! the note *idle* (K2), and if the CPU has stopped keeping the page, the entry has changed before the note.
//!
//! # Invariants
//! - **K1** An entry that is kept by a CPU has a note of that CPU, *used* or *idle*; the CPU's own compare-and-swap makes it kept.
//! - **K2** From *used* to *idle*: by whoever has the use. From *used* to nothing: by the CPU, after the entry counts the use.
//! - **K3** A note says something only while the entry is kept by its CPU: the CPU looks at the entry whenever it relies on one.
//!
//! Who unmaps what is not theirs breaks K2: two may unmap one use at the same time, and both succeed. K3 limits what comes
//! of it: the CPU finds the entry changed, and its note void.
//!
//! # Orderings
//! | # | access | ordering | partner | why |
//! |---|---|---|---|---|
//! | K1 | note stored, entry swapped to *kept* | AcqRel | entry read by others, Acquire | who finds it kept finds the note |
//! | K2 | entry changed, note stored; note read by others, entry read again | Release, Acquire | each other | who finds the note gone finds the entry changed |
//!
//! That who has the use of an idle page's next life finds the note *used* again needs nothing here: the use has come to them from
//! the CPU, and its note with it.

use super::format::{Format, word};
use super::memory::TableMemory;
use super::walk::Walker;
use super::{UnmapError, index};
use crate::addr::{PhysAddr, Rights};
use crate::sync::{AtomicU64, Ordering};

/// Notes of a CPU: as many pages may be kept. Each page has one place.
pub(super) const NOTES: usize = if cfg!(loom) { 2 } else { 64 };

/// What a note says of its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Note {
    Seen,
    Idle,
    Used,
}

/// No page.
const NOTHING: u64 = 0;

const fn word_of(page: u64, note: Note) -> u64 {
    page << 2 | (note as u64 + 1)
}

/// A CPU's notes.
pub(super) struct Notes([AtomicU64; NOTES]);

impl Notes {
    pub fn new() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(NOTHING)))
    }

    #[inline]
    fn at(&self, page: u64) -> &AtomicU64 {
        &self.0[page as usize % NOTES]
    }

    /// Does the note say this of this page?
    #[inline]
    pub fn says(&self, page: u64, note: Note) -> bool {
        // ORDERING [K2].
        self.at(page).load(order!(NoteReadRelaxed, Acquire)) == word_of(page, note)
    }

    #[inline]
    fn set(&self, page: u64, note: Option<Note>) {
        let word = note.map_or(NOTHING, |note| word_of(page, note));
        // ORDERING [K1] [K2].
        self.at(page).store(word, Ordering::Release);
    }

    /// The page of this note, and what is said of it.
    fn get(&self, place: usize) -> Option<(u64, Note)> {
        let word = self.0[place].load(Ordering::Relaxed);
        let note = [Note::Seen, Note::Idle, Note::Used].get((word as usize & 3).checked_sub(1)?)?;
        Some((word >> 2, *note))
    }
}

impl<F: Format, M: TableMemory> Walker<'_, F, M> {
    /// Is this page kept here, and not mapped? Only then is [`revive`](Self::revive) worth its call.
    #[inline]
    pub fn is_idle(&self, page: u64) -> bool {
        self.notes().is_some_and(|notes| notes.says(page, Note::Idle))
    }

    /// Has this CPU unmapped the page lately, so that it may come back again?
    #[inline]
    pub(super) fn expects(&self, page: u64) -> bool {
        self.notes().is_some_and(|notes| notes.says(page, Note::Seen))
    }

    /// The page was unmapped here for good. What is kept stays noted in its place.
    #[inline]
    pub fn expect(&self, page: u64) {
        let Some(notes) = self.notes() else { return };
        let there = notes.at(page).load(Ordering::Relaxed);
        let kept = there & 3 > word_of(0, Note::Seen) && there >> 2 != page;
        if !kept {
            notes.set(page, Some(Note::Seen));
        }
    }

    /// The entry of a page, if this CPU keeps it.
    #[inline]
    fn own(&mut self, page: u64) -> Option<(&AtomicU64, u64)> {
        let kept = F::COUNTED | F::kept_by(self.number())?;
        let slot = match self.near(page) {
            Some(slot) => slot,
            None => {
                let (table, level) = self.locate(page);
                if level != 0 {
                    return None;
                }
                &table[index::<F>(page, 0)]
            }
        };
        let entry = slot.load(Ordering::Acquire);
        let ours = entry & (F::COUNTED | F::COUNT) == kept;
        (ours && self.table().format().is_present(entry)).then_some((slot, entry))
    }

    /// Puts an empty entry as kept by this CPU.
    #[inline]
    pub(super) fn keep_in(&self, page: u64, slot: &AtomicU64, leaf: u64) -> bool {
        let (Some(notes), Some(kept)) = (self.notes(), F::kept_by(self.number())) else {
            return false;
        };
        notes.set(page, Some(Note::Used));
        let kept = leaf | F::COUNTED | kept;
        // ORDERING [K1].
        let done = slot.load(Ordering::Relaxed) == word::EMPTY
            && slot
                .compare_exchange(word::EMPTY, kept, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if done {
            self.table().rely_on(slot, kept, 0);
        } else {
            notes.set(page, None);
        }
        done
    }

    /// Unmaps a page that this CPU keeps, and goes on keeping it. False: nothing was done. The caller owes it from now on, until
    /// [`revive`](Self::revive) or [`settle_kept`](Self::settle_kept).
    #[inline]
    pub fn idle(&mut self, page: u64) -> bool {
        if !self.notes().is_some_and(|notes| notes.says(page, Note::Used)) {
            return false;
        }
        // [K3]
        if self.own(page).is_none() {
            self.forget_note(page);
            return false;
        }
        if let Some(notes) = self.notes() {
            notes.set(page, Some(Note::Idle));
        }
        true
    }

    /// Maps a page again that this CPU keeps. False: it does not any more, and owes nothing for it. Only to be called if it
    /// [is idle](Self::is_idle).
    #[inline]
    pub fn revive(&mut self, page: u64, phys: PhysAddr, rights: Rights) -> bool {
        let leaf = self.table().format().leaf(phys, rights, 0);
        // [K3]
        let same = self.own(page).is_some_and(|(_, entry)| F::meaning(entry) == F::meaning(leaf));
        if !same && !without!(RevivedUnchecked) {
            self.forget_note(page);
            return false;
        }
        if let Some(notes) = self.notes() {
            notes.set(page, Some(Note::Used));
        }
        true
    }

    #[cold]
    fn forget_note(&self, page: u64) {
        if let Some(notes) = self.notes() {
            notes.set(page, None);
        }
    }

    /// This CPU's kept page gets a second use: it is counted from now on. False: it is not mapped here.
    pub(super) fn count_kept(&self, page: u64, slot: &AtomicU64, entry: u64) -> bool {
        let Some(notes) = self.notes().filter(|notes| notes.says(page, Note::Used)) else {
            return false;
        };
        let two = entry & !F::COUNT | (2 * F::one());
        // ORDERING: AcqRel, as in `acquire`.
        let done = slot.compare_exchange(entry, two, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if done {
            notes.set(page, None);
        }
        done
    }

    /// The use of a page that CPU `keeper` keeps is over, for good.
    #[cold]
    pub(super) fn release_kept(
        &self,
        page: u64,
        slot: &AtomicU64,
        (entry, keeper): (u64, usize),
    ) -> Result<bool, UnmapError> {
        // ORDERING: Acquire, with the AcqRel of who has kept it [K1], and of all who have had the use.
        crate::sync::fence(Ordering::Acquire);
        let used = self.table().notes(keeper).is_some_and(|notes| notes.says(page, Note::Used));
        if !used && !without!(IdleReleased) {
            // Or it is not kept any more, and the use is counted by now.
            let same = slot.load(Ordering::Acquire) == entry || without!(EntryNotAskedAgain);
            return if same { Err(UnmapError::NotMapped { page }) } else { Ok(false) };
        }
        // ORDERING: AcqRel, as in `release`.
        let done =
            slot.compare_exchange(entry, word::EMPTY, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if done {
            self.table().show(core::slice::from_ref(slot));
            if keeper == self.number() {
                self.forget_note(page);
            }
        }
        Ok(done)
    }

    /// Ends what this CPU keeps and is idle: each entry is cleared, and `owed` told of the page, true if it was still kept. With
    /// `all`, what is used is counted from now on as other pages are.
    pub fn settle_kept(&mut self, all: bool, mut owed: impl FnMut(u64, bool)) {
        for place in 0..NOTES {
            let Some((page, note)) = self.notes().and_then(|notes| notes.get(place)) else {
                continue;
            };
            let next = match note {
                Note::Seen => continue,
                Note::Used if !all => continue,
                Note::Used => F::one(),
                Note::Idle => 0,
            };
            let mut ended = false;
            while let Some((slot, entry)) = self.own(page) {
                let next = if next == 0 { word::EMPTY } else { entry & !F::COUNT | next };
                // ORDERING: AcqRel, as in `release`. It fails when the hardware has marked it, or somebody has the use.
                if slot.compare_exchange(entry, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    ended = true;
                    break;
                }
            }
            let Some(notes) = self.notes() else { return };
            match note {
                Note::Idle => {
                    notes.set(page, Some(Note::Seen));
                    owed(page, ended);
                }
                _ => notes.set(page, None),
            }
        }
    }
}
