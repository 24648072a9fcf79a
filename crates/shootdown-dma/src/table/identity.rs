//! Pages that several users map at one address: counted in the entry itself, and beside it where
//! there are many.
//!
//! Where a device's address is a function of the memory's (identity mapping), two users of one page
//! share one entry, and no user owns it. As long as there are few users the entry's word holds
//! everything, and each change is one compare-and-swap:
//!
//! | word | acquire | release |
//! |---|---|---|
//! | empty | leaf, count 1 | error: not mapped |
//! | leaf, count *n* | count *n* + 1 | count *n* - 1 |
//! | leaf, count 1 | count 2 | empty: the last; **to be invalidated** |
//! | leaf, as much as it counts | *spilled*: counted beside it (`spill`) | count - 1 |
//! | leaf, spilled | one more beside it | one less beside it; the last: empty; **to be invalidated** |
//! | tombstone | look again from the root | error: not mapped |
//!
//! A leaf that is not marked as counted is owned ([`Walker::map`]). Superpages are counted as pages
//! are, but only in the entry: they are few and live long, so they have no side words.
//!
//! Until the last user releases the page a device can reach it, also on behalf of users that have
//! released it: rights belong to a page, not to a buffer. And *each* last release needs an
//! invalidation of its own, submitted after it: one that is pending from before may have been
//! executed already.

use super::format::{Decoded, Format, word};
use super::memory::TableMemory;
use super::spill::{Counted, Joined, counted};
use super::walk::Walker;
use super::{MapError, MapErrorKind, UnmapError, index};
use crate::addr::{IovaRange, PhysAddr, Rights};
use crate::sync::Ordering;

/// The result of acquiring a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acquired {
    /// It was not mapped. (Units that cache absent entries need an invalidation.)
    First,
    /// It was mapped already.
    Shared,
}

/// The result of releasing a page.
#[must_use = "a device reaches the page until the last release is invalidated"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Released {
    /// Others use it: it stays mapped.
    Shared,
    /// No user is left: it has to be invalidated (leaf entries only) before it is used again.
    Last,
}

