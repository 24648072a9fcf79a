//! One pool: bitmaps, and the pages that it holds back until hardware has invalidated them.
//!
//! Each page has three bits: *busy* (not to be handed out: live, reserved or held back), and for
//! pages that are held back, in which of two sets they are: *new*, retired since the last flush of
//! this pool began, and *old*, which a flush that has begun will make free.
//!
//! - **B1** What is old or new is busy.
//! - **B2** Everything old was retired before any flush with a number above `old_since` began.
//!
//! A flush gets its number when it begins, under the pool's lock. When it is complete it frees the
//! old set if its number is above `old_since`, and nothing otherwise. So any number of flushes may
//! be under way, and no CPU waits for another's: by B2 the flush that frees the old set began after
//! the last page of it was retired.

use alloc::vec::Vec;

use super::super::{SpaceError, Want};

pub(super) struct Bits {
    /// The page of bit 0, and how many.
    first: u64,
    pages: u64,
    busy: Vec<u64>,
    new: Vec<u64>,
    old: Vec<u64>,
    has_new: bool,
    has_old: bool,
    /// Flushes that have begun.
    begun: u64,
    old_since: u64,
    /// Where the next search begins.
    hint: u64,
}

/// The result of a request to a pool.
pub(super) enum Taken {
    /// The range that begins at this page.
    At(u64),
    /// Perhaps a range, after the flush of this number, which has begun.
    AfterFlush(u64),
    Nothing,
}

/// Calls `f` for each word of the bits from `from` on, `count` of them, with those bits of the
/// word.
fn words(from: u64, count: u64, mut f: impl FnMut(usize, u64)) {
    let (mut at, end) = (from, from + count);
    while at < end {
        let (shift, here) = (at % 64, (64 - at % 64).min(end - at));
        let mask = (u64::MAX >> (64 - here)) << shift;
        f(usize::try_from(at / 64).unwrap_or(usize::MAX), mask);
        at += here;
    }
}

impl Bits {
    pub(super) fn new(first: u64, pages: u64) -> Result<Self, SpaceError> {
        let words = usize::try_from(pages.div_ceil(64)).map_err(|_| SpaceError::NoMemory)?;
        let zeros = || {
            let mut bits: Vec<u64> = Vec::new();
            bits.try_reserve_exact(words).map_err(|_| SpaceError::NoMemory)?;
            bits.resize(words, 0);
            Ok(bits)
        };
        Ok(Self {
            first,
            pages,
            busy: zeros()?,
            new: zeros()?,
            old: zeros()?,
            has_new: false,
            has_old: false,
            begun: 0,
            old_since: 0,
            hint: 0,
        })
    }

    const fn last(&self) -> u64 {
        self.first + (self.pages - 1)
    }

    #[cfg(test)]
    pub(super) const fn ends(&self) -> (u64, u64) {
        (self.first, self.last())
    }

    fn set(bits: &mut [u64], from: u64, count: u64, value: bool) {
        words(from, count, |word, mask| {
            if value {
                bits[word] |= mask;
            } else {
                bits[word] &= !mask;
            }
        });
    }

    /// Pages that are free.
    pub(super) fn free_pages(&self) -> u64 {
        self.pages - self.busy.iter().map(|w| u64::from(w.count_ones())).sum::<u64>()
    }

    /// Makes pages busy that belong to no range: for holes.
    pub(super) fn block(&mut self, first: u64, last: u64) {
        let (first, last) = (first.max(self.first), last.min(self.last()));
        if first <= last {
            Self::set(&mut self.busy, first - self.first, last - first + 1, true);
        }
    }

    /// The first free page from `at` on.
    fn next_free(&self, mut at: u64) -> Option<u64> {
        while at < self.pages {
            let free = !self.busy[usize::try_from(at / 64).ok()?] & (u64::MAX << (at % 64));
            if free != 0 {
                let found = at / 64 * 64 + u64::from(free.trailing_zeros());
                return (found < self.pages).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// The last busy page among these.
    fn last_busy(&self, from: u64, count: u64) -> Option<u64> {
        let mut found = None;
        words(from, count, |word, mask| {
            let busy = self.busy[word] & mask;
            if busy != 0 {
                found = Some(word as u64 * 64 + 63 - u64::from(busy.leading_zeros()));
            }
        });
        found
    }

    /// The first place at `from` or above, ending before `end`.
    fn find(&self, want: &Want, from: u64, end: u64) -> Option<u64> {
        let mut at = from;
        loop {
            at = self.next_free(at)?;
            let up = (self.first + at).checked_add(want.align - 1)? & !(want.align - 1);
            let last = up.checked_add(want.pages - 1)?;
            if up - self.first >= end || last > self.last() || last > want.limit {
                return None;
            }
            let wall = if want.boundary == 0 { up } else { last & !(want.boundary - 1) };
            if wall > up {
                at = wall - self.first;
            } else if let Some(busy) = self.last_busy(up - self.first, want.pages) {
                at = busy + 1;
            } else {
                return Some(up - self.first);
            }
        }
    }

    /// A free range, from the end of the last one on, then from the beginning. If there is none,
    /// but there may be one after a flush, a flush has begun.
    pub(super) fn take(&mut self, want: &Want) -> Taken {
        let at = self.find(want, self.hint, self.pages).or_else(|| self.find(want, 0, self.hint));
        let Some(at) = at else {
            let never = want.pages > self.pages || want.limit < self.first;
            let number = if never { None } else { self.begin() };
            return number.map_or(Taken::Nothing, Taken::AfterFlush);
        };
        Self::set(&mut self.busy, at, want.pages, true);
        self.hint = (at + want.pages) % self.pages;
        Taken::At(self.first + at)
    }

    /// Whether every page is live, as far as the bits show: busy, and not held back.
    fn is_live(&self, at: u64, pages: u64) -> bool {
        let mut live = true;
        words(at, pages, |word, mask| {
            let held = self.old[word] | self.new[word];
            live &= self.busy[word] & !held & mask == mask;
        });
        live
    }

    /// Makes pages free, now (`retired`: after the next flush). False if they are not live.
    pub(super) fn give(&mut self, first: u64, pages: u64, retired: bool) -> bool {
        let at = first - self.first;
        if !self.is_live(at, pages) {
            return false;
        }
        if retired {
            Self::set(&mut self.new, at, pages, true);
            self.has_new = true;
        } else {
            Self::set(&mut self.busy, at, pages, false);
        }
        true
    }

    /// Begins a flush: returns its number, if there is anything that it would make free.
    pub(super) fn begin(&mut self) -> Option<u64> {
        if !self.has_old && !self.has_new {
            return None;
        }
        if !self.has_old {
            core::mem::swap(&mut self.old, &mut self.new);
            (self.has_old, self.has_new) = (true, false);
            self.old_since = self.begun; // B2
        }
        self.begun += 1;
        Some(self.begun)
    }

    /// The flush of this number is complete.
    pub(super) fn complete(&mut self, number: u64) {
        if self.has_old && number > self.old_since {
            Self::release(&mut self.busy, &mut self.old);
            self.has_old = false;
        }
    }

    fn release(busy: &mut [u64], held: &mut [u64]) {
        for (busy, held) in busy.iter_mut().zip(held) {
            *busy &= !core::mem::take(held);
        }
    }
}
