//! From a range of pages to the fewest operations that cover exactly it.
//!
//! # The problem
//! One range operation covers `c << (5 * s + 1)` pages, with c in 1..=32 and s in 0..=3. The
//! customary way writes the number of pages in base 32 and spends one operation per digit, and one
//! more on an odd last page: up to five. But an invalidation may be repeated without harm, so
//! operations may **overlap**: the largest operation that fits covers the front, and the smallest
//! that covers what is left covers the back, ending exactly at the end. That is never more than
//! two, for any number of pages up to 2^21.
//!
//! # Why two are enough
//! Let the front be the largest possible, at scale s, and r pages be left. Then r is less than one
//! unit `1 << (5 * s + 1)`, or the front could have been longer; and one unit, which is an
//! operation, is not more than the whole range. So some operation has a size between r and the
//! whole range, and one of that size that ends at the end covers the rest.
//!
//! # Alignment
//! With 52-bit addresses (`TCR_EL1.DS`) an operation begins at a multiple of 64 KiB. Pages before
//! the first such border go one by one, as nothing else can name them alone; so does an odd last
//! page, because an operation that begins at a border covers an even number. In between, the back
//! must begin at a border too, which may take a third operation.
//!
//! In steps larger than a page everything is counted in steps, of which an operation covers a whole
//! number. Steps are multiples of 64 KiB, so that borders are none of their concern.
//!
//! # Invariants
//! I1: the union of the operations is exactly the range. I2: every operation can be encoded. I3: no
//! other exact cover has fewer operations. (Tests: exhaustively against sets and against a search
//! of all covers.)

use super::granule::{Depth, Granule, Level};
use super::span::{LPA2_SHIFT, MAX_COUNT, MAX_SCALE, SCALE_SHIFT, Span};
use super::tlbi::Page;

/// What decides how a range is covered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    /// The granule of the tables.
    pub granule: Granule,
    /// `TCR_EL1.DS`: 52-bit addresses with 4 or 16 KiB pages.
    pub lpa2: bool,
    /// Range operations exist (FEAT_TLBIRANGE).
    pub ranges: bool,
}

/// What one operation of a cover names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Piece {
    /// One step.
    Page(Page),
    /// Many.
    Span(Span),
}

/// The operations of a range, in order of their last addresses.
#[derive(Clone, Debug)]
pub struct Cover {
    shape: Shape,
    level: Level,
    depth: Depth,
    start: u64,
    /// Steps before the first border, one by one.
    singles: u64,
    /// Then operations of the largest size.
    full: u64,
    /// Then these: (first step, number of steps), counted from `start`. A number of 1 may be a
    /// page.
    rest: [Option<(u64, u64)>; 4],
    at: u64,
}

/// Sizes in steps that one operation can have.
#[derive(Clone, Copy)]
struct Sizes {
    /// log2 of the pages in a step.
    step: u32,
    /// Operations begin at a multiple of this many steps.
    border: u64,
}

impl Sizes {
    /// Steps in the smallest count that is a whole number of steps, and how many of those fit NUM.
    const fn unit(self, scale: u32) -> (u64, u64) {
        let shift = SCALE_SHIFT * scale + 1;
        if shift >= self.step {
            (1 << (shift - self.step), MAX_COUNT)
        } else {
            (1, MAX_COUNT >> (self.step - shift))
        }
    }

    /// The largest operation of all.
    const fn max(self) -> u64 {
        let (unit, count) = self.unit(MAX_SCALE);
        unit * count
    }

    /// The largest operation of at most `n` steps.
    fn largest(self, n: u64) -> Option<u64> {
        (0..=MAX_SCALE)
            .map(|scale| self.unit(scale))
            .filter(|&(unit, count)| count > 0 && unit <= n)
            .map(|(unit, count)| (n / unit).min(count) * unit)
            .max()
    }

    /// The smallest operation that covers the last `r` of `n` steps, ends at the end and begins at
    /// a border.
    fn back(self, n: u64, r: u64) -> Option<u64> {
        (0..=MAX_SCALE)
            .filter_map(|scale| {
                let (unit, count) = self.unit(scale);
                let size = if unit >= self.border {
                    r.next_multiple_of(unit)
                } else {
                    // The least size above r after which a multiple of the border is left.
                    r + (n - r) % self.border
                };
                let fits = size % unit == 0 && size / unit <= count && size <= n;
                (fits && (n - size) % self.border == 0).then_some(size)
            })
            .min()
    }

