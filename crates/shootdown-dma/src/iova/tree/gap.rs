//! What fits into a gap, and where.
//!
//! With alignment, the length of a gap does not decide what fits: eight free pages from page 1 on
//! hold no aligned block of eight. For *naturally* aligned requests (to the next power of two, as
//! [`Want::pages`] makes them) one number decides exactly: the most pages that fit,
//! [`Gap::natural`]; every smaller request fits too. So the tree needs only the greatest of a
//! subtree, and looks at no gap that does not fit.
//!
//! *Why one number is enough.* Let *a* be the page of the gap with most trailing zeros, 2^h | *a*
//! (there is one such page: between two multiples of 2^h lies one of 2^(h+1)). To the right of *a*
//! the gap has L ≤ 2^h pages, to its left M < 2^h. At *a* fits every request up to L. To the left,
//! whatever starts at a multiple of 2^k has *a*, another multiple, behind it: a request of more
//! than 2^(k-1) pages fits only where all 2^k do, and the largest such block is the greatest power
//! of two up to M.

use super::super::Want;

/// Free pages, from `first` to `last`; none if `first` is above `last`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gap {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Gap {
    /// The number of pages.
    pub(super) const fn pages(self) -> u64 {
        if self.first > self.last { 0 } else { self.last - self.first + 1 }
    }

    /// The greatest number of pages that fit, aligned to the next power of two of their number.
    pub(super) const fn natural(self) -> u64 {
        if self.first > self.last {
            return 0;
        }
        // `first` is not 0: spaces begin at page 1 or above.
        let h = ((self.first - 1) ^ self.last).ilog2();
        let most_aligned = self.last >> h << h;
        let (left, right) = (most_aligned - self.first, self.last - most_aligned + 1);
        let block = if left == 0 { 0 } else { 1 << left.ilog2() };
        if block > right { block } else { right }
    }

    /// The part up to `limit`.
    pub(super) const fn below(self, limit: u64) -> Self {
        Self { first: self.first, last: if limit < self.last { limit } else { self.last } }
    }

    /// The highest place for `want`.
    pub(super) fn place(self, want: &Want) -> Option<u64> {
        let gap = self.below(want.limit);
        if gap.pages() < want.pages {
            return None;
        }
        let down = |page: u64| page & !(want.align - 1);
        let mut first = down(gap.last - (want.pages - 1));
        if want.boundary != 0 {
            let end = (first + (want.pages - 1)) & !(want.boundary - 1);
            if end > first {
                // It would cross `end`: the highest that ends there. That doesn't cross the
                // boundary before, which is `align`ed if `align` is the smaller; if
                // it is the greater, no range that is aligned crosses any.
                first = down(end.checked_sub(want.pages)?);
            }
        }
        (first >= gap.first).then_some(first)
    }
}

/// The number by which the tree searches for a gap: a request fits if a gap reaches it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    /// [`Gap::pages`].
    Pages,
    /// [`Gap::natural`].
    Natural,
}

impl Key {
    pub(super) const fn of(self, gap: Gap) -> u64 {
        match self {
            Self::Pages => gap.pages(),
            Self::Natural => gap.natural(),
        }
    }
}

/// How to search for a request: a gap whose key reaches the number holds it. `exact`: no other gap
/// does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    pub(super) key: Key,
    pub(super) at_least: u64,
    pub(super) exact: bool,
}

impl Plan {
    /// The plan for a request that was [checked](Want::check). `None`: no gap is that large.
    pub(super) fn of(want: &Want) -> Option<Self> {
        let natural = want.pages.checked_next_power_of_two()?;
        Some(if want.align == natural {
            // No boundary is crossed: it has room for all pages, and so is a multiple of their
            // power of two.
            Self { key: Key::Natural, at_least: want.pages, exact: true }
        } else if want.align == 1 && want.boundary == 0 {
            Self { key: Key::Pages, at_least: want.pages, exact: true }
        } else {
            // Where a naturally aligned block of the alignment's size is, or the pages naturally
            // aligned, there it fits.
            Self { key: Key::Natural, at_least: want.align.max(want.pages), exact: false }
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::vec::Vec;

    use super::*;

    fn gaps() -> impl Iterator<Item = Gap> {
        (1..40).flat_map(|first| (first - 1..40).map(move |last| Gap { first, last }))
    }

    /// All places, by trying.
    fn places(gap: Gap, want: &Want) -> Vec<u64> {
        (gap.first..=gap.last)
            .filter(|f| f % want.align == 0 && f + want.pages - 1 <= gap.last.min(want.limit))
            .filter(|f| {
                want.boundary == 0 || f / want.boundary == (f + want.pages - 1) / want.boundary
            })
            .collect()
    }

    #[test]
    fn the_natural_number_is_exact() {
        for gap in gaps() {
            for pages in 1..40 {
                let want = Want::pages(pages).unwrap();
                let fits = !places(gap, &want).is_empty();
                assert_eq!(gap.natural() >= pages, fits, "{pages} pages in {gap:?}");
            }
        }
    }

    /// Every gap of a small space, every request.
    pub(crate) fn places_are_the_highest_that_are_right() {
        for gap in gaps() {
            for pages in 1..12 {
                for (align, boundary) in
                    [1, 2, 4, 8, 16].into_iter().flat_map(|a| [0, 4, 8, 16].map(|b| (a, b)))
                {
                    for limit in [7, 20, 31, u64::MAX] {
                        let want = Want { align, boundary, limit, ..Want::pages(pages).unwrap() };
                        if want.check().is_ok() {
                            let highest = places(gap, &want).pop();
                            assert_eq!(gap.place(&want), highest, "{want:?} in {gap:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn places_are_right() {
        places_are_the_highest_that_are_right();
    }

    #[test]
    fn what_the_plan_promises_fits() {
        for pages in 1..12 {
            for (align, boundary) in
                [1, 2, 4, 8, 16].into_iter().flat_map(|a| [0, 4, 8, 16].map(|b| (a, b)))
            {
                let want = Want { align, boundary, ..Want::pages(pages).unwrap() };
                let Ok(plan) = want.check().map(|()| Plan::of(&want).unwrap()) else { continue };
                for gap in gaps() {
                    let (has, fits) =
                        (plan.key.of(gap) >= plan.at_least, gap.place(&want).is_some());
                    assert!(fits || !has, "{want:?} is said to fit {gap:?}");
                    assert!(has || !fits || !plan.exact, "{want:?} is said not to fit {gap:?}");
                }
            }
        }
    }
}