impl<F: Format, M: TableMemory> Walker<'_, F, M> {
    /// Adds a user of the page, which is mapped to `phys`; the first user maps it.
    ///
    /// # Errors
    /// See [`MapError`]; nothing has changed. [`MapErrorKind::AlreadyMapped`] also if other memory,
    /// or other rights, are mapped.
    #[inline]
    pub fn acquire(
        &mut self,
        page: u64,
        phys: PhysAddr,
        rights: Rights,
    ) -> Result<Acquired, MapError> {
        self.acquire_leaf(page, phys, rights, 0)
    }

    /// The same for all pages of a leaf at `level`, the first of which is `page`. Superpages are
    /// counted in their entry only.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire). [`MapErrorKind::BadAddress`] if there is no such leaf;
    /// [`MapErrorKind::CountFull`] beyond what the entry of a superpage counts.
    #[inline]
    pub fn acquire_leaf(
        &mut self,
        page: u64,
        phys: PhysAddr,
        rights: Rights,
        level: u32,
    ) -> Result<Acquired, MapError> {
        let pages = 1u64.checked_shl(F::INDEX * level).unwrap_or(0);
        let Some(range) = IovaRange::new(page, pages) else {
            let kind = if pages == 0 { MapErrorKind::BadAddress } else { MapErrorKind::OutOfRange };
            return Err(MapError { kind, page, undone: None });
        };
        self.check(range, phys)?;
        let aligned = (page | phys.0 >> F::GRANULE) & (pages - 1) == 0;
        if level != 0 && !(aligned && self.table.has_leaves_of(pages, level)) {
            return Err(MapError { kind: MapErrorKind::BadAddress, page, undone: None });
        }
        let leaf = self.table.format.leaf(phys, rights, level);
        let first = leaf | F::COUNTED | F::one();
        let mut stale = word::EMPTY;
        // Whether dropping a token has emptied the entry.
        let mut emptied = false;
        loop {
            let fail = |kind| Err(MapError { kind, page, undone: emptied.then_some(range) });
            let slot = match self.reach(page, level) {
                Ok(table) => &table[index::<F>(page, level)],
                Err(obstacle) => return fail(obstacle.into()),
            };
            // ORDERING: Acquire, as in `down`.
            let entry = slot.load(Ordering::Acquire);
            let (next, acquired) = match self.table.format.decode(entry, level) {
                Decoded::Empty => (first, Acquired::First),
                // The tombstone was seen before the last walk: it counts as empty (see `down`).
                Decoded::Tombstone if entry == stale => (first, Acquired::First),
                Decoded::Leaf(..)
                    if !F::is_counted(entry) || F::meaning(entry) != F::meaning(leaf) =>
                {
                    return fail(MapErrorKind::AlreadyMapped);
                }
                Decoded::Leaf(..) => match counted::<F>(entry) {
                    Counted::Here(n) if n + 1 < F::max_count() => {
                        let count = (entry & F::COUNT).wrapping_add(F::one()) & F::COUNT;
                        (entry & !F::COUNT | count, Acquired::Shared)
                    }
                    _ if level != 0 => return fail(MapErrorKind::CountFull),
                    _ => match self.join(page, slot, entry) {
                        Ok(Joined::Shared) => {
                            self.table.rely_on(slot, entry, 0);
                            return Ok(Acquired::Shared);
                        }
                        Ok(Joined::Again(last)) => {
                            emptied |= last;
                            continue;
                        }
                        Err(kind) => return fail(kind),
                    },
                },
                // Smaller pages were mapped here, or still are.
                Decoded::Table(_) | Decoded::Detached(_) if level != 0 => {
                    return fail(MapErrorKind::AlreadyMapped);
                }
                Decoded::Tombstone | Decoded::Table(_) | Decoded::Detached(_) => {
                    stale = entry;
                    self.forget(page, level);
                    continue;
                }
            };
            // ORDERING: AcqRel: what earlier users did comes before, and this before what later
            // users do.
            if slot.compare_exchange(entry, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.table.rely_on(slot, next, level);
                return Ok(acquired);
            }
        }
    }

    /// [`acquire`](Self::acquire) by the first user, if that is a matter of one entry of the table
    /// that is remembered. False: nothing was done.
    #[inline]
    pub(crate) fn acquire_near(&self, range: IovaRange, phys: PhysAddr, rights: Rights) -> bool {
        if range.pages() != 1 || self.check(range, phys).is_err() {
            return false;
        }
        let Some(slot) = self.near(range.first()) else { return false };
        let first = self.table.format.leaf(phys, rights, 0) | F::COUNTED | F::one();
        // ORDERING: AcqRel, as in `acquire`.
        let acquired = slot.load(Ordering::Relaxed) == word::EMPTY
            && slot
                .compare_exchange(word::EMPTY, first, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if acquired {
            self.table.rely_on(slot, first, 0);
        }
        acquired
    }

    /// [`release`](Self::release) by the last user, if that is a matter of one entry of the table
    /// that is remembered. False: nothing was done.
    #[inline]
    pub(crate) fn release_near(&self, page: u64) -> bool {
        let Some(slot) = self.near(page) else { return false };
        let entry = slot.load(Ordering::Relaxed);
        let last = self.table.format.is_present(entry)
            && F::is_counted(entry)
            && matches!(counted::<F>(entry), Counted::Here(1))
            // ORDERING: AcqRel, as in `release`.
            && slot
                .compare_exchange(entry, word::EMPTY, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if last {
            self.table.show(core::slice::from_ref(slot));
        }
        last
    }

    /// Removes a user of the page; the last one unmaps it. For a superpage, all of its pages,
    /// whichever is named.
    ///
    /// # Errors
    /// See [`UnmapError`]; nothing has changed.
    #[inline]
    pub fn release(&mut self, page: u64) -> Result<Released, UnmapError> {
        if page > self.table.last_page() {
            return Err(UnmapError::OutOfRange);
        }
        loop {
            let near = self.near(page).map(|slot| (slot, slot.load(Ordering::Relaxed), 0));
            let format = &self.table.format;
            let (slot, entry, level) = match near.filter(|(_, entry, _)| format.is_present(*entry))
            {
                Some(near) => near,
                None => {
                    let (table, level) = self.locate(page);
                    let slot = &table[index::<F>(page, level)];
                    (slot, slot.load(Ordering::Relaxed), level)
                }
            };
            match self.table.format.decode(entry, level) {
                Decoded::Leaf(..) if F::is_counted(entry) => {}
                Decoded::Leaf(..) => return Err(UnmapError::NotCounted { page }),
                // The caller has mapped it, or it is an error: concurrent calls of others make no
                // difference.
                _ => return Err(UnmapError::NotMapped { page }),
            }
            let last = match counted::<F>(entry) {
                Counted::Here(n) => n == 1,
                _ if self.part(page, slot) => return Ok(Released::Last),
                _ => return Ok(Released::Shared),
            };
            let next = if last { word::EMPTY } else { entry - F::one() };
            // ORDERING: AcqRel, as in `acquire`; the last one comes after all other users.
            if slot.compare_exchange(entry, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                if last {
                    self.table.show(core::slice::from_ref(slot));
                    return Ok(Released::Last);
                }
                return Ok(Released::Shared);
            }
        }
    }

    /// [Acquires](Self::acquire_leaf) each leaf of a range, which is mapped to the memory from
    /// `phys` on, in leaves at `level`.
    ///
    /// # Errors
    /// The first error of a leaf. The other leaves have been released again; where that was the
    /// last use, [`MapError::undone`] covers it. [`MapErrorKind::BadAddress`] if the range does not
    /// consist of whole leaves.
    pub fn acquire_all(
        &mut self,
        range: IovaRange,
        phys: PhysAddr,
        rights: Rights,
        level: u32,
    ) -> Result<(), MapError> {
        self.check(range, phys)?;
        let step = 1u64.checked_shl(F::INDEX * level).unwrap_or(0);
        if step == 0 || range.pages() & (step - 1) != 0 {
            let page = range.first();
            return Err(MapError { kind: MapErrorKind::BadAddress, page, undone: None });
        }
        let leaves = range.pages() / step;
        for done in (0..leaves).map(|n| n * step) {
            let page = range.first() + done;
            let there = PhysAddr(phys.0 + (done << F::GRANULE));
            let Err(error) = self.acquire_leaf(page, there, rights, level) else {
                continue;
            };
            let mut last = error.undone.map(|undone| (undone.first(), undone.last()));
            for before in (0..done / step).rev().map(|n| range.first() + n * step) {
                if self.release(before) == Ok(Released::Last) {
                    let end = before + (step - 1);
                    last = Some((before, last.map_or(end, |(_, last)| last)));
                }
            }
            let undone = last.and_then(|(first, last)| IovaRange::new(first, last - first + 1));
            return Err(MapError { undone, ..error });
        }
        Ok(())
    }
}