    /// Operations for `n` steps from a border on, `n` at most [`Sizes::max`].
    fn split(self, n: u64, rest: &mut [Option<(u64, u64)>]) {
        let Some((slot, others)) = rest.split_first_mut() else {
            debug_assert!(n == 0, "four operations are always enough");
            return;
        };
        if n == 0 {
            return;
        }
        let front = self.largest(n);
        match front {
            Some(front) if front == n => *slot = Some((0, n)),
            _ if n == 1 => *slot = Some((0, 1)),
            Some(front) => {
                let left = n - front;
                let back = if left == 1 { Some(1) } else { self.back(n, left) };
                if let Some(back) = back {
                    *slot = Some((0, front));
                    if let Some(second) = others.first_mut() {
                        *second = Some((n - back, back));
                    }
                } else {
                    // An odd page, or what is beyond the last border: on its own.
                    let tail = if n % 2 == 1 { 1 } else { n % self.border };
                    *slot = Some((n - tail, tail));
                    self.split(n - tail, others);
                }
            }
            // Every number of steps from 2 on has an operation that fits.
            None => unreachable!(),
        }
    }
}

impl Shape {
    /// The operations that cover `count` steps from `start` on. A step is a leaf of `level`;
    /// `start` is a multiple of one. A hint of another level than the step's is left out.
    ///
    /// # Panics
    /// In debug builds, when `start` is not a multiple of a step.
    #[must_use]
    pub fn cover(&self, start: u64, count: u64, level: Level, depth: Depth) -> Cover {
        let shift = self.granule.leaf_shift(level);
        debug_assert!(start & ((1 << shift) - 1) == 0, "{start:#x} is not a multiple of a step");
        let depth = match depth {
            Depth::LeavesAt(_) if depth.hint(self.granule) != Some(level) => Depth::Leaves,
            depth => depth,
        };
        let mut cover = Cover {
            shape: *self,
            level,
            depth,
            start,
            singles: count,
            full: 0,
            rest: [None; 4],
            at: 0,
        };
        let step = shift - self.granule.shift();
        let sizes = Sizes { step, border: if self.lpa2 { border(shift) } else { 1 } };
        if !self.ranges || sizes.max() < 2 {
            return cover;
        }
        let off = start >> shift & (sizes.border - 1);
        cover.singles = ((sizes.border - off) % sizes.border).min(count);
        let left = count - cover.singles;
        // The last operation of the largest size is left to `split`, which may need it as a front.
        cover.full = left.saturating_sub(1) / sizes.max();
        let base = cover.singles + cover.full * sizes.max();
        sizes.split(count - base, &mut cover.rest);
        for piece in cover.rest.iter_mut().flatten() {
            piece.0 += base;
        }
        cover
            .rest
            .sort_unstable_by_key(|piece| piece.map_or(u64::MAX, |(first, size)| first + size));
        cover
    }
}

/// Steps of this size between two multiples of 64 KiB.
const fn border(shift: u32) -> u64 {
    if shift < LPA2_SHIFT { 1 << (LPA2_SHIFT - shift) } else { 1 }
}

impl Cover {
    /// How many operations there are.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.singles + self.full + self.rest.iter().flatten().count() as u64
    }

    fn piece(&self, first: u64, size: u64) -> Option<Piece> {
        let granule = self.shape.granule;
        let shift = granule.leaf_shift(self.level);
        let address = self.start.wrapping_add(first << shift);
        if size == 1 {
            return Some(Piece::Page(Page::new(address, granule, self.depth)));
        }
        let pages = size << (shift - granule.shift());
        Span::new(address, granule, pages, self.depth, self.shape.lpa2).ok().map(Piece::Span)
    }
}

impl Iterator for Cover {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        let at = self.at;
        self.at += 1;
        if at < self.singles {
            return self.piece(at, 1);
        }
        let at = at - self.singles;
        if at < self.full {
            let step = self.shape.granule.leaf_shift(self.level) - self.shape.granule.shift();
            let max = Span::MAX_PAGES >> step;
            return self.piece(self.singles + at * max, max);
        }
        let at = usize::try_from(at - self.full).ok()?;
        let (first, size) = (*self.rest.get(at)?)?;
        self.piece(first, size)
    }
}

#[cfg(test)]
#[path = "cover_tests.rs"]
mod tests;
